"""How fast this machine reads memory, which bounds forwards of few rows, and what a step costs on
it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, product
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from lanternbench.engine.cache import Lengths
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.decode import SpeculativeDecoder, begin, step
from lanternbench.utils.device import cores

PASSES = 10  # over memory, at the least
WARMUP = 3  # steps at each length that do not count: memory is allocated, kernels are chosen


class Bandwidth(NamedTuple):
    """How fast this machine reads memory, in GB/s: ``best`` of ``passes`` over the same tensor,
    and their median.
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


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a piece of work, until the device has done it."""
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    wait()
    clock = perf_counter()
    work()
    wait()
    return perf_counter() - clock


class Shape(NamedTuple):
    """What a step computes: ``nodes`` verified, the root included; after the drafter's first call,
    a further one for each of ``levels`` with so many nodes."""

    nodes: int
    depth: int
    levels: tuple[int, ...] = ()
    chain: bool = True


class Timed(NamedTuple):
    """Seconds of a step of this shape, or their medians, with ``cached`` committed image tokens."""

    shape: Shape
    cached: int
    draft_s: float  # forwards of the drafter
    forward_s: float  # the target's
    rest_s: float  # drawing, building trees, acceptance, commit


class StepCost(BaseModel):
    """What a step of any shape costs, from measurements of several (see ``fit``).  Times in
    seconds.
    """

    model_config = ConfigDict(frozen=True)

    nodes: list[int]  # of the measured forwards
    cached: list[int]  # committed image tokens before them
    forward_s: list[list[float]]  # [cached, nodes]
    root_s: float = 0.0  # the drafter's first call: it reads the last commit
    level_nodes: list[int] = []
    level_s: list[float] = []  # a further level of so many nodes
    chain_rest: tuple[float, float, float] = (0.0, 0.0, 0.0)  # a step's, per node, per level
    tree_rest: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def forward(self, nodes: float) -> float:
        """The target over ``nodes``, the mean over an image."""
        return float(np.mean([_rising(nodes, self.nodes, row) for row in self.forward_s]))

    def draft(self, levels: Sequence[int], depth: int = 1) -> float:
        """The drafter's forwards: none where nothing is drafted."""
        further = sum(
            _rising(n, self.level_nodes, self.level_s) for n in levels if self.level_nodes
        )
        return self.root_s + further if depth else 0.0

    def step(self, shape: Shape) -> float:
        each, node, level = self.chain_rest if shape.chain else self.tree_rest
        rest = each + node * shape.nodes + level * shape.depth
        return self.forward(shape.nodes) + self.draft(shape.levels, shape.depth) + rest


def _rising(nodes: float, measured: Sequence[int], seconds: Sequence[float]) -> float:
    """Linear between the measured numbers of nodes; beyond the most, as the last two go on."""
    slope = (
        (seconds[-1] - seconds[-2]) / (measured[-1] - measured[-2]) if len(measured) > 1 else 0.0
    )
    return float(np.interp(nodes, measured, seconds)) + max(0.0, slope) * max(
        0.0, nodes - measured[-1]
    )


@torch.inference_mode()
def step_times(
    decoder: SpeculativeDecoder, caption: str, cached: Iterable[int], steps: int
) -> Iterator[Timed]:
    """The steps of a decoder, ``steps`` at each length ``cached``: after each, the length is set
    back.

    An order other than raster has lengths of its own: its steps are those that follow each other.
    """
    state, proposer_state = begin(decoder, [caption], [0])
    for length, i in product(cached, range(WARMUP + steps)):
        if decoder.strategy.in_raster_order:  # the cache holds zeros, at the same cost
            tokens = torch.full_like(state.now.length.device, length)
            same = Lengths(tokens, PerPrompt((length,) * state.batch))
            state.now = state.now._replace(length=same)
            state.steps = 0  # uniforms are there for one image
        elif not state.active:
            return
        begun_with = proposer_state
        state.clock.start()
        proposer_state, result = step(decoder, state, begun_with)
        whole, phases = state.clock.stop(), state.clock.spent
        draft, forward = phases.get("draft", 0.0), phases.get("verify", 0.0)
        if i >= WARMUP:
            depth, nodes = decoder.strategy.sizes(begun_with, result)[0]
            yield Timed(Shape(nodes, depth), length, draft, forward, whole - draft - forward)


def time_steps(
    decoder: SpeculativeDecoder, shape: Shape, caption: str, cached: Sequence[int], steps: int
) -> list[Timed]:
    """The medians of ``steps`` steps of a decoder at each length ``cached``."""
    return [t._replace(shape=shape) for t in medians(step_times(decoder, caption, cached, steps))]


def medians(times: Iterable[Timed]) -> list[Timed]:
    """Those of all steps with the same shape and cached length."""
    groups = groupby(sorted(times), key=lambda t: t[:2])
    return [Timed(*size, *map(median, list(zip(*same, strict=True))[2:])) for size, same in groups]


def lengths_of(image: int, deepest: int) -> list[int]:
    """Three cached lengths whose mean cost is an image's: beginning, middle and end."""
    low = min(deepest + 2, image // 2)
    return sorted(
        {max(low, image // 8), image // 2, max(image // 2, image - image // 8 - deepest)}
    )


def fit(timed: Sequence[Timed]) -> StepCost:
    """A model of measurements, in which each shape was measured at the same lengths.

    Forwards and levels are medians over the measurements of as many nodes, made to rise with them
    (isotonic regression); the rest is a non-negative least-squares fit of a constant, a share per
    node and a share per level, for chains and for trees, whose commit moves cache entries.
    """
    from scipy.optimize import isotonic_regression  # not where only the bandwidth is asked for

    cached = sorted({t.cached for t in timed})
    nodes = sorted({t.shape.nodes for t in timed})
    forward = [
        [median(t.forward_s for t in timed if (t.cached, t.shape.nodes) == (c, n)) for n in nodes]
        for c in cached
    ]
    drafting = [t for t in timed if t.shape.depth]
    roots = [t.draft_s for t in drafting if not t.shape.levels]
    root = (
        median(roots)
        if roots
        else min((t.draft_s / (1 + len(t.shape.levels)) for t in drafting), default=0.0)
    )
    level_s: dict[int, list[float]] = {}  # by the nodes of a level
    for t in drafting:
        if len(set(t.shape.levels)) == 1:
            level_s.setdefault(t.shape.levels[0], []).append(
                max(0.0, t.draft_s - root) / len(t.shape.levels)
            )
    widths = sorted(level_s)
    chains, trees = ([t for t in drafting if t.shape.chain is kind] for kind in (True, False))
    plain = [t for t in timed if not t.shape.depth]
    levels = isotonic_regression([median(level_s[w]) for w in widths]).x.tolist() if widths else []
    return StepCost(
        nodes=nodes, cached=cached, forward_s=forward, root_s=root, level_nodes=widths, level_s=levels,
        chain_rest=_rest(chains or trees or plain), tree_rest=_rest(trees or chains or plain),
    )  # fmt: skip


def _rest(timed: Sequence[Timed]) -> tuple[float, float, float]:
    from scipy.optimize import nnls

    rows = np.array([(1.0, t.shape.nodes, t.shape.depth) for t in timed])
    each, node, level = nnls(rows, np.array([t.rest_s for t in timed]))[0]
    return float(each), float(node), float(level)
