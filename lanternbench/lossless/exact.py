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
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lanternbench.engine import decode as engine
from lanternbench.engine import opening
from lanternbench.engine.carry import PerPrompt, double, select
from lanternbench.engine.rows import RowTrace
from lanternbench.engine.sampling import BELOW_ONE, draw
from lanternbench.engine.state import DecodeState
from lanternbench.engine.trace import Trace
from lanternbench.lossless.plain.drafts import inverse_cdf
from lanternbench.lossless.tables import RowTables, TableDrafter, Tables, TableTarget
from lanternbench.measure.fidelity import decode_loss, row_laws
from lanternbench.methods.build import build
from lanternbench.methods.method import Method
from lanternbench.methods.proposals.drafting import DraftedTrees
from lanternbench.settings import GREEDY

RESOLUTION = 2.0**-28  # to which thresholds are located
SECTIONS = 8  # parts an interval is cut into at once


@dataclass
class Decodes:
    """R decodes in progress: the engine's state, the proposer's, and probabilities [R].

    ``lost`` [R, V ** L]: the loss so far, for every image that a decode may become, where it is
    known only at the end.
    """

    state: DecodeState
    proposer_state: Any
    weight: Tensor
    lost: Tensor | None = None

    @property
    def length(self) -> Tensor:
        return self.state.now.length.device

    def take(self, index: Tensor, weight: Tensor | None = None) -> Decodes:
        """A copy of some of the decodes."""
        state, places = copy(self.state), index.tolist()
        state.select(places)
        state.prompts = torch.arange(len(index))[:, None]
        proposer_state = select(self.proposer_state, places, len(self.weight))
        lost = None if self.lost is None else self.lost[index]
        return Decodes(
            state, proposer_state, self.weight[index] if weight is None else weight, lost
        )


