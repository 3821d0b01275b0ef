"""Exact verification: the distribution of everything the real engine can do on tables, step by step.

A step of the engine is a deterministic function of its uniforms, and as a function of one of them, the earlier ones
given, it is piecewise constant: a token is drawn, a child accepted or not.  So its probabilities are found by measuring
where the engine changes its mind (bisection), not by working out what it should do; any rule, residual or tree policy,
registered ones too, is judged by what it does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lanternbench.engine import decode as engine
from lanternbench.engine.carry import PerPrompt, double, select
from lanternbench.engine.sampling import draw
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.lossless.plain.windows import inverse_cdf
from lanternbench.lossless.tables import (
    TableCache,
    Tables,
    first_token,
    table_state,
    table_target,
    table_trace,
    with_small_sizes,
    with_tables,
)
from lanternbench.measure.fidelity import decode_loss
from lanternbench.methods.build import build
from lanternbench.methods.method import Method

RESOLUTION = 2.0**-28  # to which thresholds are located
SECTIONS = 8  # parts an interval is cut into at once


@dataclass
class Rows:
    """Decodes in progress: tokens [R, ·], length [R], cache [R, halves, ·], the proposer's state, probability [R]."""

    tokens: Tensor
    length: Tensor
    memory: Tensor
    proposer_state: Any
    weight: Tensor

    def take(self, index: Tensor, weight: Tensor | None = None) -> Rows:
        proposer_state = select(self.proposer_state, index.tolist(), len(self.length))
        chosen = self.weight[index] if weight is None else weight
        return Rows(self.tokens[index], self.length[index], self.memory[index], proposer_state, chosen)


class StepOutcome(NamedTuple):
    """After one engine step: the rows, [R, ·] all that it decided as integers, state and result."""

    rows: Rows
    decided: Tensor
    state: DecodeState
    result: StepResult


class World:
    """A method at work on tables: ``step`` runs the real engine once for a batch of decodes with given uniforms."""

    def __init__(self, tables: Tables, method: Method, greedy: bool = False, published: bool = False):
        """``published``: the method's own sizes, of which the outcomes are too many to be enumerated."""
        self.tables, self.method = tables, method if published else with_small_sizes(method)
        temperature = 0.0 if greedy else tables.sampling.temperature
        decoder = build(table_target(tables, published), self.method, temperature, top_p=tables.sampling.top_p)
        self.decoder = replace(decoder, proposer=with_tables(decoder.proposer, tables))
        self.first = first_token(tables, decoder.warp)[0]  # [V]
        p = self.decoder.proposer
        self.nodes, self.width, self.uniforms = p.nodes, p.width, p.nodes + p.uniforms
        # the order in which a step decides: its draft, acceptance from the root down, the last token, redraws
        drafted = self.uniforms - p.update_uniforms
        self.order = [*range(self.nodes, drafted), *range(1, self.nodes), 0, *range(drafted, self.uniforms)]

    def start(self) -> Rows:
        """One row per first token, which needs no draft."""
        v, slots = self.tables.vocab, self.tables.length + self.nodes + 1
        tokens = torch.zeros(v, slots, dtype=torch.long)
        tokens[:, 0] = torch.arange(v)
        rows = Rows(tokens, torch.ones(v, dtype=torch.long), self.memory(v), (), self.first)
        rows.proposer_state = double(self.decoder.proposer.begin(self.state(rows, torch.zeros(v, 1, self.uniforms))))
        return rows.take((rows.weight > 0).nonzero()[:, 0])

    def memory(self, count: int) -> Tensor:
        """Empty caches."""
        slots = self.tables.length + self.nodes + 1
        return torch.full((count, self.tables.halves, slots), -1.0, dtype=torch.float64)

    def state(self, rows: Rows, uniforms: Tensor) -> DecodeState:
        return table_state(self.tables, self.decoder.warp, rows.tokens, rows.length, rows.memory, uniforms, self.nodes)

    def step(self, rows: Rows, u: Tensor, trace: bool = False) -> StepOutcome:
        """One engine step with uniforms u [R, U]."""
        state = self.state(rows, u[:, None])
        if trace:
            state.trace = table_trace(self.tables, state.batch, self.width)
        proposer_state, result = engine.step(self.decoder, state, rows.proposer_state)
        proposer_state = self.decoder.proposer.canonical(proposer_state)
        decided = [*self.padded(result), result.verified.token[:, None]]
        decided += [x.flatten(1) for x in tensors(proposer_state) if not x.is_floating_point()]
        assert isinstance(state.cache, TableCache)
        memory = state.cache.memory.unflatten(0, (-1, state.batch)).transpose(0, 1).contiguous()
        after = Rows(state.now.tokens, state.now.length.device, memory, proposer_state, rows.weight)
        return StepOutcome(after, torch.cat(decided, 1), state, result)

    def decode(self, first: Tensor, u: Tensor, trace: bool = False) -> DecodeState:
        """Whole decodes from their first tokens [B, 1] with uniforms u [B, L + 1, U]: the state at the end."""
        count = len(first)
        tokens = F.pad(first, (0, self.tables.length + self.nodes))
        rows = Rows(tokens, torch.ones(count, dtype=torch.long), self.memory(count), (), torch.ones(count))
        state = self.state(rows, u)
        if trace:
            state.trace = table_trace(self.tables, count, self.width)
        proposer_state = double(self.decoder.proposer.begin(state))
        while state.active:
            proposer_state, _ = engine.step(self.decoder, state, proposer_state)
        return state

    def padded(self, result: StepResult) -> tuple[Tensor, Tensor]:
        """Drafted tokens and accepted path in one shape, as trees that adapt are no larger than their batch needs."""
        draft, path = result.draft, result.verified.path
        tokens = draft.tokens.masked_fill(draft.tree.depth < 0, -1)
        last = path[:, -1:].expand(-1, self.decoder.proposer.max_depth + 1 - path.shape[1])
        return F.pad(tokens, (0, self.nodes - tokens.shape[1]), value=-1), torch.cat([path, last], 1)


