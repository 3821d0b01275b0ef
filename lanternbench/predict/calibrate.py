"""Measure this machine for predictions: a short probe of real forwards, and of the host itself.

For the run's own target the probe is a table: the target's forward against nodes and cached length, the drafter's
forwards likewise, and what a step of each method costs outside of them.  For other targets the host becomes a device
model: its bandwidth, its FLOP/s, and the overhead of a kernel that the probed forwards leave unexplained.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from lanternbench.costs.bandwidth import bandwidth, wait
from lanternbench.costs.device_models import THIS, DeviceModel
from lanternbench.costs.forward_cost import Curve, set_length
from lanternbench.costs.roofline import BYTES, LAYER, STEP, Values
from lanternbench.engine.address import Lengths
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.decode import SpeculativeDecoder, begin, generate
from lanternbench.engine.opening import start
from lanternbench.engine.proposal import Drafter, Proposal
from lanternbench.engine.state import DecodeState, forward
from lanternbench.engine.tree import Draft, chain
from lanternbench.models.network import Network
from lanternbench.predict.predict import Case, by_levels
from lanternbench.predict.replay import Steps, Trace, batches

REPEATS, WARMUP, STEPS = 15, 3, 48
SIZES = 7  # numbers of nodes that are timed
SIDE = 1024  # of the matrices whose product is timed


class Drafting(NamedTuple):
    """A drafter's forwards: at the root, over what the last step committed, and over the nodes of a level."""

    root: Curve
    level: Curve | None = None


@dataclass(frozen=True)
class Measured:
    """The machine as the probe found it, for the target that was probed, one image at a time.

    ``in_place``: by how much a method's forwards take longer in its steps than in a loop of their own, where code and
    data stay in the processor's caches.
    """

    dtype: str
    target: Curve
    drafting: Mapping[str, Drafting]  # by label
    outside: Mapping[str, float]  # seconds of a step outside forwards, by label
    in_place: Mapping[str, float] = field(default_factory=dict)  # by label
    name: str = THIS
    keeps_shape: bool = False

    def seconds(self, case: Case, steps: Steps) -> dict[str, Values]:
        verify, draft = self.forwards(case.label, case.measured, steps)
        factor = self.in_place.get(case.label, 1.0)
        outside = np.full(len(steps.nodes), self.outside[case.label])
        return {"verify": factor * verify, "draft": factor * draft, "outside": outside}

    def forwards(self, label: str, proposer: Proposal | None, steps: Steps) -> tuple[Values, Values]:
        """Seconds [T] of the target's forward of each step, and of the drafter's, in loops of their own."""
        draft = np.zeros(len(steps.nodes))
        if label in self.drafting and proposer is not None:
            made = self.drafting[label]
            for at, levels in by_levels(proposer, steps):
                draft[at] = made.root.at(steps.before[at], steps.start[at])
                for nodes in levels if made.level is not None else ():
                    assert made.level is not None
                    draft[at] += made.level.at(nodes, steps.start[at])
        return self.target.at(steps.nodes, steps.start), draft


def _median(seconds: Callable[[], float]) -> float:
    """The median of ``REPEATS`` measurements, after ``WARMUP`` that do not count."""
    return median([seconds() for _ in range(WARMUP + REPEATS)][WARMUP:])


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Median seconds of a piece of work."""

    def once() -> float:
        wait(device)
        clock = perf_counter()
        work()
        wait(device)
        return perf_counter() - clock

    return _median(once)


def _phase(state: DecodeState, phase: str, work: Callable[[], Any]) -> float:
    """Median seconds that a piece of work books on the clock's ``phase``."""

    def once() -> float:
        state.clock.start()
        work()
        state.clock.stop()
        return state.clock.spent[phase]

    return _median(once)


