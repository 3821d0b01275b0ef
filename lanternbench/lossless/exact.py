"""Exact verification: the distribution of everything the real engine can do on tables, step by step.

A step of the engine is a deterministic function of its uniforms, and as a function of one of them, the earlier ones
given, it is piecewise constant: a token is drawn, a child accepted or not.  So its probabilities are found by measuring
where the engine changes its mind (bisection), not by working out what it should do; any rule, residual or tree policy,
registered ones too, is judged by what it does.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lanternbench.engine import decode as engine
from lanternbench.engine import opening
from lanternbench.engine.carry import PerPrompt, double, select
from lanternbench.engine.sampling import draw
from lanternbench.engine.state import DecodeState
from lanternbench.engine.trace import Trace
from lanternbench.lossless.plain.windows import inverse_cdf
from lanternbench.lossless.tables import Tables, TableTarget, image_memory, with_small_sizes, with_tables
from lanternbench.measure.fidelity import decode_loss
from lanternbench.methods.build import build
from lanternbench.methods.method import Method

RESOLUTION = 2.0**-28  # to which thresholds are located
SECTIONS = 8  # parts an interval is cut into at once


@dataclass
class Rows:
    """R decodes in progress: the engine's state, the proposer's, and probabilities [R].

    ``lost`` [R, V ** L]: the loss so far, for every image that a decode may become, where it is known only at the end.
    """

    state: DecodeState
    proposer_state: Any
    weight: Tensor
    lost: Tensor | None = None

    @property
    def length(self) -> Tensor:
        return self.state.now.length.device

    def take(self, index: Tensor, weight: Tensor | None = None) -> Rows:
        """A copy of some of the decodes."""
        state, places = copy(self.state), index.tolist()
        state.select(places)
        state.prompts = torch.arange(len(index))[:, None]
        proposer_state = select(self.proposer_state, places, len(self.weight))
        lost = None if self.lost is None else self.lost[index]
        return Rows(state, proposer_state, self.weight[index] if weight is None else weight, lost)


class World:
    """A method at work on tables: ``step`` runs the real engine once for a batch of decodes with given uniforms."""

    def __init__(self, tables: Tables, method: Method, greedy: bool = False, published: bool = False):
        """``published``: the method's own sizes, of which the outcomes are too many to be enumerated."""
        self.tables, self.method = tables, method if published else with_small_sizes(method)
        temperature = 0.0 if greedy else tables.sampling.temperature
        target: Any = TableTarget(tables, published)
        decoder = build(target, self.method, temperature, top_p=tables.sampling.top_p)
        self.decoder = replace(decoder, proposer=with_tables(decoder.proposer, tables))
        p = self.decoder.proposer
        self.nodes, self.width, self.uniforms = p.nodes, p.width, p.nodes + p.uniforms
        self.first = opening.start(self.decoder, [""], [0], False).first[0]  # [V] the distribution of token 0
        # the order in which a step decides: its draft, acceptance from the root down, the last token, redraws
        drafted = self.uniforms - p.update_uniforms
        self.order = [*range(self.nodes, drafted), *range(1, self.nodes), 0, *range(drafted, self.uniforms)]

    def begin(self, first: Tensor, u: Tensor, trace: bool = False) -> tuple[DecodeState, Any]:
        """Decodes after their first tokens [B], with uniforms u [B, L + 1, U], and the proposer's state."""
        state = opening.start(self.decoder, [""] * len(first), [0] * len(first), False)
        state.uniforms, state.first = u, self.first.expand(len(first), -1)
        state.now.tokens[:, 0] = first
        state.now = state.now._replace(root=first, last=state.now.last._replace(tokens=first[:, None]))
        state.trace = self.trace(state) if trace else None
        return state, double(self.decoder.proposer.begin(state))

    def trace(self, state: DecodeState) -> Trace:
        trace = Trace(state.batch, 2 * self.tables.length + 64, self.tables.vocab, max(self.width, 1), state.device)
        trace.q, trace.p = trace.q.double(), trace.p.double()
        return trace

    def start(self) -> Rows:
        """One row per first token, which needs no draft."""
        v = self.tables.vocab
        rows = Rows(*self.begin(torch.arange(v), torch.zeros(v, self.tables.length + 1, self.uniforms)), self.first)
        return rows.take((rows.weight > 0).nonzero()[:, 0])

    def step(self, rows: Rows, u: Tensor, trace: bool = False) -> Tensor:
        """One engine step with uniforms u [R, U], which changes ``rows``: [R, ·] all that it decided as integers."""
        state = rows.state
        state.uniforms, state.steps, state.first = u[:, None], 0, self.first.expand(state.batch, -1)
        state.trace = self.trace(state) if trace else None
        rows.proposer_state, done = (self.decoder.step or engine.step)(self.decoder, state, rows.proposer_state)
        rows.proposer_state = double(self.decoder.proposer.canonical(rows.proposer_state))
        integers = [x.flatten(1) for x in tensors(rows.proposer_state) if not x.is_floating_point()]
        return torch.cat([*self.decided(done), *integers], 1)

    def decided(self, done: Any) -> list[Tensor]:
        """Drafted tokens, accepted path and last token in one shape, as adaptive trees are no larger than needed."""
        draft, path = done.draft, done.verified.path
        tokens = draft.tokens.masked_fill(draft.tree.depth < 0, -1)
        last = path[:, -1:].expand(-1, self.decoder.proposer.max_depth + 1 - path.shape[1])
        tokens = F.pad(tokens, (0, self.nodes - tokens.shape[1]), value=-1)
        return [tokens, path, last, done.verified.token[:, None]]

    def outcomes(self, rows: Rows) -> tuple[Rows, float]:
        """All outcomes of one step of these decodes, with probabilities, and the step's expected fidelity loss."""
        rows, u = branches(self, rows)
        self.step(rows, u, trace=True)
        trace, limit = rows.state.trace, rows.state.limit
        assert trace is not None
        trace.cut(limit)
        loss = decode_loss(self.decoder, trace, rows.state.now.tokens[:, :limit], total=True)
        return rows, float((loss * rows.weight).sum())

    def live(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Which tokens, and which of those in the cache, a later step may read: bool [R, L + nodes + 1] each."""
        steps = torch.arange(rows.state.now.tokens.shape[1])
        return steps < rows.length[:, None], steps < rows.length[:, None] - 1

    def merged(self, rows: Rows) -> Rows:
        """One row for decodes whose states are equivalent, with their mean loss."""
        committed, cached = self.live(rows)
        tokens, memory = rows.state.now.tokens, image_memory(rows.state.cache, rows.state.batch)
        memory = memory[..., : tokens.shape[1]].masked_fill(~cached[:, None], 0)
        known = [rows.length[:, None], tokens.masked_fill(~committed, 0), memory.flatten(1)]
        weight, first, group = groups(rows, known)
        one = rows.take(first, weight)
        if rows.lost is not None:
            lost = torch.zeros(len(weight), rows.lost.shape[1], dtype=torch.float64)
            one.lost = lost.index_add_(0, group, rows.lost * rows.weight[:, None]) / weight[:, None]
        return one

    def decode(self, first: Tensor, u: Tensor, trace: bool = False) -> DecodeState:
        """Whole decodes from their first tokens [B] with uniforms u [B, L + 1, U]: the state at the end."""
        state, proposer_state = self.begin(first, u, trace)
        while state.active:
            proposer_state, _ = engine.step(self.decoder, state, proposer_state)
        return state


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
        return world.step(rows.take(row), v)

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
    first = torch.full_like(weight, len(group), dtype=torch.long)
    return weight, first.scatter_reduce(0, group, torch.arange(len(group)), "amin"), group


class Enumerated(NamedTuple):
    """The distribution of a method's images."""

    images: Tensor  # [steps, V ** L] P(image after so many steps)
    loss: float  # the expected fidelity loss: Theorem 2's bound on the images' TV from the target


def image_numbers(tokens: Tensor, tables: Tables) -> Tensor:
    """Images [R, ≥ L] read as numbers in base V."""
    return (tokens[:, : tables.length] * tables.vocab ** torch.arange(tables.length - 1, -1, -1)).sum(1)


def enumerate_world(world: World) -> Enumerated:
    """What the engine generates on the tables of ``world``."""
    tables, rows, bound, images = world.tables, world.start(), 0.0, []
    while len(rows.weight):
        rows, loss = world.outcomes(rows)
        bound += loss
        whole = rows.length >= tables.length
        finished = torch.zeros(tables.vocab**tables.length, dtype=torch.float64)
        numbers = image_numbers(rows.state.now.tokens, tables)
        images.append(finished.index_add_(0, numbers[whole], rows.weight[whole]))
        rows = rows.take((~whole).nonzero()[:, 0]) if not bool(whole.all()) else replace(rows, weight=rows.weight[:0])
        rows = world.merged(rows) if len(rows.weight) else rows
    return Enumerated(torch.stack(images), bound)


def enumerate_images(tables: Tables, method: Method) -> Enumerated:
    """What the engine generates on tables, in raster order."""
    return enumerate_world(World(tables, method))


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
    first = expected[:, 0]
    if not (greedy or world.decoder.rule.by_position):  # the first step reads u[:, 0]
        first = draw(world.first.expand(count, -1), u[:, -1, 0])
    return world.decode(first, u).now.tokens[:, : tables.length], expected
