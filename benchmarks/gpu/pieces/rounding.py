"""Recorded steps against launched ones in bfloat16, in which runs are measured.

There rounding may move a draw, so distributions are compared instead of tokens: as long as two
decodes drew the same tokens, their distributions at the next token rest on the same inputs.  How
far recording moves them is measured against how far bfloat16 itself moves them from float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.decoding import CAPTIONS, decoder_of, drawn, fitting, traced, use
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.pieces.equal import GROUPED, LONG
from benchmarks.gpu.result import SAME, Result
from lanternbench.engine.decode import Generation
from lanternbench.models.target import Target

Traced = tuple[list[Generation], torch.Tensor]
POSITIONS = 16  # at least, over all presets


def measure(machine: Machine, result: Result) -> None:
    cases = {
        "the bundled model": (shapes.bundled, CAPTIONS, 4 if machine.small else 32),
        "grouped queries across a span": (shapes.grouped_queries, (LONG,), 1000),
    }
    outcomes: dict[str, str] = {}
    for title, (make, captions, steps) in cases.items():
        exact = make(machine, torch.float64)
        target = make(machine, torch.bfloat16)
        shapes.copy_weights(exact, target)
        for name in fitting(target, GROUPED, result):
            case = f"{name}, {title}"
            with result.attempt(case, outcomes):
                outcomes[case] = compare(
                    machine, result, title, exact, target, name, captions, steps
                )
    result.judge(bars.ROUNDED, outcomes, "decodes")


def compare(
    machine: Machine,
    result: Result,
    title: str,
    exact: Target,
    target: Target,
    name: str,
    captions: Sequence[str],
    steps: int,
) -> str:
    """Note how far recording, and bfloat16, move the distributions of a preset."""
    in_float64 = traced(decoder_of(exact, name), captions, steps)
    launched = traced(decoder_of(target, name), captions, steps)
    recorded = traced(decoder_of(target, name, use(machine, "recorded")), captions, steps)
    rounding = distances(in_float64, launched)
    recording = distances(launched, recorded)
    result.row(
        title,
        method=name,
        positions=len(recording),
        recording=f"{recording.mean():.2%}",
        rounding=f"{rounding.mean():.2%}",
    )
    if recording.mean() <= rounding.mean():
        return SAME
    return f"recording moves {recording.mean():.2%}, bfloat16 {rounding.mean():.2%}"


def distances(one: Traced, other: Traced) -> torch.Tensor:
    """Return the total variation at every position up to the first token that differs."""
    found = []
    for a, b, p, q in zip(one[0], other[0], one[1], other[1], strict=True):
        length = min(drawn(a), drawn(b))
        same = (a.tokens[:length].cpu() == b.tokens[:length].cpu()).long().cumprod(0).sum()
        positions = min(int(same) + 1, length)
        found.append((p[:positions] - q[:positions]).abs().sum(-1).cpu() / 2)
    return torch.cat(found)
