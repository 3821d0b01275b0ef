"""The README's pictures, from a run: python benchmarks/figures.py results/RUN [METHOD-LABEL …]."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lanternbench import load_run
from lanternbench.experiment import read_run, read_samples
from lanternbench.metrics.images import read_image
from lanternbench.report.drawing import scene_figure
from lanternbench.report.forest import forest

OUT = Path(__file__).resolve().parents[1] / "docs/images"


def main(run: Path, shown: list[str]) -> None:
    """``shown``: labels of the grid's rows, all by default."""
    speeds = forest(load_run(run).run.rows, 760)
    assert speeds is not None, "the run has no speeds"
    scene_figure(speeds).savefig(OUT / "speed.png", dpi=180)
    samples = read_samples(run)
    labels = [m["label"] for m in read_run(run)["methods"] if not shown or m["label"] in shown]
    prompts = list(dict.fromkeys(s.prompt_id for s in samples))[:8]
    images = {(s.label, s.prompt_id): run / s.image for s in samples}
    size = (1.25 * len(prompts), 1.25 * len(labels))
    figure, axes = plt.subplots(len(labels), len(prompts), figsize=size, layout="constrained", squeeze=False)
    for label, row in zip(labels, axes, strict=True):
        for prompt, cell in zip(prompts, row, strict=True):
            cell.imshow(np.asarray(read_image(images[label, prompt])), interpolation="nearest")
            cell.set_xticks([])
            cell.set_yticks([])
        row[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
    figure.savefig(OUT / "grid.png", dpi=100)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
