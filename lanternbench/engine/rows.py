"""The contract of orders, and several rows at once: one forward feeds several rows, each ahead of
the next.

A row begins when the row above has ``lead`` tokens.  Its first token is predicted from the end of
the row above: from the row end where the model writes one, else from the last column, where an
*auxiliary* token stands in until that column is drawn.  A token's law is the target's given the
committed tokens of its row and of those above alone (see ``measure.fidelity.row_losses``).  The F
tokens of grids before the image have the columns −F … −1 of row 0.

B prompts, L tokens, the image H rows of W columns, V vocabulary.  A rows are worked on at once,
from the top unfinished one down; each has K = 1 + D inputs, its last token and D drafts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Component
from lanternbench.engine.address import Address, Layout, Lengths, additive
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.decode import SpeculativeDecoder, launch
from lanternbench.engine.opening import teacher_forced
from lanternbench.engine.plain import RowSpec, TreeSpec, WindowSpec
from lanternbench.engine.state import DecodeState, LastCommit
from lanternbench.engine.trace import Trace
from lanternbench.models.grids import size


class Order(Component):
    """In which order the tokens of an image are drawn; by itself, raster order."""

    def apply(self, decoder: SpeculativeDecoder) -> SpeculativeDecoder:
        """``decoder``, which draws in raster order, changed to draw in this one."""
        return decoder

    def plain(self, draft: TreeSpec | WindowSpec) -> TreeSpec | WindowSpec | RowSpec | None:
        """The plain definition of a proposal with this one ``draft``; None where it has none."""
        return draft


class RowState(NamedTuple):
    """What is committed, and the drafts of the rows that are worked on."""

    filled: Tensor  # [B, H] committed tokens of each row
    closed: Tensor  # [B] rows whose last token has its keys and values in the cache
    drafts: Tensor  # [B, A, D] of the next positions of each row
    p: Tensor  # [B, A, D, V] what each is tested against
    draft_count: Tensor  # [B, A] of them are in use, the first ones
    law: Tensor | None = None  # [B, A, D, V] what each was drawn from, where that is not p
    # of the next step: rows, is a row to be closed?, slots in use
    next_sizes: PerPrompt | None = None


class Active(NamedTuple):
    """The rows that a step works on, [B, A] each."""

    row: Tensor
    filled: Tensor  # its committed tokens
    filled_above: Tensor  # those of the row above
    max_drafts: Tensor  # drafts that fit
    empty: Tensor  # bool: has it no token yet?
    begun: Tensor  # bool: does the row exist, and has it begun or may it begin?
    in_step: Tensor  # bool: and does it take part in this step?
    top: Tensor  # [B] complete rows, so the first unfinished one


class Decision(NamedTuple):
    """What a step commits, and the facts that the fidelity loss needs."""

    tokens: Tensor  # [B, A, K] of each row, of which the first ``advance`` [B, A] count
    advance: Tensor
    tested: Tensor  # [B, A, K] bool: was a draft tested here?
    final: Tensor  # [B, A] bool: does a rejected draft's place get a token all the same?
    rows: RowState


class RowTrace(Trace):
    """``seen`` [B, L, V]: each token's distribution in its row's context; p and ``law``: of the
    draft tested.
    """

    def __init__(self, state: DecodeState):
        super().__init__(state.batch, state.limit + 2, state.target.vocab, 1, state.device)
        self.state = state
        self.seen, self.final, self.law = (
            torch.zeros_like(self.q),
            torch.zeros_like(self.sampled),
            self.q[..., :0],
        )
        self.seen[:, 0] = state.first

    def cut(self, length: int) -> None:
        """Drop entries past the image; q is what the target gives each token after all that
        precede it.
        """
        state = self.state
        del self.state  # caches and all
        super().cut(length)
        self.q = teacher_forced(
            state.target, state.prefix, state.finish(), state.guidance, state.warp
        )


class RowInputs(NamedTuple):
    """The inputs of a forward over several rows of the image, [B, n] each; see ``rows_address``."""

    tokens: Tensor
    row: Tensor
    column: Tensor  # the row's width for a row end
    upto: Tensor  # earlier columns of its own row that it attends to, besides itself
    used: Tensor  # bool; what is not is written to the last slot, which is never read


def rows_address(
    layout: Layout,
    first: int,
    width: int,
    inputs: RowInputs,
    count: Tensor,
    span: int,
    seen_from: int | None = None,
) -> Address:
    """Inputs of several rows; each attends to the prompt, to the committed tokens of the rows
    above and to its own row.

    The image begins at token ``first``, after those of other grids.  count [B, H]: committed
    tokens of each row, this forward's inputs included.  Of the rows above, row ends are seen and
    columns from ``seen_from`` on (default: none), committed or not; −1: every earlier slot is
    seen, written or not.
    """
    base, stride = layout.slot_of[1 + first], width + (layout.width > 0)
    offset = inputs.row * stride + inputs.column
    offsets = torch.arange(span, device=offset.device) - base  # [span], negative before the image
    row, column = offsets // stride, offsets % stride
    if seen_from == -1:
        seen = offsets <= offset[..., None]
    else:
        committed = column < count[:, row.clamp(0, count.shape[1] - 1)]  # [B, span]
        written = committed | (column >= (width if seen_from is None else seen_from))
        rows_above = (row >= 0) & (row < inputs.row[..., None]) & written[:, None]
        same_row = (row == inputs.row[..., None]) & (column < inputs.upto[..., None])
        seen = rows_above | same_row | (offsets == offset[..., None])
    before = (offsets < 0) & (offsets <= offset[..., None])
    mask = additive((seen & inputs.used[..., None]) | before)[:, None]
    slots = torch.where(inputs.used, base + offset, layout.capacity - 1)
    return Address(slots, slots, mask, span)


class RowProposer:
    """Which rows a step works on, and what it feeds; ``decide`` says what is committed.

    ``second``: tokens of the first row when the second begins.  ``per_row``: uniforms.
    ``seen_from``: see the address.
    """

    # as the engine reads a ``Proposal``'s
    nodes, width, max_step_slots, update_uniforms, adapts = 1, 1, 1, 0, False
    drafter, aux_layers = None, ()
    own_law = False  # are drafts drawn from another law than their p?

    def __init__(
        self,
        target: Any,
        lead: int,
        drafts: int,
        per_row: int,
        second: int | None = None,
        seen_from: int | None = None,
    ):
        (self.height, self.columns), self.seen_from = target.grid, seen_from
        self.first = target.length - size(target.grid)  # F
        self.lead = min(lead, self.columns)
        # A: a lower one would begin after the top one is complete
        self.n_rows = -(-self.columns // self.lead)
        self.ends, self.drafts, self.inputs = target.row_width > 0, drafts, 1 + drafts
        self.stored = drafts  # drafts of a row that outlive a step
        self.max_depth, self.per_row, self.uniforms = drafts, per_row, self.n_rows * per_row - 1
        need = torch.full((self.height,), self.lead, device=target.device)
        self.need = need.index_fill_(
            0, torch.tensor([1][: self.height - 1], device=target.device), second or self.lead
        )
        self.slots = torch.arange(self.n_rows, device=target.device)
        self.steps = torch.arange(self.inputs, device=target.device)

    def begin(self, state: DecodeState) -> RowState:
        shape = (state.batch, self.n_rows, self.stored)
        zero, p = state.images.new_zeros(shape), state.first.new_zeros(*shape, state.target.vocab)
        count = zero.new_zeros(state.batch, self.height)
        count[:, 0].fill_(1 - self.first)
        law = p if self.own_law else None
        rows = RowState(
            count, torch.zeros_like(count[:, 0]), zero, p, zero.new_zeros(shape[:2]), law
        )
        if state.trace is not None:
            state.trace = RowTrace(state)
        return rows._replace(next_sizes=PerPrompt(map(tuple, self.next_sizes(rows).tolist())))

    def sizes(self, rows: RowState) -> PerPrompt:
        assert rows.next_sizes is not None
        return PerPrompt((self.drafts, n_rows * self.inputs) for n_rows, *_ in rows.next_sizes)

    def canonical(self, rows: RowState) -> RowState:
        unused = (
            torch.arange(rows.drafts.shape[2], device=rows.p.device) >= rows.draft_count[..., None]
        )
        drafts, unused = rows.drafts.masked_fill(unused, 0), unused[..., None]
        law = None if rows.law is None else rows.law.masked_fill(unused, 0.0)
        return rows._replace(drafts=drafts, p=rows.p.masked_fill(unused, 0.0), law=law)

    def active_rows(self, count: Tensor, n_rows: int) -> Active:
        top = (count == self.columns).long().cumprod(1).sum(1)
        row = top[:, None] + self.slots[:n_rows]
        index = row.clamp(max=self.height - 1)
        filled, filled_above = count.gather(1, index), count.gather(1, (index - 1).clamp(min=0))
        lead = (filled_above - filled).masked_fill(self.slots[:n_rows] == 0, self.columns)
        max_drafts = torch.minimum(self.columns - filled, lead).clamp(0, self.drafts)
        empty = (filled == 0) & (row > 0)
        begun = (row < self.height) & (~empty | (filled_above >= self.need[index]))
        # it has caught up with the row above
        waits = (max_drafts == 0) & (self.slots[:n_rows] > 0) & (self.drafts > 0)
        return Active(index, filled, filled_above, max_drafts, empty, begun, begun & ~waits, top)

    def next_sizes(self, rows: RowState) -> Tensor:
        """[B, 3] see ``RowState.next_sizes``."""
        active = self.active_rows(rows.filled, self.n_rows)
        n_rows = (active.begun * (self.slots + 1)).amax(1)
        end = (
            active.row * (self.columns + self.ends) + active.filled + active.max_drafts
        ) * active.in_step
        return torch.stack([n_rows, self.to_close(rows, active).long(), end.amax(1)], 1)

    def to_close(self, rows: RowState, active: Active) -> Tensor:
        """[B] Is the last token of the lowest complete row an input by itself?"""
        pending = (active.top > rows.closed) & (active.top < self.height)
        # else the next row's first token reads it
        return pending if self.ends else pending & (active.filled[:, 0] > 0)

    def feed(self, image: Tensor, rows: RowState, active: Active) -> RowInputs:
        """image [B, ≥ L] -> K inputs of each row, and after them the last token of a complete one."""
        w, empty = self.columns, active.empty
        source = torch.where(
            ~empty, active.row, (active.row - 2 + (active.filled_above == w).long()).clamp(min=0)
        )
        last = image.gather(1, self.first + source * w + rows.filled.gather(1, source) - 1)
        column = torch.where(empty, w - (not self.ends), active.filled - 1)
        ahead = (active.filled - 1)[..., None] + self.steps[1:]
        row = torch.cat(
            [(active.row - empty.long())[..., None], active.row[..., None].expand_as(ahead)], -1
        )
        columns = torch.cat([column[..., None], ahead], -1)
        upto = torch.cat(
            [torch.where(empty, active.filled_above, active.filled - 1)[..., None], ahead], -1
        )
        used = active.in_step[..., None] & (self.steps <= active.max_drafts[..., None])
        complete = (active.top - 1).clamp(min=0)[:, None]
        inputs = RowInputs(
            torch.cat([last[..., None], rows.drafts[..., : self.drafts]], -1),
            row,
            columns,
            upto,
            used,
        )
        last, column = (
            image.gather(1, self.first + complete * w + w - 1),
            torch.full_like(complete, w - 1),
        )
        closing = RowInputs(last, complete, column, column, self.to_close(rows, active)[:, None])
        return RowInputs(
            *(torch.cat([x.flatten(1), y], 1) for x, y in zip(inputs, closing, strict=True))
        )

    def fill(self, state: DecodeState, rows: RowState, active: Active, u: Tensor) -> RowState:
        """``rows`` with D drafts in every row; u [B, A, per_row]."""
        return rows

    def decide(
        self, decoder: SpeculativeDecoder, rows: RowState, active: Active, q: Tensor, u: Tensor
    ) -> Decision:
        """What becomes of the drafts, given q [B, A, K, V] after each input; its ``rows`` are
        still the active ones.
        """
        raise NotImplementedError


def step(
    decoder: SpeculativeDecoder, state: DecodeState, rows: RowState
) -> tuple[RowState, tuple[RowState, Decision]]:
    """One target forward over all rows that are worked on; it commits at least one token per
    unfinished prompt.

    Returns the next state, and this one's with the drafts that were tested, with what became of
    them.
    """
    proposer: Any = decoder.proposer
    assert rows.next_sizes is not None
    run: Any = decoder.recordings.replay if state.recorded else launch
    n_rows, closing, end = (max(column) for column in zip(*rows.next_sizes, strict=True))
    end += state.cache.layout.slots[1 + proposer.first]
    if state.recorded:  # fixed shapes; ``spans`` counts row ends twice
        n_rows, closing = proposer.n_rows, 1
        longest = state.cache.layout.slots[max(state.now.length.host or (0,))] + 1
        state.max_step_slots = max(end - longest, 0) // (1 + proposer.ends)
    u = state.uniforms[:, state.steps].view(state.batch, proposer.n_rows, -1)[:, :n_rows]

    def verify(
        state: DecodeState, rows: RowState, u: Tensor
    ) -> tuple[Active, RowState, Tensor, Tensor]:
        active = proposer.active_rows(rows.filled, n_rows)
        rows = proposer.fill(state, map_rows(rows, lambda x: x[:, :n_rows]), active, u)
        inputs, n, cache = (
            proposer.feed(state.now.tokens, rows, active),
            n_rows * proposer.inputs,
            state.cache,
        )
        if not closing:
            inputs = RowInputs(*(x[:, :n] for x in inputs))
        state.clock.tick("draft")
        x = cache.all_rows(state.target.model.tok_embeddings(inputs.tokens))
        if proposer.ends:
            assert cache.row_end is not None
            x = torch.where(
                cache.per_row(inputs.column == proposer.columns)[..., None], cache.row_end, x
            )
        span, see = state.now.length.span or end, proposer.seen_from
        at = rows_address(
            cache.layout, proposer.first, proposer.columns, inputs, rows.filled, span, see
        )
        logits = state.logits(cache.forward(x, at)[:, :n])
        state.clock.tick("verify")
        q = state.warp(logits)  # [B, n, V] after the first n inputs
        return active, rows, q.unflatten(1, (n_rows, -1)), q[..., 0].sum()

    def decide(
        state: DecodeState, rows: RowState, active: Active, q: Tensor, u: Tensor
    ) -> tuple[Any, ...]:
        decision = proposer.decide(decoder, rows, active, q, u)
        count = rows.filled.scatter_add(1, active.row, decision.advance)
        after = shift_rows(
            decision.rows._replace(filled=count, closed=active.top), active.top, proposer
        )
        positions = (proposer.first + active.row * proposer.columns + active.filled)[
            ..., None
        ] + proposer.steps
        positions = torch.where(
            proposer.steps < decision.advance[..., None], positions, state.limit
        ).flatten(1)
        length = proposer.first + count.sum(1, keepdim=True)
        return decision, after, positions, torch.cat([length, proposer.next_sizes(after)], 1)

    active, rows, q, health = run(state, "verify", None, verify, rows._replace(next_sizes=None), u)
    state.health += health
    decision, after, positions, figures = run(state, "commit", None, decide, rows, active, q, u)
    trace: Any = state.trace
    if trace is not None:
        with state.clock.aside("commit"):
            record(trace, state.prompts, rows, decision, positions, q)
    return after._replace(next_sizes=commit(state, decision, positions, figures)), (rows, decision)


def map_rows(rows: RowState, change: Callable[[Tensor], Tensor]) -> RowState:
    """``rows`` with the tensors that have a dimension of rows changed."""
    law = None if rows.law is None else change(rows.law)
    return rows._replace(
        drafts=change(rows.drafts), p=change(rows.p), draft_count=change(rows.draft_count), law=law
    )


def shift_rows(rows: RowState, top: Tensor, proposer: RowProposer) -> RowState:
    """Drafts of the rows from ``top`` [B] on -> of A rows from the row on that is the next top
    unfinished one.
    """
    b, n_rows = rows.draft_count.shape
    source = (
        proposer.slots
        + ((rows.filled == proposer.columns).long().cumprod(1).sum(1) - top)[:, None]
    )
    batch, at = torch.arange(b, device=top.device)[:, None], source.clamp(max=n_rows - 1)
    rows = map_rows(rows, lambda x: x[batch, at])
    return rows._replace(draft_count=torch.where(source < n_rows, rows.draft_count, 0))


def commit(
    state: DecodeState, decision: Decision, positions: Tensor, figures: Tensor
) -> PerPrompt:
    """Write the tokens, advance.  The step's only host synchronisation is here; returns
    ``RowState.next_sizes``.
    """
    progress = state.now
    progress.tokens.scatter_(1, positions, decision.tokens.flatten(1))
    host = figures.tolist()
    state.syncs, state.steps = state.syncs + 1, state.steps + 1
    length = PerPrompt(n for n, *_ in host)
    counts = PerPrompt(n - o for n, o in zip(length, progress.length.host or (), strict=True))
    last = LastCommit(
        progress.last.hidden, progress.last.tokens, Lengths.of(decision.advance.sum(1), counts)
    )
    state.now = progress._replace(length=Lengths.of(figures[:, 0], length), last=last)
    state.clock.tick("commit")
    return PerPrompt(tuple(ahead) for _, *ahead in host)


def record(
    trace: RowTrace,
    prompts: Tensor,
    rows: RowState,
    decision: Decision,
    positions: Tensor,
    q: Tensor,
) -> None:
    """Store what each committed token was drawn from, at its ``positions`` [B, A · K]; prompts [B,
    1].
    """
    tested, steps = decision.tested.flatten(1), decision.tested.shape[2]

    def write(store: Tensor, values: Tensor) -> None:
        store[prompts, positions] = values.flatten(1, 2).to(store.dtype)

    seen: Any = trace.seen
    write(seen, q)
    write(trace.tried, decision.tested)
    write(trace.final, decision.final[..., None].expand_as(decision.tested))
    write(trace.depth, torch.arange(1, steps + 1, device=q.device).expand_as(decision.tested))
    if rows.p.shape[2]:
        spare = steps - rows.p.shape[2]  # the last input has no draft after it
        write(trace.p, F.pad(rows.p, (0, 0, 0, spare)))
        write(trace.children, F.pad(rows.drafts, (0, spare), value=-1)[..., None])
    if rows.law is not None:
        trace.law = trace.law if trace.law.shape == trace.q.shape else torch.zeros_like(trace.q)
        write(trace.law, F.pad(rows.law, (0, 0, 0, spare)))
    trace.sampled[prompts, positions] = tested
