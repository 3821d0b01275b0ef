"""The speed at which this machine reads memory, which bounds forward passes of few rows, and the
cost of a step on it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby, product
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from lanternbench.engine.cache import Lengths
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.decode import SpeculativeDecoder, begin, step
from lanternbench.engine.state import DecodeState
from lanternbench.engine.timing import Clock
from lanternbench.utils.device import cores

PASSES = 10  # over memory, at the least
WARMUP = 3  # steps at each length that do not count: memory is allocated, kernels are chosen
Rest = tuple[float, float, float]  # seconds of a step outside forward passes, a node's, a level's


class Bandwidth(NamedTuple):
    """The speed at which this machine reads memory, in GB/s: ``best`` of ``passes`` over the same
    tensor, and their median.
    """

    best: float
    median: float
    passes: int
    threads: int

    @property
    def spread(self) -> float:
        """By how much the median pass falls short of the best one, which no other program held up:
        a share.
        """
        return 1 - self.median / self.best


def bandwidth(device: torch.device, seconds: float = 3.0) -> Bandwidth:
    """Timed sums over a tensor that no cache holds, all cores at work: at least ten, and as many
    as ``seconds`` allow.

    The tensor has 512 MiB, more than caches of CPUs hold, and 2 GiB on a GPU, so that launching the
    sum and waiting for it cost nothing compared with reading it.  Other programs only ever slow a
    pass down, so the best pass is what repeats.
    """
    size = 2**31 if device.type == "cuda" else 2**29
    x = torch.ones(size // 8, dtype=torch.int64, device=device)
    before = torch.get_num_threads()
    times: list[float] = []
    torch.set_num_threads(max(before, cores()))
    try:
        threads = torch.get_num_threads()
        x.sum()
        end = perf_counter() + seconds
        while len(times) < PASSES or perf_counter() < end:
            times.append(seconds_of(x.sum, device))
    finally:
        torch.set_num_threads(before)
    rates = sorted(size / t / 1e9 for t in times)
    return Bandwidth(rates[-1], median(rates), len(rates), threads)


@cache
def memory_rate(device: str) -> float:
    """Return the best rate at which a device reads memory in GB/s, measured once a process in
    about a second.
    """
    return round(bandwidth(torch.device(device), seconds=1.0).best, 1)


def read_bytes(model: nn.Module) -> int:
    """Return the bytes of weights that one forward pass reads: all but the embeddings, of which it
    reads single rows.
    """
    read = [p for name, p in model.named_parameters() if "embedding" not in name]
    return sum(p.numel() * p.element_size() for p in read)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of a piece of work, until the device has done it."""
    clock = Clock(device)
    clock.start()
    work()
    return clock.stop()


class Shape(NamedTuple):
    """The work of a step: ``nodes`` verified, the root included; after the drafter's first call,
    a further one for each of ``levels`` with so many nodes."""

    nodes: int
    depth: int
    levels: tuple[int, ...] = ()
    chain: bool = True


class Timed(NamedTuple):
    """Seconds of a step of this shape, or their medians, with ``cached`` committed image tokens."""

    shape: Shape
    cached: int
    draft_s: float  # forward passes of the drafter
    forward_s: float  # the target's
    rest_s: float  # drawing, building trees, acceptance, commit


class StepCost(BaseModel):
    """The cost of a step of any shape, from measurements of several (see ``fit``).  Times in
    seconds.
    """

    model_config = ConfigDict(frozen=True)

    nodes: list[int]  # of the measured forward passes
    cached: list[int]  # committed image tokens before them
    forward_s: list[list[float]]  # [cached, nodes]
    root_s: float = 0.0  # the drafter's first call: it reads the last commit
    level_nodes: list[int] = []
    level_s: list[float] = []  # a further level of so many nodes
    chain_rest: Rest = (0.0, 0.0, 0.0)
    tree_rest: Rest = (0.0, 0.0, 0.0)

    def forward(self, nodes: float) -> float:
        """The target's forward pass over ``nodes``, the mean over an image."""
        return float(np.mean([rising(nodes, self.nodes, seconds) for seconds in self.forward_s]))

    def draft(self, levels: Sequence[int], depth: int = 1) -> float:
        """The drafter's forward passes: none if nothing is drafted."""
        if not depth:
            return 0.0
        seconds = self.root_s
        if self.level_nodes:
            for nodes in levels:
                seconds += rising(nodes, self.level_nodes, self.level_s)
        return seconds

    def step(self, shape: Shape) -> float:
        of_step, of_node, of_level = self.chain_rest if shape.chain else self.tree_rest
        rest = of_step + of_node * shape.nodes + of_level * shape.depth
        return self.forward(shape.nodes) + self.draft(shape.levels, shape.depth) + rest


def rising(nodes: float, measured: Sequence[int], seconds: Sequence[float]) -> float:
    """Linear between the measured numbers of nodes; beyond the largest, the last slope goes on."""
    inside = float(np.interp(nodes, measured, seconds))
    if nodes <= measured[-1] or len(measured) == 1:
        return inside
    slope = (seconds[-1] - seconds[-2]) / (measured[-1] - measured[-2])
    return inside + max(0.0, slope) * (nodes - measured[-1])


