"""Exact enumeration of methods that draw several rows at once: tables over views, and a loss that is known at the end.

An input of a row attends to some of the tokens before it.  ``RowTables`` has logits for every such view, read as a
number whose digits are the tokens by position, 0 for none; whole views are prefixes, as in ``Tables``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.address import Address
from lanternbench.engine.carry import double
from lanternbench.engine.rows import RowTrace
from lanternbench.lossless.exact import Enumerated, Rows, StepOutcome, World, branches, groups, tensors
from lanternbench.lossless.plain.world import Prefix
from lanternbench.lossless.tables import Sampling, TableCache, Tables, random_rows
from lanternbench.measure.fidelity import row_laws
from lanternbench.methods.method import Method


class RowTables(Tables):
    """Logits after every view of an image of ``shape`` = rows, columns."""

    def __init__(
        self,
        vocab: int,
        shape: tuple[int, int],
        seed: int,
        kind: str = "dense",
        sampling: Sampling = Sampling(),  # noqa: B008  (immutable)
    ):
        super().__init__(vocab, shape[0] * shape[1], seed, kind, sampling)
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)
        count = (vocab + 1) ** (self.length - 1)
        both = [random_rows(count, vocab, style, generator) for style in (kind, "dense")]
        self.views = torch.stack(both).log()  # [2, views, V], conditional first
        self.target_logits = self.views[:, [self.code(prefix) for n in range(self.length) for prefix in self._all(n)]]

    @property
    def grid(self) -> tuple[int, int]:
        return self.shape

    def _all(self, n: int) -> list[Prefix]:
        return list(product(range(self.vocab), repeat=n))

    def code(self, view: Prefix) -> int:
        return sum((x + 1) * (self.vocab + 1) ** i for i, x in enumerate(view))

    def cache(self, memory: Tensor) -> TableCache:
        return RowCache(self, memory)

    def _after(self, rows: list[list[float]]) -> Callable[[Prefix], list[float]]:
        return lambda view: rows[self.code(view)]

    def world(self) -> Any:
        both, self.target_logits = self.target_logits, self.views
        made = super().world()
        self.target_logits, made.grid_width = both, self.shape[1]
        return made


class RowCache(TableCache):
    """An input's state is that of the view that it attends to; one that attends to an empty slot has none."""

    def forward(self, x: Tensor, at: Address, last: bool = False) -> Tensor:
        tables: Any = self.tables
        attended, position = self.write(x, at)
        tokens = self.memory[:, : at.span].long()
        place = (tables.vocab + 1) ** position.clamp(max=tables.length)
        digits = torch.where(position < tables.length - 1, (tokens + 1) * place, 0)
        code = (attended * digits[:, None]).sum(-1)
        half = torch.arange(len(code)) >= len(code) // tables.halves
        found = tables.views[half.long()[:, None], code.clamp(0, tables.views.shape[1] - 1)]
        return torch.where((attended & (tokens < 0)[:, None]).any(-1, keepdim=True), torch.nan, found)


@dataclass
class LossRows(Rows):
    """``lost`` [R, V ** L]: the loss so far, for every image that a decode may become."""

    lost: Tensor = None  # type: ignore[assignment]

    def take(self, index: Tensor, weight: Tensor | None = None) -> LossRows:
        return LossRows(**vars(super().take(index, weight)), lost=self.lost[index])


