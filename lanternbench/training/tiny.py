"""Remake the embedded world from its seeds: every stage in order, each resumable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lanternbench.models import tiny
from lanternbench.training import drafters, evaluators, rollouts, target, text, vq

STEPS = {
    "vq": 2500, "text": 1000, "target": 5000, "eagle": 12_000, "medusa": 1500, "model": 2500, "clip": 2400, "fid": 2400,
}  # fmt: skip
SCENES = 40_000
ROLLOUTS = 3840  # samples of the target


def train(work: Path, out: Path, scale: float = 1.0, log: Callable[[str], None] = print) -> None:
    """Train all embedded models in ``work`` and write their weights to ``out``.

    ``scale`` multiplies the number of steps and of scenes (a smoke test takes 0.001).
    """
    steps = {name: max(2, round(n * scale)) for name, n in STEPS.items()}
    count = max(64, round(SCENES * min(scale, 1.0)))
    log(f"rendering {count} scenes")
    tokeniser = vq.train(work, steps["vq"], count=min(count, 8000), log=log)
    encoder = text.train(work, steps["text"], log=log)
    made = target.train(work, tokeniser, encoder, steps["target"], count, log=log)
    whole = tiny.assemble(made.target, made.text, tokeniser, {})
    samples = rollouts.sample(work, whole, max(8, round(ROLLOUTS * min(scale, 1.0))), log)
    kinds = {kind: steps[kind] for kind in ("eagle", "medusa", "model")}
    helpers = drafters.train(work, whole, samples, kinds, log)
    tiny.export(out, made.target, made.text, tokeniser, helpers, steps=steps, scenes=count)
    evaluators.train(work, out, tokeniser, steps["clip"], steps["fid"], count, log)
