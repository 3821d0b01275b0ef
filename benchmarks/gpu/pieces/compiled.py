"""Fused kernels: the tokens are those of launched steps, and what ``ar`` gains."""

from __future__ import annotations

import torch

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.decoding import BASE, CAPTIONS, decode, decoder_of, difference, timed, use
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.pieces.equal import note
from benchmarks.gpu.result import Result

COMPARED = (BASE, "medusa")  # a single token and a tree; every shape takes a minute to compile
EQUAL = "the bundled model, float32"
SPEED = "`ar` at LlamaGen-XL's shape, one prompt, CFG, bfloat16"


@torch.inference_mode()
def measure(machine: Machine, result: Result) -> None:
    target = shapes.bundled(machine, torch.float32)
    compiled = machine.compiled()
    outcomes: dict[str, str] = {}
    for name in COMPARED:
        with result.attempt(name, outcomes):
            launched = decode(decoder_of(target, name), CAPTIONS[:1], steps=48)
            fused = decode(decoder_of(target, name, compiled), CAPTIONS[:1], steps=48)
            note(result, EQUAL, name, difference(launched, fused), outcomes)
    result.judge(bars.COMPILED, outcomes)
    target = shapes.target_of(machine, shapes.XL)
    for way in ("recorded", "compiled"):
        graphs = use(machine, way)
        image = timed(decoder_of(target, BASE, graphs), 6 if machine.small else None)
        result.row(
            SPEED,
            what=way,
            ms=round(1e3 * image.decode_s / image.steps, 3),
            forward=round(1e3 * image.phases["verify"] / image.steps, 3),
            mode="" if graphs is None else graphs.mode,  # another if compiling failed
        )
