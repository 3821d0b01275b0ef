"""Several rows at once: ZipAR (arXiv 2412.04062) and parallel Jacobi decoding (arXiv 2606.05703).

The target has a distribution after every *view*: the tokens that an input attends to, by position,
``NONE`` where there is none; a whole view is a prefix.  Rows of one step see what was committed
before it, never each other's drafts, so a step's outcomes are the products of its rows'.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lanternbench.engine.plain import RowSpec
from lanternbench.lossless.plain import (
    Draws,
    PlainMethod,
    Prefix,
    World,
    after_rejection,
    kernel,
    normalise,
    outcomes,
)

NONE = -1
Law = tuple[float, ...]


class Draft(NamedTuple):
    token: int
    p: Law  # what it is tested against
    law: Law  # what it was drawn from


class Row(NamedTuple):
    tokens: tuple[int, ...] = ()
    drafts: tuple[Draft, ...] = ()
    stand_in: int | None = None  # for the last token of the row above, while tokens may see it


Rows = tuple[Row, ...]
# one outcome of a row's step: the row, and what each new token was drawn from
Result = tuple[Row, tuple[Law, ...]]
# rows, and laws of tokens whose loss is not known yet
State = tuple[Rows, tuple[tuple[int, Law], ...]]


@dataclass(frozen=True)
class RowMethod(PlainMethod):
    """How rows are drawn, and the rule and residual that judge their drafts.

    The loss is Σ E TV(r_i, q(· | all tokens before)).  A token's is known once the rows above it
    are whole; until then its law is part of the state.
    """

    spec: RowSpec

    def start(self, world: World) -> dict[State, float]:
        q, blank = world.q(()), (Row(),) * (world.length // world.grid_width - 1)
        return {((Row((x,)), *blank), ((0, tuple(q)),)): w for x, w in enumerate(q) if w > 0}

    def image(self, world: World, state: State) -> Prefix | None:
        tokens = tuple(x for row in state[0] for x in row.tokens)
        return tokens if len(tokens) == world.length else None

    def step(self, world: World, state: State) -> Callable[[Draws], State]:
        rows, pending = state
        options = [outcomes(RowStep(world, self, rows, i).run)[0] for i in range(len(rows))]

        def run(draws: Draws) -> State:
            results = [draws.among(option) for option in options]
            laws, after = list(pending), tuple(row for row, _ in results)
            for i, (row, (_, drawn)) in enumerate(zip(rows, results, strict=True)):
                laws += enumerate(drawn, i * world.grid_width + len(row.tokens))
            image = [x for row in after for x in line(world, row)]
            for i, law in laws:
                if NONE not in image[:i]:
                    draws.lose(law, world.q, tuple(image[:i]))
            return after, tuple((i, law) for i, law in laws if NONE in image[:i])

        return run


def line(world: World, row: Row) -> Prefix:
    """A row's tokens, and ``NONE`` for those that it lacks."""
    return (*row.tokens, *[NONE] * (world.grid_width - len(row.tokens)))


