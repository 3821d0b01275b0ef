"""The contract of orders, and several rows at once: one forward feeds several rows, each ahead of the next.

A row begins when the row above has ``lead`` tokens.  Its first token is predicted from the end of the row above: from
the row end where the model writes one, else from the last column, where an *auxiliary* token stands in until that
column is drawn.  A token is drawn from the target's distribution given the committed tokens of the rows above and its
own row, never from all that precede it in raster order: the joint law is that of an autoregressive model with context
left out, whose distance from the target is ``measure.fidelity.row_losses``.  Grids that come before the image's are the
beginning of its first row, which is drawn in raster order: their F tokens have the columns −F … −1 of row 0.

B prompts, L tokens, the image H rows of W columns, V vocabulary.  A rows are worked on at once, from the top unfinished
one down; each has K = 1 + D inputs, its last token and D drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Component
from lanternbench.engine.address import Lengths, RowInputs, rows_address
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.decode import SpeculativeDecoder, launch
from lanternbench.engine.plain import RowSpec, TreeSpec, WindowSpec
from lanternbench.engine.state import DecodeState, LastCommit
from lanternbench.engine.teacher_forced import teacher_forced
from lanternbench.engine.trace import Trace
from lanternbench.models.grids import size


class Order(Component):
    """In which order the tokens of an image are drawn; by itself, raster order."""

    def apply(self, decoder: SpeculativeDecoder) -> SpeculativeDecoder:
        """``decoder``, which draws in raster order, made to draw in this one."""
        return decoder

    def plain(self, draft: TreeSpec | WindowSpec) -> TreeSpec | WindowSpec | RowSpec | None:
        """The plain definition of a proposal with this one ``draft``; None where it has none."""
        return draft


class RowState(NamedTuple):
    """What is committed, and the drafts of the rows that are worked on."""

    filled: Tensor  # [B, H] committed tokens of each row
    closed: Tensor  # [B] rows whose last token has its keys and values in the cache
    drafts: Tensor  # [B, A, D] of the next positions of each row; the first ``kept`` [B, A] count
    p: Tensor  # [B, A, D, V] what each is tested against
    kept: Tensor
    law: Tensor | None = None  # [B, A, D, V] what each was drawn from, where that is not p
    ahead: PerPrompt | None = None  # on the host, of the next step: rows, is a row to be closed?, slots in use


class Active(NamedTuple):
    """The rows that a step works on, [B, A] each."""

    row: Tensor
    filled: Tensor  # its tokens
    above: Tensor  # tokens of the row above
    room: Tensor  # drafts that fit
    opening: Tensor  # bool: has it no token yet?
    begun: Tensor  # bool: is the row there, and has it begun or may it begin?
    on: Tensor  # bool: and does it take part in this step?
    top: Tensor  # [B] complete rows


class Decision(NamedTuple):
    """What a step commits, and the facts that the fidelity loss needs."""

    tokens: Tensor  # [B, A, K] of each row, of which the first ``advance`` [B, A] count
    advance: Tensor
    tested: Tensor  # [B, A, K] bool: was a draft tested here?
    final: Tensor  # [B, A] bool: does a rejected draft's place get a token all the same?
    own: RowState


class RowTrace(Trace):
    """``seen`` [B, L, V]: the distribution of each token given what its row saw; p and ``law``: of the draft tested."""

    def __init__(self, state: DecodeState):
        super().__init__(state.batch, state.limit + 2, state.target.vocab, 1, state.device)
        self.of = state
        self.seen, self.final, self.law = torch.zeros_like(self.q), torch.zeros_like(self.sampled), self.q[..., :0]
        self.seen[:, 0] = state.first

    def cut(self, length: int) -> None:
        """Drop entries past the image; q is what the target gives each token after all that precede it."""
        state = self.of
        del self.of  # caches and all
        super().cut(length)
        self.q = teacher_forced(state.target, state.prefix, state.finish(), state.guidance, state.warp)


class RowProposer:
    """Which rows a step works on, and what it feeds; ``decide`` says what is committed.

    ``second``: tokens that the first row has when the second begins.  ``shown``: see ``rows_address``.  ``per_row``:
    uniforms of one row in one step.
    """

    nodes, width, max_step_slots, update_uniforms, adapts = 1, 1, 1, 0, False  # as the engine reads a ``Proposal``'s
    drafter, aux_layers = None, ()
    own_law = False  # are drafts drawn from another law than their p?

    def __init__(
        self, target: Any, lead: int, drafts: int, per_row: int, second: int | None = None, shown: int | None = None
    ):
        (self.height, self.columns), self.shown = target.grid, shown
        self.first = target.length - size(target.grid)  # F
        self.lead = min(lead, self.columns)
        self.rows = -(-self.columns // self.lead)  # A: a lower one would begin after the top one is complete
        self.ends, self.drafts, self.inputs = target.row_width > 0, drafts, 1 + drafts
        self.stored = drafts  # drafts of a row that outlive a step
        self.max_depth, self.per_row, self.uniforms = drafts, per_row, self.rows * per_row - 1
        need = torch.full((self.height,), self.lead, device=target.device)
        self.need = need.index_fill_(0, torch.tensor([1][: self.height - 1], device=target.device), second or self.lead)
        self.slots = torch.arange(self.rows, device=target.device)
        self.steps = torch.arange(self.inputs, device=target.device)

    def begin(self, state: DecodeState) -> RowState:
        shape = (state.batch, self.rows, self.stored)
        zero = torch.zeros(shape, dtype=torch.long, device=state.device)
        p = torch.zeros(*shape, state.target.vocab, dtype=state.first.dtype, device=state.device)
        count = torch.zeros(state.batch, self.height, dtype=torch.long, device=state.device)
        count[:, 0].fill_(1 - self.first)
        kept = torch.zeros(shape[:2], dtype=torch.long, device=state.device)
        own = RowState(count, torch.zeros_like(count[:, 0]), zero, p, kept, p if self.own_law else None)
        if state.trace is not None:
            state.trace = RowTrace(state)
        return own._replace(ahead=PerPrompt(map(tuple, self.outlook(own).tolist())))

    def sizes(self, own: RowState) -> PerPrompt:
        assert own.ahead is not None
        return PerPrompt((self.drafts, rows * self.inputs) for rows, *_ in own.ahead)

    def canonical(self, own: RowState) -> RowState:
        void = torch.arange(own.drafts.shape[2], device=own.kept.device) >= own.kept[..., None]
        law = None if own.law is None else own.law.masked_fill(void[..., None], 0.0)
        return own._replace(drafts=own.drafts.masked_fill(void, 0), p=own.p.masked_fill(void[..., None], 0.0), law=law)

    def active(self, count: Tensor, rows: int) -> Active:
        top = (count == self.columns).long().cumprod(1).sum(1)
        row = top[:, None] + self.slots[:rows]
        here = row.clamp(max=self.height - 1)
        own, above = count.gather(1, here), count.gather(1, (here - 1).clamp(min=0))
        room = torch.minimum(self.columns - own, (above - own).masked_fill(self.slots[:rows] == 0, self.columns))
        room = room.clamp(0, self.drafts)
        opening = (own == 0) & (row > 0)
        begun = (row < self.height) & (~opening | (above >= self.need[here]))
        waits = (room == 0) & (self.slots[:rows] > 0) & (self.drafts > 0)  # it has caught up with the row above
        return Active(here, own, above, room, opening, begun, begun & ~waits, top)

    def outlook(self, own: RowState) -> Tensor:
        """[B, 3] see ``RowState.ahead``."""
        now = self.active(own.filled, self.rows)
        rows = (now.begun * (self.slots + 1)).amax(1)
        end = (now.row * (self.columns + self.ends) + now.filled + now.room) * now.on
        return torch.stack([rows, self.to_close(own, now).long(), end.amax(1)], 1)

    def to_close(self, own: RowState, now: Active) -> Tensor:
        """[B] Is the last token of the lowest complete row an input of its own?"""
        wanted = (now.top > own.closed) & (now.top < self.height)
        return wanted if self.ends else wanted & (now.filled[:, 0] > 0)  # else the next row's first token reads it

    def feed(self, image: Tensor, own: RowState, now: Active) -> RowInputs:
        """image [B, ≥ L] -> K inputs of each row, and after them the last token of a complete one."""
        w, opening = self.columns, now.opening
        source = torch.where(~opening, now.row, (now.row - 2 + (now.above == w).long()).clamp(min=0))
        last = image.gather(1, self.first + source * w + own.filled.gather(1, source) - 1)
        column = torch.where(opening, w - (not self.ends), now.filled - 1)
        ahead = (now.filled - 1)[..., None] + self.steps[1:]
        row = torch.cat([(now.row - opening.long())[..., None], now.row[..., None].expand_as(ahead)], -1)
        columns = torch.cat([column[..., None], ahead], -1)
        upto = torch.cat([torch.where(opening, now.above, now.filled - 1)[..., None], ahead], -1)
        used = now.on[..., None] & (self.steps <= now.room[..., None])
        done = (now.top - 1).clamp(min=0)[:, None]
        rows = RowInputs(torch.cat([last[..., None], own.drafts[..., : self.drafts]], -1), row, columns, upto, used)
        last, column = image.gather(1, self.first + done * w + w - 1), torch.full_like(done, w - 1)
        closing = RowInputs(last, done, column, column, self.to_close(own, now)[:, None])
        return RowInputs(*(torch.cat([x.flatten(1), y], 1) for x, y in zip(rows, closing, strict=True)))

    def fill(self, state: DecodeState, own: RowState, now: Active, u: Tensor) -> RowState:
        """``own`` with D drafts in every row; u [B, A, per_row]."""
        return own

    def decide(self, decoder: SpeculativeDecoder, own: RowState, now: Active, q: Tensor, u: Tensor) -> Decision:
        """What becomes of the drafts, given q [B, A, K, V] after each input; its ``own`` is of the rows as they are."""
        raise NotImplementedError


def step(decoder: SpeculativeDecoder, state: DecodeState, own: RowState) -> tuple[RowState, tuple[RowState, Decision]]:
    """One target forward over all rows that are worked on; it commits at least one token per unfinished prompt.

    Returns the next state; this one with the drafts that were tested, and what became of them.
    """
    proposer: Any = decoder.proposer
    assert own.ahead is not None
    run: Any = decoder.recordings.replay if state.recorded else launch
    rows, closing, end = (max(column) for column in zip(*own.ahead, strict=True))
    end += state.cache.layout.slots[1 + proposer.first]
    if state.recorded:  # fixed shapes; ``spans`` counts row ends twice
        rows, closing = proposer.rows, 1
        longest = state.cache.layout.slots[max(state.now.length.host or (0,))] + 1
        state.max_step_slots = max(end - longest, 0) // (1 + proposer.ends)
    u = state.uniforms[:, state.steps].view(state.batch, proposer.rows, -1)[:, :rows]

    def read(state: DecodeState, own: RowState, u: Tensor) -> tuple[Active, RowState, Tensor, Tensor]:
        now = proposer.active(own.filled, rows)
        own = proposer.fill(state, of_rows(own, lambda x: x[:, :rows]), now, u)
        given, many = proposer.feed(state.now.tokens, own, now), rows * proposer.inputs
        if not closing:
            given = RowInputs(*(x[:, :many] for x in given))
        state.clock.tick("draft")
        q = forward(state, given, own.filled, state.now.length.span or end, proposer, many)
        return now, own, q.unflatten(1, (rows, -1)), q[..., 0].sum()

    def settle(state: DecodeState, own: RowState, now: Active, q: Tensor, u: Tensor) -> tuple[Any, ...]:
        made = proposer.decide(decoder, own, now, q, u)
        count = own.filled.scatter_add(1, now.row, made.advance)
        after = moved(made.own._replace(filled=count, closed=now.top), now.top, proposer)
        at = proposer.first + now.row[..., None] * proposer.columns + now.filled[..., None] + proposer.steps
        at = torch.where(proposer.steps < made.advance[..., None], at, state.limit).flatten(1)
        length = proposer.first + count.sum(1, keepdim=True)
        return made, after, at, torch.cat([length, proposer.outlook(after)], 1)

    now, own, q, health = run(state, "verify", None, read, own._replace(ahead=None), u)
    state.health += health
    made, after, at, figures = run(state, "commit", None, settle, own, now, q, u)
    trace: Any = state.trace
    if trace is not None:
        with state.clock.aside("commit"):
            record(trace, state.prompts, own, made, at, q)
    return after._replace(ahead=commit(state, made, at, figures)), (own, made)


def forward(state: DecodeState, given: RowInputs, count: Tensor, span: int, proposer: RowProposer, many: int) -> Tensor:
    """q [B, many, V] after the first ``many`` inputs."""
    cache = state.cache
    x = cache.all_rows(state.target.model.tok_embeddings(given.tokens))
    if proposer.ends:
        assert cache.row_end is not None
        x = torch.where(cache.per_row(given.column == proposer.columns)[..., None], cache.row_end, x)
    at = rows_address(cache.layout, proposer.first, proposer.columns, given, count, span, proposer.shown)
    logits = state.logits(cache.forward(x, at)[:, :many])
    state.clock.tick("verify")
    return state.warp(logits)


def of_rows(own: RowState, change: Callable[[Tensor], Tensor]) -> RowState:
    """``own`` with the tensors that have a dimension of rows changed."""
    law = None if own.law is None else change(own.law)
    return own._replace(drafts=change(own.drafts), p=change(own.p), kept=change(own.kept), law=law)


def moved(own: RowState, top: Tensor, proposer: RowProposer) -> RowState:
    """Drafts of the rows from ``top`` [B] on -> of A rows from the row on that is now the top unfinished one."""
    rows = own.kept.shape[1]
    source = proposer.slots + ((own.filled == proposer.columns).long().cumprod(1).sum(1) - top)[:, None]
    index = source.clamp(max=rows - 1)

    def move(x: Tensor) -> Tensor:
        return x.gather(1, index.view(*index.shape, *[1] * (x.ndim - 2)).expand(-1, -1, *x.shape[2:]))

    own = of_rows(own, move)
    return own._replace(kept=torch.where(source < rows, own.kept, 0))


def commit(state: DecodeState, made: Decision, at: Tensor, figures: Tensor) -> PerPrompt:
    """Write the tokens, advance.  The step's only host synchronisation is here; returns ``RowState.ahead``."""
    now = state.now
    now.tokens.scatter_(1, at, made.tokens.flatten(1))
    host = figures.tolist()
    state.syncs += 1
    state.steps += 1
    length = PerPrompt(n for n, *_ in host)
    counts = PerPrompt(n - o for n, o in zip(length, now.length.host or (), strict=True))
    last = LastCommit(now.last.hidden, now.last.tokens, Lengths.of(made.advance.sum(1), counts))
    state.now = now._replace(length=Lengths.of(figures[:, 0], length), last=last)
    state.clock.tick("commit")
    return PerPrompt(tuple(ahead) for _, *ahead in host)


def record(trace: RowTrace, prompts: Tensor, own: RowState, made: Decision, at: Tensor, q: Tensor) -> None:
    """Store what each committed token was drawn from, at its place ``at`` [B, A · K]; prompts [B, 1]."""
    tested, steps = made.tested.flatten(1), made.tested.shape[2]

    def file(store: Tensor, values: Tensor) -> None:
        store[prompts, at] = values.flatten(1, 2).to(store.dtype)

    seen: Any = trace.seen
    file(seen, q)
    file(trace.tried, made.tested)
    file(trace.final, made.final[..., None].expand_as(made.tested))
    file(trace.depth, torch.arange(1, steps + 1, device=q.device).expand_as(made.tested))
    if own.p.shape[2]:
        spare = steps - own.p.shape[2]  # the last input has no draft after it
        file(trace.p, F.pad(own.p, (0, 0, 0, spare)))
        file(trace.children, F.pad(own.drafts, (0, spare), value=-1)[..., None])
    if own.law is not None:
        trace.law = trace.law if trace.law.shape == trace.q.shape else torch.zeros_like(trace.q)
        file(trace.law, F.pad(own.law, (0, 0, 0, spare)))
    trace.sampled[prompts, at] = tested