class TableDecoder:
    """A method at work on tables: ``step`` runs the real engine once for a batch of decodes with
    given uniforms.
    """

    def __init__(
        self, tables: Tables, method: Method, greedy: bool = False, published: bool = False
    ):
        """``published``: the method's own sizes, not those that can be enumerated
        (``option(small=…)``).
        """
        self.tables, self.method = (
            tables,
            method if published else method.with_parts(lambda part: part.small()),
        )
        target: Any = TableTarget(tables, published)
        decoder = build(target, self.method, GREEDY if greedy else tables.sampling)
        proposer = decoder.proposer
        if isinstance(proposer, DraftedTrees):
            drafter = TableDrafter(tables, self.method.proposal.marginals)
            strategy: Any = decoder.strategy
            decoder.strategy = replace(strategy, proposer=replace(proposer, drafter=drafter))
        self.decoder = decoder
        size = decoder.strategy.size
        self.nodes = size.nodes
        self.width = size.width
        self.uniforms = size.nodes + size.uniforms
        # [V] the distribution of token 0
        self.first = opening.start(self.decoder, [""], [0], False).first[0]
        # the order in which a step decides: its draft, acceptance from the root down, the last
        # token, redraws
        drafted = self.uniforms - size.update_uniforms
        self.order = [
            *range(self.nodes, drafted),
            *range(1, self.nodes),
            0,
            *range(drafted, self.uniforms),
        ]

    def begin(self, first: Tensor, u: Tensor, trace: bool = False) -> tuple[DecodeState, Any]:
        """Decodes after their first tokens [B], with uniforms u [B, L + 1, U], and the proposer's
        state.
        """
        state = opening.start(self.decoder, [""] * len(first), [0] * len(first), False)
        state.uniforms, state.first = u, self.first.expand(len(first), -1)
        state.now.tokens[:, 0] = first
        state.now = state.now._replace(
            root=first, last=state.now.last._replace(tokens=first[:, None])
        )
        state.trace = self.trace(state) if trace else None
        return state, double(self.decoder.strategy.begin(state))

    def trace(self, state: DecodeState) -> Trace:
        """What decodes record, in double precision."""
        length, width = 2 * self.tables.length + 64, max(self.width, 1)
        trace = Trace(state.batch, length, self.tables.vocab, width, state.device)
        return in_double(trace)

    def start(self) -> Decodes:
        """One decode per first token, which needs no draft."""
        v = self.tables.vocab
        every = Decodes(
            *self.begin(torch.arange(v), torch.zeros(v, self.tables.length + 1, self.uniforms)),
            self.first,
        )
        return every.take((every.weight > 0).nonzero()[:, 0])

    def step(self, decodes: Decodes, u: Tensor, trace: bool = False) -> Tensor:
        """One engine step with uniforms u [R, U], which changes ``decodes``: [R, ·] all that it
        decided as integers.
        """
        state = decodes.state
        state.uniforms, state.steps, state.first = (
            u[:, None],
            0,
            self.first.expand(state.batch, -1),
        )
        state.trace = self.trace(state) if trace else None
        proposer_state, done = engine.step(self.decoder, state, decodes.proposer_state)
        decodes.proposer_state = double(self.decoder.strategy.canonical(proposer_state))
        integers = [
            x.flatten(1) for x in tensors(decodes.proposer_state) if not x.is_floating_point()
        ]
        return torch.cat([*self.decided(done), *integers], 1)

    def decided(self, done: Any) -> list[Tensor]:
        """Drafted tokens, accepted path and last token in one shape, as adaptive trees are no
        larger than needed.
        """
        draft, path = done.draft, done.verified.path
        tokens = draft.tokens.masked_fill(draft.tree.depth < 0, -1)
        last = path[:, -1:].expand(-1, self.decoder.strategy.size.max_depth + 1 - path.shape[1])
        tokens = F.pad(tokens, (0, self.nodes - tokens.shape[1]), value=-1)
        return [tokens, path, last, done.verified.token[:, None]]

    def outcomes(self, decodes: Decodes) -> tuple[Decodes, float]:
        """All outcomes of one step of these decodes, with probabilities, and the step's expected
        fidelity loss.
        """
        after, u = branches(self, decodes)
        self.step(after, u, trace=True)
        trace, limit = after.state.trace, after.state.limit
        assert trace is not None
        trace.cut(limit)
        loss = decode_loss(self.decoder, trace, after.state.now.tokens[:, :limit], total=True)
        return after, float((loss * after.weight).sum())

    def live(self, decodes: Decodes) -> tuple[Tensor, Tensor]:
        """Which tokens, and which of those in the cache, a later step may read: bool [R, L + nodes
        + 1] each.
        """
        places = torch.arange(decodes.state.now.tokens.shape[1])
        return places < decodes.length[:, None], places < decodes.length[:, None] - 1

    def merged(self, decodes: Decodes) -> Decodes:
        """One of all decodes whose states are equivalent, with their probability and mean loss."""
        committed, cached = self.live(decodes)
        state, tokens = decodes.state, decodes.state.now.tokens
        # what is in the slots after the prompt's
        keys, memory = state.cache.store[0, :, :, 1:, 0].unbind(1)
        memory = (
            torch.where(keys > 0, memory, -1.0).unflatten(0, (-1, state.batch)).transpose(0, 1)
        )
        memory = memory[..., : tokens.shape[1]].masked_fill(~cached[:, None], 0)
        known = [decodes.length[:, None], tokens.masked_fill(~committed, 0), memory.flatten(1)]
        known += tensors(decodes.proposer_state)
        for leaf in tree_leaves(
            decodes.proposer_state, is_leaf=lambda x: isinstance(x, PerPrompt)
        ):
            if isinstance(leaf, PerPrompt):
                numbers = {value: i for i, value in enumerate(dict.fromkeys(leaf))}
                known.append(torch.tensor([[numbers[value]] for value in leaf]))
        key = torch.cat([x.double() for x in known], 1).mul(1e9).round()
        _, group = key.unique(dim=0, return_inverse=True)
        weight = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add(
            0, group, decodes.weight
        )
        first = torch.full_like(weight, len(group), dtype=torch.long)
        one = decodes.take(
            first.scatter_reduce(0, group, torch.arange(len(group)), "amin"), weight
        )
        if decodes.lost is not None:
            lost = torch.zeros(len(weight), decodes.lost.shape[1], dtype=torch.float64)
            one.lost = (
                lost.index_add_(0, group, decodes.lost * decodes.weight[:, None]) / weight[:, None]
            )
        return one

    def sample(
        self, count: int, generator: torch.Generator, trace: bool = False
    ) -> tuple[DecodeState, Tensor]:
        """``count`` whole decodes: the state at the end, and their uniforms [count, L + 1, U]."""
        u = torch.rand(
            count, self.tables.length + 1, self.uniforms, generator=generator, dtype=torch.float64
        )
        u, by_position, first = (
            u.clamp_(max=BELOW_ONE),
            self.decoder.rule.by_position,
            self.first.expand(count, -1),
        )
        first = (
            first.argmax(-1)
            if self.decoder.warp.greedy
            else draw(first, u[:, 0 if by_position else -1, 0])
        )
        state, proposer_state = self.begin(first, u, trace)
        while state.active:
            proposer_state, _ = engine.step(self.decoder, state, proposer_state)
        return state, u


