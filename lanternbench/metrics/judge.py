"""Per-image scorers around a network that is loaded when it is first needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise

import torch
from PIL import Image
from torch import Tensor, nn

BATCH = 32  # images that go through a network together at most
Judge = Callable[[list[Image.Image], list[str]], Tensor]  # images, captions -> values [B]


class PerImage:
    """A scorer of ``metrics.registry``; ``captions`` tells whether its values depend on the captions."""

    def __init__(
        self,
        name: str,
        needs: tuple[str, ...],
        missing: Callable[[], str | None],
        load: Callable[[], Judge],
        captions: bool = True,
    ):
        self.name, self.needs, self.captions = name, needs, captions
        self._missing, self._load = missing, load

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""
        return self._missing()

    @cached_property
    def judge(self) -> Judge:
        return self._load()

    def prepare(self) -> None:
        """Load the network now, so that a clock may start afterwards."""
        self.judge  # noqa: B018

    @torch.inference_mode()
    def score(self, images: list[Image.Image], captions: list[str]) -> list[float | None]:
        """A value per image, higher is better; None for each when files are missing, or where it is undefined."""
        if len(images) != len(captions):
            raise ValueError(f"{len(images)} images but {len(captions)} captions")
        if not images or self.available():
            return [None] * len(images)
        starts = range(0, len(images), BATCH)
        values = torch.cat([self.judge(images[i : i + BATCH], captions[i : i + BATCH]) for i in starts]).tolist()
        return [v if math.isfinite(v) else None for v in values]


def linear_head(width: int) -> nn.Sequential:
    """[B, width] -> [B, 1]: the head of ImageReward and of LAION's aesthetic predictor, five linear layers.

    There is no activation between them; identities stand where training had dropout, so that the published keys fit.
    """
    sizes = (width, 1024, 128, 64, 16, 1)
    layers: list[nn.Module] = []
    for i, (into, out) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(into, out)] + ([nn.Identity()] if i < 3 else [])
    return nn.Sequential(*layers)
