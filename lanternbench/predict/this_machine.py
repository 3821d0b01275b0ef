"""The machine that a command runs on, probed with the target and methods of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lanternbench.experiment.config import sweep
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_with_drafter
from lanternbench.predict import calibrate
from lanternbench.predict.cases import Cases, recorded_sizes, sketch
from lanternbench.predict.predict import BASE, Roofline, shape_of
from lanternbench.utils.device import choose, cores, load_average


class ThisMachine(NamedTuple):
    """``measured``: forwards of the run's target; ``roofline``: the host as a device model, for all else."""

    measured: calibrate.Measured
    roofline: Roofline

    @property
    def notes(self) -> list[str]:
        """What the probe found, and whether other programs were in its way."""
        model, load, cpus = self.roofline.device, load_average(), cores()
        rate = model.tflops[self.roofline.dtype]
        said = [
            f"this machine, probed: {model.bandwidth:.1f} GB/s, {1e3 * rate:.0f} GFLOP/s, {model.gap:.1f} µs a kernel "
            f"({self.measured.dtype})"
        ]
        if load is not None and load > cpus:
            said.append(
                f"the load was {load:.1f} on {cpus} cores while it was probed: stop other programs and try again"
            )
        return said


def probe(
    record: Mapping[str, Any], where: Path, found: Cases, caption: str, threads: int | None, shown: Callable[..., None]
) -> ThisMachine:
    """``record``: of run.json in ``where``.  Raises UserError where the run's target or drafter cannot be loaded."""
    c = sweep({k: v for k, v in record["config"].items() if k != "device"}, str(where))
    device = choose("auto", threads)
    target = load_with_drafter(c.target, c.drafter, device, c.random_weights, c.dtype, None, c.compile)
    sampling = (c.temperature, c.top_k, c.top_p, c.guidance, c.simulate_acceptance)
    methods = {BASE: method(BASE), **found.methods}
    decoders = {label: build(target, m, *sampling) for label, m in methods.items()}
    sizes = recorded_sizes(found.traces.values())
    measured = calibrate.measure(decoders, sizes, caption, shown)
    plain = shape_of(sketch(c.target), c.guidance)  # layers packed for a CPU no longer show their sizes
    model = calibrate.host(target.device, plain.network, measured.target, plain.rows, measured.dtype)
    return ThisMachine(measured, Roofline(model, measured.dtype, graphs=False))
