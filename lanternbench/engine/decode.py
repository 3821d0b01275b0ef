"""The decode loop and the step, for every method, order and batch.

A step runs four stages, and a strategy says what happens in each:

    1. draft     ``propose``: which tokens may come next, as a tree or as several rows
    2. forward   ``feed``: where they stand; the target reads them all at once
    3. decide    ``decide``: which of them are committed, and which token ends the step
    4. update    ``update`` on the device, and ``plan`` on the host, prepare the next draft

Between 3 and 4 ``apply`` writes what was decided: the one moment of a step in which the host waits
for the device.  The stages hand named values to each other: a draft, ``Feed``, ``Outputs``,
``Commit``.

B prompts, N nodes, D depth of a tree, A new tokens, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import sub
from time import perf_counter
from typing import Any, Generic, TypeAlias, TypeVar, TypeVarTuple, cast

import torch
from torch import Tensor

from lanternbench.engine import row_ends
from lanternbench.engine.cache import Address, Lengths, prefix_address
from lanternbench.engine.carry import PerPrompt, select
from lanternbench.engine.noise import NoiseAt, gumbel_noise
from lanternbench.engine.opening import begin as begin
from lanternbench.engine.opening import row_seed as row_seed
from lanternbench.engine.proposal import AnyProposer, DraftSize, Size, Stateful
from lanternbench.engine.recording import Recordings
from lanternbench.engine.relaxed import Residual
from lanternbench.engine.sampling import Warp
from lanternbench.engine.simulation import simulate
from lanternbench.engine.state import (
    Commit,
    DecodeState,
    Feed,
    LastCommit,
    Outputs,
    StepResult,
)
from lanternbench.engine.trace import Generation as Generation
from lanternbench.engine.trace import Log, Trace
from lanternbench.engine.tree import Draft, VerifyResult, numbers
from lanternbench.engine.verify import RatioTest, Uniforms
from lanternbench.errors import UserError
from lanternbench.models.target import Target
from lanternbench.models.transformer import additive
from lanternbench.registry import plugin_errors

C = TypeVar("C")  # what a strategy carries from step to step
D = TypeVar("D")  # a draft
R = TypeVar("R")  # the result of a step
U = TypeVar("U")  # the uniforms of a step
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def step(decoder: SpeculativeDecoder, state: DecodeState, carried: Carried) -> tuple[Carried, Any]:
    """Run one forward pass of the target, which commits at least one token per unfinished prompt.

    ``carried``: the strategy's state.  Each phase is launched operation by operation, or replayed
    as one CUDA graph.  Returns the strategy's next state, and the result of the step.
    """
    strategy = decoder.strategy
    run = Phases(decoder, state, carried)
    u = strategy.step_uniforms(state)

    # 1. Draft the tokens that may come next.
    draft = run("draft", strategy.propose, carried, u)

    # 2. The target reads them all at once.
    outputs = run("verify", forward, strategy, draft)

    # 3. Decide which of them are committed, and write these.
    commit, result = run("commit", strategy.decide, draft, outputs, u)
    if state.trace is not None:
        with state.clock.aside("commit"):
            state.trace.record(state.prompts, result)
    figures = apply(state, commit)

    # 4. Prepare the next draft, on the device and on the host.
    if strategy.updates:
        carried = run("update", strategy.update, carried, result)
    if strategy.plans:
        carried = strategy.plan(state, carried, result, figures)
    return carried, result


def forward(state: DecodeState, strategy: AnyStrategy, draft: D) -> Outputs:
    """Run the target over all inputs at once."""
    feed = strategy.feed(state, draft)
    state.clock.tick("other")
    cache = state.cache
    model = state.target.model
    x = cache.all_rows(model.tok_embeddings(feed.tokens))
    if feed.row_ends is not None and cache.row_end is not None:
        is_row_end = cache.per_row(feed.row_ends)[..., None]
        x = torch.where(is_row_end, cache.row_end, x)
    states = cache.forward(x, feed.address, aux_layers=state.aux_layers)
    deciding = states
    if isinstance(feed.reads, slice):
        deciding = states[:, feed.reads]
    elif feed.reads is not None:
        deciding = cache.states_at(states, feed.reads)
    final = state.final(deciding) if state.aux_layers else deciding
    logits = model.logits(final, state.guidance)
    state.clock.tick("verify")
    return Outputs(logits, deciding, states)


def apply(state: DecodeState, commit: Commit) -> list[list[int]]:
    """Write the new tokens, move cache entries and advance.

    The host waits for the device here and nowhere else.  Returns the commit's ``figures``.
    """
    now = state.now
    if isinstance(commit.positions, slice):
        now.tokens[:, commit.positions] = commit.tokens
    else:
        now.tokens.scatter_(1, commit.positions, commit.tokens)
    if commit.moves is not None:
        state.cache.move(*commit.moves)
    state.health += commit.health
    if commit.figures is None:
        figures: list[list[int]] = []
        length = PerPrompt(commit.length.tolist())
    else:
        figures = commit.figures.tolist()
        length = PerPrompt([row[0] for row in figures])
    state.syncs += 1
    state.steps += 1
    length_before = now.length.host or ()
    counts = PerPrompt(map(sub, length, length_before))
    advance = Lengths(commit.advance, counts)
    last = LastCommit(commit.hidden, commit.tokens, advance, commit.before)
    if state.target.graphs is None:  # recorded phases need fixed shapes
        new = max(counts)
        inputs = None if commit.before is None else commit.before[:, :new]
        last = LastCommit(commit.hidden[:, :new], commit.tokens[:, :new], advance, inputs)
    lengths = Lengths(commit.length, length)
    state.now = now._replace(length=lengths, root=commit.root, last=last)
    state.clock.tick("commit")
    return figures


class Phases:
    """Runs the phases of one step, operation by operation or each as one CUDA graph."""

    def __init__(self, decoder: SpeculativeDecoder, state: DecodeState, carried: Carried):
        self.state = state
        self.recordings: Recordings | None = None
        if state.target.graphs is not None:
            self.recordings = decoder.recordings
            self.bucket = decoder.strategy.bucket(carried)
            self.reach = decoder.strategy.reach(state, carried)

    def __call__(
        self, name: str, work: Callable[[DecodeState, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Return ``work(state, *arguments)``."""
        state = self.state
        if self.recordings is None:
            return work(state, *arguments)
        replay = self.recordings.replay
        replayed: T = replay(state, self.bucket, self.reach, name, work, *arguments)
        return replayed


