"""The state of a batch during a decode: caches, tokens, lengths, uniforms.  All buffers are
preallocated.

B prompts, R rows (2B with guidance), L image tokens, P prefix slots, N tree nodes, D depth of a
tree, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine import row_ends
from lanternbench.engine.address import Lengths, tree_address
from lanternbench.engine.cache import DecoderCache
from lanternbench.engine.carry import PerPrompt, select
from lanternbench.engine.draft import Draft, VerifyResult, additive
from lanternbench.engine.sampling import Warp
from lanternbench.engine.timing import Clock
from lanternbench.engine.trace import Trace
from lanternbench.engine.verify import Uniforms
from lanternbench.models.target import Prefix, Target


class LastCommit(NamedTuple):
    """What the last step committed, for drafters that read the target's states."""

    # [R, A, dim] the states that predicted each new token; (1 + aux) · dim wide with
    # ``aux_layers``
    hidden: Tensor
    tokens: Tensor  # [B, A] the new tokens; entries past ``advance`` are undefined
    advance: Lengths  # how many
    # [R, A, dim] the states at the tokens before, where row ends may lie between
    before: Tensor | None = None

    def first(self, most: int, advance: Lengths) -> LastCommit:
        """Without entries past the first ``most``; ``advance`` of them count."""
        before = None if self.before is None else self.before[:, :most]
        return LastCommit(self.hidden[:, :most], self.tokens[:, :most], advance, before)


class Progress(NamedTuple):
    """The part of the state that changes from step to step."""

    length: Lengths  # committed image tokens
    root: Tensor  # [B] the last of them: the root of the next tree
    tokens: Tensor  # [B, L + N + 1] all of them; entries past ``length`` are undefined
    last: LastCommit


class CommitPlan(NamedTuple):
    """The changes that a verification makes to the state, computed on the device."""

    last: LastCommit  # of A = D + 1 tokens, whose number the host does not know yet
    length: Tensor  # [B] committed tokens, these included
    source: Tensor | None = None  # places in the cache whose contents move to ``target``
    target: Tensor | None = None


class StepResult(NamedTuple):
    """One step, after its commit."""

    draft: Draft
    q: Tensor  # [B, N, V]
    verified: VerifyResult
    start: Tensor  # [B] committed tokens before the step
    u: Uniforms