class RowWorld(World):
    """A method with the order ``rows`` at work on tables."""

    tables: RowTables

    def __init__(self, tables: RowTables, method: Method):
        super().__init__(tables, method)
        proposer: Any = self.decoder.proposer
        k, u = proposer.inputs, proposer.per_row
        drafts = [*range(k, k + proposer.drafts), *range(1, k)] if k > 1 else range(u - 1, 0, -1)
        one = [*drafts, 0, *range(k + proposer.drafts, u if k > 1 else 0)]
        self.order = [row * u + i for i in one[:] for row in range(proposer.rows)]

    def start(self) -> LossRows:
        rows = super().start()
        images = self.tables.vocab**self.tables.length
        return LossRows(**vars(rows), lost=torch.zeros(len(rows.weight), images, dtype=torch.float64))

    def step(self, rows: Rows, u: Tensor, trace: bool = False) -> StepOutcome:
        state = self.state(rows, u[:, None])
        if trace:
            made: Any = RowTrace(state)
            made.q, made.p, made.seen, made.law = (x.double() for x in (made.q, made.p, made.seen, made.law))
            state.trace = made
        assert self.decoder.step is not None
        own, (drafted, result) = self.decoder.step(self.decoder, state, rows.proposer_state)
        own = double(self.decoder.proposer.canonical(own))
        void = torch.arange(result.tokens.shape[2]) >= result.advance[..., None]
        some = [result.tokens.masked_fill(void, 0), result.advance, drafted.drafts]  # of the rows that were worked on
        proposer: Any = self.decoder.proposer
        width = proposer.rows * proposer.inputs
        decided = [F.pad(x.flatten(1), (0, width - x[0].numel())) for x in some]
        decided += [x.flatten(1) for x in tensors(own) if not x.is_floating_point()]
        memory = state.cache.memory.unflatten(0, (-1, state.batch)).transpose(0, 1).contiguous()  # type: ignore[attr-defined]
        after = Rows(state.now.tokens, state.now.length.device, memory, own, rows.weight)
        return StepOutcome(after, torch.cat(decided, 1), state, result)

    def committed(self, own: Any) -> Tensor:
        """[R, L] which positions have a token."""
        return (torch.arange(self.tables.shape[1]) < own.filled[..., None]).flatten(1)


def few_drafts(method: Method) -> Method:
    """``method`` with one draft a row, so that the outcomes of larger images can be enumerated."""
    one = {"window": 1} if "window" in type(method.proposal).model_fields else {}
    return replace(method, proposal=method.proposal.model_copy(update=one))


def merged(rows: LossRows, live: Tensor) -> LossRows:
    """One row for decodes whose states are equivalent, with their mean loss; ``live`` [R, slots]: what may be read."""
    memory = rows.memory.masked_fill(~live[:, None], 0).flatten(1)
    weight, first, group = groups(rows, [rows.length[:, None], rows.tokens, memory])
    lost = torch.zeros(len(weight), rows.lost.shape[1], dtype=torch.float64)
    lost.index_add_(0, group, rows.lost * rows.weight[:, None])
    one = rows.take(first, weight)
    one.lost = lost / weight[:, None]
    return one


def enumerate_rows(tables: RowTables, method: Method) -> Enumerated:
    """What the engine generates on tables; a token's loss is added once its distribution is known, for every image."""
    world = RowWorld(tables, method)
    rows, images, v, length = world.start(), [], tables.vocab, tables.length
    image = torch.tensor(tables._all(length))
    plain = tables.world()
    q = [[plain.q(tuple(x)) for x in image[:, :i].tolist()] for i in range(length)]
    target = torch.tensor(q, dtype=torch.float64)  # [L, V ** L, V]
    bound = 0.0
    while len(rows.weight):
        before, u = branches(world, rows)
        done = world.step(before, u, trace=True)
        fresh = world.committed(done.rows.proposer_state) & ~world.committed(before.proposer_state)
        trace: Any = done.state.trace
        laws, lost = row_laws(trace, world.decoder.rule, world.decoder.residual), vars(before)["lost"]
        for i in range(1, length):
            tv = 0.5 * (laws[fresh[:, i], i, None] - target[i]).abs().sum(-1)
            lost[fresh[:, i]] += tv
        rows = LossRows(**vars(done.rows), lost=lost)
        there = F.pad(world.committed(rows.proposer_state), (0, 2))
        rows.tokens = torch.where(there, rows.tokens, 0)
        whole = rows.length >= length
        number = (rows.tokens[whole, :length] * v ** torch.arange(length - 1, -1, -1)).sum(1)
        images.append(torch.zeros(v**length, dtype=torch.float64).index_add_(0, number, rows.weight[whole]))
        bound += float((rows.weight[whole] * rows.lost[whole].gather(1, number[:, None])[:, 0]).sum())
        rows = rows.take((~whole).nonzero()[:, 0])
        stand_in = F.pad(torch.arange(length) % tables.shape[1] == tables.shape[1] - 1, (0, 2))
        rows = merged(rows, there[~whole] | stand_in) if len(rows.weight) else rows
    return Enumerated(torch.stack(images), bound)