@torch.inference_mode()
def step_times(
    decoder: SpeculativeDecoder, caption: str, cached: Iterable[int], steps: int
) -> Iterator[Timed]:
    """The steps of a decoder, ``steps`` at each length ``cached``: after each, the length is set
    back.

    An order other than raster has lengths of its own: its steps are those that follow each other.
    """
    state, carried = begin(decoder, [caption], [0])
    for length, i in product(cached, range(WARMUP + steps)):
        if decoder.strategy.in_raster_order:
            set_length(state, length)
        elif not state.active:
            return
        begun_with = carried
        state.clock.start()
        carried, result = step(decoder, state, begun_with)
        seconds = state.clock.stop()
        if i < WARMUP:
            continue
        draft = state.clock.spent.get("draft", 0.0)
        forward = state.clock.spent.get("verify", 0.0)
        depth, nodes = decoder.strategy.sizes(begun_with, result)[0]
        yield Timed(Shape(nodes, depth), length, draft, forward, seconds - draft - forward)


def set_length(state: DecodeState, length: int) -> None:
    """Continue a decode as if it had committed ``length`` tokens: the cache holds zeros, at the
    same cost.
    """
    tokens = torch.full_like(state.now.length.device, length)
    lengths = Lengths(tokens, PerPrompt((length,) * state.batch))
    state.now = state.now._replace(length=lengths)
    state.steps = 0  # uniforms are there for one image


def time_steps(
    decoder: SpeculativeDecoder, shape: Shape, caption: str, cached: Sequence[int], steps: int
) -> list[Timed]:
    """The medians of ``steps`` steps of a decoder at each length ``cached``."""
    return [t._replace(shape=shape) for t in medians(step_times(decoder, caption, cached, steps))]


def medians(times: Iterable[Timed]) -> list[Timed]:
    """Those of all steps with the same shape and cached length."""
    usual: list[Timed] = []
    for size, same in groupby(sorted(times), key=lambda timed: timed[:2]):
        _, _, *seconds = zip(*same, strict=True)
        usual.append(Timed(*size, *map(median, seconds)))
    return usual


def lengths_of(image: int, deepest: int) -> list[int]:
    """Three cached lengths whose mean cost is an image's: beginning, middle and end."""
    middle = image // 2
    beginning = max(image // 8, min(deepest + 2, middle))
    end = max(middle, image - image // 8 - deepest)
    return sorted({beginning, middle, end})


def fit(timed: Sequence[Timed]) -> StepCost:
    """A model of measurements, in which each shape was measured at the same lengths.

    Forward passes and levels are medians over the measurements of as many nodes, levels made to
    rise with them (isotonic regression); the rest is a non-negative least-squares fit of a
    constant, a share per node and a share per level, for chains and for trees, whose commit moves
    cache entries.
    """
    forward: dict[int, dict[int, list[float]]] = {}  # by cached length and nodes
    for t in sorted(timed):
        of_length = forward.setdefault(t.cached, {})
        of_length.setdefault(t.shape.nodes, []).append(t.forward_s)
    drafting = [t for t in timed if t.shape.depth]
    root = root_seconds(drafting)
    levels = level_seconds(drafting, root)
    chains = [t for t in drafting if t.shape.chain]
    trees = [t for t in drafting if not t.shape.chain]
    plain = [t for t in timed if not t.shape.depth]
    return StepCost(
        nodes=sorted({t.shape.nodes for t in timed}),
        cached=sorted(forward),
        forward_s=[[median(s) for s in forward[length].values()] for length in sorted(forward)],
        root_s=root,
        level_nodes=list(levels),
        level_s=list(levels.values()),
        chain_rest=_rest(chains or trees or plain),
        tree_rest=_rest(trees or chains or plain),
    )


def root_seconds(drafting: Sequence[Timed]) -> float:
    """Seconds of the drafter's first call."""
    alone = [t.draft_s for t in drafting if not t.shape.levels]
    if alone:
        return median(alone)
    return min((t.draft_s / (1 + len(t.shape.levels)) for t in drafting), default=0.0)


def level_seconds(drafting: Sequence[Timed], root: float) -> dict[int, float]:
    """Seconds of a further level, by its nodes."""
    from scipy.optimize import isotonic_regression  # slow to load, and the bandwidth needs none

    measured: dict[int, list[float]] = {}
    for t in drafting:
        levels = t.shape.levels
        if len(set(levels)) == 1:
            seconds = max(0.0, t.draft_s - root) / len(levels)
            measured.setdefault(levels[0], []).append(seconds)
    if not measured:
        return {}
    nodes = sorted(measured)
    rising_s = isotonic_regression([median(measured[n]) for n in nodes]).x
    return dict(zip(nodes, rising_s.tolist(), strict=True))


def _rest(timed: Sequence[Timed]) -> Rest:
    from scipy.optimize import nnls

    rows = np.array([(1.0, t.shape.nodes, t.shape.depth) for t in timed])
    of_step, of_node, of_level = nnls(rows, np.array([t.rest_s for t in timed]))[0].tolist()
    return of_step, of_node, of_level
