"""Whole anti-diagonals at once: step d feeds the tokens with row + column = d and draws those of
the next diagonal.

A token is predicted from the states of its neighbours to the left and above.  The states of an
input come from the prompt and from the tokens up to its own diagonal; if ``causal``, from those
among them that are earlier in raster order, so that fidelity loss bounds what is drawn.

B prompts, R rows, n inputs, m new tokens, V vocabulary; H rows of W columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.cache import Address, DecoderCache
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.decode import Speculation, Strategy
from lanternbench.engine.opening import open_cache
from lanternbench.engine.proposal import DraftSize, Size
from lanternbench.engine.rows import RowTrace
from lanternbench.engine.state import Commit, DecodeState, Feed, Outputs
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.flashar import FlashAR
from lanternbench.models.grids import Grid
from lanternbench.models.transformer import Depths, additive, guide


class Diagonal(NamedTuple):
    """The tokens of one anti-diagonal from the top right down, [n] each."""

    row: Tensor
    column: Tensor
    exists: Tensor  # bool; a recorded step has as many entries as the longest diagonal


@dataclass(frozen=True, eq=False)
class Diagonals:
    """The anti-diagonals of an image."""

    height: int
    width: int
    causal: bool
    places: Tensor  # 0 … min(H, W) − 1

    @classmethod
    def of(cls, grid: Grid, causal: bool, device: torch.device) -> Diagonals:
        height, width = grid
        return cls(height, width, causal, torch.arange(min(grid), device=device))

    @property
    def longest(self) -> int:
        return min(self.height, self.width)

    def count(self, number: int) -> int:
        """Return how many tokens diagonal ``number`` has."""
        first = max(0, number - self.width + 1)
        return min(number, self.height - 1) - first + 1

    def last_index(self, number: int) -> int:
        """Return the raster index of the lowest token of diagonal ``number``."""
        row = min(number, self.height - 1)
        return row * self.width + number - row

    def diagonal(self, number: Tensor, count: int) -> Diagonal:
        first_row = (number - self.width + 1).clamp(min=0)
        row = first_row + self.places[:count]
        column = number - row
        exists = (row < self.height) & (column >= 0)
        row = row.clamp(max=self.height - 1)
        return Diagonal(row, column.clamp(min=0), exists)

    def index(self, diagonal: Diagonal) -> Tensor:
        """Return raster indices [n]."""
        return diagonal.row * self.width + diagonal.column

    def seen(self, diagonal: Diagonal, offsets: Tensor) -> Tensor:
        """Return which image tokens each input sees: bool [n, span]; offsets [span] from the first
        one, others before and after the image.
        """
        row = offsets // self.width
        column = offsets % self.width
        in_image = (offsets >= 0) & (row < self.height)
        number = diagonal.row[0] + diagonal.column[0]
        seen = in_image & (row + column <= number)
        if not self.causal:
            return seen.expand(len(diagonal.row), -1)
        return seen & (row <= diagonal.row[:, None])


class DiagonalState(NamedTuple):
    """The vertical branch's cache, and the diagonal that was drawn last."""

    cache: DecoderCache
    number: Tensor  # [B] the same for all prompts
    on_host: PerPrompt


class DiagonalDraft(NamedTuple):
    """The diagonal that a step feeds, and the one that it draws."""

    cache: DecoderCache
    fed: Diagonal
    drawn: Diagonal
    last_index: int  # of the fed one, if the host knows it


class DiagonalResult(NamedTuple):
    q: Tensor  # [B, m, V]
    tokens: Tensor  # [B, m]
    positions: Tensor  # [B, m] raster indices


class DiagonalTrace(RowTrace):
    """The distributions of a decode by diagonals, which tests no drafts."""

    def record(self, prompts: Tensor, result: DiagonalResult) -> None:  # type: ignore[override]
        self.record_positions(prompts, result.positions)
        self.seen[prompts, result.positions] = result.q.to(self.seen.dtype)


