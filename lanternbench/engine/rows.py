"""The contract of orders, and the order that draws several rows at once.

One forward pass feeds several rows, each ahead of the next.

A row begins when the row above has ``lead`` tokens.  Its first token is predicted from the end of
the row above: from the row end if the model writes one, else from the last column, where an
*auxiliary* token stands in until that column is drawn.  A token's law is the target's given the
committed tokens of its row and of those above alone (see ``measure.fidelity.row_losses``).  The F
tokens of grids before the image have the columns −F … −1 of row 0.

B prompts, L tokens, the image H rows of W columns, V vocabulary.  A rows are worked on at once,
from the top unfinished one down; each has K = 1 + D inputs, its last token and D drafts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Component
from lanternbench.engine.cache import Address, Layout
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.decode import AnyStrategy, Speculation, Strategy
from lanternbench.engine.opening import teacher_forced
from lanternbench.engine.proposal import DraftSize, Size
from lanternbench.engine.state import Commit, DecodeState, Feed, Outputs
from lanternbench.engine.trace import Trace
from lanternbench.engine.tree import numbers
from lanternbench.models.grids import size
from lanternbench.models.target import Target
from lanternbench.models.transformer import additive


class Order(Component):
    """The options of the order in which the tokens of an image are drawn."""

    def build(self, target: Target, speculation: Speculation) -> AnyStrategy:
        """Return what decodes in this order; ``speculation`` does in raster order."""
        raise NotImplementedError


class Work(NamedTuple):
    """The size of a step, which the host learns from the one before."""

    rows: int  # the rows that are worked on
    closing: int  # 1 if the last token of a complete row is an input by itself
    slots: int  # cache slots that the image fills afterwards


class RowState(NamedTuple):
    """The committed tokens, and the drafts of the rows that are worked on."""

    filled: Tensor  # [B, H] committed tokens of each row
    closed: Tensor  # [B] rows whose last token has its keys and values in the cache
    drafts: Tensor  # [B, A, D] of the next positions of each row
    # [B, A, D, 1, V] p, which each is tested against; or [B, A, D, 2, V] p, and what each was
    # drawn from
    laws: Tensor
    draft_count: Tensor  # [B, A] of them are in use, the first ones
    work: PerPrompt = PerPrompt()  # of ``Work`` in the next step

    @property
    def p(self) -> Tensor:
        """Return the distributions that the drafts are tested against: [B, A, D, V]."""
        return self.laws[..., 0, :]

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> RowState:
        """Change the tensors that have a dimension of rows."""
        return self._replace(
            drafts=change(self.drafts),
            laws=change(self.laws),
            draft_count=change(self.draft_count),
        )


class Active(NamedTuple):
    """The rows that a step works on, [B, A] each."""

    row: Tensor
    filled: Tensor  # its committed tokens
    filled_above: Tensor  # those of the row above
    max_drafts: Tensor  # drafts that fit
    empty: Tensor  # bool: it has no token yet
    begun: Tensor  # bool: the row exists, and has begun or may begin
    in_step: Tensor  # bool: and it takes part in this step
    top: Tensor  # [B] number of complete rows, which is the first unfinished one


class RowDraft(NamedTuple):
    """The rows that a step works on, with the drafts that it feeds."""

    active: Active
    rows: RowState
    work: Work  # as large as it can be while a CUDA graph is recorded


class Decision(NamedTuple):
    """The tokens that a step commits of each row, and the facts that the fidelity loss needs."""

    tokens: Tensor  # [B, A, K] of which the first ``advance`` [B, A] count
    advance: Tensor
    tested: Tensor  # [B, A, K] bool: a draft was tested here
    final: Tensor  # [B, A] bool: the place of a rejected draft gets a token nevertheless
    rows: RowState  # after the step, still of the rows that were worked on


class RowResult(NamedTuple):
    """One step over several rows."""

    draft: RowDraft
    q: Tensor  # [B, A, K, V]
    decision: Decision
    positions: Tensor  # [B, A · K] image positions of the committed tokens
    rows: RowState  # of the rows that the next step works on


class RowTrace(Trace):
    """The distributions of a decode over several rows.

    ``seen`` [B, L, V]: each token's distribution in its row's context; p and ``law``: those of the
    draft that was tested there.
    """

    seen: Tensor
    state: DecodeState

    def __init__(self, state: DecodeState):
        super().__init__(state.batch, state.limit + 2, state.target.vocab, 1, state.device)
        self.state = state
        self.seen = torch.zeros_like(self.q)
        self.final = torch.zeros_like(self.sampled)
        self.committed_in = torch.zeros_like(self.tried)
        self.law = self.q[..., :0]
        self.seen[:, 0] = state.first

    def record_positions(self, prompts: Tensor, positions: Tensor) -> None:
        """Store where the current step commits tokens; prompts [B, 1], positions [B, A]."""
        self.committed_in[prompts, positions] = 1 + self.state.steps

    def cut(self, length: int) -> None:
        """Drop entries past the image, and compute q of each token after all that precede it."""
        state = self.state
        del self.state  # with its caches
        super().cut(length)
        tokens = state.finish()
        self.q = teacher_forced(state.target, state.prefix, tokens, state.guidance, state.warp)

    def record(self, prompts: Tensor, result: RowResult) -> None:  # type: ignore[override]
        """Store what each committed token was drawn from; prompts [B, 1]."""
        rows = result.draft.rows
        decision = result.decision
        tested = decision.tested
        steps = tested.shape[2]

        def write(store: Tensor, values: Tensor) -> None:
            flat = values.flatten(1, 2)
            store[prompts, result.positions] = flat.to(store.dtype)

        final = decision.final[..., None]
        depth = torch.arange(1, steps + 1, device=tested.device)
        self.record_positions(prompts, result.positions)
        write(self.seen, result.q)
        write(self.tried, tested)
        write(self.sampled, tested)
        write(self.final, final.expand_as(tested))
        write(self.depth, depth.expand_as(tested))
        drafts = rows.drafts.shape[2]
        if drafts == 0:
            return
        spare = steps - drafts  # the last input has no draft after it
        children = F.pad(rows.drafts, (0, spare), value=-1)
        laws = F.pad(rows.laws, (0, 0, 0, 0, 0, spare))
        write(self.children, children[..., None])
        write(self.p, laws[..., 0, :])
        if laws.shape[3] > 1:
            if self.law.shape != self.q.shape:
                self.law = torch.zeros_like(self.q)
            write(self.law, laws[..., 1, :])


class RowInputs(NamedTuple):
    """The inputs of a forward pass over several rows of the image, [B, n] each."""

    tokens: Tensor
    row: Tensor
    column: Tensor  # the row's width for a row end
    upto: Tensor  # earlier columns of its own row that it attends to, besides itself
    used: Tensor  # bool; what is not is written to the last slot, which is never read


@dataclass(frozen=True, eq=False)
class RowGeometry:
    """The rows of an image, when each may begin, and what its tokens see."""

    height: int  # H
    width: int  # W
    first: int  # F, tokens of grids before the image
    row_ends: bool  # whether a row end follows each row
    n_rows: int  # A
    drafts: int  # D
    inputs: int  # K
    need: Tensor  # [H] tokens of the row above with which each may begin
    numbers: Tensor  # [A] 0 … A − 1
    steps: Tensor  # [K] 0 … D
    # of the rows above, columns from here on are seen, committed or not; −1: every earlier slot is
    # seen, written or not
    seen_from: int

    @classmethod
    def of(
        cls, target: Target, lead: int, drafts: int, seen_from: int | None = None
    ) -> RowGeometry:
        """``seen_from`` None: row ends alone."""
        height, width = target.grid
        if seen_from is None:
            seen_from = width
        lead = min(lead, width)
        n_rows = -(-width // lead)  # a lower one would begin after the top one is complete
        device = target.device
        return cls(
            height=height,
            width=width,
            first=target.length - size(target.grid),
            row_ends=target.row_width > 0,
            n_rows=n_rows,
            drafts=drafts,
            inputs=1 + drafts,
            need=torch.full((height,), lead, device=device),
            numbers=numbers(n_rows, device),
            steps=numbers(1 + drafts, device),
            seen_from=seen_from,
        )

    @property
    def stride(self) -> int:
        """Cache slots of a row."""
        return self.width + int(self.row_ends)

    def active_rows(self, count: Tensor, n_rows: int) -> Active:
        """Return ``n_rows`` rows from the top unfinished one on; count [B, H] tokens of each."""
        below = self.numbers[:n_rows]
        top = self.complete_rows(count)
        row = top[:, None] + below
        index = row.clamp(max=self.height - 1)
        above = (index - 1).clamp(min=0)
        filled = count.gather(1, index)
        filled_above = count.gather(1, above)
        lead = filled_above - filled
        lead = lead.masked_fill(below == 0, self.width)
        room = torch.minimum(self.width - filled, lead)
        max_drafts = room.clamp(0, self.drafts)
        empty = (filled == 0) & (row > 0)
        may_begin = filled_above >= self.need[index]
        begun = (row < self.height) & (~empty | may_begin)
        in_step = begun
        if self.drafts > 0:
            caught_up = (max_drafts == 0) & (below > 0)  # with the row above
            in_step = begun & ~caught_up
        return Active(index, filled, filled_above, max_drafts, empty, begun, in_step, top)

    def complete_rows(self, count: Tensor) -> Tensor:
        """Return how many rows from the top on are complete: [B]."""
        return (count == self.width).long().cumprod(1).sum(1)

    def next_work(self, rows: RowState) -> Tensor:
        """Return the ``Work`` of the next step: [B, 3]."""
        active = self.active_rows(rows.filled, self.n_rows)
        counted = active.begun * (self.numbers + 1)
        n_rows = counted.amax(1)
        before = active.row * self.stride + active.filled
        end = (before + active.max_drafts) * active.in_step
        slots = end.amax(1)
        closing = self.to_close(rows, active).long()
        return torch.stack([n_rows, closing, slots], 1)

    def to_close(self, rows: RowState, active: Active) -> Tensor:
        """Return the prompts whose last complete row is not yet in the cache as a whole: bool [B].

        Without row ends, a row that has begun shows that the one above it was read to its end.
        """
        pending = (active.top > rows.closed) & (active.top < self.height)
        if self.row_ends:
            return pending
        return pending & (active.filled[:, 0] > 0)  # else the next row's first token reads it

    def all_inputs(self, image: Tensor, draft: RowDraft) -> RowInputs:
        """image [B, ≥ L] -> K inputs of each row.

        The last token of a complete row follows them if a prompt needs it.
        """
        inputs = [x.flatten(1) for x in self.inputs_of_rows(image, draft)]
        if not draft.work.closing:
            return RowInputs(*inputs)
        complete = (draft.active.top - 1).clamp(min=0)
        complete = complete[:, None]
        column = torch.full_like(complete, self.width - 1)
        position = self.first + complete * self.width + column
        closing = RowInputs(
            tokens=image.gather(1, position),
            row=complete,
            column=column,
            upto=column,
            used=self.to_close(draft.rows, draft.active)[:, None],
        )
        both = zip(inputs, closing, strict=True)
        return RowInputs(*[torch.cat(parts, 1) for parts in both])

    def inputs_of_rows(self, image: Tensor, draft: RowDraft) -> RowInputs:
        """[B, A, K] each: a row's last token, from the row above if it has none, and its drafts."""
        active = draft.active
        empty = active.empty
        # a row begins from the row above if that is complete, else from the one above it
        is_complete = active.filled_above == self.width
        from_above = active.row - 2 + is_complete.long()
        source = torch.where(empty, from_above.clamp(min=0), active.row)
        column = draft.rows.filled.gather(1, source) - 1
        last = image.gather(1, self.first + source * self.width + column)
        begins = empty[..., None] & (self.steps == 0)
        column = active.filled[..., None] - 1 + self.steps
        drafts = draft.rows.drafts[..., : self.drafts]
        fits = self.steps <= active.max_drafts[..., None]
        return RowInputs(
            tokens=torch.cat([last[..., None], drafts], -1),
            row=active.row[..., None] - begins.long(),
            column=torch.where(begins, self.stride - 1, column),
            upto=torch.where(begins, active.filled_above[..., None], column),
            used=active.in_step[..., None] & fits,
        )

    def address(self, layout: Layout, inputs: RowInputs, count: Tensor, span: int) -> Address:
        """Let each input attend to the prompt, to committed tokens of rows above, to its own row.

        count [B, H]: committed tokens of each row, this forward pass's inputs included.
        """
        base = layout.slot_of[1 + self.first]
        offset = inputs.row * self.stride + inputs.column
        offsets = torch.arange(span, device=offset.device) - base  # [span], < 0 before the image
        earlier = offsets <= offset[..., None]
        seen = earlier
        if self.seen_from >= 0:
            seen = self._seen(inputs, count, offsets) | (offsets == offset[..., None])
        before = (offsets < 0) & earlier
        visible = (seen & inputs.used[..., None]) | before
        mask = additive(visible)
        never_read = layout.capacity - 1
        slots = torch.where(inputs.used, base + offset, never_read)
        return Address(slots, slots, mask[:, None], span)

    def _seen(self, inputs: RowInputs, count: Tensor, offsets: Tensor) -> Tensor:
        """Return the offsets [span] from the image's first slot that each input sees, besides its
        own: bool [B, n, span].
        """
        row = offsets // self.stride
        column = offsets % self.stride
        own_row = inputs.row[..., None]
        committed = column < count[:, row.clamp(0, self.height - 1)]  # [B, span]
        written = committed | (column >= self.seen_from)
        rows_above = (row >= 0) & (row < own_row) & written[:, None]
        same_row = (row == own_row) & (column < inputs.upto[..., None])
        return rows_above | same_row

    def positions(self, active: Active) -> Tensor:
        """Return the image positions of the tokens after each input: [B, A, K]."""
        first = self.first + active.row * self.width + active.filled
        return first[..., None] + self.steps

    def shifted(self, rows: RowState, top: Tensor) -> RowState:
        """Turn the drafts of rows from ``top`` [B] on into those of the next step's A rows."""
        b, n_rows = rows.draft_count.shape
        completed = self.complete_rows(rows.filled) - top
        source = self.numbers + completed[:, None]
        batch = numbers(b, top.device)[:, None]
        at = source.clamp(max=n_rows - 1)
        rows = rows.map_rows(lambda x: x[batch, at])
        draft_count = torch.where(source < n_rows, rows.draft_count, 0)
        return rows._replace(draft_count=draft_count)