@dataclass
class DecodeState:
    """A batch in the middle of its decode."""

    target: Target
    warp: Warp
    guidance: float
    seeds: list[int]
    prefix: Prefix
    cache: DecoderCache
    uniforms: Tensor  # [B, L + 1, N + U]
    max_nodes: int
    max_step_slots: int  # cache slots that a step fills after the committed prefix
    clock: Clock
    trace: Trace | None = None
    aux_layers: tuple[int, ...] = ()  # see ``Proposal``
    now: Progress = field(init=False)
    first: Tensor = field(init=False)  # [B, V] the distribution of token 0
    prefix_states: Tensor | None = None  # [R, P, dim] of the target, until drafters have read them
    steps: int = 0
    syncs: int = 0

    def __post_init__(self) -> None:
        self.batch, self.limit, self.device = (
            len(self.seeds),
            self.target.length,
            self.target.device,
        )
        self.health = torch.zeros((), device=self.device)  # turns NaN with any distribution
        self.columns = torch.arange(self.max_nodes + 1, device=self.device)  # 0 … D of any tree
        self.origin = list(range(self.batch))  # indices of the prompts that are still decoded
        self.prompts = torch.arange(self.batch, device=self.device)[:, None]  # [B, 1] the same
        self.images = torch.zeros(self.batch, self.limit, dtype=torch.long, device=self.device)

    @property
    def recorded(self) -> bool:
        """Are the phases of a step replayed as CUDA graphs?"""
        return self.target.graphs is not None

    @property
    def active(self) -> bool:
        return min(self.now.length.host or (0,)) < self.limit

    def logits(self, states: Tensor) -> Tensor:
        """The target's states [R, N, (1 + aux) · dim] -> guided logits [B, N, V]."""
        if self.aux_layers:  # the final states come first
            states = states[..., : states.shape[-1] // (1 + len(self.aux_layers))].contiguous()
        return self.target.model.logits(states, self.guidance)

    def step_uniforms(self, by_position: bool) -> Uniforms:
        """The uniforms of this step; ``by_position``: also those that belong to image positions."""
        u, position = self.uniforms.select(1, self.steps), None
        if by_position:
            at = (self.now.length.device[:, None] + self.columns[: self.max_nodes]).clamp_(
                max=self.limit
            )
            position = self.uniforms[..., 0].gather(1, at)
        return Uniforms(u[:, : self.max_nodes], u[:, self.max_nodes :], position)

    def unfinished(self) -> list[int] | None:
        """The unfinished prompts, once half of the batch is finished, or None; a recorded batch
        keeps its shape.
        """
        left = [i for i, n in enumerate(self.now.length.host or ()) if n < self.limit]
        return left if left and 2 * len(left) <= self.batch and not self.recorded else None

    def select(self, prompts: list[int]) -> None:
        """Drop all other prompts from the batch."""
        self.finish()
        parts = (self.cache, self.now, self.uniforms, self.prompts)
        self.cache, now, self.uniforms, self.prompts = select(parts, prompts, self.batch)
        advance, length = (
            Lengths.of(x.device, x.host or ()) for x in (now.last.advance, now.length)
        )
        self.now = now._replace(
            last=now.last.first(max(advance.host or (0,)), advance), length=length
        )
        self.seeds, self.origin = ([x[i] for i in prompts] for x in (self.seeds, self.origin))
        self.batch = len(prompts)

    def finish(self) -> Tensor:
        """All images [B, L], including those of dropped prompts."""
        self.images[self.origin] = self.now.tokens[:, : self.limit]
        return self.images


class TreeStates(NamedTuple):
    """The target's states over a tree."""

    next: Tensor  # [R, N, dim] predicts the token after each node
    node: Tensor | None = None  # [R, N, dim] at the node itself, where row ends may lie in between


def forward(state: DecodeState, draft: Draft) -> tuple[TreeStates, Tensor]:
    """The target over all nodes at once: their states and q [B, N, V]."""
    state.clock.tick("other")
    cache, tree, length = state.cache, draft.tree, state.now.length
    x = cache.all_rows(state.target.model.tok_embeddings(draft.tokens))
    if cache.layout.any_row_end(length, tree.max_depth):
        assert cache.row_end is not None
        follows = row_ends.tree_row_ends(cache.layout, length, tree)
        x = torch.cat([x, cache.row_end.expand_as(x)], 1)
        node, after = cache.forward(
            x, row_ends.tree_address(cache.layout, length, tree, follows)
        ).chunk(2, 1)
        states = TreeStates(torch.where(cache.per_row(follows)[..., None], after, node), node)
    else:
        mask = additive(tree.ancestors) if draft.static is None else draft.static.mask
        at = tree_address(cache.layout, length, tree, mask, draft.is_chain)
        states = TreeStates(cache.forward(x, at))
    logits = state.logits(states.next)
    state.clock.tick("verify")
    return states, state.warp(logits)


def plan_commit(
    state: DecodeState, draft: Draft, result: VerifyResult, states: TreeStates
) -> CommitPlan:
    """New tokens, states, lengths and cache moves of a verification; changes nothing yet."""
    path, accepted, token, cache = (
        result.path,
        result.accepted,
        result.token.unsqueeze(1),
        state.cache,
    )
    length, deepest = state.now.length, path.shape[1] - 1
    new = token  # [B, D + 1]
    if deepest:
        drafted = draft.tokens if draft.is_chain else draft.tokens.gather(1, path)
        new = torch.cat([drafted.narrow(1, 1, deepest), token], 1).scatter_(
            1, accepted.unsqueeze(1), token
        )
    longer = (length.device + accepted).add_(1).clamp_(max=state.limit)
    last = LastCommit(states.next, new, Lengths(longer - length.device, None))
    if states.node is not None:
        slots = row_ends.path_slots(
            cache.layout, length, path, state.columns[: deepest + 1], states.node.shape[1]
        )
        before = cache.states_at(states.node, path)
    elif draft.is_chain or not deepest:
        return CommitPlan(last, longer)  # every node is where it belongs
    else:
        root, before = cache.layout.slot_of[length.device][:, None], None
        slots = root + path, root + state.columns[: deepest + 1]
    source, target = map(cache.places, slots)
    return CommitPlan(
        last._replace(hidden=cache.states_at(states.next, path), before=before),
        longer,
        source,
        target,
    )


def commit(
    state: DecodeState, draft: Draft, result: VerifyResult, q: Tensor, plan: CommitPlan
) -> Tensor:
    """Write tokens, move cache entries, advance: the step's only host synchronisation -> [B]
    committed before.
    """
    progress, last = state.now, plan.last
    # a recorded commit has overwritten the length already
    n, recorded = last.tokens.shape[1], state.recorded
    start = plan.length - last.advance.device if recorded else progress.length.device
    if progress.length.shared is not None:
        progress.tokens.narrow(1, progress.length.shared, n).copy_(last.tokens)
    else:
        progress.tokens.scatter_(1, start[:, None] + state.columns[:n], last.tokens)
    if plan.source is not None and plan.target is not None:
        state.cache.move(plan.source, plan.target)
    if state.trace is not None:
        with state.clock.aside("commit"):
            state.trace.record(state.prompts, start, draft, result, q)
    length = Lengths.of(plan.length, PerPrompt(plan.length.tolist()))
    state.syncs += 1
    state.steps += 1
    counts = PerPrompt(
        n - o for n, o in zip(length.host or (), progress.length.host or (), strict=True)
    )
    advance = Lengths.of(last.advance.device, counts)  # recorded phases need fixed shapes
    last = last._replace(advance=advance) if recorded else last.first(max(counts), advance)
    state.now = Progress(length, result.token, progress.tokens, last)
    state.clock.tick("commit")
    return start
