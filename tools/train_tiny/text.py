"""Train the text encoder first, and alone: its feature must tell what is where in the scene.

LlamaGen's image tokens attend to all caption positions alike (their rotary table is zero), so the
decoder sees little but a caption's mean feature; what the encoder does not put there, the target
cannot draw.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.models.tiny import checkpoint as text
from lanternbench.training import loop
from tools.train_tiny import scenes

BATCH = 64
_PARTS = (scenes.SHAPES, tuple(scenes.COLOURS), tuple(scenes.RADII))
_PER_PLACE = sum(map(len, _PARTS))
LABELS = len(scenes.TEXTURES) + len(scenes.COLOURS) + len(scenes.PLACES) * _PER_PLACE


def labels(scene: scenes.Scene) -> Tensor:
    """Texture, background, and for every place the shape, colour and size of what is there: 0/1
    [LABELS].
    """
    found = torch.zeros(LABELS)
    found[scenes.TEXTURES.index(scene.texture)] = 1
    found[len(scenes.TEXTURES) + list(scenes.COLOURS).index(scene.background)] = 1
    for item in scene.items:
        at = (
            len(scenes.TEXTURES)
            + len(scenes.COLOURS)
            + list(scenes.PLACES).index(item.place) * _PER_PLACE
        )
        for part, value in zip(_PARTS, (item.shape, item.colour, item.size), strict=True):
            found[at + part.index(value)] = 1
            at += len(part)
    return found


class _Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text = text.TextEncoder()
        self.head = nn.Linear(text.WIDTH, LABELS)


def train(folder: Path, steps: int = 1000, log: Callable[[str], None] = print) -> text.TextEncoder:
    """An encoder whose mean feature over a caption's words predicts every attribute, place by
    place.
    """
    torch.manual_seed(4)
    task = _Task()

    def step_fn(step: int) -> dict[str, Tensor]:
        rng = np.random.default_rng([19, step])
        drawn = [scenes.draw(rng) for _ in range(BATCH)]
        captions = [s.captions()[int(rng.integers(3))] for s in drawn]
        features, _ = task.text(text.tokenize(captions))
        logits, wanted = task.head(features[:, 0]), torch.stack([labels(s) for s in drawn])
        right = ((logits > 0) == (wanted > 0)).all(1).float().mean()
        return {"loss": F.binary_cross_entropy_with_logits(logits, wanted), "all right": right}

    loop.fit(
        "text",
        task,
        loop.optimizers(task, 2e-3, 0.01),
        step_fn,
        steps,
        folder,
        plan=loop.Plan(save_every=250),
        log=log,
    )
    return task.text