def tensors(proposer_state: Any) -> list[Tensor]:
    """The tensors of a proposer's state, [R, ·] each."""
    return [x.view(len(x), -1) for x in tree_leaves(proposer_state) if isinstance(x, Tensor)]


def split(world: World, rows: Rows, u: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where uniform k changes what each row decides: (row, midpoint, width) of every piece of 0 … 1.

    Intervals whose ends agree are one piece (decisions are monotone in a uniform); others are cut until they are small.
    """
    everyone = torch.arange(len(u))

    def decide(row: Tensor, at: Tensor) -> Tensor:
        v = u[row]
        v[:, k] = at
        return world.step(rows.take(row), v).decided

    low, high = torch.zeros(len(u), dtype=u.dtype), torch.full((len(u),), 1 - 2.0**-40, dtype=u.dtype)
    row, at_low, at_high = everyone, decide(everyone, low), decide(everyone, high)
    cuts_row, cuts_at = [everyone, everyone], [low, torch.ones_like(low)]
    fractions = torch.linspace(0, 1, SECTIONS + 1, dtype=u.dtype)
    while True:
        keep = (at_low != at_high).any(1)
        row, low, high, at_low, at_high = row[keep], low[keep], high[keep], at_low[keep], at_high[keep]
        if not len(row):
            break
        if float((high - low).max()) < RESOLUTION:
            cuts_row.append(row)
            cuts_at.append((low + high) / 2)
            break
        points = low[:, None] + (high - low)[:, None] * fractions  # [I, S + 1]
        inner = decide(row.repeat_interleave(SECTIONS - 1), points[:, 1:-1].flatten())
        values = torch.cat([at_low[:, None], inner.view(len(row), SECTIONS - 1, -1), at_high[:, None]], 1)
        row = row.repeat_interleave(SECTIONS)
        low, high = points[:, :-1].flatten(), points[:, 1:].flatten()
        at_low, at_high = values[:, :-1].flatten(0, 1), values[:, 1:].flatten(0, 1)
    row, at = torch.cat(cuts_row), torch.cat(cuts_at)
    order = at.argsort(stable=True)
    order = order[row[order].argsort(stable=True)]
    row, at = row[order], at[order]
    same = row[1:] == row[:-1]
    low, width = at[:-1][same], (at[1:] - at[:-1])[same]
    return row[:-1][same], low + width / 2, width


def branches(world: World, rows: Rows) -> tuple[Rows, Tensor]:
    """These decodes, once for each way that their next step can go, with probabilities, and uniforms for it."""
    u = torch.full((len(rows.weight), world.uniforms), 0.5, dtype=torch.float64)
    for k in world.order:
        row, middle, width = split(world, rows, u, k)
        rows, u = rows.take(row, rows.weight[row] * width), u[row]
        u[:, k] = middle
    return rows, u


def outcomes(world: World, rows: Rows) -> tuple[Rows, Tensor]:
    """All outcomes of one step of these decodes, with probabilities, and the step's expected fidelity loss."""
    rows, u = branches(world, rows)
    done = world.step(rows, u, trace=True)
    assert done.state.trace is not None
    done.state.trace.cut(done.state.limit)
    loss = decode_loss(world.decoder, done.state.trace, done.rows.tokens[:, : done.state.limit], total=True)
    return done.rows, (loss * rows.weight).sum()


def merge_equal_states(rows: Rows) -> Rows:
    """Merge decodes whose states are equivalent."""
    steps = torch.arange(rows.tokens.shape[1])
    known = [
        rows.length[:, None],
        rows.tokens.masked_fill(steps >= rows.length[:, None], 0),
        rows.memory.masked_fill((steps >= rows.length[:, None] - 1)[:, None], 0).flatten(1),
    ]
    weight, first, _ = groups(rows, known)
    return rows.take(first, weight)


def groups(rows: Rows, known: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that agree in ``known`` and in the proposer's state: probability and first row of each group [G], its number
    for every row [R]."""
    known = [*known, *tensors(rows.proposer_state)]
    for leaf in tree_leaves(rows.proposer_state, is_leaf=lambda x: isinstance(x, PerPrompt)):
        if isinstance(leaf, PerPrompt):
            numbers = {value: i for i, value in enumerate(dict.fromkeys(leaf))}
            known.append(torch.tensor([[numbers[value]] for value in leaf]))
    key = torch.cat([x.double() for x in known], 1).mul(1e9).round()
    _, group = key.unique(dim=0, return_inverse=True)
    weight = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add(0, group, rows.weight)
    first = torch.full_like(weight, len(group), dtype=torch.long).scatter_reduce(
        0, group, torch.arange(len(group)), "amin"
    )
    return weight, first, group


class Enumerated(NamedTuple):
    """The distribution of a method's images."""

    images: Tensor  # [steps, V ** L] P(image after so many steps)
    loss: float  # the expected fidelity loss: Theorem 2's bound on the images' TV from the target


def enumerate_images(tables: Tables, method: Method) -> Enumerated:
    """What the engine generates on tables."""
    world = World(tables, method)
    place = tables.vocab ** torch.arange(tables.length - 1, -1, -1)
    rows, bound, images = world.start(), 0.0, []
    while len(rows.weight):
        rows, loss = outcomes(world, rows)
        bound += float(loss)
        done = rows.length >= tables.length
        finished = torch.zeros(tables.vocab**tables.length, dtype=torch.float64)
        finished.index_add_(0, (rows.tokens[done, : tables.length] * place).sum(1), rows.weight[done])
        images.append(finished)
        rows = rows.take((~done).nonzero()[:, 0])
        rows = merge_equal_states(rows) if len(rows.weight) else rows
    return Enumerated(torch.stack(images), bound)


def decode_tables(tables: Tables, method: Method, greedy: bool, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """``count`` whole decodes on tables: tokens [count, L] and the tokens that each position's own uniform draws.

    Greedy: the second are the argmax.  Plain Jacobi decoding must give the second in either case.
    """
    world = World(tables, method, greedy)
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(count, tables.length + 1, world.uniforms, generator=generator, dtype=torch.float64)

    laws, expected = tables.world(), torch.zeros(count, tables.length, dtype=torch.long)
    for row, draws in zip(expected, u[:, : tables.length, 0], strict=True):
        image: tuple[int, ...] = ()
        for level in draws.tolist():
            q = laws.q(image)
            image += (q.index(max(q)) if greedy else inverse_cdf(q, level),)
        row.copy_(torch.tensor(image))
    first = expected[:, :1]
    if not (greedy or world.decoder.rule.by_position):  # the first step reads u[:, 0]
        first = draw(world.first.expand(count, -1), u[:, -1, 0])[:, None]
    return world.decode(first, u).now.tokens[:, : tables.length], expected
