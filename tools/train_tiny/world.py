"""Remake the embedded world from its seeds: every stage in order, each resumable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lanternbench.models import key_names
from lanternbench.models.drafters.eagle import new_eagle
from lanternbench.models.llamagen import checkpoint as llamagen
from lanternbench.models.llamagen.checkpoint import LlamaGen
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.models.vq import VQModel
from lanternbench.utils.files import OUT, WORK, check_writable
from tools.train_tiny import drafters, evaluators, rollouts, target, text, vq

STEPS = {
    "vq": 2500, "text": 1000,
    "target": 5000, "eagle": 12_000, "medusa": 1500, "model": 2500,  # at half the target's depth
    "deep-target": 1200, "deep-eagle": 22_000, "deep-eagle3": 6000,  # going on from there
    "deep-medusa": 1000, "deep-model": 1000,
    "clip": 2400, "fid": 2400,
}  # fmt: skip
SCENES = 40_000
ROLLOUTS = {"": 3840, "deep-": 5120}  # samples of the target, at half and at whole depth


def train(work: Path, out: Path, scale: float = 1.0, log: Callable[[str], None] = print) -> None:
    """Train all embedded models in ``work`` and write their weights to ``out``.

    ``scale`` multiplies the number of steps and of scenes (a smoke test takes 0.001).
    """
    for folder, elsewhere in ((work, WORK), (out, OUT)):
        check_writable(folder / "weights", elsewhere)
    steps = {name: max(2, round(n * scale)) for name, n in STEPS.items()}
    count = max(64, round(SCENES * min(scale, 1.0)))
    log(f"rendering {count} scenes")
    tokeniser = vq.train(work, steps["vq"], count=min(count, 8000), log=log)
    encoder = text.train(work, steps["text"], log=log)
    batches = target.Batches(work, tokeniser, count)

    def train_drafters(
        folder: Path, made: target.TextToImage, stage: str, start: drafters.Drafters | None = None
    ):
        whole = tiny.assemble(made.target, made.text, tokeniser, {})
        kinds = {kind: steps[stage + kind] for kind in drafters.LOSSES if stage + kind in steps}
        aux_layers = new_eagle(made.target, "eagle3" in kinds).aux_layers(made.target)
        samples = rollouts.sample(
            folder, whole, max(8, round(ROLLOUTS[stage] * min(scale, 1.0))), log, aux_layers
        )
        return drafters.train(folder, whole, samples, kinds, log, start)

    half = target.train(work, encoder, batches, steps["target"], log)
    helpers = train_drafters(work, half, "")
    deep = work / "deep"
    made = target.deepen(deep, half, batches, steps["deep-target"], log)
    helpers = train_drafters(deep, made, "deep-", helpers)
    export(out, made.target, made.text, tokeniser, helpers, steps=steps, scenes=count)
    evaluators.train(work, out, tokeniser, steps["clip"], steps["fid"], count, log)


def export(
    folder: Path,
    model: LlamaGen,
    encoder: tiny.TextEncoder,
    tokeniser: VQModel,
    nets: drafters.Drafters,
    **meta: Any,
) -> None:
    """Write the embedded world's generating half into ``folder``."""
    tensors = llamagen.to_official
    for name, state, config in (
        ("target", tensors(model.state_dict()), asdict(model.config)),
        ("text", encoder.state_dict(), None),
        ("vq", tokeniser.state_dict(), asdict(tokeniser.config)),
        ("eagle", key_names.to_published(nets.eagle.state_dict()), None),
        ("eagle-3", key_names.to_published(nets.eagle3.state_dict()), None),
        ("medusa", nets.medusa.state_dict(), None),
        ("model", tensors(nets.model.state_dict()), asdict(nets.model.config)),
    ):
        about = meta if config is None else {"config": config} | meta
        tiny.write(folder / f"{name}.safetensors", state, **about)
