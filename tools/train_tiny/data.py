"""The training data, rendered once and kept on disk: images as one uint8 array, captions
recomputed from the seed.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from lanternbench.training import loop
from lanternbench.utils.files import WORK, replacing
from tools.train_tiny import scenes

SEED = 20260  # of the training scenes; evaluation uses other seeds


def _block(start: int, stop: int) -> np.ndarray:
    return np.stack([scenes.sample(SEED, i)[0] for i in range(start, stop)])


def images(folder: Path, count: int) -> np.ndarray:
    """uint8 [count, 64, 64, 3], memory-mapped from ``folder``; rendered there on first use."""
    path = folder / f"scenes-{SEED}-{count}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        starts = range(0, count, 500)
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            blocks = pool.map(_block, starts, (min(s + 500, count) for s in starts))
            array = np.concatenate(list(blocks))
        with replacing(path, WORK) as file:
            np.save(file, array)
    with loop.explain_damage(path):
        found = np.load(path, mmap_mode="r")
        if found.shape != (count, 64, 64, 3) or found.dtype != np.uint8:
            raise ValueError(f"it holds no {count} scenes")
    return found


def scene(index: int, seed: int = SEED) -> scenes.Scene:
    """The scene behind image ``index``."""
    return scenes.draw(np.random.default_rng([seed, index]))
