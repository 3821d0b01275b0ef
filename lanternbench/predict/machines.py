"""Machines to predict for: the seconds of replayed steps on a device model, or on this machine as it was probed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from lanternbench.costs import roofline
from lanternbench.costs.device_models import THIS, DeviceModel
from lanternbench.costs.roofline import Load, Values
from lanternbench.engine.proposal import Proposal
from lanternbench.engine.recording import SPAN
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target
from lanternbench.predict.replay import Steps


class Shape(NamedTuple):
    """A target as a device sees it: L tokens, prompt positions, rows a prompt."""

    name: str
    network: Network
    length: int
    prompt: int
    rows: int


def shape_of(target: Target, guidance: float | None = None) -> Shape:
    """The shape of a target, also of one on the device ``meta``; ``guidance``: by default the target's."""
    model, scale = target.model, target.guidance if guidance is None else guidance
    size, rows = network(model, model, model.layers), 1 if scale == 1.0 else 2
    return Shape(target.name, size, target.length, model.prompt_positions, rows)


class Case(NamedTuple):
    """A method on a target: ``measured``: its proposal in the run; ``drafter``: the drafter for the target."""

    label: str
    method: str
    shape: Shape
    drafter: Network | None
    measured: Proposal | None  # None for the baseline


@dataclass(frozen=True)
class Roofline:
    """A device model.  ``graphs``: steps are replayed as CUDA graphs, and a batch keeps its size to the end."""

    device: DeviceModel
    dtype: str
    graphs: bool = True

    @property
    def name(self) -> str:
        return self.device.name

    def seconds(self, case: Case, steps: Steps) -> dict[str, Values]:
        """The seconds of each step [T], by what they are spent on."""
        parts = {name: np.zeros(len(steps.nodes)) for name in roofline.Parts._fields}
        cached = case.shape.prompt + steps.start - 1
        if self.graphs:  # recorded forwards attend to whole spans
            cached = np.ceil((cached + steps.nodes) / SPAN) * SPAN - steps.nodes
        for at, levels in by_levels(case.measured, steps):
            load = Load(steps.batch[at], case.shape.rows * steps.batch[at], steps.nodes[at], cached[at])
            target, dtype = case.shape.network, self.dtype
            spent = roofline.step(target, case.drafter, load, levels, steps.before[at], self.device, dtype)
            if not self.graphs:
                drafts, forwards = case.measured is not None, 1 + len(levels)
                spent = roofline.without_graphs(spent, target, case.drafter, drafts, forwards, self.device)
            for name, value in spent._asdict().items():
                parts[name][at] = value
        return parts

    def memory(self, case: Case, batch: int, nodes: int) -> float:
        """GB of a batch, text encoder and image tokeniser left out."""
        shape = case.shape
        load = Load(batch, shape.rows * batch, nodes, shape.prompt + shape.length)
        return roofline.memory(shape.network, case.drafter, load, self.dtype)


class MethodCost(NamedTuple):
    """Seconds of a method's step on this machine, as coefficients of its nodes, the cached tokens and its levels."""

    verify: Values  # of 1, nodes, cached tokens
    draft: Values  # of 1, forwards after the first, their nodes, cached tokens
    outside: float


@dataclass(frozen=True)
class Measured:
    """This machine as the probe timed it, for the target that was probed, one image at a time."""

    dtype: str
    costs: Mapping[str, MethodCost]  # by label
    name: ClassVar[str] = THIS
    graphs: ClassVar[bool] = False

    def seconds(self, case: Case, steps: Steps) -> dict[str, Values]:
        """The seconds of each step [T], by phase."""
        cost, ones = self.costs[case.label], np.ones(len(steps.nodes))
        draft = np.zeros_like(ones)
        for at, levels in by_levels(case.measured, steps):
            draft[at] = cost.draft[:3] @ (1.0, len(levels), sum(levels)) + cost.draft[3] * steps.start[at]
        verify = cost.verify @ np.stack([ones, steps.nodes, steps.start])
        return {"verify": verify, "draft": draft, "outside": cost.outside * ones}


Machine = Roofline | Measured


def by_levels(proposer: Proposal | None, steps: Steps) -> Iterable[tuple[np.ndarray, tuple[int, ...]]]:
    """Which steps [T] bool run the same forwards of the drafter, and the nodes that each but the first reads."""
    sizes, size = np.unique(np.stack([steps.depths, steps.nodes], 1).astype(np.int64), axis=0, return_inverse=True)
    levels = [() if proposer is None else proposer.levels(depth, nodes) for depth, nodes in sizes.tolist()]
    for each in dict.fromkeys(levels):
        yield np.isin(size.reshape(-1), [i for i, level in enumerate(levels) if level == each]), each