class RowStep:
    """What row i becomes in one step of ``rows``."""

    def __init__(self, world: World, method: RowMethod, rows: Rows, i: int):
        self.world, self.method, self.spec, self.rows, self.i = world, method, method.spec, rows, i
        self.width, self.row = world.grid_width, rows[i]
        self.filled_above = len(rows[i - 1].tokens) if i else self.width
        self.first = next(
            (j for j, row in enumerate(rows) if len(row.tokens) < self.width), len(rows)
        )
        self.top = i == self.first  # of the rows that are not whole
        # the latest token of two rows up, where the row above is not whole
        if not self.row.tokens:
            source = rows[i - 2] if i > 1 else rows[i - 1]
            stand_in = (
                None if self.filled_above == self.width or not source.tokens else source.tokens[-1]
            )
            self.row = self.row._replace(stand_in=stand_in)
        self.stand_in = self.row.stand_in if method.spec.seen else None

    def run(self, draws: Draws) -> Result:
        """A row that takes no part stays as it is."""
        spec, i, first, width, done = (
            self.spec,
            self.i,
            self.first,
            self.width,
            len(self.row.tokens),
        )
        lead = min(spec.lead, width)
        begins_at = width if i == 1 and not spec.window else lead
        if (
            i < first
            or i >= first + -(-width // lead)
            or (not done and self.filled_above < begins_at)
        ):
            return self.rows[i], ()
        if not spec.window:
            return self.zipar(draws)
        free = min(spec.window, width - done, width if self.top else self.filled_above - done)
        return self.pjd(draws, free) if free > 0 else (self.rows[i], ())

    def law(self, tokens: Prefix) -> Law:
        """The target's distribution after what the last of ``tokens`` attends to; without any it
        is the stand-in.
        """
        seen: list[int] = []
        for j, row in enumerate(self.rows[: self.i]):
            seen += line(self.world, row)
            begins = j == self.i - 1 and not tokens and self.row.stand_in is not None
            below = self.rows[j + 1].stand_in if self.spec.seen else None
            stand_in = self.row.stand_in if begins else below
            if seen[-1] == NONE and stand_in is not None:
                seen[-1] = stand_in
        return tuple(self.world.q((*seen, *tokens)))

    def zipar(self, draws: Draws) -> Result:
        """The next token is drawn and committed; an adaptive window's first is a candidate until
        it stays the same.
        """
        tokens, whole = self.row.tokens, self.filled_above == self.width
        waits = self.spec.adaptive and not tokens
        q = self.law(tokens)
        law, origin, settled = q, q, not waits or whole
        if not (waits and self.row.drafts):
            x = draws.token(q)
        else:
            draft = self.row.drafts[0]
            law, x = self.final_law(q, draft, 1, whole), draft.token
            if draws.accepts(min(1.0, q[x] / draft.p[x])):
                settled = True
            else:
                origin = self.residual(q, draft, 1)
                x = draws.token(origin)
        if settled:
            return Row((*tokens, x), (), self.stand_in), (law,)
        return Row((), (Draft(x, q, origin),), self.stand_in), ()

    def pjd(self, draws: Draws, free: int) -> Result:
        """Fresh drafts for ``free`` places, the test from the left, and new drafts."""
        row, uniform = self.row, (1 / self.world.vocab,) * self.world.vocab
        drafts = list(row.drafts[:free])
        drafts += [
            Draft(draws.token(uniform), uniform, uniform) for _ in range(free - len(drafts))
        ]
        drafted, left = tuple(draft.token for draft in drafts), self.width - len(row.tokens)
        qs = [self.law(row.tokens + drafted[:n]) for n in range(min(len(drafts) + 1, left))]
        laws: list[Law] = []
        end: tuple[int, ...] = ()
        for n, draft in enumerate(drafts):
            q, depth = qs[n], n + 1
            accepted = draws.accepts(
                self.method.rule.probability(list(q), list(draft.p), draft.token, depth)
            )
            if accepted or self.top:
                laws.append(self.final_law(q, draft, depth, self.top))
            if not accepted:
                end = (draws.token(self.residual(q, draft, depth)),) if self.top else ()
                break
        else:
            n = len(drafts)
            if self.top and n < left:
                end = (draws.token(qs[-1]),)
                laws.append(qs[-1])
        after = self.redrawn(draws, drafts, qs, n, n + len(end))
        return Row(row.tokens + drafted[:n] + end, after, self.stand_in), tuple(laws)

    def redrawn(
        self, draws: Draws, drafts: list[Draft], qs: list[Law], n: int, begin: int
    ) -> tuple[Draft, ...]:
        """After n accepted drafts, those of the places from ``begin`` on are drawn anew, or stay."""
        after: list[Draft] = []
        for m in range(begin, len(qs))[: self.spec.window]:
            q, old = qs[m], drafts[m] if n < m < len(drafts) else None
            if old is not None and min(1.0, q[old.token] / old.p[old.token]) > self.spec.reuse:
                passes = [
                    a * (b > 0 and c > self.spec.reuse * b)
                    for a, b, c in zip(old.law, old.p, q, strict=True)
                ]
                after.append(Draft(old.token, old.p, tuple(normalise(passes))))
            else:
                after.append(Draft(draws.token(q), q, q))
        return tuple(after)

    def residual(self, q: Law, draft: Draft, depth: int) -> Law:
        """The distribution after a draft at ``depth`` of its row was rejected."""
        residual, rule = self.method.residual, self.method.rule
        return tuple(after_rejection(residual, list(q), list(draft.p), draft.token, rule, depth))

    def final_law(self, q: Law, draft: Draft, depth: int, final: bool) -> Law:
        """The law of what stands in the place at the end; ∝ ℓ·f, where it waits after a rejection."""
        rule, laws = self.method.rule, (list(q), list(draft.p), list(draft.law))
        if final:
            return tuple(kernel(self.method.residual, *laws, rule, depth))
        mass = [
            share * rule.probability(*laws[:2], y, depth) if share > 0 else 0.0
            for y, share in enumerate(draft.law)
        ]
        return tuple(normalise(mass, laws[0]))
