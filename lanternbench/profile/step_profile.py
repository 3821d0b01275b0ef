"""The time of a step by phase, the distance of forward passes from the memory's limit, and the cost
of the loop.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from lanternbench.costs.forward_cost import read_bytes
from lanternbench.engine.decode import Generation, SpeculativeDecoder, generate
from lanternbench.utils.files import TRACE, check_writable, replacing

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

    @property
    def forward_ms(self) -> float:
        return self.draft_ms + self.verify_ms

    def over(self, ar: "Profile") -> "Profile":
        """Return it with its speedups over ``ar``, token by token."""
        speedup = ar.step_ms / ar.tau / (self.step_ms / self.tau)
        roofline = ar.forward_ms / ar.tau / (self.forward_ms / self.tau)
        return replace(self, speedup=speedup, roofline=roofline)


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
    weights = read_bytes(decoders[0].target.model)
    profiles = []
    for decoder, own in zip(decoders, images, strict=True):
        profiles.append(_mean_step(decoder.method.label, own, weights))
    return [one.over(profiles[0]) for one in profiles]


def _mean_step(label: str, images: list[Generation], weights: int) -> Profile:
    """Return the mean step of a method's images, as yet without its speedups."""
    steps = sum(image.steps for image in images)
    tokens = sum(sum(image.accept_lengths) for image in images)
    step_ms = 1e3 * sum(image.decode_s for image in images) / steps

    def phase_ms(name: str) -> float:
        return 1e3 * sum(image.phases.get(name, 0.0) for image in images) / steps

    draft_ms = phase_ms("draft")
    verify_ms = phase_ms("verify")
    commit_ms = phase_ms("commit")
    outside_ms = step_ms - draft_ms - verify_ms
    return Profile(
        label=label,
        steps=steps,
        tau=tokens / steps,
        step_ms=step_ms,
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        commit_ms=commit_ms,
        other_ms=outside_ms - commit_ms,
        overhead_fraction=outside_ms / step_ms,
        speedup=1.0,
        roofline=1.0,
        achieved=weights / verify_ms / 1e6,
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
    check_writable(path, TRACE)
    with replacing(path, TRACE) as whole, tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "trace.json"  # torch would replace whatever lies at ``path``
        trace.export_chrome_trace(str(written))
        whole.write(written.read_bytes())
