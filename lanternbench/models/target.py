"""What the engine needs to know of a target: how prompts become a prefix, tokens become images, and its shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from PIL import Image
from torch import Tensor, nn

from lanternbench.engine.cuda_graphs import Graphs
from lanternbench.models.chameleon.model import Chameleon
from lanternbench.models.llamagen.model import CaptionEmbedding, LabelEmbedding, LlamaGen, left_pad
from lanternbench.models.row_ends import RowEnds
from lanternbench.models.vq import VQModel

DECODED = 4096  # tokens that the image tokeniser decodes at once


class Prefix(NamedTuple):
    """What a target reads before the first image token; R = B, or 2B with guidance (conditional rows first).

    ``ahead_ids``, ``seen``: what an EAGLE drafter has at every prefix position but the last, namely the id that stands
    for the next token (``Eagle.embed_prompt`` reads it), and whether the position may be attended to.
    """

    embeddings: Tensor  # [R, P, dim]
    valid: Tensor  # [R, P] bool, False on padding
    features: Tensor  # [R, P, c], labels [R, 1] or ids [R, P]: what ``cls_embedding`` reads, for independent drafters
    ahead_ids: Tensor  # [R, P − 1]
    seen: Tensor  # [R, P − 1] bool


def from_features(target: Target, captions: list[str], guided: bool) -> Prefix:
    """LlamaGen: features, or a class, are the prefix.  Its EAGLE drafter takes token 0 for the next one, pads too."""
    features, mask = target.text(captions)
    if features.ndim == 3:
        features, mask = left_pad(features, mask)
    embed = cast(CaptionEmbedding | LabelEmbedding, target.model.cls_embedding)
    if guided:
        features, mask = torch.cat([features, embed.unconditional(len(captions))]), mask.repeat(2, 1)
    x = embed(features)
    ahead = torch.zeros(x.shape[0], x.shape[1] - 1, dtype=torch.long, device=x.device)
    return Prefix(x, mask.bool(), features, ahead, torch.ones_like(ahead, dtype=torch.bool))


def rounded(images: Tensor) -> Tensor:
    """Decoded images [B, 3, H, W] in −1…1 -> uint8 [B, H, W, 3]."""
    return ((images.clamp(-1, 1).permute(0, 2, 3, 1) + 1) * 127.5).round().byte()


@dataclass
class Target:
    """A loaded text-to-image model.

    ``text``: captions -> features [B, T, c] or ids [B, T], and mask [B, T], right-padded; or class labels [B, 1] and a
    mask of ones.  ``guidance``, ``top_k``: its defaults.
    ``options``: its default trees and neighbourhood size.  ``evaluators``: whose metrics its images are judged by.
    ``drafters``: by kind of proposal (``eagle``, ``model``, ``medusa``).  ``pad_rows``: what padded prefix positions
    attend to, see ``prefix_mask``; drafters trained on the features of LANTERN's class expect ``uniform``.
    ``condition``: (target, captions, with unconditional rows?) -> prefix.  ``pixels``: what the tokeniser decodes ->
    uint8 [B, H, W, 3].  ``row_end``: the prompt id that the model writes after each row of an image, if it does.
    ``graphs``: set, lone prompts are decoded with recorded forwards (CUDA graphs).  ``near``: the nearest codes by kind
    of proximity, once a method has asked for them.
    """

    name: str
    model: LlamaGen | Chameleon
    vq: VQModel
    text: Callable[[list[str]], tuple[Tensor, Tensor]]
    guidance: float = 1.0
    top_k: int = 0
    evaluators: Literal["tiny", "full"] = "full"
    options: dict = field(default_factory=dict)
    drafters: dict[str, Any] = field(default_factory=dict)
    pad_rows: Literal["alone", "uniform"] = "alone"
    condition: Callable[[Target, list[str], bool], Prefix] = from_features
    pixels: Callable[[Tensor], Tensor] = rounded
    row_end: int | None = None
    graphs: Graphs | None = None
    near: dict[str, Tensor] = field(default_factory=dict)

    @property
    def grid(self) -> tuple[int, int]:
        return (self.model.config.grid, self.model.config.grid)

    @property
    def length(self) -> int:
        """Image tokens."""
        return self.grid[0] * self.grid[1]

    @property
    def rows(self) -> RowEnds:
        """Where the model writes row ends."""
        return RowEnds(0 if self.row_end is None else self.grid[1], self.length)

    def row_end_embedding(self, model: LlamaGen | Chameleon) -> Tensor:
        """[dim] of the row end, as ``model`` (the target's or an independent drafter's) reads it."""
        return cast(nn.Embedding, model.cls_embedding).weight[self.row_end]

    @property
    def vocab(self) -> int:
        return self.model.cfg.vocab_size

    @property
    def device(self) -> torch.device:
        return self.model.tok_embeddings.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.tok_embeddings.weight.dtype

    @property
    def codebook(self) -> Tensor:
        """[V, d], as the tokeniser compares codes."""
        return self.vq.quantize.codes()

    def prefix(self, captions: list[str], guidance: float) -> Prefix:
        """Captions -> prefix, with the unconditional rows below when guidance is on (scale ≠ 1)."""
        return self.condition(self, captions, guidance != 1.0)

    def prepare(self, captions: list[str]) -> None:
        """Encode captions ahead where what the text encoder says of them is kept."""
        if hasattr(self.text, "prepare"):
            self.text.prepare(captions)

    def images(self, tokens: Tensor) -> list[Image.Image]:
        """Tokens [B, L] -> RGB images, a few at a time: the tokeniser's activations take up to 3 GB an image."""
        few = tokens.view(-1, *self.grid).split(max(1, DECODED // self.length))
        return [Image.fromarray(a) for part in few for a in self.pixels(self.vq.decode(part)).cpu().numpy()]
