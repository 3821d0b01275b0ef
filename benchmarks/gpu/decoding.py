"""How the pieces decode: the one place that knows the engine's and the methods' interfaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from benchmarks.gpu.bars import TAU
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result
from lanternbench.doctor.gpu import CAPTIONS, first_difference
from lanternbench.engine.decode import Generation, SpeculativeDecoder, generate
from lanternbench.engine.recording import SPAN
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.target import Target
from lanternbench.registry import components
from lanternbench.settings import Sampling
from lanternbench.utils.graph_capture import Graphs

BASE = "ar"
# presets of targets that have an EAGLE drafter alone
EAGLE_ALONE = ("ar", "eagle-1", "eagle-2", "sjd", "adt-tree", "cool-sd")


def presets() -> list[str]:
    """Return the names of all presets, those of plug-ins too."""
    return list(components("preset"))


def is_foreign(name: str) -> bool:
    """Return whether a preset uses a component of a plug-in, or is no valid method."""
    try:
        modules = [type(part).__module__ for part in method(name).parts]
    except UserError:
        return True
    return any(module.partition(".")[0] != "lanternbench" for module in modules)


def lack(target: Target, name: str) -> str | None:
    """Return what a preset drafts with and a target does not have; None if there is nothing."""
    kind = method(name).proposal.drafter_kind
    if kind is None or kind in target.drafters:
        return None
    return f"no drafter of kind '{kind}'"


def misfit(target: Target, name: str) -> str | None:
    """Return why a preset cannot be built on a target; None if it can."""
    try:
        lacking = lack(target, name)
        if lacking is None:
            decoder_of(target, name)
    except UserError as error:
        return str(error)
    return lacking


def decoder_of(
    target: Target,
    name: str,
    graphs: Graphs | None = None,
    sampling: Sampling | None = None,
    tau: float | None = None,
) -> SpeculativeDecoder:
    """Return a preset ready to decode.  Without ``graphs`` its steps are launched; ``tau``: tokens
    a step that acceptance is drawn to.  Raises UserError if the preset does not fit.
    """
    target = replace(target, graphs=graphs)
    return build(target, method(name), sampling or Sampling(), tau)


def simulated(target: Target, name: str, graphs: Graphs | None = None) -> SpeculativeDecoder:
    """Return a preset whose acceptance is drawn to ``TAU``: random weights accept nothing."""
    return decoder_of(target, name, graphs, tau=None if name == BASE else TAU)


def fitting(target: Target, names: Sequence[str], result: Result) -> list[str]:
    """Return the presets that can be built on a target; note why the others cannot."""
    found = []
    for name in names:
        reason = misfit(target, name)
        if reason is None:
            found.append(name)
        else:
            result.row("left out", method=name, reason=reason)
    return found


def decode(
    decoder: SpeculativeDecoder, captions: Sequence[str], steps: int | None = None
) -> list[Generation]:
    return generate(decoder, list(captions), max_steps=steps)


def traced(
    decoder: SpeculativeDecoder, captions: Sequence[str], steps: int
) -> tuple[list[Generation], torch.Tensor]:
    """Decode, and return the target's distributions [B, L, V] at the drawn tokens."""
    images = generate(decoder, list(captions), trace=True, max_steps=steps)
    trace = images[0].trace
    if trace is None:
        raise RuntimeError("the decode kept no distributions")
    return images, trace.q


def timed(decoder: SpeculativeDecoder, steps: int | None = None) -> Generation:
    """Decode one image, or its first steps, after a warm-up that records what there is to record."""
    decode(decoder, CAPTIONS[:1], steps=4)
    return decode(decoder, CAPTIONS[:1], steps)[0]


def drawn(image: Generation) -> int:
    """Return the number of tokens of a decode that may have ended early."""
    return min(1 + sum(image.accept_lengths), len(image.tokens))


class Difference(NamedTuple):
    """``text``: the first difference of two decodes, None if there is none; ``tokens``: compared."""

    text: str | None
    tokens: int


def difference(expected: Sequence[Generation], decoded: Sequence[Generation]) -> Difference:
    """Compare the tokens and the accepted lengths of the same prompts."""
    pairs = zip(expected, decoded, strict=True)
    tokens = sum(min(drawn(a), drawn(b)) for a, b in pairs)
    return Difference(first_difference(expected, decoded), tokens)


def slots(decoder: SpeculativeDecoder, captions: Sequence[str], image: Generation) -> range:
    """Return the cache slots that the first and the last step of a decode attend to."""
    prompt = decoder.target.prefix(list(captions), decoder.guidance).valid.shape[1]
    return range(prompt + 1 + max(image.tree_nodes), prompt + drawn(image))


def crosses_span(attended: range) -> bool:
    """Return whether a recorded decode had to go on to a longer recording."""
    return attended.start <= SPAN < attended.stop


def use(machine: Machine, name: str) -> Graphs | None:
    """Return the graphs of a way to run steps: ``compiled``, ``recorded`` or ``launched``."""
    if name == "compiled":
        return machine.compiled()
    if name == "recorded":
        return machine.graphs()
    return None
