"""Exact enumeration of methods that draw several rows at once: the loss of a token is known once all before it are."""

from dataclasses import replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.rows import RowTrace
from lanternbench.engine.state import DecodeState
from lanternbench.engine.trace import Trace
from lanternbench.lossless.exact import Rows, World, branches, image_numbers
from lanternbench.lossless.tables import RowTables
from lanternbench.measure.fidelity import row_laws
from lanternbench.methods.method import Method


class RowWorld(World):
    """A method with the order ``rows`` at work on tables."""

    def __init__(self, tables: RowTables, method: Method):
        super().__init__(tables, method)
        proposer: Any = self.decoder.proposer
        k, u = proposer.inputs, proposer.per_row
        drafts = [*range(k, k + proposer.drafts), *range(1, k)] if k > 1 else range(u - 1, 0, -1)
        one = [*drafts, 0, *range(k + proposer.drafts, u if k > 1 else 0)]
        self.order = [row * u + i for i in one for row in range(proposer.n_rows)]
        self.proposer, self.inputs = proposer, proposer.n_rows * k
        laws, images = tables.world(), list(product(range(tables.vocab), repeat=tables.length))
        q = [[laws.q(image[:i]) for image in images] for i in range(tables.length)]
        self.target = torch.tensor(q, dtype=torch.float64)  # [L, V ** L, V]

    def trace(self, state: DecodeState) -> Trace:
        trace: Any = RowTrace(state)
        trace.q, trace.p, trace.seen, trace.law = (x.double() for x in (trace.q, trace.p, trace.seen, trace.law))
        return trace

    def start(self) -> Rows:
        rows = super().start()
        return replace(rows, lost=torch.zeros(len(rows.weight), self.target.shape[1], dtype=torch.float64))

    def decided(self, done: Any) -> list[Tensor]:
        """Of the rows that were worked on."""
        drafted, result = done
        void = torch.arange(result.tokens.shape[2]) >= result.advance[..., None]
        facts = [result.tokens.masked_fill(void, 0), result.advance, drafted.drafts]
        return [F.pad(x.flatten(1), (0, self.inputs - x[0].numel())) for x in facts]

    def committed(self, rows: Rows) -> Tensor:
        """[R, L] which positions have a token."""
        return (torch.arange(self.tables.grid[1]) < rows.proposer_state.filled[..., None]).flatten(1)

    def outcomes(self, rows: Rows) -> tuple[Rows, float]:
        rows, u = branches(self, rows)
        before, lost = self.committed(rows), rows.lost
        assert lost is not None
        self.step(rows, u, trace=True)
        fresh, trace = self.committed(rows) & ~before, rows.state.trace
        assert trace is not None
        laws = row_laws(trace, self.decoder.rule, self.decoder.residual)
        for i in range(1, self.tables.length):
            lost[fresh[:, i]] += 0.5 * (laws[fresh[:, i], i, None] - self.target[i]).abs().sum(-1)
        tokens, whole = rows.state.now.tokens, rows.length >= self.tables.length
        tokens.masked_fill_(~F.pad(self.committed(rows), (0, 2)), 0)
        image = image_numbers(tokens, self.tables)[whole]
        return rows, float((rows.weight[whole] * lost[whole].gather(1, image[:, None])[:, 0]).sum())

    def live(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """What stands in for the last token of a row may be read, too."""
        width = self.tables.grid[1]
        committed, last = self.committed(rows), torch.arange(self.tables.length) % width == width - 1
        return F.pad(committed, (0, 2)), F.pad(committed | last, (0, 2))