class RowStrategy(Strategy[RowState, RowDraft, RowResult, Tensor]):
    """Chooses the rows that a step works on, and feeds them; ``judge`` says what is committed."""

    in_raster_order = False
    plans = True
    rows: RowGeometry
    per_row: int  # uniforms
    stored: int  # drafts of a row that outlive a step
    laws: int  # of a draft: 1, or 2 if it is drawn from another law than its p

    @property
    def size(self) -> DraftSize:  # type: ignore[override]
        uniforms = self.rows.n_rows * self.per_row - 1
        return DraftSize(1, self.rows.drafts, 1, uniforms)

    @abstractmethod
    def judge(self, state: DecodeState, draft: RowDraft, q: Tensor, u: Tensor) -> Decision:
        """Return what becomes of the drafts, given q [B, A, K, V] after each input, perturbed by
        shared noise if there is any.

        u [B, A, per_row]
        """

    def fill(self, rows: RowState, u: Tensor) -> RowState:
        """``rows`` with D drafts in every row; u [B, A, per_row]."""
        return rows

    def begin(self, state: DecodeState) -> RowState:
        shape = (state.batch, self.rows.n_rows, self.stored)
        drafts = torch.zeros(shape, dtype=torch.long, device=state.device)
        filled = drafts.new_zeros(state.batch, self.rows.height)
        filled[:, 0].fill_(1 - self.rows.first)
        rows = RowState(
            filled=filled,
            closed=torch.zeros_like(filled[:, 0]),
            drafts=drafts,
            laws=state.first.new_zeros(*shape, self.laws, state.target.vocab),
            draft_count=drafts.new_zeros(shape[:2]),
        )
        work = self.rows.next_work(rows)
        return rows._replace(work=_work(work.tolist()))

    def trace(self, state: DecodeState) -> RowTrace:
        return RowTrace(state)

    def propose(self, state: DecodeState, carried: RowState, u: Tensor) -> RowDraft:
        work = Work(self.rows.n_rows, 1, 0)
        if state.now.length.host is not None:
            work = _largest(carried)
        active = self.rows.active_rows(carried.filled, work.rows)
        rows = carried._replace(work=PerPrompt())
        if work.rows < self.rows.n_rows:
            rows = rows.map_rows(lambda x: x[:, : work.rows])
        uniforms = self.by_row(u, work.rows)
        rows = self.fill(rows, uniforms)
        state.clock.tick("draft")
        return RowDraft(active, rows, work)

    def by_row(self, u: Tensor, rows: int) -> Tensor:
        """The step's uniforms [B, U] -> [B, rows, per_row]."""
        return u.view(len(u), self.rows.n_rows, -1)[:, :rows]

    def feed(self, state: DecodeState, draft: RowDraft) -> Feed:
        geometry = self.rows
        layout = state.cache.layout
        span = state.attended(layout.slots[1 + geometry.first] + draft.work.slots)
        inputs = geometry.all_inputs(state.now.tokens, draft)
        address = geometry.address(layout, inputs, draft.rows.filled, span)
        row_ends = None
        if geometry.row_ends:
            row_ends = inputs.column == geometry.width
        reads = slice(0, draft.work.rows * geometry.inputs)
        return Feed(inputs.tokens, address, reads, row_ends)

    def decide(
        self,
        state: DecodeState,
        draft: RowDraft,
        outputs: Outputs,
        u: Tensor,
    ) -> tuple[Commit, RowResult]:
        geometry = self.rows
        active = draft.active
        uniforms = self.by_row(u, draft.work.rows)
        positions = geometry.positions(active)
        q = state.warp(outputs.logits).view(*positions.shape, -1)
        drawn = state.drawn(q, positions)
        decision = self.judge(state, draft, drawn, uniforms)
        filled = draft.rows.filled.scatter_add(1, active.row, decision.advance)
        rows = decision.rows._replace(filled=filled, closed=active.top)
        rows = geometry.shifted(rows, active.top)
        counts = geometry.steps < decision.advance[..., None]
        positions = torch.where(counts, positions, state.limit).flatten(1)
        length = geometry.first + filled.sum(1, keepdim=True)
        commit = Commit(
            tokens=decision.tokens.flatten(1),
            positions=positions,
            advance=decision.advance.sum(1),
            length=length[:, 0],
            root=state.now.root,
            figures=torch.cat([length, geometry.next_work(rows)], 1),
            health=q[..., 0].sum(),
            hidden=outputs.features,
        )
        return commit, RowResult(draft, q, decision, positions, rows)

    def plan(
        self,
        state: DecodeState,
        carried: RowState,
        result: RowResult,
        figures: list[list[int]],
    ) -> RowState:
        return result.rows._replace(work=_work([row[1:] for row in figures]))

    def sizes(self, carried: RowState, result: RowResult) -> Sequence[Size]:
        geometry = self.rows
        return [(geometry.drafts, work.rows * geometry.inputs) for work in carried.work]

    def reach(self, state: DecodeState, carried: RowState) -> int:
        first = 1 + self.rows.first
        return state.cache.layout.slots[first] + _largest(carried).slots

    def canonical(self, carried: RowState) -> RowState:
        free = numbers(self.stored, carried.laws.device) >= carried.draft_count[..., None]
        return carried._replace(
            drafts=carried.drafts.masked_fill(free, 0),
            laws=carried.laws.masked_fill(free[..., None, None], 0.0),
        )


def _work(figures: list[list[int]]) -> PerPrompt:
    return PerPrompt([Work(*row) for row in figures])


def _largest(rows: RowState) -> Work:
    """Return the size of the next step for the whole batch."""
    return Work(*map(max, zip(*rows.work, strict=True)))