class Strategy(Stateful[C], Generic[C, D, R, U]):
    """The way in which tokens are drafted and committed: by draft trees, or several rows at once.

    ``carried`` is its state, of the types that ``engine.carry`` lists.  ``propose``, ``feed``,
    ``decide`` and ``update`` are recorded as CUDA graphs: they may read only tensors.
    """

    in_raster_order: bool = True
    speculation: Speculation  # how one row is drafted and verified
    plans: bool = False  # whether ``plan`` does anything

    def prefix_address(self, state: DecodeState) -> Address:
        """Return where the prompt stands in the target's cache."""
        return prefix_address(state.prefix.valid, 0, state.target.pad_rows)

    def first_logits(self, state: DecodeState, states: Tensor) -> Tensor:
        """Return the guided logits [B, 1, V] of token 0 from the prompt's last states [R, 1, …]."""
        return state.target.model.logits(state.final(states), state.guidance)

    def trace(self, state: DecodeState) -> Trace:
        """Return what keeps the distributions of a decode, after the target's prefill."""
        size = self.size
        length = state.limit + size.nodes + 1
        width = max(size.width, 1)
        trace = Trace(state.batch, length, state.target.vocab, width, state.device)
        trace.q[:, 0] = state.first
        return trace

    def step_uniforms(self, state: DecodeState) -> U:
        """Return the step's uniforms, which no recorded phase may look up by itself."""
        return cast(U, state.uniforms.select(1, state.steps))  # [B, N + U]

    @abstractmethod
    def propose(self, state: DecodeState, carried: C, u: U) -> D:
        """Return the next draft."""

    @abstractmethod
    def feed(self, state: DecodeState, draft: D) -> Feed:
        """Return the inputs of the target's forward pass."""

    @abstractmethod
    def decide(self, state: DecodeState, draft: D, outputs: Outputs, u: U) -> tuple[Commit, R]:
        """Return what the step commits, and its result."""

    def plan(self, state: DecodeState, carried: C, result: R, figures: list[list[int]]) -> C:
        """Return the next state, by work on the host, which has the commit's ``figures``."""
        return carried

    @abstractmethod
    def sizes(self, carried: C, result: R) -> Sequence[Size]:
        """Return depth and nodes of each prompt's draft in the step that began with ``carried``."""

    @abstractmethod
    def reach(self, state: DecodeState, carried: C) -> int:
        """Return how many cache slots the next step reads at most."""


AnyStrategy: TypeAlias = Strategy[Any, Any, Any, Any]
Carried: TypeAlias = Any  # a strategy's own state, which a step hands on


