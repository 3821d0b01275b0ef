"""Several rows at once: ZipAR (arXiv 2412.04062), parallel Jacobi decoding (arXiv 2606.05703), and
FlashAR's diagonals (arXiv 2605.09430).

The target has a distribution after every *view*: the tokens that an input attends to, by position,
``NONE`` if there is none; a whole view is a prefix.  Rows of one step see what was committed
before it, never each other's drafts, so a step's outcomes are the products of its rows'.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from lanternbench.lossless.plain import (
    Draws,
    Law,
    Logits,
    PlainMethod,
    Prefix,
    World,
    guide,
    normalise,
    outcomes,
    warp,
)

NONE = -1


class Draft(NamedTuple):
    token: int
    p: Law  # what it is tested against
    law: Law  # what it was drawn from


class Row(NamedTuple):
    tokens: Prefix = ()
    drafts: tuple[Draft, ...] = ()
    stand_in: int | None = None  # for the last token of the row above, while tokens may see it

    def padded(self, width: int) -> Prefix:
        """The tokens, and ``NONE`` for those that it lacks."""
        return (*self.tokens, *[NONE] * (width - len(self.tokens)))


class Result(NamedTuple):
    """One outcome of a row's step."""

    row: Row
    laws: tuple[Law, ...] = ()  # what each new token was drawn from


Pending = tuple[tuple[int, Law], ...]  # positions and laws of tokens whose loss is not known yet
Rows = tuple[Row, ...]
RowsState = tuple[Rows, Pending]


