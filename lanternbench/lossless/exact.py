"""Exact verification: the distribution of everything the real engine can do on tables, step by
step.

A step of the engine is a deterministic function of its uniforms, and as a function of one of them,
the earlier ones given, it is piecewise constant: a token is drawn, a child accepted or not.  So
its probabilities are found by measuring where the engine changes its mind (bisection), not by
working out what it should do; any rule, residual or tree policy, registered ones too, is judged by
what it does.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine import decode as engine
from lanternbench.engine import opening
from lanternbench.engine.carry import PerPrompt, double, leaves, select
from lanternbench.engine.decode import Speculation
from lanternbench.engine.diagonals import DiagonalResult, DiagonalStrategy
from lanternbench.engine.rows import RowResult, RowStrategy
from lanternbench.engine.sampling import BELOW_ONE
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.trace import Trace
from lanternbench.lossless.plain import Prefix
from lanternbench.lossless.plain.drafts import inverse_cdf
from lanternbench.lossless.tables import RowTables, TableBranch, TableDrafter, Tables, table_target
from lanternbench.measure.fidelity import decode_loss, row_laws
from lanternbench.methods.build import build
from lanternbench.methods.method import Method
from lanternbench.methods.proposals.drafting import DraftedTrees
from lanternbench.models.drafters.flashar import FlashAR
from lanternbench.settings import GREEDY

RESOLUTION = 2.0**-28  # to which thresholds are located
SECTIONS = 8  # parts at least that an interval is cut into at once
CUTS = 256  # parts of all intervals at once: of few decodes a step costs as much as of so many


@dataclass
class Decodes:
    """R decodes in progress: the engine's state, the strategy's, and probabilities [R].

    ``lost`` [R, V ** L] is the loss so far for every image that a decode may become, if it is
    known only at the end; else [R, 0].
    """

    state: DecodeState
    carried: Any
    weight: Tensor
    lost: Tensor

    @property
    def length(self) -> Tensor:
        return self.state.now.length.device

    def take(self, index: Tensor) -> Decodes:
        """A copy of some of the decodes."""
        prompts = index.tolist()
        state = copy(self.state)
        state.select(prompts)
        state.prompts = torch.arange(len(index))[:, None]
        others = (self.carried, self.weight, self.lost)
        return Decodes(state, *select(others, prompts, len(self.weight)))


class Sample(NamedTuple):
    """Finished decodes."""

    tokens: Tensor  # [count, L]
    uniforms: Tensor  # [count, L + 1, U]
    trace: Trace


class TableDecoder:
    """A method at work on tables: ``step`` runs the real engine once for a batch of decodes with
    given uniforms.

    ``published``: the method has its own sizes, not those that can be enumerated
    (``option(small=…)``).
    """

    def __init__(
        self, tables: Tables, method: Method, greedy: bool = False, published: bool = False
    ):
        self.tables = tables
        self.method = method if published else method.with_parts(lambda part: part.small())
        target = table_target(tables, published)
        self.decoder = build(target, self.method, GREEDY if greedy else tables.sampling)
        self.use_table_drafter()
        self.size = self.decoder.strategy.size
        self.nodes = self.size.nodes
        self.uniforms = self.nodes + self.size.uniforms
        # [V] the distribution of token 0
        self.first = opening.start(self.decoder, [""], [0], False).first[0]
        self.images = 0  # of which losses are kept
        self.order = self.deciding_order()

    def use_table_drafter(self) -> None:
        strategy = self.decoder.strategy
        if isinstance(strategy, Speculation) and isinstance(strategy.proposer, DraftedTrees):
            drafter = TableDrafter(self.tables, self.method.proposal.marginals)
            proposer = replace(strategy.proposer, drafter=drafter)
            self.decoder.strategy = replace(strategy, proposer=proposer)

    def deciding_order(self) -> list[int]:
        """The uniforms of a step in the order in which it decides by them."""
        redraws = self.uniforms - self.size.update_uniforms
        draft = range(self.nodes, redraws)
        acceptance = range(1, self.nodes)  # from the root down
        last_token = 0
        return [*draft, *acceptance, last_token, *range(redraws, self.uniforms)]

    def begin(
        self, first: Tensor, u: Tensor, noise: list[int] | None = None
    ) -> tuple[DecodeState, Any]:
        """The state of decodes after their first tokens [B], with uniforms u [B, L + 1, U], and
        the strategy's state; ``noise``: keys of their own.
        """
        count = len(first)
        state = opening.start(self.decoder, [""] * count, [0] * count, False, noise)
        state.uniforms = u
        state.now.tokens[:, 0] = first
        last = state.now.last._replace(tokens=first[:, None])
        state.now = state.now._replace(root=first, last=last)
        return state, double(self.decoder.strategy.begin(state))

    def trace(self, state: DecodeState) -> Trace:
        """A trace for decodes to record in, in double precision."""
        length = 2 * self.tables.length + 64
        width = max(self.size.width, 1)
        return in_double(Trace(state.batch, length, self.tables.vocab, width, state.device))

    def start(self) -> Decodes:
        """One decode per first token, which needs no draft."""
        vocab = self.tables.vocab
        no_uniforms = torch.zeros(vocab, self.tables.length + 1, self.uniforms)
        state, carried = self.begin(torch.arange(vocab), no_uniforms)
        lost = torch.zeros(vocab, self.images, dtype=torch.float64)
        return Decodes(state, carried, self.first, lost).take(self.first.nonzero()[:, 0])

    def step(self, decodes: Decodes, u: Tensor, trace: Trace | None = None) -> Tensor:
        """One engine step with uniforms u [R, U], which changes ``decodes``.

        Return all that it decided as integers [R, ·].
        """
        state = decodes.state
        state.uniforms = u[:, None]
        state.steps = 0
        state.trace = trace
        carried, result = engine.step(self.decoder, state, decodes.carried)
        decodes.carried = double(self.decoder.strategy.canonical(carried))
        integers = [x for x in tensors(decodes.carried) if not x.is_floating_point()]
        return torch.cat([*self.decided(result), *integers], 1)

    def decided(self, result: StepResult) -> list[Tensor]:
        """Drafted tokens, accepted path and last token in one shape, because adaptive trees are no
        larger than needed.
        """
        draft = result.draft
        path = result.verified.path
        tokens = draft.tokens.masked_fill(draft.tree.depth < 0, -1)
        tokens = F.pad(tokens, (0, self.nodes - tokens.shape[1]), value=-1)
        repeats = self.size.max_depth + 1 - path.shape[1]
        end = path[:, -1:].expand(-1, repeats)
        return [tokens, path, end, result.verified.token[:, None]]

    def outcomes(self, decodes: Decodes) -> tuple[Decodes, float]:
        """All outcomes of one step of these decodes, with probabilities, and the step's expected
        fidelity loss.
        """
        after, u = branches(self, decodes)
        state = after.state
        trace = self.trace(state)
        self.step(after, u, trace)
        trace.cut(state.limit)
        loss = decode_loss(self.decoder, trace, state.now.tokens[:, : state.limit], total=True)
        return after, float((loss * after.weight).sum())

    def live(self, decodes: Decodes) -> tuple[Tensor, Tensor]:
        """The tokens that a later step may read, and those of them in the cache: bool [R, L +
        nodes + 1] each.
        """
        places = torch.arange(decodes.state.now.tokens.shape[1])
        length = decodes.length[:, None]
        return places < length, places < length - 1

    def identity(self, decodes: Decodes) -> Tensor:
        """All that later steps may read, as integers [R, ·]."""
        state = decodes.state
        tokens = state.now.tokens
        committed, cached = self.live(decodes)
        keys, values = state.cache.store[0, :, :, 1:, 0].unbind(1)  # after the prompt's slot
        memory = torch.where(keys > 0, values, -1.0)
        memory = memory[:, : tokens.shape[1]].unflatten(0, (-1, state.batch))
        memory = memory.masked_fill(~cached, 0)
        known = [decodes.length[:, None], tokens.masked_fill(~committed, 0), *memory]
        known += tensors(decodes.carried)
        for leaf in leaves(decodes.carried):
            if isinstance(leaf, PerPrompt):
                numbers = {value: i for i, value in enumerate(dict.fromkeys(leaf))}
                known.append(torch.tensor([[numbers[value]] for value in leaf]))
        joined = torch.cat([x.double() for x in known], 1)
        return joined.mul(1e9).round()

    def merged(self, decodes: Decodes) -> Decodes:
        """One of all decodes whose states are equivalent, with their probability and mean loss."""
        _, group, sizes = self.identity(decodes).unique(
            dim=0, return_inverse=True, return_counts=True
        )
        begins = sizes.cumsum(0) - sizes
        first_of_group = group.argsort(stable=True)[begins]
        merged = decodes.take(first_of_group)
        weight = torch.zeros_like(merged.weight).index_add(0, group, decodes.weight)
        lost = decodes.lost * decodes.weight[:, None]
        total_lost = torch.zeros_like(merged.lost).index_add(0, group, lost)
        merged.lost = total_lost / weight[:, None]
        merged.weight = weight
        return merged

    def images_of(self, noise: Tensor) -> Tensor:
        """The images [R, L] that the engine draws with shared noise g [R, L, V]."""
        rows = list(range(len(noise)))
        last = noise.shape[1] - 1

        def in_tables(key: Tensor, position: Tensor, p: Tensor) -> Tensor:
            row = key.view(-1, *[1] * (position.ndim - 1))
            return noise[row, position.clamp(max=last)]

        self.decoder.noise = in_tables
        state, carried = opening.begin(self.decoder, [""] * len(rows), rows, noise=rows)
        carried = double(carried)
        while state.active:
            carried, _ = engine.step(self.decoder, state, carried)
        return state.finish()

    def sample(self, count: int, generator: torch.Generator) -> Sample:
        """``count`` whole decodes."""
        shape = (count, self.tables.length + 1, self.uniforms)
        u = torch.rand(shape, generator=generator, dtype=torch.float64)
        u.clamp_(max=BELOW_ONE)
        row = 0 if self.decoder.rule.by_position else -1
        first = self.decoder.warp.draw(self.first.expand(count, -1), u[:, row, 0])
        noise = torch.randint(2**62, (count,), generator=generator).tolist()
        state, carried = self.begin(first, u, noise)
        trace = self.trace(state)
        state.trace = trace
        while state.active:
            carried, _ = engine.step(self.decoder, state, carried)
        return Sample(state.now.tokens[:, : self.tables.length], u, trace)


def in_double(trace: Trace) -> Trace:
    vars(trace).update(double(vars(trace)))
    return trace


class RowDecoder(TableDecoder):
    """A method with the order ``rows`` at work on tables: the loss of a token is known once all
    before it are.
    """

    def __init__(self, tables: RowTables, method: Method):
        super().__init__(tables, method)
        self.images = tables.vocab**tables.length
        q = tables.world().q
        images = list(product(range(tables.vocab), repeat=tables.length))
        targets = [[q(image[:i]) for image in images] for i in range(tables.length)]
        self.target = torch.tensor(targets, dtype=torch.float64)  # [L, V ** L, V]

    @property
    def strategy(self) -> RowStrategy:
        return cast(RowStrategy, self.decoder.strategy)

    def deciding_order(self) -> list[int]:
        rows = self.strategy.rows
        per_row = self.strategy.per_row
        if rows.inputs > 1:
            redraws = rows.inputs + rows.drafts
            of_row = [*range(rows.inputs, redraws), *range(1, rows.inputs), 0]
            of_row += range(redraws, per_row)
        else:
            of_row = list(reversed(range(per_row)))
        order: list[int] = []
        for i in of_row:
            order += range(i, rows.n_rows * per_row, per_row)
        return order

    def trace(self, state: DecodeState) -> Trace:
        state.first = self.first.expand(state.batch, -1)
        return in_double(self.strategy.trace(state))

    def decided(self, result: RowResult) -> list[Tensor]:  # type: ignore[override]
        """Committed and drafted tokens of the rows that were worked on."""
        tokens = result.decision.tokens
        advance = result.decision.advance
        void = torch.arange(tokens.shape[2]) >= advance[..., None]
        drafts = result.draft.rows.drafts
        inputs = self.strategy.rows.n_rows * self.strategy.rows.inputs
        found = [x.flatten(1) for x in (tokens.masked_fill(void, 0), advance, drafts)]
        return [F.pad(x, (0, inputs - x.shape[1])) for x in found]

    def committed(self, decodes: Decodes) -> Tensor:
        """[R, L] which positions have a token."""
        columns = torch.arange(self.tables.grid[1])
        return (columns < decodes.carried.filled[..., None]).flatten(1)

    def outcomes(self, decodes: Decodes) -> tuple[Decodes, float]:
        after, u = branches(self, decodes)
        before = self.committed(after)
        trace = self.trace(after.state)
        self.step(after, u, trace)
        committed = self.committed(after)
        laws = row_laws(trace, self.decoder.rule, self.decoder.residual)
        for i in range(1, self.tables.length):
            fresh = committed[:, i] & ~before[:, i]
            distance = (laws[fresh, i, None] - self.target[i]).abs().sum(-1)
            after.lost[fresh] += 0.5 * distance
        tokens = after.state.now.tokens
        missing = ~F.pad(committed, (0, 2))
        tokens.masked_fill_(missing, 0)
        whole = after.length >= self.tables.length
        image = self.tables.numbers(tokens)[whole]
        lost = after.lost[whole].gather(1, image[:, None])[:, 0]
        loss = (after.weight[whole] * lost).sum()
        return after, float(loss)

    def live(self, decodes: Decodes) -> tuple[Tensor, Tensor]:
        """The stand-in for the last token of a row may be read, too."""
        width = self.tables.grid[1]
        committed = self.committed(decodes)
        last = torch.arange(self.tables.length) % width == width - 1
        return F.pad(committed, (0, 2)), F.pad(committed | last, (0, 2))


class DiagonalDecoder(RowDecoder):
    """A method with the order ``diagonal`` at work on tables."""

    def use_table_drafter(self) -> None:
        branch = cast(FlashAR, TableBranch(self.tables))
        self.decoder.strategy = replace(self.diagonal, net=branch)

    @property
    def diagonal(self) -> DiagonalStrategy:
        return cast(DiagonalStrategy, self.decoder.strategy)

    def start(self) -> Decodes:
        """The first token has a law of its own."""
        decodes = super().start()
        decodes.lost += 0.5 * (self.first - self.target[0, 0]).abs().sum()
        return decodes

    def deciding_order(self) -> list[int]:
        return list(range(self.uniforms))

    def decided(self, result: DiagonalResult) -> list[Tensor]:  # type: ignore[override]
        missing = self.uniforms - result.tokens.shape[1]
        return [F.pad(result.tokens, (0, missing))]

    def committed(self, decodes: Decodes) -> Tensor:
        return self.upto(decodes.carried.number)

    def upto(self, number: Tensor) -> Tensor:
        """[R, L] the tokens whose row + column is at most ``number`` [R]."""
        index = torch.arange(self.tables.length)
        width = self.tables.grid[1]
        return index // width + index % width <= number[:, None]

    def live(self, decodes: Decodes) -> tuple[Tensor, Tensor]:
        number = decodes.carried.number
        return F.pad(self.upto(number), (0, 2)), F.pad(self.upto(number - 1), (0, 2))


def tensors(carried: object) -> list[Tensor]:
    """The tensors of a strategy's state, [R, ·] each."""
    return [x.view(len(x), -1) for x in leaves(carried) if isinstance(x, Tensor)]


