"""What the engine needs to know of a target: how prompts become a prefix, tokens become images, and its shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from PIL import Image
from torch import Tensor

from lanternbench.models.llamagen import CaptionEmbedding, LabelEmbedding, LlamaGen, left_pad
from lanternbench.models.vq import VQModel


class Prefix(NamedTuple):
    """What a target reads before the first image token; R = B, or 2B with guidance (conditional rows first)."""

    embeddings: Tensor  # [R, P, dim]
    valid: Tensor  # [R, P] bool, False on padding
    features: Tensor  # [R, P, c], or labels [R, 1]: what the embeddings were made from, for independent drafters


@dataclass
class Target:
    """A loaded text-to-image model.

    ``text``: captions -> features [B, T, c] and mask [B, T], right-padded; or class labels [B, 1] and a mask of ones.
    ``guidance``, ``top_k``: its defaults.
    ``options``: its default trees and neighbourhood size.  ``evaluators``: whose metrics its images are judged by.
    ``drafters``: by kind of proposal (``eagle``, ``model``, ``medusa``).  ``pad_rows``: what padded prefix positions
    attend to, see ``prefix_mask``; drafters trained on the features of LANTERN's class expect ``uniform``.
    """

    name: str
    model: LlamaGen
    vq: VQModel
    text: Callable[[list[str]], tuple[Tensor, Tensor]]
    guidance: float = 1.0
    top_k: int = 0
    evaluators: Literal["tiny", "full"] = "full"
    options: dict = field(default_factory=dict)
    drafters: dict[str, Any] = field(default_factory=dict)
    pad_rows: Literal["alone", "uniform"] = "alone"

    @property
    def grid(self) -> tuple[int, int]:
        return (self.model.config.grid, self.model.config.grid)

    @property
    def length(self) -> int:
        """Image tokens."""
        return self.grid[0] * self.grid[1]

    @property
    def vocab(self) -> int:
        return self.model.cfg.vocab_size

    @property
    def device(self) -> torch.device:
        return self.model.output.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.output.weight.dtype

    @property
    def codebook(self) -> Tensor:
        """[V, d], as the tokeniser compares codes."""
        return self.vq.quantize.codes()

    def prefix(self, captions: list[str], guidance: float) -> Prefix:
        """Captions -> prefix embeddings, with the unconditional rows below when guidance is on (scale ≠ 1)."""
        features, mask = self.text(captions)
        if features.ndim == 3:
            features, mask = left_pad(features, mask)
        if guidance != 1.0:
            nothing = cast(CaptionEmbedding | LabelEmbedding, self.model.cls_embedding).unconditional(len(captions))
            features, mask = torch.cat([features, nothing]), mask.repeat(2, 1)
        return Prefix(self.model.cls_embedding(features), mask.bool(), features)

    def images(self, tokens: Tensor) -> list[Image.Image]:
        """Tokens [B, L] -> RGB images."""
        pixels = self.vq.decode(tokens.view(-1, *self.grid)).clamp(-1, 1)
        array = ((pixels.permute(0, 2, 3, 1) + 1) * 127.5).round().byte().cpu().numpy()
        return [Image.fromarray(a) for a in array]