@dataclass(frozen=True, eq=False)
class Speculation(Strategy[Carried, Draft, StepResult, Uniforms]):
    """Draft trees, each verified by one forward pass over all its nodes."""

    proposer: AnyProposer
    rule: RatioTest
    residual: Residual
    rates: Tensor | None = None  # [D + 1, D] if acceptance is simulated: ``simulation.reach``

    @property
    def speculation(self) -> Speculation:  # type: ignore[override]
        return self

    @property
    def size(self) -> DraftSize:  # type: ignore[override]
        return self.proposer.size

    @cached_property
    def step_slots(self) -> int:
        return self.proposer.step_slots

    @property
    def aux_layers(self) -> tuple[int, ...]:
        return self.proposer.aux_layers

    @cached_property
    def updates(self) -> bool:
        return self.proposer.updates

    @cached_property
    def plans(self) -> bool:  # type: ignore[override]
        return self.proposer.plans

    def begin(self, state: DecodeState) -> Carried:
        return self.proposer.begin(state)

    def step_uniforms(self, state: DecodeState) -> Uniforms:
        """Split the step's uniforms; a rule may also need those that belong to image positions."""
        nodes = state.max_nodes
        u = state.uniforms.select(1, state.steps)
        of_nodes, of_drafts = u.split_with_sizes([nodes, u.shape[1] - nodes], 1)
        by_position = None
        if self.rule.by_position:
            positions = state.now.length.device[:, None] + numbers(nodes, u.device)
            one_per_token = state.uniforms[..., 0]
            by_position = one_per_token.gather(1, positions.clamp_(max=state.limit))
        return Uniforms(of_nodes, of_drafts, by_position)

    def propose(self, state: DecodeState, carried: Carried, u: Uniforms) -> Draft:
        return self.proposer.draft(state, carried, u.draft)

    def feed(self, state: DecodeState, draft: Draft) -> Feed:
        static = draft.static
        tree = draft.tree if static is None else static.tree
        cursor = state.cache.cursor(state.now.length, state.span)
        if cursor.layout.any_row_end(cursor.lengths, tree.max_depth):
            return row_ends.tree_feed(cursor, draft.tokens, tree)
        if static is None:
            mask = additive(tree.ancestors)
            address = cursor.tree(tree, mask)
        else:
            address = cursor.tree(tree, static.mask, static.is_chain)
        return Feed(draft.tokens, address)

    def decide(
        self,
        state: DecodeState,
        draft: Draft,
        outputs: Outputs,
        u: Uniforms,
    ) -> tuple[Commit, StepResult]:
        q = state.warp(outputs.logits)
        drawn = q
        if state.warp.shares_noise:
            drawn = state.drawn_after(q, draft.tree.depth)
        verified = self.verify(draft, drawn, u, state.warp.greedy)
        start = state.now.length.device
        result = StepResult(draft, q, verified, start, u, drawn)
        return tree_commit(state, result, outputs), result

    def verify(self, draft: Draft, q: Tensor, u: Uniforms, greedy: bool) -> VerifyResult:
        """Return which drafted tokens are accepted, and the token that ends the step."""
        verified = self.rule.verify(draft, q, u, self.residual, greedy)
        if self.rates is not None:
            verified = simulate(draft, verified, self.rates, u.verify[:, -1])
        return verified

    def update(self, state: DecodeState, carried: Carried, result: StepResult) -> Carried:
        return self.proposer.update(state, carried, result)

    def plan(
        self,
        state: DecodeState,
        carried: Carried,
        result: StepResult,
        figures: list[list[int]],
    ) -> Carried:
        return self.proposer.plan(state, carried)

    def sizes(self, carried: Carried, result: StepResult) -> Sequence[Size]:
        tree = result.draft.tree
        whole = ((tree.max_depth, tree.nodes),) * len(result.start)
        return self.proposer.sizes(carried) or whole

    def bucket(self, carried: Carried) -> Hashable:
        return self.proposer.bucket(carried)

    def canonical(self, carried: Carried) -> Carried:
        return self.proposer.canonical(carried)

    def reach(self, state: DecodeState, carried: Carried) -> int:
        layout = state.cache.layout
        drafted = self.step_slots
        if layout.width:
            drafted = 2 * drafted + 1
        return layout.slots[state.now.length.longest] + 1 + drafted


def tree_commit(state: DecodeState, result: StepResult, outputs: Outputs) -> Commit:
    """Return the new tokens, states, lengths and cache moves of a verification."""
    draft = result.draft
    verified = result.verified
    start = result.start
    shared = state.now.length.shared
    width = verified.path.shape[1]
    length = (start + verified.accepted).add_(1).clamp_(max=state.limit)
    health = result.q.select(2, 0).sum()
    if draft.p is not None:
        health.add_(draft.p.select(2, 0).sum())
    positions: Tensor | slice
    if shared is None:
        positions = start[:, None] + numbers(width, start.device)
    else:
        positions = slice(shared, shared + width)
    is_chain = draft.static is not None and draft.static.is_chain
    commit = Commit(
        tokens=committed_tokens(draft.tokens, verified, is_chain),
        positions=positions,
        advance=length - start,
        length=length,
        root=verified.token,
        health=health,
        hidden=outputs.features,
    )
    without_row_ends = outputs.inputs.shape[1] == draft.tokens.shape[1]
    if without_row_ends and (is_chain or width == 1):
        return commit  # every node is where it belongs
    return with_moves(state, result, outputs, commit)


