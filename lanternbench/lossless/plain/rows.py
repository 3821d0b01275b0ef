"""Several rows at once by enumeration: ZipAR (arXiv 2412.04062) and parallel Jacobi decoding (arXiv 2606.05703).

The target has a distribution after every *view*: the tokens that an input attends to, by position, ``NONE`` where there
is none; a whole view is a prefix.  Rows of one step see what was committed before it, never each other's
drafts, so a step's outcomes are the products of its rows'.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from lanternbench.engine.plain import PlainRule, RowSpec
from lanternbench.lossless.plain.rules import Residual, after_rejection
from lanternbench.lossless.plain.world import Prefix, World, normalise

NONE = -1
Law = tuple[float, ...]


@dataclass(frozen=True)
class RowMethod:
    """How rows are drawn, and the rule and residual that judge their drafts."""

    spec: RowSpec
    rule: PlainRule
    residual: Residual


class Draft(NamedTuple):
    token: int
    p: Law  # what it is tested against
    law: Law  # what it was drawn from


class Row(NamedTuple):
    tokens: tuple[int, ...] = ()
    drafts: tuple[Draft, ...] = ()
    stand_in: int | None = None  # for the last token of the row above, while tokens may see it


class Result(NamedTuple):
    """One outcome of a row's step: the row, and what each new token was drawn from."""

    row: Row
    laws: tuple[Law, ...]


Weighted = dict[Result, float]


State = tuple[tuple[Row, ...], tuple[tuple[int, Law], ...]]  # rows, and laws of tokens whose loss is not known yet


def decode_by_steps(world: World, method: RowMethod) -> tuple[list[dict[Prefix, float]], float]:
    """P(image after 1, 2, … steps), the first token before them; and Σ E TV(r_i, q(· | all tokens before)).

    A token's loss is known once the rows above it are whole; until then its law is part of the state.
    """
    width, height = world.grid_width, world.length // world.grid_width
    blank = (Row(),) * (height - 1)
    states: dict[State, float] = {
        ((Row((x,)), *blank), ((0, tuple(world.q(()))),)): w for x, w in enumerate(world.q(())) if w > 0
    }
    by_steps: list[dict[Prefix, float]] = []
    total_loss = 0.0
    while states:
        images: dict[Prefix, float] = defaultdict(float)
        after: dict[State, float] = defaultdict(float)
        for (rows, pending), weight in states.items():
            options = [list(row_step(world, method, rows, i).items()) for i in range(height)]
            for combo in product(*options):
                mass = weight * math.prod(chance for _, chance in combo)
                new = tuple(result.row for result, _ in combo)
                drawn = [
                    (i * width + len(rows[i].tokens) + j, law)
                    for i, (result, _) in enumerate(combo)
                    for j, law in enumerate(result.laws)
                ]
                lost, left = settle(world, new, [*pending, *drawn])
                total_loss += mass * lost
                if all(len(row.tokens) == width for row in new):
                    images[tuple(x for row in new for x in row.tokens)] += mass
                else:
                    after[new, left] += mass
        by_steps.append(images)
        states = dict(after)
    return by_steps, total_loss


def settle(
    world: World, rows: tuple[Row, ...], pending: list[tuple[int, Law]]
) -> tuple[float, tuple[tuple[int, Law], ...]]:
    """Σ TV(r_i, q) of the tokens that all before are known of, and the others."""
    image = [x for row in rows for x in line(world, row)]
    lost, left = 0.0, []
    for i, law in pending:
        if NONE in image[:i]:
            left.append((i, law))
        else:
            q = world.q(tuple(image[:i]))
            lost += 0.5 * math.fsum(abs(a - b) for a, b in zip(law, q, strict=True))
    return lost, tuple(left)


