"""The time of a step by phase, the distance of forward passes from the memory's limit, and the cost
of the loop.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lanternbench.costs.forward_cost import read_bytes
from lanternbench.engine.decode import Generation, SpeculativeDecoder, generate
from lanternbench.utils.files import TRACE, replacing, writing

WARMUP_STEPS = 12
TRACED_STEPS = 8


@dataclass(frozen=True)
class Profile:
    """One method's mean step.  Times in milliseconds, rates in GB/s.

    ``speedup``: over ar.  ``roofline``: the speedup that the accepted length and the forward passes
    alone would give; what it lacks, the loop costs.  ``achieved``: bytes of the target's weights
    over a verification's time.
    """

    label: str
    steps: int
    tau: float
    step_ms: float
    draft_ms: float
    verify_ms: float
    commit_ms: float
    other_ms: float
    overhead_fraction: float  # share of a step outside forward passes
    speedup: float
    roofline: float
    achieved: float
    syncs_per_step: float


class MeanStep(NamedTuple):
    """The mean step of several images: the tokens it commits, its seconds, and those of phases."""

    tokens: float
    seconds: float
    draft: float
    verify: float
    commit: float

    @property
    def forwards(self) -> float:
        """Seconds of forward passes."""
        return self.draft + self.verify

    @staticmethod
    def of(images: list[Generation]) -> "MeanStep":
        steps = sum(image.steps for image in images)
        tokens = sum(sum(image.accept_lengths) for image in images)
        seconds = sum(image.decode_s for image in images)

        def phase(name: str) -> float:
            return sum(image.phases.get(name, 0.0) for image in images) / steps

        return MeanStep(
            tokens / steps, seconds / steps, phase("draft"), phase("verify"), phase("commit")
        )


def profile(decoders: list[SpeculativeDecoder], captions: list[str]) -> list[Profile]:
    """The decoders' mean steps over ``captions``, one image at a time, interleaved; the first
    decoder is ``ar``.
    """
    for decoder in decoders:
        generate(decoder, captions[:1], max_steps=WARMUP_STEPS)
    images: list[list[Generation]] = [[] for _ in decoders]
    for caption in captions:
        for decoder, own in zip(decoders, images, strict=True):
            own += generate(decoder, [caption])
    ar = MeanStep.of(images[0])
    weights = read_bytes(decoders[0].target.model)
    profiles = []
    for decoder, own in zip(decoders, images, strict=True):
        profiles.append(_profile(decoder.method.label, own, ar, weights))
    return profiles


def _profile(label: str, images: list[Generation], ar: MeanStep, weights: int) -> Profile:
    mean = MeanStep.of(images)
    steps = sum(image.steps for image in images)
    other = mean.seconds - mean.forwards - mean.commit
    return Profile(
        label=label,
        steps=steps,
        tau=mean.tokens,
        step_ms=1e3 * mean.seconds,
        draft_ms=1e3 * mean.draft,
        verify_ms=1e3 * mean.verify,
        commit_ms=1e3 * mean.commit,
        other_ms=1e3 * other,
        overhead_fraction=1 - mean.forwards / mean.seconds,
        speedup=ar.seconds / ar.tokens / (mean.seconds / mean.tokens),
        roofline=ar.forwards / ar.tokens / (mean.forwards / mean.tokens),
        achieved=weights / mean.verify / 1e9,
        syncs_per_step=sum(image.syncs for image in images) / steps,
    )


def chrome_trace(decoder: SpeculativeDecoder, caption: str, path: Path) -> None:
    """A trace of a few steps for chrome://tracing or Perfetto."""
    from torch import profiler

    activities = [profiler.ProfilerActivity.CPU]
    if decoder.target.device.type == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    with profiler.profile(activities=activities) as trace:
        generate(decoder, [caption], max_steps=TRACED_STEPS)
    with writing(path, TRACE):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, TRACE) as whole, tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "trace.json"  # torch would replace whatever lies at ``path``
        trace.export_chrome_trace(str(written))
        whole.write(written.read_bytes())
