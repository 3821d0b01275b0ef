"""Where a step's time goes, how near the forwards are to the memory's limit, and what the loop
costs beside them.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from lanternbench.engine.decode import Generation, SpeculativeDecoder, generate
from lanternbench.utils.files import TRACE, replacing, writing

WARMUP_STEPS, TRACED_STEPS = 12, 8


@dataclass(frozen=True)
class Profile:
    """One method's mean step.  Times in milliseconds, rates in GB/s.

    ``roofline``: the speedup over ar that acceptance length and forward costs alone would give;
    ``speedup``: the real one, and their gap what the loop costs.  ``achieved``: bytes of the
    target's weights over a verification's time.
    """

    label: str
    steps: int
    tau: float
    step_ms: float
    draft_ms: float
    verify_ms: float
    commit_ms: float
    other_ms: float
    overhead_fraction: float  # share of a step that is in no model forward
    speedup: float
    roofline: float
    achieved: float
    syncs_per_step: float


def profile(decoders: list[SpeculativeDecoder], captions: list[str]) -> list[Profile]:
    """The decoders' mean steps over ``captions``, one image at a time, interleaved; the first
    decoder is ``ar``.
    """
    for decoder in decoders:
        generate(decoder, captions[:1], max_steps=WARMUP_STEPS)
    images = [
        image
        for caption in captions
        for decoder in decoders
        for image in generate(decoder, [caption])
    ]
    weights = read_bytes(decoders[0].target.model)
    of_decoder = [images[i :: len(decoders)] for i in range(len(decoders))]
    return [
        _profile(d, each, of_decoder[0], weights)
        for d, each in zip(decoders, of_decoder, strict=True)
    ]


def _profile(
    decoder: SpeculativeDecoder, images: list[Generation], base: list[Generation], weights: int
) -> Profile:
    mean, ar, steps = _mean_step(images), _mean_step(base), sum(g.steps for g in images)
    forwards = mean["draft"] + mean["verify"]
    return Profile(
        label=decoder.method.label, steps=steps, tau=mean["tokens"], step_ms=1e3 * mean["all"],
        draft_ms=1e3 * mean["draft"], verify_ms=1e3 * mean["verify"], commit_ms=1e3 * mean["commit"],
        other_ms=1e3 * (mean["all"] - forwards - mean["commit"]), overhead_fraction=1 - forwards / mean["all"],
        speedup=ar["all"] / ar["tokens"] / (mean["all"] / mean["tokens"]),
        roofline=(ar["draft"] + ar["verify"]) / ar["tokens"] / (forwards / mean["tokens"]),
        achieved=weights / mean["verify"] / 1e9, syncs_per_step=sum(g.syncs for g in images) / steps,
    )  # fmt: skip


def _mean_step(images: list[Generation]) -> dict[str, float]:
    """Seconds of each phase in the mean step, and the tokens it commits."""
    whole = {
        phase: sum(g.phases.get(phase, 0.0) for g in images)
        for phase in ("draft", "verify", "commit")
    }
    whole |= {
        "all": sum(g.decode_s for g in images),
        "tokens": sum(sum(g.accept_lengths) for g in images),
    }
    return {name: value / sum(g.steps for g in images) for name, value in whole.items()}


def read_bytes(model: nn.Module) -> int:
    """Bytes of weights that one forward reads: everything but the embeddings, of which it reads
    single rows.
    """
    return sum(
        p.numel() * p.element_size() for n, p in model.named_parameters() if "embedding" not in n
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
        # it would replace a file of the name
        trace.export_chrome_trace(str(written := Path(folder) / "trace.json"))
        whole.write(written.read_bytes())
