"""The state of a batch of prompts during a decode: caches, tokens, lengths, uniforms.  All buffers are preallocated.

B prompts, R rows (2B with guidance), L image tokens, P prefix slots, N tree nodes, D depth of a tree, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.carry import PerPrompt, select
from lanternbench.engine.sampling import BELOW_ONE, Warp, draw
from lanternbench.engine.timing import Clock
from lanternbench.engine.trace import Trace
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import Uniforms, VerifyResult
from lanternbench.models.cached_stack import CachedStack, Lengths, additive
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.image_stack import ImageStack, Mask, TreeStates, image_stack
from lanternbench.models.target import Prefix, Target
from lanternbench.models.transformer import DecoderConfig


class LastCommit(NamedTuple):
    """What the last step committed, for drafters that read the target's states."""

    hidden: Tensor  # [R, A, dim] the states that predicted each new token; (1 + aux) · dim wide with ``aux_layers``
    tokens: Tensor  # [B, A] the new tokens; entries past ``advance`` are undefined
    advance: Lengths  # how many
    own: Tensor | None = None  # [R, A, dim] states of the tokens before, where row ends lie between


class Progress(NamedTuple):
    """The part of the state that changes from step to step."""

    length: Lengths  # committed image tokens
    root: Tensor  # [B] the last of them: the root of the next tree
    tokens: Tensor  # [B, L + N + 1] all of them; entries past ``length`` are undefined
    last: LastCommit


class CommitPlan(NamedTuple):
    """The changes that a verification makes to the state, computed on the device."""

    tokens: Tensor  # [B, D + 1] new tokens; entries past ``advance`` are undefined
    hidden: Tensor  # [R, D + 1, dim] the states that predicted each
    own: Tensor | None  # see ``LastCommit``
    length: Tensor  # [B] committed tokens, these included
    advance: Tensor  # [B]
    source: Tensor | None = None  # cache entries that move to ``target``
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
    stack: ImageStack
    uniforms: Tensor  # [B, L + 1, N + U]
    max_nodes: int
    room: int  # maximum number of cache slots that a step fills after the committed prefix
    clock: Clock
    trace: Trace | None = None
    aux_layers: tuple[int, ...] = ()  # see ``Proposer``
    now: Progress = field(init=False)
    first: Tensor = field(init=False)  # [B, V] the distribution of token 0
    prefix_states: Tensor | None = None  # [R, P, dim] of the target, until drafters have read them
    steps: int = 0
    syncs: int = 0

    def __post_init__(self) -> None:
        self.batch, self.limit, self.device = len(self.seeds), self.target.length, self.target.device
        self.health = torch.zeros((), device=self.device)  # turns NaN with any distribution
        self.columns = torch.arange(self.max_nodes + 1, device=self.device)  # 0 … D of any tree
        self.origin = list(range(self.batch))  # indices of the prompts that are still decoded
        self.prompts = torch.arange(self.batch, device=self.device)[:, None]  # [B, 1] the same
        self.images = torch.zeros(self.batch, self.limit, dtype=torch.long, device=self.device)
        self._visible: Tensor | None = None

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

    def at(self, now: Progress) -> DecodeState:
        """A shallow copy of the state with another ``now``, for recording."""
        other = object.__new__(DecodeState)
        other.__dict__ = self.__dict__ | {"now": now}
        return other

    def step_uniforms(self, by_position: bool) -> Uniforms:
        """The uniforms of this step; ``by_position``: also those that belong to image positions."""
        u, position = self.uniforms[:, self.steps], None
        if by_position:
            at = (self.now.length.device[:, None] + self.columns[: self.max_nodes]).clamp_(max=self.limit)
            position = self.uniforms[..., 0].gather(1, at)
        return Uniforms(u[:, : self.max_nodes], u[:, self.max_nodes :], position)

    def unfinished(self) -> list[int] | None:
        """The unfinished prompts, once at least half of the batch is finished; before that None.

        Always None for a recorded batch, which keeps its shape.
        """
        left = [i for i, n in enumerate(self.now.length.host or ()) if n < self.limit]
        return left if left and 2 * len(left) <= self.batch and not self.recorded else None

    def select(self, prompts: list[int]) -> None:
        """Drop all other prompts from the batch."""
        self.finish()
        parts = (self.stack, self.now, self.uniforms, self.prompts)
        self.stack, now, self.uniforms, self.prompts = select(parts, prompts, self.batch)
        last, most = now.last, max(now.last.advance.host or (0,))
        own = None if last.own is None else last.own[:, :most]
        last = last._replace(hidden=last.hidden[:, :most], tokens=last.tokens[:, :most], own=own)
        self.now = now._replace(last=last)
        self.seeds, self.origin = ([x[i] for i in prompts] for x in (self.seeds, self.origin))
        self.batch = len(prompts)

    def finish(self) -> Tensor:
        """All images [B, L], including those of dropped prompts."""
        self.images[self.origin] = self.now.tokens[:, : self.limit]
        return self.images