def split(
    decoder: TableDecoder, decodes: Decodes, u: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The pieces of 0 … 1 in which uniform k leaves unchanged what each decode decides: [I] each,
    the indices of decodes, the pieces' middles and widths.
    """
    row, threshold = thresholds(decoder, decodes, u, k)
    decode = torch.arange(len(u))
    row = torch.cat([decode, decode, row])
    lowest = torch.zeros_like(u[:, k])
    highest = torch.ones_like(u[:, k])
    at = torch.cat([lowest, highest, threshold])
    order = np.lexsort((at, row))  # by decode, then from 0 to 1
    row = row[order]
    at = at[order]
    of_one_decode = row[1:] == row[:-1]
    begin = at[:-1][of_one_decode]
    width = at.diff()[of_one_decode]
    return row[:-1][of_one_decode], begin + width / 2, width


def thresholds(
    decoder: TableDecoder, decodes: Decodes, u: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The values of uniform k at which a decode decides otherwise: its index and the value, [I]
    each.

    An interval whose ends agree has none (decisions are monotone in a uniform); others are cut
    until they are small.
    """

    def decide(row: Tensor, at: Tensor) -> Tensor:
        changed = u[row]
        changed[:, k] = at
        return decoder.step(decodes.take(row), changed)

    whole = torch.tensor([0, 1 - 2.0**-40], dtype=u.dtype)
    row = torch.arange(len(u))
    ends = whole.expand(len(u), 2)  # [I, 2] of intervals
    decided = decide(row.repeat_interleave(2), ends.flatten()).unflatten(0, (len(u), 2))
    while True:
        differ = (decided[:, 0] != decided[:, 1]).any(1)
        row = row[differ]
        ends = ends[differ]
        decided = decided[differ]
        if not len(row) or float(ends.diff().max()) < RESOLUTION:
            return row, ends.mean(1)
        sections = max(SECTIONS, CUTS // len(row))
        fractions = torch.linspace(0, 1, sections + 1, dtype=u.dtype)
        points = ends[:, :1] + ends.diff() * fractions  # [I, S + 1]
        inner_row = row.repeat_interleave(sections - 1)
        inner = decide(inner_row, points[:, 1:-1].flatten())
        inner = inner.unflatten(0, (len(row), sections - 1))
        at_points = torch.cat([decided[:, :1], inner, decided[:, 1:]], 1)
        row = row.repeat_interleave(sections)
        ends = points.unfold(1, 2, 1).flatten(0, 1)
        decided = at_points.unfold(1, 2, 1).flatten(0, 1).mT


def branches(decoder: TableDecoder, decodes: Decodes) -> tuple[Decodes, Tensor]:
    """These decodes, once for each way that their next step can go, with probabilities, and
    uniforms for it.
    """
    u = torch.full((len(decodes.weight), decoder.uniforms), 0.5, dtype=torch.float64)
    for k in decoder.order:
        row, middle, width = split(decoder, decodes, u, k)
        decodes = decodes.take(row)
        decodes.weight = decodes.weight * width
        u = u[row]
        u[:, k] = middle
    return decodes, u


class Enumerated(NamedTuple):
    """The distribution of a method's images."""

    images: Tensor  # [steps, V ** L] P(image after so many steps)
    loss: float  # the expected fidelity loss: Theorem 2's bound on the images' TV from the target


def enumerate_decodes(decoder: TableDecoder) -> Enumerated:
    """The distribution of the images that the engine generates on tables."""
    tables = decoder.tables
    decodes = decoder.start()
    bound = 0.0
    images: list[Tensor] = []
    while True:
        decodes, loss = decoder.outcomes(decodes)
        bound += loss
        whole = decodes.length >= tables.length
        finished = torch.zeros(tables.vocab**tables.length, dtype=torch.float64)
        numbers = tables.numbers(decodes.state.now.tokens)
        images.append(finished.index_add_(0, numbers[whole], decodes.weight[whole]))
        if bool(whole.all()):
            return Enumerated(torch.stack(images), bound)
        decodes = decoder.merged(decodes.take((~whole).nonzero()[:, 0]))


def decode_tables(
    tables: Tables, method: Method, greedy: bool, count: int, seed: int
) -> tuple[Tensor, Tensor]:
    """``count`` whole decodes on tables: tokens [count, L] and the tokens that each position's own
    uniform draws.

    Greedy: the second are the argmax.  Plain Jacobi decoding must give the second in either case.
    """
    generator = torch.Generator().manual_seed(seed)
    sample = TableDecoder(tables, method, greedy).sample(count, generator)
    q = tables.world().q
    expected: list[Prefix] = []
    for levels in sample.uniforms[:, : tables.length, 0].tolist():
        image: Prefix = ()
        for level in levels:
            law = q(image)
            token = law.index(max(law)) if greedy else inverse_cdf(law, level)
            image = (*image, token)
        expected.append(image)
    return sample.tokens, torch.tensor(expected)