@dataclass(frozen=True)
class SeveralRows(PlainMethod[RowsState]):
    """A way to draw several rows at once.

    The loss is Σ E TV(r_i, q(· | all tokens before)).  A token's is known once the rows above it
    are whole; until then its law is part of the state.
    """

    def start(self, world: World) -> dict[RowsState, float]:
        law = self.first_law(world)
        blank = [Row()] * (world.length // world.grid_width - 1)
        states: dict[RowsState, float] = {}
        for x, mass in enumerate(law):
            if mass > 0:
                states[(Row((x,)), *blank), ((0, law),)] = mass
        return states

    def first_law(self, world: World) -> Law:
        """The law of the first token."""
        return world.q(())

    def tokens(self, state: RowsState) -> Prefix:
        return sum([row.tokens for row in state[0]], ())

    def next_state(
        self, world: World, state: RowsState, of_rows: list[dict[Result, float]], draws: Draws
    ) -> RowsState:
        rows, pending = state
        results = [draws.among(results) for results in of_rows]
        after = tuple(result.row for result in results)
        laws = list(pending)
        for i, (row, result) in enumerate(zip(rows, results, strict=True)):
            laws += enumerate(result.laws, i * world.grid_width + len(row.tokens))
        image = sum([row.padded(world.grid_width) for row in after], ())
        waiting = []
        for position, law in laws:
            before = image[:position]
            if NONE in before:
                waiting.append((position, law))
            else:
                draws.lose(law, partial(world.q, before))
        return after, tuple(waiting)


@dataclass(frozen=True)
class RowMethod(SeveralRows):
    """PJD, or ZipAR, whose first row is drawn alone."""

    lead: int = 1  # tokens of a row when the next begins
    window: int = 0  # of PJD; 0: ZipAR
    adaptive: bool = False  # whether ZipAR's window is
    seen: bool = False  # whether tokens see the stand-in that begins a row
    reuse: float = 1.0  # PJD's threshold

    @property
    def deepest(self) -> int:
        return self.window

    def step(self, world: World, state: RowsState) -> Callable[[Draws], RowsState]:
        rows, _ = state
        steps = [RowStep(world, self, rows, i) for i in range(len(rows))]
        of_rows = [outcomes(step.run)[0] for step in steps]
        return partial(self.next_state, world, state, of_rows)


class RowStep:
    """One step of row i of ``rows``."""

    def __init__(self, world: World, method: RowMethod, rows: Rows, i: int):
        self.world = world
        self.method = method
        self.rows = rows
        self.i = i
        self.width = world.grid_width
        whole = [row for row in rows if len(row.tokens) == self.width]
        self.first = len(whole)  # the first row that is not
        self.is_top = i == self.first
        self.filled_above = len(rows[i - 1].tokens) if i else self.width
        self.row = rows[i]
        if not self.row.tokens:
            self.row = self.row._replace(stand_in=self.latest_above())
        self.stand_in = self.row.stand_in if self.method.seen else None

    def latest_above(self) -> int | None:
        """The token that stands in for the last one of the row above, if that is not whole: the
        latest token of two rows up.
        """
        source = self.rows[max(self.i - 2, 0)].tokens
        return source[-1] if source and self.filled_above < self.width else None

    @property
    def takes_part(self) -> bool:
        lead = min(self.method.lead, self.width)
        active = -(-self.width // lead)
        if not self.first <= self.i < self.first + active:
            return False
        drawn_alone = self.i == 1 and not self.method.window  # ZipAR's first row
        begins_at = self.width if drawn_alone else lead
        return len(self.row.tokens) > 0 or self.filled_above >= begins_at

    def run(self, draws: Draws) -> Result:
        """A row that takes no part stays as it is."""
        if not self.takes_part:
            return Result(self.rows[self.i])
        if not self.method.window:
            return self.zipar(draws)
        known = self.width if self.is_top else self.filled_above
        free = min(self.method.window, known - len(self.row.tokens))
        return self.pjd(draws, free) if free > 0 else Result(self.rows[self.i])

    def law(self, tokens: Prefix) -> Law:
        """The target's distribution after what the last of ``tokens`` attends to; without any it
        is the stand-in.
        """
        seen: list[int] = []
        for j in range(self.i):
            seen += self.rows[j].padded(self.width)
            begins = j == self.i - 1 and not tokens
            stand_in = self.row.stand_in if begins else None
            if stand_in is None and self.method.seen:
                stand_in = self.rows[j + 1].stand_in
            if seen[-1] == NONE and stand_in is not None:
                seen[-1] = stand_in
        return self.world.q((*seen, *tokens))

    def zipar(self, draws: Draws) -> Result:
        """The next token is drawn and committed; an adaptive window's first is a candidate until
        it stays the same, or the row above is whole.
        """
        tokens = self.row.tokens
        whole = self.filled_above == self.width
        waits = self.method.adaptive and not tokens
        q = self.law(tokens)
        if waits and self.row.drafts:
            return self.candidate_tested(draws, q, self.row.drafts[0], whole)
        x = draws.token(q)
        if waits and not whole:
            return Result(Row((), (Draft(x, q, q),), self.stand_in))
        return Result(Row((*tokens, x), (), self.stand_in), (q,))

    def candidate_tested(self, draws: Draws, q: Law, draft: Draft, whole: bool) -> Result:
        x = draft.token
        accepted = draws.accepts(min(1.0, q[x] / draft.p[x]))
        origin = q if accepted else self.after_rejection(q, draft, 1)
        if not accepted:
            x = draws.token(origin)
        if accepted or whole:
            law = self.final_law(q, draft, 1, whole)
            return Result(Row((x,), (), self.stand_in), (law,))
        return Result(Row((), (Draft(x, q, origin),), self.stand_in))

    def pjd(self, draws: Draws, free: int) -> Result:
        """Fresh drafts for ``free`` places, the test from the left, and new drafts."""
        tokens = self.row.tokens
        drafts = self.filled(draws, free)
        drafted = tuple(draft.token for draft in drafts)
        left = self.width - len(tokens)
        qs = [self.law(tokens + drafted[:n]) for n in range(min(free + 1, left))]
        laws: list[Law] = []
        n = 0
        while n < free and draws.accepts(self.acceptance(qs[n], drafts[n], n + 1)):
            laws.append(self.final_law(qs[n], drafts[n], n + 1, self.is_top))
            n += 1
        end: Prefix = ()
        if self.is_top and n < free:
            laws.append(self.final_law(qs[n], drafts[n], n + 1, True))
            end = (draws.token(self.after_rejection(qs[n], drafts[n], n + 1)),)
        elif self.is_top and n < left:
            laws.append(qs[n])
            end = (draws.token(qs[n]),)
        after = self.redrawn(draws, drafts, qs, n, n + len(end))
        committed = tokens + drafted[:n] + end
        return Result(Row(committed, after, self.stand_in), tuple(laws))

    def filled(self, draws: Draws, free: int) -> list[Draft]:
        """The drafts of ``free`` places, fresh ones uniform."""
        uniform = (1 / self.world.vocab,) * self.world.vocab
        drafts = list(self.row.drafts[:free])
        while len(drafts) < free:
            drafts.append(Draft(draws.token(uniform), uniform, uniform))
        return drafts

    def redrawn(
        self, draws: Draws, drafts: list[Draft], qs: list[Law], n: int, begin: int
    ) -> tuple[Draft, ...]:
        """After n accepted drafts, those of the places from ``begin`` on are drawn anew, or stay."""
        after: list[Draft] = []
        for m in range(begin, len(qs))[: self.method.window]:
            if n < m < len(drafts) and self.stays(qs[m], drafts[m]):
                after.append(self.kept(qs[m], drafts[m]))
            else:
                after.append(Draft(draws.token(qs[m]), qs[m], qs[m]))
        return tuple(after)

    def stays(self, q: Law, draft: Draft) -> bool:
        x = draft.token
        return min(1.0, q[x] / draft.p[x]) > self.method.reuse

    def kept(self, q: Law, draft: Draft) -> Draft:
        """The draft, whose law is now that of the tokens which would have stayed."""
        law = []
        for law_x, p_x, q_x in zip(draft.law, draft.p, q, strict=True):
            stays = p_x > 0 and q_x > self.method.reuse * p_x
            law.append(law_x if stays else 0.0)
        return draft._replace(law=normalise(law))

    def acceptance(self, q: Law, draft: Draft, depth: int) -> float:
        """The probability that a draft at ``depth`` of its row is accepted."""
        return self.method.rule.probability(q, draft.p, draft.token, depth)

    def after_rejection(self, q: Law, draft: Draft, depth: int) -> Law:
        return self.method.after_rejection(q, draft.p, draft.token, depth)

    def final_law(self, q: Law, draft: Draft, depth: int, is_final: bool) -> Law:
        """The law of what stands in the place at the end: K, or ∝ ℓ·f if the place waits after a
        rejection.
        """
        if is_final:
            return self.method.kernel(q, draft.p, draft.law, depth)
        mass = []
        for x, share in enumerate(draft.law):
            mass.append(share * self.method.rule.probability(q, draft.p, x, depth))
        return normalise(mass, q)


@dataclass(frozen=True)
class DiagonalMethod(SeveralRows):
    """Tokens of one anti-diagonal, each from softmax(g · H + (1 − g) · V) after guidance.

    H are the target's logits after what the token to the left sees, V the vertical branch's after
    what the token above sees; g = σ(H_0 − V_0), 1 in the first row and 0 in the first column.
    """

    causal: bool = False  # whether a token sees only what is earlier in raster order

    def first_law(self, world: World) -> Law:
        sides = []
        for horizontal, vertical in halves(world):
            h = horizontal(())
            sides.append(mixed(h, vertical(()), sigmoid(h[0])))
        return self.warped(world, sides)

    def step(self, world: World, state: RowsState) -> Callable[[Draws], RowsState]:
        rows, _ = state
        width = world.grid_width
        number = min(i + len(row.tokens) for i, row in enumerate(rows) if len(row.tokens) < width)
        of_rows: list[dict[Result, float]] = []
        for i, row in enumerate(rows):
            column = number - i
            if not 0 <= column < width:
                of_rows.append({Result(row): 1.0})
                continue
            law = self.law(world, rows, i, column)
            drawn = {}
            for x, mass in enumerate(law):
                if mass > 0:
                    drawn[Result(Row((*row.tokens, x)), (law,))] = mass
            of_rows.append(drawn)
        return partial(self.next_state, world, state, of_rows)

    def law(self, world: World, rows: Rows, i: int, column: int) -> Law:
        sides = []
        for horizontal, vertical in halves(world):
            if i == 0:
                sides.append(horizontal(self.view(world, rows, i)))
            elif column == 0:
                sides.append(vertical(self.view(world, rows, i - 1)))
            else:
                h = horizontal(self.view(world, rows, i))
                v = vertical(self.view(world, rows, i - 1))
                sides.append(mixed(h, v, sigmoid(h[0] - v[0])))
        return self.warped(world, sides)

    def view(self, world: World, rows: Rows, row: int) -> Prefix:
        """Return the tokens that an input of ``row`` on the last diagonal sees."""
        seen: list[int] = []
        for j, other in enumerate(rows):
            is_seen = j <= row or not self.causal
            seen += (other if is_seen else Row()).padded(world.grid_width)
        return tuple(seen)

    def warped(self, world: World, sides: list[list[float]]) -> Law:
        return warp(guide(sides[0], sides[1], world.sampling.guidance), world.sampling)


def halves(world: World) -> list[tuple[Logits, Logits]]:
    """The target's and the branch's logits by view, with the prompt and without."""
    with_prompt = (world.target, needed(world.drafter))
    return [with_prompt, (needed(world.target_uncond), needed(world.drafter_uncond))]


def needed(logits: Logits | None) -> Logits:
    if logits is None:
        raise ValueError("diagonals need the logits of a vertical branch")
    return logits


def mixed(h: list[float], v: list[float], gate: float) -> list[float]:
    return [gate * a + (1 - gate) * b for a, b in zip(h, v, strict=True)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
