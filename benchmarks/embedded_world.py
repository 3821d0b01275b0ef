"""What the embedded world is like: recognisable images? as ambiguous as images are? how dear is a
draft step?

    python -m benchmarks.embedded_world

Writes benchmarks/results/embedded-world.md (and .json) and the maps in docs/images.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import cast

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image

from lanternbench.engine import decode as engine
from lanternbench.engine import opening
from lanternbench.experiment.environment import environment
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.methods.proposals.drafting import DraftedTrees
from lanternbench.metrics.clip import tiny_encoder
from lanternbench.models.catalogue import load_target
from tools.train_tiny import data, scenes

ROOT = Path(__file__).resolve().parents[1]
SEED, COUNT = 991, 64  # held-out scenes with captions that all differ


def main() -> None:
    target = load_target("tiny")
    picked = held_out()
    real = [Image.fromarray(scenes.sample(SEED, i)[0]) for i in picked]
    captions = [scenes.sample(SEED, i)[1] for i in picked]
    decoder = build(target, method("ar"))
    images, top1 = [], []
    for start in range(0, COUNT, 16):
        generations = engine.generate(decoder, captions[start : start + 16], seed=0, trace=True)
        images += target.images(torch.stack([g.tokens for g in generations]))
        top1.append(generations[0].trace.q.amax(-1))
    probability = torch.cat(top1)  # [64, 256]
    figures = {
        "retrieval among 64, AR samples at CFG 3": retrieval(images, captions),
        "retrieval among 64, real scenes": retrieval(real, captions),
        "mean top-1 probability of the target, T = 1, CFG 3": float(probability.mean()),
        "share of tokens with top-1 probability under 0.2": float(
            (probability < 0.2).float().mean()
        ),
        "share of tokens with top-1 probability over 0.9": float(
            (probability > 0.9).float().mean()
        ),
        **costs(target),
    }
    maps(images[:8], probability[:8].view(-1, *target.grid), ROOT / "docs/images/top1.png")
    lines = ["# The embedded world", "", "| figure | value |", "|---|---|"]
    lines += [f"| {k} | {v:.3f} |" for k, v in figures.items()]
    machine = environment()
    lines += [
        "",
        f"`python -m benchmarks.embedded_world` on {machine['cpu']}, {machine['threads']} threads.",
    ]
    out = ROOT / "benchmarks/results"
    (out / "embedded-world.md").write_text("\n".join(lines) + "\n")
    (out / "embedded-world.json").write_text(
        json.dumps({"figures": figures, "environment": machine}, indent=2) + "\n"
    )
    print("\n".join(lines))


def held_out() -> list[int]:
    """Indices of the first held-out scenes with captions all different."""
    seen: dict[str, int] = {}
    index = 0
    while len(seen) < COUNT:
        seen.setdefault(data.scene(index, SEED).captions()[0], index)
        index += 1
    return list(seen.values())


def retrieval(images: list[Image.Image], captions: list[str]) -> float:
    """Share of images, 0…1, whose own caption is the best of all given ones, by CLIP-tiny.

    ``captions[i]`` belongs to ``images[i]``; a caption given twice counts as right at either
    place.
    """
    encoder = tiny_encoder()
    best = (encoder.images(images) @ encoder.captions(captions).T).argmax(1).tolist()
    return sum(captions[b] == caption for b, caption in zip(best, captions, strict=True)) / len(
        images
    )


def costs(target) -> dict[str, float]:
    """Medians of interleaved single forwards at batch 1 with guidance: ratios within one run."""
    figures: dict[str, list[float]] = {}
    decoder, single = (
        build(target, method("eagle-1", shape="chain-5")),
        build(target, method("ar")).proposer,
    )
    caption = "a small red circle in the center on a plain blue background"
    with torch.inference_mode():
        state = opening.start(decoder, [caption], [1], trace=False)
        proposer = cast(DraftedTrees, decoder.proposer)
        proposer_state = proposer.begin(state)
        drafter = proposer.drafter
        u = state.uniforms[:, 0, state.max_nodes :]
        for _ in range(40):
            drafted, alone = (
                decoder.proposer.draft(state, proposer_state, u),
                single.draft(state, None, u),
            )
            for name, draft in (("one token", alone), ("chain of 6", drafted)):
                clock = perf_counter()
                engine.forward(state, decoder.strategy, draft)
                figures.setdefault(name, []).append(perf_counter() - clock)
            expand = drafter.expander(state, proposer_state.drafter)
            expand(drafted.tokens[:, :1], None, None, 0)
            clock = perf_counter()
            expand(drafted.tokens[:, 1:2], None, None, 1)
            figures.setdefault("draft step", []).append(perf_counter() - clock)
    cost = {k: median(v) for k, v in figures.items()}
    return {
        "target forward of one token, ms": 1e3 * cost["one token"],
        "draft step / target forward": cost["draft step"] / cost["one token"],
        "forward of 6 nodes / forward of one": cost["chain of 6"] / cost["one token"],
    }


def maps(images: list[Image.Image], probability: torch.Tensor, path: Path) -> None:
    """Samples above, the target's top-1 probability at each of their tokens below."""
    figure, axes = plt.subplots(
        2, len(images), figsize=(1.5 * len(images), 3.3), layout="constrained"
    )
    for column, image in enumerate(images):
        axes[0, column].imshow(np.asarray(image), interpolation="nearest")
        picture = axes[1, column].imshow(
            probability[column], vmin=0, vmax=1, cmap="magma", interpolation="nearest"
        )
        for row in axes[:, column]:
            row.set_axis_off()
    figure.colorbar(picture, ax=axes[1], label="top-1 probability", fraction=0.02)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
