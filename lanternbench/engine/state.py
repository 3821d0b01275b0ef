"""The state of a batch during a decode, and what the stages of a step hand to each other.

B prompts, R rows (2B with guidance), L image tokens, P prefix slots, N tree nodes, n inputs of a
forward pass, D depth of a tree, A new tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.cache import Address, DecoderCache, Lengths, Span
from lanternbench.engine.carry import select
from lanternbench.engine.noise import NoiseAt, gumbel_noise, perturbed
from lanternbench.engine.sampling import Warp
from lanternbench.engine.timing import Clock
from lanternbench.engine.trace import Trace
from lanternbench.engine.tree import Draft, VerifyResult
from lanternbench.engine.verify import Uniforms
from lanternbench.models.target import Prefix, Target


class Feed(NamedTuple):
    """The inputs of one forward pass of the target."""

    tokens: Tensor  # [B, n] drafted nodes, active rows; any token for a row end
    address: Address
    # which outputs predict the tokens that the step decides on, [B, N] or a slice; None: all
    reads: Tensor | slice | None = None
    row_ends: Tensor | None = None  # [b, n] bool: the inputs that are row ends; None: none are


class Outputs(NamedTuple):
    """The results of the target's forward pass."""

    logits: Tensor  # [B, N, V] guided, of the token after each node
    # [R, N, dim] the states that they come from; (1 + aux) · dim wide with ``aux_layers``
    features: Tensor
    inputs: Tensor  # the same at every input [R, n, dim]


class Commit(NamedTuple):
    """The decision of a step, computed on the device."""

    tokens: Tensor  # [B, A] new tokens
    # image positions of the new tokens, [B, A] or a slice; those past the image are void
    positions: Tensor | slice
    advance: Tensor  # [B] how many of the new tokens count
    length: Tensor  # [B] committed tokens, these included
    root: Tensor  # [B] the last of them
    health: Tensor  # a scalar, NaN if any distribution is
    hidden: Tensor  # see ``LastCommit``
    figures: Tensor | None = None  # [B, 1 + k] the length, and what else the host plans with
    before: Tensor | None = None
    moves: tuple[Tensor, Tensor] | None = None  # places in the cache: what moves, and where to


class LastCommit(NamedTuple):
    """The last step's commit, for drafters that read the target's states."""

    # [R, A, dim] the states that predicted each new token; (1 + aux) · dim wide with
    # ``aux_layers``
    hidden: Tensor
    tokens: Tensor  # [B, A] the new tokens; entries past ``advance`` are undefined
    advance: Lengths  # how many
    # [R, A, dim] the states at the tokens before, if row ends may lie between
    before: Tensor | None = None


class Progress(NamedTuple):
    """The part of the state that changes from step to step."""

    length: Lengths  # committed image tokens
    root: Tensor  # [B] the last of them: the root of the next tree
    tokens: Tensor  # [B, L + N + 1] all of them; entries past ``length`` are undefined
    last: LastCommit
    noise: Tensor  # [B] int64 the key of each image's noise, which does not change


class StepResult(NamedTuple):
    """One step that verified a draft tree."""

    draft: Draft
    q: Tensor  # [B, N, V]
    verified: VerifyResult
    start: Tensor  # [B] committed tokens before the step
    u: Uniforms
    drawn: Tensor  # [B, N, V] what tokens were drawn from: q, or q perturbed by shared noise