@dataclass(frozen=True, eq=False)
class DiagonalStrategy(Strategy[DiagonalState, DiagonalDraft, DiagonalResult, Tensor]):
    """Prefill and H + W − 2 steps: one forward pass for each diagonal."""

    speculation: Speculation
    net: FlashAR
    grid: Diagonals
    lm: ImageDecoder
    gap: bool  # see ``prefix_address``

    in_raster_order = False
    plans = True

    @property
    def size(self) -> DraftSize:  # type: ignore[override]
        return DraftSize(1, 0, 1, self.grid.longest - 1)

    @property
    def aux_layers(self) -> Depths:
        return self.net.aux_layers(self.lm)

    def prefix_address(self, state: DecodeState) -> Address:
        """The public code pads the shorter of two guided prompts on the right, so that image
        positions leave a ``gap`` after its text.
        """
        at = super().prefix_address(state)
        if not self.gap:
            return at
        valid = state.prefix.valid
        lengths = valid.sum(1)
        longer = lengths.view(-1, state.batch).amax(0)
        rows_per_prompt = len(valid) // state.batch
        gaps = longer.repeat(rows_per_prompt) - lengths
        slots = torch.arange(valid.shape[1], device=valid.device)
        positions = slots - gaps[:, None]
        return at._replace(positions=positions.clamp(min=0))

    def first_logits(self, state: DecodeState, states: Tensor) -> Tensor:
        final, inner = self.parted(states)
        return guide(self.net.corner(self.lm, final, inner), state.guidance)

    def parted(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Final and inner states."""
        dim = self.lm.config.dim
        return states[..., :dim], states[..., dim:]

    def begin(self, state: DecodeState) -> DiagonalState:
        cache = open_cache(state.target, self.net, state.prefix, 1, self.lm, row_ends=False)
        number = torch.zeros(state.batch, dtype=torch.long, device=state.device)
        return DiagonalState(cache, number, PerPrompt([0] * state.batch))

    def trace(self, state: DecodeState) -> DiagonalTrace:
        return DiagonalTrace(state)

    def propose(self, state: DecodeState, carried: DiagonalState, u: Tensor) -> DiagonalDraft:
        fed = self.grid.longest
        drawn = fed
        last_index = 0
        if state.now.length.host is not None:
            number = carried.on_host[0]
            fed = self.grid.count(number)
            drawn = self.grid.count(number + 1)
            last_index = self.grid.last_index(number)
        number = carried.number[0]
        draft = DiagonalDraft(
            carried.cache,
            self.grid.diagonal(number, fed),
            self.grid.diagonal(number + 1, drawn),
            last_index,
        )
        state.clock.tick("draft")
        return draft

    def feed(self, state: DecodeState, draft: DiagonalDraft) -> Feed:
        tokens = state.now.tokens[:, self.grid.index(draft.fed)]
        nothing = slice(0, 0)  # logits are computed in ``decide``
        return Feed(tokens, self.address(state, draft, with_prompt=True), nothing)

    def address(self, state: DecodeState, draft: DiagonalDraft, with_prompt: bool) -> Address:
        """The fed diagonal; an image token has the slot and position of its raster index, without
        row ends.
        """
        layout = state.cache.layout
        fed = draft.fed
        base = layout.slot_of[1]
        span = state.attended(layout.slots[1] + draft.last_index + 1)
        offsets = torch.arange(span, device=base.device) - base
        visible = self.grid.seen(fed, offsets) | ~fed.exists[:, None]
        if with_prompt:
            visible = visible | (offsets < 0)
        mask = additive(visible)[None, None]
        slots = base + self.grid.index(fed)
        never_read = layout.capacity - 1
        slots = torch.where(fed.exists, slots, never_read)[None]
        return Address(slots, slots, mask, span)

    def decide(
        self, state: DecodeState, draft: DiagonalDraft, outputs: Outputs, u: Tensor
    ) -> tuple[Commit, DiagonalResult]:
        drawn = draft.drawn
        batch = len(u)
        logits = self.logits(state, draft, outputs.inputs)
        q = state.warp(guide(logits, state.guidance))
        positions = torch.where(drawn.exists, self.grid.index(drawn), state.limit)
        positions = positions.repeat(batch, 1)
        law = state.drawn(q, positions)
        tokens = state.warp.draw(law, u[:, : law.shape[1]])
        advance = drawn.exists.sum().repeat(batch)
        commit = Commit(
            tokens=tokens,
            positions=positions,
            advance=advance,
            length=state.now.length.device + advance,
            root=state.now.root,
            health=q[..., 0].sum(),
            hidden=outputs.inputs,
        )
        return commit, DiagonalResult(q, tokens, positions)

    def logits(self, state: DecodeState, draft: DiagonalDraft, states: Tensor) -> Tensor:
        """Return the logits [R, m, V] of the drawn tokens, without guidance, from the fed states
        [R, n, 2 · dim].
        """
        final, inner = self.parted(states)
        address = self.address(state, draft, with_prompt=False)
        below = draft.cache.forward(inner, address)
        state.clock.tick("draft")
        drawn = draft.drawn
        place = drawn.row - draft.fed.row[0]
        place_above = place - 1
        last = states.shape[1] - 1
        left = final[:, place.clamp(0, last)]
        above = below[:, place_above.clamp(0, last)]
        on_edge = (drawn.row == 0, drawn.column == 0)
        return self.net.mixed(self.lm, left, above, on_edge)

    def plan(
        self,
        state: DecodeState,
        carried: DiagonalState,
        result: DiagonalResult,
        figures: list[list[int]],
    ) -> DiagonalState:
        following = PerPrompt([number + 1 for number in carried.on_host])
        return carried._replace(number=carried.number + 1, on_host=following)

    def sizes(self, carried: DiagonalState, result: DiagonalResult) -> Sequence[Size]:
        return [(0, self.grid.count(number)) for number in carried.on_host]

    def reach(self, state: DecodeState, carried: DiagonalState) -> int:
        return state.cache.layout.slots[1] + self.grid.last_index(carried.on_host[0]) + 1