@torch.inference_mode()
def measure(
    decoders: Mapping[str, SpeculativeDecoder],
    sizes: Sequence[int],
    caption: str,
    shown: Callable[[int, int, str], None] = lambda done, of, what: None,
) -> Measured:
    """Probe the decoders' common target.  ``decoders`` by label, ``ar`` among them; ``sizes``: nodes of recorded trees.

    ``shown`` (done, of, what) is told of every piece.
    """
    count = len(decoders) + 1
    shown(0, count, "forwards of target and drafters")
    widest = max(decoders.values(), key=lambda d: d.proposer.nodes)
    state = start(widest, [caption], [0], trace=False)
    length = state.limit
    grid = probed_sizes(sizes, widest.proposer.nodes)
    cached = [1, length // 2, length - 1]
    seconds = [[_forward(state, nodes, at) for nodes in grid] for at in cached]
    drafting: dict[str, Drafting] = {}
    outside: dict[str, float] = {}
    for label, decoder in decoders.items():
        if decoder.proposer.drafter is not None:
            drafting[label] = _drafting(decoder, decoder.proposer.drafter, caption, cached)
    dtype = str(state.target.dtype).removeprefix("torch.")
    loops = Measured(dtype, Curve(grid, cached, seconds), drafting, outside)
    in_place = {}
    for done, (label, decoder) in enumerate(decoders.items(), 1):
        shown(done, count, f"a few steps of {label}")
        generate(decoder, [caption], max_steps=WARMUP)
        made = generate(decoder, [caption], max_steps=STEPS)[0]
        spent = {phase: made.phases.get(phase, 0.0) for phase in ("verify", "draft", "commit", "other")}
        outside[label] = (spent["commit"] + spent["other"]) / made.steps
        trace = Trace(*(np.asarray(x) for x in (made.accept_lengths, made.tree_nodes, made.tree_depths)))
        parts = loops.forwards(label, decoder.proposer, batches([trace], 1, False)[0])
        in_place[label] = (spent["verify"] + spent["draft"]) / sum(float(part.sum()) for part in parts)
    shown(count, count, "done")
    return replace(loops, in_place=in_place)


def probed_sizes(sizes: Sequence[int], most: int) -> list[int]:
    """At most ``SIZES`` numbers of nodes, evenly picked from those recorded, 1 and the largest among them."""
    found = sorted({1, *(min(n, most) for n in sizes)})
    if len(found) == 1:
        found.append(2)
    picked = np.linspace(0, len(found) - 1, min(SIZES, len(found))).round().astype(int)
    return [found[i] for i in picked]


def _forward(state: DecodeState, nodes: int, length: int) -> float:
    set_length(state, length)
    tokens = torch.zeros(state.batch, nodes, dtype=torch.long, device=state.device)
    draft = Draft(tokens, static=chain(nodes - 1).to(state.device))
    return _phase(state, "verify", lambda: forward(state, draft))


def _drafting(decoder: SpeculativeDecoder, drafter: Drafter, caption: str, cached: Sequence[int]) -> Drafting:
    state, own = begin(decoder, [caption], [0])
    deepest, tree = max(decoder.proposer.max_depth, 1), decoder.proposer
    widths = sorted({1, *tree.levels(deepest, tree.nodes), *((tree.width,) if tree.adapts else ())})
    commits = [1, deepest + 1]
    at = [max(length, deepest + 2) for length in cached]

    roots, levels = [], []
    for length in at:
        set_length(state, length)
        row = []
        for count in commits:
            last = state.now.last
            hidden = last.hidden[:, :1].expand(-1, count, -1)
            before = None if last.before is None else last.before[:, :1].expand(-1, count, -1)
            advance = Lengths.of(torch.full_like(last.advance.device, count), PerPrompt((count,) * state.batch))
            tokens = last.tokens[:, :1].expand(-1, count)
            new = last._replace(hidden=hidden, tokens=tokens, advance=advance, before=before)
            state.now = state.now._replace(last=new)
            row.append(_phase(state, "draft", lambda: drafter.root(state, own.drafter)))
        roots.append(row)
        if drafter.per_level:
            _, cursor = drafter.root(state, own.drafter)
            levels.append([_phase(state, "draft", _level(drafter, state, own.drafter, cursor, w)) for w in widths])
    return Drafting(Curve(commits, at, roots), Curve(widths, at, levels) if levels else None)


def _level(drafter: Drafter, state: DecodeState, own: Any, cursor: Any, width: int) -> Callable[[], Any]:
    tokens = torch.zeros(state.batch, width, dtype=torch.long, device=state.device)
    parent = torch.zeros(width, dtype=torch.long, device=state.device)
    return lambda: drafter.expand(state, own, cursor, tokens, parent, None, 1)


@torch.inference_mode()
def host(device: torch.device, target: Network, curve: Curve, rows: int, dtype: str) -> DeviceModel:
    """This machine as a device model: its bandwidth, its FLOP/s and its overhead per kernel.

    The overhead of a kernel is what the shortest probed forward of ``target`` takes beyond its bytes and products.
    """
    beta = 1e9 * bandwidth(device).best
    kind = getattr(torch, dtype)
    a = torch.ones(SIDE, SIDE, device=device, dtype=kind)
    peak = 2 * SIDE**3 / timed(lambda: a @ a, device)
    least = min(curve.seconds[0])
    known = max(BYTES[dtype] * (target.weights + target.head) / beta, 2 * rows * target.weights / peak)
    gap = max(0.0, least - known) / (LAYER * target.layers + STEP)
    return DeviceModel(
        name=THIS, about="this machine, probed", bandwidth=beta / 1e9, memory=_memory(device),
        tflops={dtype: peak / 1e12}, gap=1e6 * gap, issue=0.0, source="measured here",
    )  # fmt: skip


def _memory(device: torch.device) -> float:
    """GB."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 1e9
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
