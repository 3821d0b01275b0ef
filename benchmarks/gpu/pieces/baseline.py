"""How near ``ar`` is to the machine's limits: its token against the bytes it reads and the kernels
it launches, and against the loop that a user would write with transformers.
"""

from __future__ import annotations

import torch

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.decoding import BASE, CAPTIONS, decoder_of, timed, use
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.model import StepModel, counted_in
from benchmarks.gpu.plain_loop import plain_seconds
from benchmarks.gpu.result import Result

TABLE = "one prompt, CFG, bfloat16"


@torch.inference_mode()
def measure(machine: Machine, result: Result) -> None:
    target = shapes.target_of(machine, shapes.XL)
    rates = machine.rates()
    model = StepModel(target, rates, counted_in(result.folder))
    modelled = model.step(BASE)
    reading = 1e3 * modelled.gigabytes / rates.bandwidth
    result.row(
        TABLE,
        what=f"{modelled.gigabytes:.2f} GB read once at {rates.bandwidth:.0f} GB/s",
        ms=round(reading, 3),
    )
    result.row(
        TABLE,
        what=f"model: that and {modelled.kernels:.0f} kernels of {rates.gap:.2f} µs",
        ms=round(modelled.ms, 3),
    )
    for way in ("launched", "recorded"):
        decoder = decoder_of(target, BASE, use(machine, way))
        image = timed(decoder, 6 if machine.small else None)
        ms = 1e3 * image.decode_s / image.steps
        forward = 1e3 * image.phases["verify"] / image.steps
        result.row(
            TABLE,
            what=way,
            ms=round(ms, 3),
            forward=round(forward, 3),
            bandwidth_used=f"{reading / ms:.0%}",
        )
    value = f"{ms:.2f} ms for {modelled.ms:.2f} ms ({ms / modelled.ms:.2f} times)"
    result.bar(bars.BASELINE, value, ms <= bars.SLACK * modelled.ms)


def plain(machine: Machine, result: Result) -> None:
    """Run in a process of its own: transformers takes memory and time that are not ours."""
    target = shapes.target_of(machine, shapes.XL)
    guidance = target.sampling.guidance
    prompt = target.prefix([CAPTIONS[0]], guidance).valid.shape[1]
    seconds = plain_seconds(target, prompt, 3 if machine.small else 128, machine.wait)
    result.row(TABLE, what="transformers, static cache, launched", ms=round(1e3 * seconds, 3))