@dataclass
class DecodeState:
    """A batch in the middle of its decode.  Its buffers are allocated before the first step."""

    target: Target
    warp: Warp
    guidance: float
    seeds: list[int]
    prefix: Prefix
    cache: DecoderCache
    uniforms: Tensor  # [B, L + 1, N + U]
    max_nodes: int
    clock: Clock
    aux_layers: tuple[int, ...] = ()  # see ``Proposal``
    trace: Trace | None = None
    now: Progress = field(init=False)
    first: Tensor = field(init=False)  # [B, V] the distribution of token 0
    # [R, P, dim] of the target, until drafters have read them; then empty
    prefix_states: Tensor = field(init=False)
    span: Span | None = None  # while a CUDA graph is recorded
    tables: list[Tensor] = field(default_factory=list)  # see ``table``
    noise: NoiseAt = gumbel_noise  # see ``drawn``
    steps: int = 0
    syncs: int = 0
    batch: int = field(init=False)
    limit: int = field(init=False)  # L
    device: torch.device = field(init=False)
    health: Tensor = field(init=False)  # a scalar that turns NaN with any distribution
    origin: list[int] = field(init=False)  # indices of the prompts that are still decoded
    prompts: Tensor = field(init=False)  # [B, 1] the same
    images: Tensor = field(init=False)  # [B, L] those of dropped prompts

    def __post_init__(self) -> None:
        device = self.target.device
        self.batch = len(self.seeds)
        self.limit = self.target.length
        self.device = device
        self.health = torch.zeros((), device=device)
        self.origin = list(range(self.batch))
        self.prompts = torch.arange(self.batch, device=device)[:, None]
        self.images = torch.zeros(self.batch, self.limit, dtype=torch.long, device=device)

    @property
    def active(self) -> bool:
        return min(self.now.length.host or (0,)) < self.limit

    def attended(self, filled: int) -> int:
        """Return how many slots a forward pass attends to if ``filled`` hold what it reads; while a
        CUDA graph is recorded, more.
        """
        if self.span is None:
            return filled
        return self.span()

    def drawn(self, p: Tensor, position: Tensor) -> Tensor:
        """Return what the tokens of image positions [B, …] are drawn from: p [B, …, V], or with
        shared noise the perturbed p, whose argmax is the token.
        """
        if not self.warp.shares_noise:
            return p
        return perturbed(p, self.noise(self.now.noise, position, p))

    def drawn_after(self, p: Tensor, depth: Tensor | int) -> Tensor:
        """Return what the tokens after nodes at ``depth`` of a tree are drawn from, see ``drawn``:
        p [B, …, V].
        """
        if not self.warp.shares_noise:
            return p
        inner_dims = [1] * (p.ndim - 2)
        start = self.now.length.device.view(-1, *inner_dims)
        return self.drawn(p, start + depth)

    def final(self, states: Tensor) -> Tensor:
        """Return the states after the last layer, without those of ``aux_layers``."""
        if not self.aux_layers:
            return states
        return states[..., : self.target.model.config.dim]

    def table(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return zeros that the phases of all steps read and write in place.

        Recorded phases find tables of one size in the same memory in every decode.
        """
        if self.target.graphs is None:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        tables = self.target.graphs.tables
        key = (shape, dtype)
        if key not in tables:
            tables[key] = torch.zeros(shape, dtype=dtype, device=self.device)
        table = tables[key].zero_()
        self.tables.append(table)
        return table

    def unfinished(self) -> list[int] | None:
        """Return the unfinished prompts once half of the batch is finished, else None.

        A recorded batch keeps its shape: None.
        """
        if self.target.graphs is not None:
            return None
        lengths = self.now.length.host or ()
        left = [i for i, length in enumerate(lengths) if length < self.limit]
        if left and 2 * len(left) <= self.batch:
            return left
        return None

    def select(self, prompts: list[int]) -> None:
        """Drop all other prompts from the batch."""
        self.finish()
        parts = (self.cache, self.now, self.uniforms, self.prompts)
        self.cache, now, self.uniforms, self.prompts = select(parts, prompts, self.batch)
        last = now.last
        new = last.advance.longest
        before = last.before
        if before is not None:
            before = before[:, :new]
        last = LastCommit(last.hidden[:, :new], last.tokens[:, :new], last.advance, before)
        self.now = now._replace(last=last)
        self.seeds = [self.seeds[i] for i in prompts]
        self.origin = [self.origin[i] for i in prompts]
        self.batch = len(prompts)

    def finish(self) -> Tensor:
        """Return all images [B, L], including those of dropped prompts."""
        self.images[self.origin] = self.now.tokens[:, : self.limit]
        return self.images