def with_moves(state: DecodeState, result: StepResult, outputs: Outputs, commit: Commit) -> Commit:
    """Return the commit with the states at its nodes, and the moves of these in the cache."""
    cache = state.cache
    path = result.verified.path
    nodes = result.draft.tokens.shape[1]
    has_row_ends = outputs.inputs.shape[1] > nodes
    before: Tensor | None = None
    if has_row_ends:
        before = cache.states_at(outputs.inputs, path)
    return commit._replace(
        hidden=cache.states_at(outputs.features, path),
        before=before,
        moves=cache.path_moves(result.start, path, nodes, has_row_ends),
    )


def committed_tokens(drafted: Tensor, verified: VerifyResult, is_chain: bool) -> Tensor:
    """Return the accepted tokens and the one after them: [B, D + 1]; drafted [B, N]."""
    token = verified.token.unsqueeze(1)
    depth = verified.path.shape[1] - 1
    if depth == 0:
        return token
    on_path = drafted if is_chain else drafted.gather(1, verified.path)
    tokens = torch.cat([on_path.narrow(1, 1, depth), token], 1)
    return tokens.scatter_(1, verified.accepted.unsqueeze(1), token)


@dataclass
class SpeculativeDecoder:
    """A method made ready for a target: build once, use for any number of prompts."""

    target: Target
    method: Any  # methods.method.Method: its key seeds the draws
    warp: Warp
    guidance: float
    strategy: AnyStrategy
    recordings: Recordings = field(default_factory=Recordings)
    noise: NoiseAt = gumbel_noise  # that draws share

    @property
    def proposer(self) -> AnyProposer:
        return self.strategy.speculation.proposer

    @property
    def rule(self) -> RatioTest:
        return self.strategy.speculation.rule

    @property
    def residual(self) -> Residual:
        return self.strategy.speculation.residual

    @property
    def rates(self) -> Tensor | None:
        return self.strategy.speculation.rates

    @property
    def lossless(self) -> bool | None:
        """Return whether the method claims to keep the target's distribution.

        None: acceptance is simulated.
        """
        return self.method.lossless if self.rates is None else None

    @property
    def parts(self) -> tuple[Any, ...]:
        """The method's components, and the target's model."""
        return (*self.method.parts, self.residual.weights, self.target.model)


@torch.inference_mode()
def generate(
    decoder: SpeculativeDecoder,
    captions: list[str],
    keys: list[str] | None = None,
    seed: int = 0,
    trace: bool = False,
    max_steps: int | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Generation]:
    """Decode one image per caption, all in one batch.  An image is a function of (seed, its key,
    method).

    ``keys``: the captions by default.  ``trace``: keep the distributions of target and drafter.
    ``max_steps``: stop early, for warm-ups.  ``on_step``: called after every step with the batch's
    tokens so far and in all.  Raises UserError for NaN or infinite logits, and in place of any
    exception that a plug-in raises.
    """
    with plugin_errors(*decoder.parts):
        began = perf_counter()
        keys = keys or captions
        seeds = [row_seed(seed, key, decoder.method.key) for key in keys]
        noise = [row_seed(seed, key, "noise") for key in keys]
        state, carried = begin(decoder, captions, seeds, trace, noise)
        state.clock.start()  # waits for the device
        log = Log(state)
        tokens = state.batch  # the prefill gives each its first token
        encode_s = perf_counter() - began
        while state.active and state.steps != max_steps:
            if prompts := state.unfinished():
                carried = select(carried, prompts, state.batch)
                state.select(prompts)
            begun_with = carried
            carried, result = step(decoder, state, begun_with)
            log.note(state, decoder.strategy.sizes(begun_with, result))
            if on_step is not None:
                tokens += sum(state.now.last.advance.host or ())
                on_step(tokens, state.limit * len(captions))
            state.clock.end_step()
        decode_s = state.clock.stop()
        if state.trace is not None:
            state.trace.cut(state.limit)
        if not bool(state.health.isfinite()):
            raise UserError(
                f"the logits of target '{state.target.name}' or its drafter became NaN or infinite "
                f"while '{decoder.method.label}' decoded; check the weights, or give --dtype float32"
            )
        return log.generations(state, encode_s, decode_s)