def in_double(trace: Trace) -> Trace:
    vars(trace).update(double(vars(trace)))
    return trace


class RowDecoder(TableDecoder):
    """A method with the order ``rows`` at work on tables: the loss of a token is known once all
    before it are.
    """

    def __init__(self, tables: RowTables, method: Method):
        super().__init__(tables, method)
        strategy: Any = self.decoder.strategy
        rows = strategy.rows
        k, u = rows.inputs, strategy.per_row
        drafts = [*range(k, k + rows.drafts), *range(1, k)] if k > 1 else range(u - 1, 0, -1)
        one = [*drafts, 0, *range(k + rows.drafts, u if k > 1 else 0)]
        self.order = [row * u + i for i in one for row in range(rows.n_rows)]
        self.inputs = rows.n_rows * k
        world, images = tables.world(), list(product(range(tables.vocab), repeat=tables.length))
        q = [[world.q(image[:i]) for image in images] for i in range(tables.length)]
        self.target = torch.tensor(q, dtype=torch.float64)  # [L, V ** L, V]

    def trace(self, state: DecodeState) -> Trace:
        return in_double(RowTrace(state))

    def start(self) -> Decodes:
        decodes = super().start()
        return replace(
            decodes,
            lost=torch.zeros(len(decodes.weight), self.target.shape[1], dtype=torch.float64),
        )

    def decided(self, done: Any) -> list[Tensor]:
        """Of the rows that were worked on."""
        decision = done.decision
        void = torch.arange(decision.tokens.shape[2]) >= decision.advance[..., None]
        drafts = done.draft.rows.drafts
        facts = [decision.tokens.masked_fill(void, 0), decision.advance, drafts]
        return [F.pad(x.flatten(1), (0, self.inputs - x[0].numel())) for x in facts]

    def committed(self, decodes: Decodes) -> Tensor:
        """[R, L] which positions have a token."""
        return (
            torch.arange(self.tables.grid[1]) < decodes.proposer_state.filled[..., None]
        ).flatten(1)

    def outcomes(self, decodes: Decodes) -> tuple[Decodes, float]:
        after, u = branches(self, decodes)
        before, lost = self.committed(after), after.lost
        assert lost is not None
        self.step(after, u, trace=True)
        fresh, trace = self.committed(after) & ~before, after.state.trace
        assert trace is not None
        laws = row_laws(trace, self.decoder.rule, self.decoder.residual)
        for i in range(1, self.tables.length):
            lost[fresh[:, i]] += 0.5 * (laws[fresh[:, i], i, None] - self.target[i]).abs().sum(-1)
        tokens, whole = after.state.now.tokens, after.length >= self.tables.length
        tokens.masked_fill_(~F.pad(self.committed(after), (0, 2)), 0)
        image = self.tables.numbers(tokens)[whole]
        return after, float(
            (after.weight[whole] * lost[whole].gather(1, image[:, None])[:, 0]).sum()
        )

    def live(self, decodes: Decodes) -> tuple[Tensor, Tensor]:
        """What stands in for the last token of a row may be read, too."""
        width = self.tables.grid[1]
        committed, last = (
            self.committed(decodes),
            torch.arange(self.tables.length) % width == width - 1,
        )
        return F.pad(committed, (0, 2)), F.pad(committed | last, (0, 2))


