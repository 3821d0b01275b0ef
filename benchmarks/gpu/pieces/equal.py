"""Whether the tokens are those of launched steps and of prompts alone, and how often the host waits.

In float64, in which no draw depends on how a sum was rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from benchmarks.gpu import bars, shapes
from benchmarks.gpu.decoding import (
    CAPTIONS,
    EAGLE_ALONE,
    Difference,
    crosses_span,
    decode,
    decoder_of,
    difference,
    fitting,
    presets,
    slots,
    use,
)
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import SAME, Result
from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.models.target import Target
from lanternbench.settings import Sampling

LONG = " ".join(["word"] * shapes.LONG_CAPTION)
GROUPED = ("ar", "eagle-2", "sjd", "cool-sd")


def steps_of(machine: Machine, steps: int) -> int:
    return 2 if machine.small else steps


def both(
    machine: Machine, target: Target, name: str, sampling: Sampling | None = None
) -> Iterator[SpeculativeDecoder]:
    """Yield a preset with launched steps, then with recorded ones."""
    for way in ("launched", "recorded"):
        yield decoder_of(target, name, use(machine, way), sampling)


def recorded_difference(
    machine: Machine, target: Target, name: str, captions: Sequence[str], steps: int
) -> Difference:
    launched, recorded = both(machine, target, name)
    return difference(decode(launched, captions, steps), decode(recorded, captions, steps))


def graphs(machine: Machine, result: Result) -> None:
    greedy_and_drawn(machine, result)
    with_row_ends(machine, result)
    grouped_queries(machine, result)


def greedy_and_drawn(machine: Machine, result: Result) -> None:
    target = shapes.bundled(machine)
    steps = steps_of(machine, 48)
    outcomes: dict[str, str] = {}
    for name in fitting(target, presets(), result):
        for temperature in (1.0, 0.0):
            case = f"{name}, T = {temperature:g}"
            with result.attempt(case, outcomes):
                launched, recorded = both(machine, target, name, Sampling(temperature=temperature))
                found = difference(
                    decode(launched, CAPTIONS[:1], steps), decode(recorded, CAPTIONS[:1], steps)
                )
                note(result, "the bundled model, float64", case, found, outcomes)
    result.judge(bars.GRAPHS, outcomes, "decodes")


def with_row_ends(machine: Machine, result: Result) -> None:
    target = shapes.row_ends(machine)
    outcomes: dict[str, str] = {}
    for name in fitting(target, EAGLE_ALONE, result):
        for captions in (CAPTIONS[:1], CAPTIONS):
            case = f"{name}, {len(captions)} prompts"
            with result.attempt(case, outcomes):
                found = recorded_difference(machine, target, name, captions, steps=16)
                note(result, "a small Lumina-mGPT, float64", case, found, outcomes)
    result.judge(bars.ROW_ENDS, outcomes, "decodes")


def grouped_queries(machine: Machine, result: Result) -> None:
    target = shapes.grouped_queries(machine)
    outcomes: dict[str, str] = {}
    for name in fitting(target, GROUPED, result):
        with result.attempt(name, outcomes):
            launched, recorded = both(machine, target, name)
            expected = decode(launched, [LONG])
            found = difference(expected, decode(recorded, [LONG]))
            attended = slots(recorded, [LONG], expected[0])
            if not crosses_span(attended):
                found = Difference(f"slots {attended} cross no span", found.tokens)
            note(result, "grouped queries and a long caption, float64", name, found, outcomes)
    result.judge(bars.GROUPED, outcomes)


def note(
    result: Result, table: str, case: str, found: Difference, outcomes: dict[str, str]
) -> None:
    """Note what a comparison found; one without tokens has judged nothing."""
    text = found.text or SAME
    if not found.tokens:
        text = "no token was compared"
    outcomes[case] = text
    result.row(table, method=case, tokens=found.tokens, found=text)


def batch(machine: Machine, result: Result) -> None:
    target = shapes.bundled(machine)
    steps = steps_of(machine, 48)
    outcomes: dict[str, str] = {}
    for name in fitting(target, presets(), result):
        with result.attempt(name, outcomes):
            decoder = decoder_of(target, name, machine.graphs())
            alone = [decode(decoder, [caption], steps)[0] for caption in CAPTIONS]
            found = difference(alone, decode(decoder, CAPTIONS, steps))
            note(result, "3 prompts, recorded, float64", name, found, outcomes)
    result.judge(bars.BATCH, outcomes)


def syncs(machine: Machine, result: Result) -> None:
    number = torch.ones(1, device=machine.device)
    seen = machine.host_waits(number.item)
    told = None if seen is None else seen == 1
    result.bar(bars.CONTROL, "not on this machine" if seen is None else f"{seen}", told)
    target = shapes.bundled(machine)
    waits: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name in fitting(target, presets(), result):
        with result.attempt(name, failed):
            row = {
                way: waits_a_step(machine, target, name, way) for way in ("launched", "recorded")
            }
            result.row("waits a step", method=name, **row)
            waits |= {f"{name}, {way}": n for way, n in row.items() if n is not None}
    if seen is None:
        result.bar(bars.SYNCS, "not on this machine", None)
        return
    worst = max(waits, key=lambda case: waits[case], default="nothing was counted")
    value = f"at most {waits[worst]:g} ({worst})" if waits else worst
    result.bar(bars.SYNCS, value, bool(waits) and not failed and waits[worst] <= 1)


def waits_a_step(machine: Machine, target: Target, name: str, way: str) -> float | None:
    """Return how often the host waits in the mean step, prefill and end left out."""
    few = 1 if machine.small else 4
    many = 3 if machine.small else 20
    decoder = decoder_of(target, name, use(machine, way))
    decode(decoder, CAPTIONS[:1], many)  # what is made or recorded once
    short = machine.host_waits(partial(decode, decoder, CAPTIONS[:1], few))
    long = machine.host_waits(partial(decode, decoder, CAPTIONS[:1], many))
    if short is None or long is None:
        return None
    return (long - short) / (many - few)
