"""What a step should take: the roofline of ``costs.roofline`` with the operators of ``costs.operators``.

With measured rates it is what the bars compare with; with the figures of data sheets it is what
``gpu-expected.json`` holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.bars import TAU
from benchmarks.gpu.decoding import BASE, decoder_of
from benchmarks.gpu.result import Row, read
from lanternbench.costs import roofline
from lanternbench.costs.operators import count_operators
from lanternbench.costs.roofline import Decoder, DeviceModel, Execution, Load, Operators
from lanternbench.engine.recording import SPAN
from lanternbench.methods.method import method
from lanternbench.models.network import network
from lanternbench.models.target import Target

COUNTED = "operators of a step"  # the table of the piece ``presets``


class Step(NamedTuple):
    """A modelled step: milliseconds, and what they follow from."""

    ms: float
    outside_ms: float  # verification and commit
    kernels: float
    gigabytes: float  # of weights and cache, read once

    def gain(self, base: Step) -> float:
        """Return the speedup at ``TAU`` tokens a step."""
        return TAU * base.ms / self.ms

    def cells(self) -> Row:
        """Return the step and its derivation, for a table."""
        return {
            "step": round(self.ms, 3),
            "kernels": round(self.kernels),
            "gigabytes": round(self.gigabytes, 2),
        }


def counted_in(folder: Path | None) -> dict[str, Operators]:
    """Return the operators that a run's piece ``presets`` counted; none if it has not run."""
    result = None if folder is None else read(folder, "presets")
    rows = [] if result is None else result.tables.get(COUNTED, [])
    found = {}
    for row in rows:
        values = [float(row[field] or 0) for field in Operators._fields]
        found[str(row["method"])] = Operators(*values)
    return found


@dataclass(frozen=True)
class StepModel:
    """Steps of a target in bfloat16 on a device, in the middle of an image."""

    target: Target
    device: DeviceModel
    counted: Mapping[str, Operators]  # by preset; others are counted when they are asked for

    def operators(self, name: str) -> Operators:
        if name in self.counted:
            return self.counted[name]
        return count_operators(method(name), self.target.options)

    def has(self, name: str) -> bool:
        """Return whether a preset's steps are modelled: not those of several rows at once."""
        return method(name).choices.order == "raster"

    def step(self, name: str, batch: int = 1, graphs: bool = True) -> Step:
        """Return a step of a preset that drafts trees.  Raises UserError if it does not fit."""
        proposer = decoder_of(self.target, name).proposer
        model = self.target.model
        drafter = proposer.network()
        nodes = proposer.size.nodes
        decoder = Decoder(network(model, model, model.layers), drafter, self.operators(name))
        levels = proposer.levels(proposer.size.max_depth, nodes)
        rows = batch * (1 if self.target.sampling.guidance == 1 else 2)
        load = Load(batch, rows, nodes, self._cached(nodes, graphs))
        execution = Execution(self.device, "bfloat16", graphs)
        committed = 1.0 if name == BASE else TAU
        parts = roofline.step(decoder, load, (committed, *levels), execution)
        read = (parts.weights + parts.cache) * self.device.bandwidth  # GB
        outside = decoder.operators.rest * self.device.gap * 1e-6
        kernels = parts.launches / (self.device.gap * 1e-6)
        return Step(1e3 * float(sum(parts)), 1e3 * outside, float(kernels), float(read))

    def _cached(self, nodes: int, graphs: bool) -> float:
        """Return the cached positions that the mean step attends to; recorded ones attend to
        whole spans.
        """
        cached = self.target.model.prompt_positions + self.target.length / 2
        if not graphs:
            return cached
        return ceil((cached + nodes) / SPAN) * SPAN - nodes