def tensors(proposer_state: Any) -> list[Tensor]:
    """The tensors of a proposer's state, [R, ·] each."""
    return [x.view(len(x), -1) for x in tree_leaves(proposer_state) if isinstance(x, Tensor)]


def split(
    decoder: TableDecoder, decodes: Decodes, u: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Where uniform k changes what each decode decides: (its index, midpoint, width) of every
    piece of 0 … 1.

    Intervals whose ends agree are one piece (decisions are monotone in a uniform); others are cut
    until they are small.
    """
    everyone = torch.arange(len(u))

    def decide(row: Tensor, at: Tensor) -> Tensor:
        v = u[row]
        v[:, k] = at
        return decoder.step(decodes.take(row), v)

    row, ends = everyone, torch.tensor([0, 1 - 2.0**-40], dtype=u.dtype).expand(len(u), 2)
    # [I, 2, ·] at the ends [I, 2] of intervals
    decided = torch.stack([decide(row, at) for at in ends.unbind(1)], 1)
    fractions = torch.linspace(0, 1, SECTIONS + 1, dtype=u.dtype)
    while True:
        keep = (decided[:, 0] != decided[:, 1]).any(1)
        row, ends, decided = row[keep], ends[keep], decided[keep]
        if not len(row) or float((ends[:, 1] - ends[:, 0]).max()) < RESOLUTION:
            break
        points = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * fractions  # [I, S + 1]
        inner = decide(row.repeat_interleave(SECTIONS - 1), points[:, 1:-1].flatten())
        decided = torch.cat(
            [decided[:, :1], inner.view(len(row), SECTIONS - 1, -1), decided[:, 1:]], 1
        )
        row, ends = row.repeat_interleave(SECTIONS), points.unfold(1, 2, 1).flatten(0, 1)
        decided = decided.unfold(1, 2, 1).flatten(0, 1).mT
    row = torch.cat([everyone, everyone, row])
    at = torch.cat([torch.zeros_like(u[:, k]), torch.ones_like(u[:, k]), ends.mean(1)])
    order = at.argsort(stable=True)
    order = order[row[order].argsort(stable=True)]
    row, at = row[order], at[order]
    same = row[1:] == row[:-1]
    low, width = at[:-1][same], (at[1:] - at[:-1])[same]
    return row[:-1][same], low + width / 2, width


def branches(decoder: TableDecoder, decodes: Decodes) -> tuple[Decodes, Tensor]:
    """These decodes, once for each way that their next step can go, with probabilities, and
    uniforms for it.
    """
    u = torch.full((len(decodes.weight), decoder.uniforms), 0.5, dtype=torch.float64)
    for k in decoder.order:
        row, middle, width = split(decoder, decodes, u, k)
        decodes, u = decodes.take(row, decodes.weight[row] * width), u[row]
        u[:, k] = middle
    return decodes, u


class Enumerated(NamedTuple):
    """The distribution of a method's images."""

    images: Tensor  # [steps, V ** L] P(image after so many steps)
    loss: float  # the expected fidelity loss: Theorem 2's bound on the images' TV from the target


def enumerate_decodes(decoder: TableDecoder) -> Enumerated:
    """What the engine generates on tables."""
    tables, decodes, bound, images = decoder.tables, decoder.start(), 0.0, list[Tensor]()
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
    state, u = TableDecoder(tables, method, greedy).sample(
        count, torch.Generator().manual_seed(seed)
    )
    laws, expected = tables.world(), []
    for draws in u[:, : tables.length, 0].tolist():
        image: tuple[int, ...] = ()
        for level in draws:
            q = laws.q(image)
            image += (q.index(max(q)) if greedy else inverse_cdf(q, level),)
        expected.append(image)
    return state.now.tokens[:, : tables.length], torch.tensor(expected)
