"""This machine, probed with the target and methods of a run: its steps timed, and the host itself as a device model.

The steps of each method are timed at a few cached lengths; what they cost is fitted to their sizes.  For other targets
the host becomes a device model: its bandwidth, its FLOP/s, and the overhead per kernel that the shortest forward leaves
unexplained.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from lanternbench.costs.bandwidth import bandwidth, seconds_of
from lanternbench.costs.device_models import THIS, DeviceModel
from lanternbench.costs.forward_cost import lengths_of, medians, step_times
from lanternbench.costs.roofline import BYTES, LAYER, STEP, Values
from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.proposal import Proposal
from lanternbench.experiment.config import sweep
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_with_drafter
from lanternbench.models.network import Network
from lanternbench.predict.cases import Cases, sketch
from lanternbench.predict.machines import Measured, MethodCost, Roofline, shape_of
from lanternbench.predict.predict import BASE
from lanternbench.utils.device import choose, cores, load_average

REPEATS, STEPS = 15, 16  # products of matrices, and steps at each length, that are timed
SIDE = 1024  # of the matrices


def probe(
    record: Mapping[str, Any], where: Path, cases: Cases, caption: str, threads: int | None, show: Callable[..., None]
) -> tuple[Roofline, Measured, list[str]]:
    """The host as a device model, its steps on the run's target, and notes on the measurement.

    ``record``: of run.json in ``where``.  Raises UserError where the run's target or drafter cannot be loaded.
    """
    c = sweep({k: v for k, v in record["config"].items() if k != "device"}, str(where))
    device = choose("auto", threads)
    target = load_with_drafter(c.target, c.drafter, device, c.random_weights, c.dtype, None, c.compile)
    sampling = (c.temperature, c.top_k, c.top_p, c.guidance, c.simulate_acceptance)
    methods, costs = {BASE: method(BASE), **cases.methods}, {}
    proposals = {case.label: case.measured for case in cases.traces}
    for done, (label, case_method) in enumerate(methods.items()):
        show(done, len(methods), f"a few steps of {label}")
        costs[label] = method_cost(build(target, case_method, *sampling), proposals.get(label), caption)
    dtype = str(target.dtype).removeprefix("torch.")
    plain = shape_of(sketch(c.target), c.guidance)  # layers packed for a CPU no longer show their sizes
    least = float(costs[BASE].verify @ (1, 1, 1))
    model = host(target.device, plain.network, least, plain.rows, dtype)
    rate, load, cpus = 1e3 * model.tflops[dtype], load_average(), cores()
    notes = [
        f"this machine, probed: {model.bandwidth:.1f} GB/s, {rate:.0f} GFLOP/s, {model.gap:.1f} µs a kernel ({dtype})"
    ]
    if load is not None and load > cpus:
        notes.append(f"the load was {load:.1f} on {cpus} cores while it was probed: stop other programs and try again")
    return Roofline(model, dtype, graphs=False), Measured(dtype, costs), notes


def method_cost(decoder: SpeculativeDecoder, proposal: Proposal | None, caption: str) -> MethodCost:
    """What a method's steps cost: least squares over their medians, by size and cached length."""
    lengths = lengths_of(decoder.target.length, decoder.proposer.max_depth)
    times = list(step_times(decoder, caption, lengths, STEPS))
    usual, counts = medians(times), Counter(t[:2] for t in times)
    weights = np.sqrt([counts[t[:2]] for t in usual])

    def fit(seconds: list[float], rows: Sequence[tuple[int, ...]]) -> Values:
        return nnls(weights[:, None] * np.array(rows), weights * np.array(seconds))[0]

    verify = fit([t.forward_s for t in usual], [(1, t.shape.nodes, t.cached) for t in usual])
    levels = [proposal.levels(t.shape.depth, t.shape.nodes) if proposal else () for t in usual]
    rows = [(1, len(each), sum(each), t.cached) for t, each in zip(usual, levels, strict=True)]
    return MethodCost(verify, fit([t.draft_s for t in usual], rows), median(t.rest_s for t in times))


@torch.inference_mode()
def host(device: torch.device, target: Network, least: float, rows: int, dtype: str) -> DeviceModel:
    """This machine as a device model: its bandwidth, its FLOP/s and its overhead per kernel.

    The overhead of a kernel is what the shortest forward of ``target``, ``least`` seconds, takes beyond its bytes and
    products.
    """
    beta = 1e9 * bandwidth(device).best
    a = torch.ones(SIDE, SIDE, device=device, dtype=getattr(torch, dtype))
    peak = 2 * SIDE**3 / timed(lambda: a @ a, device)
    known = max(BYTES[dtype] * (target.weights + target.head) / beta, 2 * rows * target.weights / peak)
    gap = max(0.0, least - known) / (LAYER * target.layers + STEP)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceModel(
        name=THIS, about="this machine, probed", bandwidth=beta / 1e9, memory=memory / 1e9,
        tflops={dtype: peak / 1e12}, gap=1e6 * gap, issue=0.0, source="measured here",
    )  # fmt: skip


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Median seconds of a piece of work."""
    return median(seconds_of(work, device) for _ in range(REPEATS))