def row_seed(seed: int, key: str, method: str) -> int:
    """The seed of one image: a function of (seed, prompt, method) and of nothing else."""
    digest = hashlib.blake2b(f"{seed}\0{key}\0{method}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def row_uniforms(seeds: list[int], length: int, count: int, device: torch.device) -> Tensor:
    """Uniforms [B, length + 1, count]: a row per step, and the last row for token 0."""
    draws = [torch.rand(length + 1, count, generator=torch.Generator().manual_seed(s)) for s in seeds]
    return torch.stack(draws).clamp_(max=BELOW_ONE).to(device)


def open_stack(
    target: Target,
    net: Any,
    prefix: Prefix,
    room: int,
    *,
    row_end: Callable[[Tensor], Tensor] | None,
    borrowed: tuple[DecoderConfig, Tensor] | None = None,
    lag: int = 0,
    aux_layers: tuple[int, ...] = (),
) -> ImageStack:
    """A cache and its addressing for ``net``, the target's decoder or a drafter's.

    ``row_end``: see ``RowEndStack``; ``borrowed``: shape and rotary table where ``net`` has none of its own; ``lag``:
    see ``ImageStack``; ``aux_layers``: see ``transformer.Stack``.
    """
    rows, positions = prefix.valid.shape
    shared = None if target.graphs is None else target.graphs.stacks
    slots = positions + target.layout.slots(room)
    config, rope = borrowed or (net.config.decoder, net.position_table)
    stack = CachedStack(net, config, rows, slots, rope, prefix.embeddings, shared, aux_layers)
    return image_stack(stack, target.layout, positions, lag, row_end if target.layout.width else None)


def prefill(state: DecodeState) -> None:
    """Run the prefix and draw the first token."""
    target, prefix = state.target, state.prefix
    positions = prefix.valid.shape[1]
    state.stack.stack.hide_pads(prefix.valid)
    mask = additive(prefix_mask(prefix.valid, positions, target.pad_rows)[:, 0])
    hidden = state.stack.stack.prefill(prefix.embeddings, range(positions), mask)
    q = state.warp(state.logits(hidden[:, -1:]))  # [B, 1, V]
    first = q[:, 0].argmax(-1) if state.warp.greedy else draw(q[:, 0], state.uniforms[:, -1, 0])
    tokens = torch.zeros(state.batch, state.limit + state.max_nodes + 1, dtype=torch.long, device=state.device)
    tokens[:, 0] = first
    ones = PerPrompt((1,) * state.batch)
    one = torch.ones(state.batch, dtype=torch.long, device=state.device)
    last = LastCommit(hidden[:, -1:], first[:, None], Lengths(one.clone(), ones))
    state.now = Progress(Lengths(one, ones), first, tokens, last)
    state.first, state.prefix_states = q[:, 0], hidden
    if state.trace is not None:
        state.trace.q[:, 0] = state.first


def forward(state: DecodeState, draft: Draft) -> tuple[TreeStates, Tensor]:
    """The target over all nodes at once: their states and q [B, N, V]."""
    state.clock.tick("other")
    model, tree = state.target.model, draft.tree
    x = state.stack.stack.all_rows(model.tok_embeddings(draft.tokens))
    mask = Mask(tree.ancestors, _visible(state, draft), draft.is_chain, tree.max_depth)
    states = state.stack.tree(x, tree.depth, mask, state.now.length)
    logits = state.logits(states.next)
    state.clock.tick("verify")
    return states, state.warp(logits)


def _visible(state: DecodeState, draft: Draft) -> Tensor | None:
    """Additive ancestor mask [b, N, N] of a tree, None for a lone root; computed once for a static tree."""
    if draft.tree.nodes == 1:
        return None
    if draft.static is None:
        return additive(draft.tree.ancestors, state.stack.stack.dtype)
    if state._visible is None:
        state._visible = additive(draft.tree.ancestors, state.stack.stack.dtype)
    return state._visible


def plan_commit(state: DecodeState, draft: Draft, result: VerifyResult, states: TreeStates) -> CommitPlan:
    """New tokens, states, lengths and cache moves of a verification; changes nothing yet."""
    path, accepted, token = result.path, result.accepted, result.token[:, None]
    length, columns = state.now.length, state.columns[: path.shape[1]]
    new = token  # [B, D + 1]
    if path.shape[1] > 1:
        drafted = (draft.tokens if draft.is_chain else draft.tokens.gather(1, path))[:, 1:]
        new = torch.cat([drafted, token], 1).scatter_(1, accepted[:, None], token)
    settled = state.stack.settle(states, path, columns, length, draft.is_chain)
    longer = (length.device + accepted).add_(1).clamp_(max=state.limit)
    return CommitPlan(new, settled.next, settled.own, longer, longer - length.device, settled.source, settled.target)


def commit(state: DecodeState, draft: Draft, result: VerifyResult, q: Tensor, plan: CommitPlan) -> None:
    """Write tokens, move cache entries, advance.  The step's only host synchronisation is here."""
    now, n = state.now, plan.tokens.shape[1]
    start = plan.length - plan.advance  # a recorded commit has overwritten ``now.length`` already
    if now.length.equal and now.length.host is not None:
        now.tokens[:, now.length.host[0] : now.length.host[0] + n] = plan.tokens
    else:
        now.tokens.scatter_(1, start[:, None] + state.columns[:n], plan.tokens)
    if plan.source is not None and plan.target is not None:
        state.stack.stack.cache.move(plan.source, plan.target)
    if state.trace is not None:
        with state.clock.aside("commit"):
            state.trace.record(state.prompts, start, draft, result, q)
    length = Lengths(plan.length, PerPrompt(plan.length.tolist()))
    state.syncs += 1
    state.steps += 1
    assert length.host is not None
    assert now.length.host is not None
    counts = PerPrompt(n - o for n, o in zip(length.host, now.length.host, strict=True))
    new, hidden, own = plan.tokens, plan.hidden, plan.own
    if not state.recorded:  # recorded phases need fixed shapes
        most = max(counts)
        new, hidden, own = new[:, :most], hidden[:, :most], None if own is None else own[:, :most]
    last = LastCommit(hidden, new, Lengths(plan.advance, counts), own)
    state.now = Progress(length, result.token, now.tokens, last)
    state.clock.tick("commit")
