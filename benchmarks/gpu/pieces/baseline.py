"""Is ``ar`` near the machine's limit?  Its token beside the time that reading weights and cache
  once takes.

And beside what a user would write with transformers: the same stack, a static cache, CFG as a
batch of two.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.plain_loop import plain_seconds
from benchmarks.gpu.result import Result
from lanternbench.doctor.gpu import CAPTIONS
from lanternbench.engine.decode import Generation, SpeculativeDecoder, generate
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.target import Target
from lanternbench.profile.step_profile import read_bytes

TABLE = "one prompt, CFG, bfloat16"


def image(decoder: SpeculativeDecoder, steps: int | None = None) -> Generation:
    """An image, or its first steps, after a warm-up that records what there is to record."""
    generate(decoder, [CAPTIONS[0]], max_steps=4)
    return generate(decoder, [CAPTIONS[0]], max_steps=steps)[0]


def limit_s(target: Target, rate: float) -> float:
    """Seconds in which weights and the mean cache of an image can be read once; ``rate`` in GB/s."""
    prompt = target.prefix([CAPTIONS[0]], target.guidance).valid.shape[1]
    return (
        (read_bytes(target.model) + shapes.cache_bytes(target, prompt + target.length / 2))
        / rate
        / 1e9
    )


@torch.inference_mode()
def measure(machine: Machine, result: Result) -> None:
    target, rate = shapes.xl(machine), machine.read_rate()
    least = 1e3 * limit_s(target, rate)
    result.row(
        TABLE, what=f"limit: weights and cache read once at {rate:.0f} GB/s", ms=round(least, 3)
    )
    for mode, graphs in (("launched", None), ("CUDA graphs", machine.graphs())):
        made = image(
            build(replace(target, graphs=graphs), method("ar")), 6 if machine.small else None
        )
        ms = 1e3 * made.decode_s / made.steps
        forward = 1e3 * made.phases["verify"] / made.steps
        result.row(
            TABLE,
            what=mode,
            ms=round(ms, 3),
            forward=round(forward, 3),
            of_limit=f"{least / ms:.0%}",
        )
    result.bar(bars.SHARE, f"{least / ms:.0%}", least / ms >= 0.7)
    result.bar(bars.H200, f"{ms:.2f} ms", ms <= 1 if "H200" in machine.name() else None)


def plain(machine: Machine, result: Result) -> None:
    """A process of its own: transformers takes memory and time that are not ours."""
    target = shapes.xl(machine)
    prompt = target.prefix([CAPTIONS[0]], target.guidance).valid.shape[1]
    where = "cpu" if machine.small else machine.device
    config, steps = target.model.config.decoder, 3 if machine.small else 128
    seconds = plain_seconds(
        config, target.guidance, prompt, steps, where, target.dtype, machine.wait
    )
    result.row(TABLE, what="transformers, static cache, launched", ms=round(1e3 * seconds, 3))