def row_step(world: World, method: RowMethod, rows: tuple[Row, ...], i: int) -> Weighted:
    """What row i becomes in this step; a row that takes no part stays as it is."""
    width, row = world.grid_width, rows[i]
    top = next((j for j, r in enumerate(rows) if len(r.tokens) < width), len(rows))
    stay = {Result(row, ()): 1.0}
    if i < top or i >= top + -(-width // min(method.spec.lead, width)):
        return stay
    above = len(rows[i - 1].tokens) if i else width
    lead = width if i == 1 and not method.spec.window else min(method.spec.lead, width)
    if not row.tokens and above < lead:
        return stay
    if not row.tokens:  # the latest token of two rows up, where the row above is not whole
        source = rows[i - 2] if i > 1 else rows[i - 1]
        row = row._replace(stand_in=None if above == width else source.tokens[-1])
    if not method.spec.window:
        return zipar(world, method, rows, i, row)
    room = min(method.spec.window, width - len(row.tokens), width if i == top else above - len(row.tokens))
    return pjd(world, method, rows, i, row, room, i == top) if room > 0 else stay


def view(
    world: World, method: RowMethod, rows: tuple[Row, ...], i: int, own: Prefix, opening: int | None = None
) -> Prefix:
    """What the last of ``own`` attends to, in row i; ``opening``: the stand-in, where that is the input."""
    seen: list[int] = []
    for j in range(i):
        seen += line(world, rows[j])
        stand_in = opening if j == i - 1 and opening is not None else rows[j + 1].stand_in if method.spec.seen else None
        if seen[-1] == NONE and stand_in is not None:
            seen[-1] = stand_in
    return (*seen, *own)


def line(world: World, row: Row) -> Prefix:
    """A row's tokens, and ``NONE`` for those that it lacks."""
    return (*row.tokens, *[NONE] * (world.grid_width - len(row.tokens)))


def zipar(world: World, method: RowMethod, rows: tuple[Row, ...], i: int, row: Row) -> Weighted:
    """The next token, drawn and committed; an adaptive window's first one is a candidate until it stays the same."""
    begins = not row.tokens
    q = tuple(world.q(view(world, method, rows, i, row.tokens, row.stand_in if begins else None)))
    out: Weighted = defaultdict(float)
    whole = i == 0 or len(rows[i - 1].tokens) == world.grid_width

    def put(x: int, law: Law, chance: float, settled: bool, origin: Law) -> None:
        if chance > 0 and settled:
            out[Result(Row((*row.tokens, x), (), row.stand_in if method.spec.seen else None), (law,))] += chance
        elif chance > 0:
            out[Result(Row((), (Draft(x, q, origin),), row.stand_in if method.spec.seen else None), ())] += chance

    if not (method.spec.adaptive and begins and row.drafts):
        for x, qx in enumerate(q):
            put(x, q, qx, not (method.spec.adaptive and begins) or whole, q)
        return out
    x, p, law = row.drafts[0]
    f = min(1.0, q[x] / p[x])
    r = mixture(world, method, q, p, law, 1) if whole else accepted_law(method, q, p, law, 1)
    rest = tuple(after_rejection(method.residual, list(q), list(p), x, method.rule, 1))
    put(x, r, f, True, q)
    for y, gy in enumerate(rest):
        put(y, r, (1 - f) * gy, whole, rest)
    return out


def pjd(world: World, method: RowMethod, rows: tuple[Row, ...], i: int, row: Row, room: int, top: bool) -> Weighted:
    """Fresh drafts up to ``room``, the test from the left, and new drafts."""
    uniform = (1 / world.vocab,) * world.vocab
    out: Weighted = defaultdict(float)
    missing = max(0, room - len(row.drafts))
    for fresh in product(range(world.vocab), repeat=missing):
        drafts = (*row.drafts[:room], *(Draft(x, uniform, uniform) for x in fresh))
        for result, chance in tested(world, method, rows, i, row, drafts, top):
            out[result] += chance / world.vocab**missing
    return out


def tested(
    world: World, method: RowMethod, rows: tuple[Row, ...], i: int, row: Row, drafts: tuple[Draft, ...], top: bool
) -> Iterator[tuple[Result, float]]:
    """Everything that a row's test can lead to."""
    qs, room = [], world.grid_width - len(row.tokens)
    for n in range(min(len(drafts) + 1, room)):
        own = (*row.tokens, *(draft.token for draft in drafts[:n]))
        qs.append(tuple(world.q(view(world, method, rows, i, own, None if own else row.stand_in))))
    weight, laws = 1.0, list[Law]()
    for n, (x, p, law) in enumerate(drafts):
        q, depth = qs[n], n + 1
        f = method.rule.plain_prob(list(q), list(p), x, depth)
        r = mixture(world, method, q, p, law, depth) if top else accepted_law(method, q, p, law, depth)
        if f < 1:
            rest = after_rejection(method.residual, list(q), list(p), x, method.rule, depth)
            ends: list[tuple[int | None, float]] = [*enumerate(rest)] if top else [(None, 1.0)]
            for y, gy in ends:
                more = (r,) if top else ()
                yield from redrawn(method, row, drafts, qs, n, y, (*laws, *more), weight * (1 - f) * gy)
        weight *= f
        laws.append(r)
    ends = [*enumerate(qs[-1])] if top and len(drafts) < room else [(None, 1.0)]
    for y, qy in ends:
        more = () if y is None else (qs[-1],)
        yield from redrawn(method, row, drafts, qs, len(drafts), y, (*laws, *more), weight * qy)


def redrawn(
    method: RowMethod, row: Row, drafts: tuple[Draft, ...], qs: list[Law], n: int, end: int | None,
    laws: tuple[Law, ...], weight: float,
) -> Iterator[tuple[Result, float]]:  # fmt: skip
    """n drafts were accepted, and ``end`` follows them if it is a token; later places are drawn anew, or stay."""
    if weight == 0:
        return
    tokens = (*row.tokens, *(draft.token for draft in drafts[:n]), *(() if end is None else (end,)))
    options: list[list[tuple[Draft, float]]] = []
    for m in range(n + (end is not None), len(qs))[: method.spec.window]:
        q = qs[m]
        old = drafts[m] if n < m < len(drafts) else None
        if old is not None and min(1.0, q[old.token] / old.p[old.token]) > method.spec.reuse:
            passes = [a * (b > 0 and c > method.spec.reuse * b) for a, b, c in zip(old.law, old.p, q, strict=True)]
            options.append([(Draft(old.token, old.p, tuple(normalise(passes))), 1.0)])
        else:
            options.append([(Draft(x, q, q), qx) for x, qx in enumerate(q) if qx > 0])
    for combo in product(*options):
        new = Row(tokens, tuple(draft for draft, _ in combo), row.stand_in if method.spec.seen else None)
        yield Result(new, laws), weight * math.prod(chance for _, chance in combo)


def accepted_law(method: RowMethod, q: Law, p: Law, law: Law, depth: int) -> Law:
    """The law of a draft from ``law`` that was accepted: ∝ ℓ·f."""
    f = [method.rule.plain_prob(list(q), list(p), y, depth) if a > 0 else 0.0 for y, a in enumerate(law)]
    return tuple(normalise([a * b for a, b in zip(law, f, strict=True)], list(q)))


def mixture(world: World, method: RowMethod, q: Law, p: Law, law: Law, depth: int) -> Law:
    """The law of what stands in a tested place at the end: ℓ·f + Σ_x ℓ(x)·(1 − f(x))·G_x."""
    made = [0.0] * world.vocab
    for y, share in enumerate(law):
        if share > 0:
            f = method.rule.plain_prob(list(q), list(p), y, depth)
            made[y] += share * f
            rest = after_rejection(method.residual, list(q), list(p), y, method.rule, depth)
            made = [a + share * (1 - f) * g for a, g in zip(made, rest, strict=True)]
    return tuple(made)
