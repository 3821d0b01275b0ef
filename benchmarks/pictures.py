"""The README's pictures from a run: speeds, and images by prompt and method; ``python -m
benchmarks.study`` runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.result_files import OUTPUT
from lanternbench import load_run
from lanternbench.experiment import read_run, read_samples
from lanternbench.metrics.images import read_image
from lanternbench.report.listing import forest
from lanternbench.report.load import joined_rows
from lanternbench.report.style import WIDE

ROWS = ("ar", "eagle-1", "lantern++ λ=2", "sjd", "scd coupling=maximal", "gsd", "cool-sd λ=2")


def draw(run: Path, shown: Sequence[str] = ROWS) -> None:
    """docs/images/speed.png and grid.png; ``shown``: labels of the grid's rows, of which those of
    the run count.
    """
    speeds = forest(joined_rows([load_run(run)]), 1.2 * WIDE)
    assert speeds is not None, "the run has no speeds"
    speeds.figure.savefig(OUTPUT.images / "speed.png", dpi=180)
    samples = read_samples(run)
    labels = [label for label in read_run(run).labels if label in shown]
    prompts = list(dict.fromkeys(s.prompt_id for s in samples))[:8]
    images = {(s.label, s.prompt_id): run / s.image for s in samples}
    size = (1.25 * len(prompts), 1.25 * len(labels))
    figure, axes = plt.subplots(
        len(labels), len(prompts), figsize=size, layout="constrained", squeeze=False
    )
    for label, row in zip(labels, axes, strict=True):
        for prompt, axis in zip(prompts, row, strict=True):
            axis.imshow(np.asarray(read_image(images[label, prompt])), interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
    figure.savefig(OUTPUT.images / "grid.png", dpi=100)
