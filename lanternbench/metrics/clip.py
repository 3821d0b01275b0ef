"""CLIP score: the cosine of an image's and its caption's embeddings, by CLIP-tiny or by the papers' CLIP ViT-B/32.

The papers print the plain cosine (0.32, say), and so does this; torchmetrics' ``CLIPScore`` is 100 times that, clipped
below at 0.  Values of different backbones are not comparable, so they have different names: "clip-tiny" and "clip".
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.metrics import files

BATCH = 64


class Encoder(NamedTuple):
    """An open_clip model with what prepares its inputs."""

    model: Any  # open_clip's CLIP, in evaluation mode
    prepare: Callable[[list[Image.Image]], Tensor]  # -> [B, 3, H, W]
    tokenize: Callable[[list[str]], Tensor]  # -> [B, context]

    @torch.inference_mode()
    def images(self, images: list[Image.Image]) -> Tensor:
        """-> unit embeddings [B, D]."""
        blocks = (self.prepare(images[i : i + BATCH]) for i in range(0, len(images), BATCH))
        return torch.cat([F.normalize(self.model.encode_image(b), dim=-1) for b in blocks])

    @torch.inference_mode()
    def captions(self, captions: list[str]) -> Tensor:
        """-> unit embeddings [B, D]."""
        ids = self.tokenize(captions)
        return torch.cat([F.normalize(self.model.encode_text(b), dim=-1) for b in ids.split(BATCH)])


class ClipScore:
    """A per-image scorer; the model is loaded on first use."""

    def __init__(self, name: str, needs: str, missing: Callable[[], str | None], load: Callable[[], Encoder]):
        self.name = name
        self.needs: tuple[str, ...] = (needs,)
        self._missing, self._load = missing, load

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""
        return self._missing()

    @cached_property
    def encoder(self) -> Encoder:
        return self._load()

    def score(self, images: list[Image.Image], captions: list[str]) -> list[float | None]:
        """Cosine per image, −1…1, higher is better; None for each when the weights are missing."""
        if len(images) != len(captions):
            raise ValueError(f"{len(images)} images but {len(captions)} captions")
        if not images or self.available():
            return [None] * len(images)
        cosines = (self.encoder.images(images) * self.encoder.captions(captions)).sum(-1).tolist()
        return [c if math.isfinite(c) else None for c in cosines]


@cache
def _tiny() -> Encoder:
    from lanternbench.models import clip_tiny

    return Encoder(clip_tiny.load(files.embedded("clip.safetensors")), clip_tiny.pixels, clip_tiny.tokenize)


def openai_pixels() -> Callable[[Image.Image], Tensor]:
    """OpenAI's preparation: shorter side to 224 (bicubic), centre crop, CLIP's mean and deviation -> [3, 224, 224]."""
    from open_clip.transform import PreprocessCfg, image_transform_v2

    return image_transform_v2(PreprocessCfg(), is_train=False)


def openai_clip(path: Path, weights: files.Weights, config: str) -> Encoder:
    """OpenAI's CLIP through open_clip (``config``), from its official archive or open_clip's own safetensors.

    Raises UserError when the file is another.
    """
    import open_clip

    if path.suffix != ".safetensors":
        state = _archive(path, weights)
    else:
        state = files.tensors(path, weights.title)
    # not through ``create_model(pretrained=…)``: that may go online when it cannot use what it finds
    model = open_clip.CLIP(**open_clip.get_model_config(config))
    try:
        model.load_state_dict({k: state[k].float() for k in model.state_dict()})
    except (RuntimeError, KeyError) as error:
        raise files.wrong_file(path, weights.title, error) from None
    pixels = openai_pixels()
    tokenizer = open_clip.get_tokenizer(config)
    return Encoder(model.eval(), lambda images: torch.stack([pixels(i) for i in images]), tokenizer)


def _archive(path: Path, weights: files.Weights) -> dict[str, Tensor]:
    """A TorchScript archive holds code, so only the official one is opened."""
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != weights.sha256:
                raise ValueError("its SHA-256 is another")
        return torch.jit.load(str(path), map_location="cpu").state_dict()
    except (OSError, RuntimeError, ValueError) as error:
        raise files.wrong_file(path, weights.title, error) from None


def clip_tiny_score() -> ClipScore:
    """ "clip-tiny": the embedded CLIP, trained on this package's own scenes."""
    file = "clip.safetensors"
    return ClipScore("clip-tiny", file, lambda: files.embedded_missing(file, "CLIP-tiny"), _tiny)


def clip_score(path: Path | None = None) -> ClipScore:
    """ "clip": OpenAI's ViT-B/32, from ``path`` or wherever it already lies on this machine."""
    weights = files.CLIP_VIT_B32

    def load() -> Encoder:
        found = path or weights.find()
        if found is None:
            raise UserError(f"{weights.title} cannot score: {weights.missing()}.")
        return openai_clip(found, weights, "ViT-B-32-quickgelu")

    def missing() -> str | None:
        return None if path and path.is_file() else weights.missing()

    return ClipScore("clip", weights.file, missing, load)


def retrieval(images: list[Image.Image], captions: list[str]) -> float:
    """Share of images, 0…1, whose own caption is the best of all given ones, by CLIP-tiny.

    ``captions[i]`` belongs to ``images[i]``; a caption given twice counts as right at either place.
    Raises UserError when CLIP-tiny is missing, ValueError when there is nothing to compare.
    """
    if len(images) != len(captions) or not images:
        raise ValueError(f"retrieval needs one caption per image; {len(images)} images, {len(captions)} captions")
    scorer = clip_tiny_score()
    if reason := scorer.available():
        raise UserError(f"Retrieval cannot be computed: {reason}.")
    best = (scorer.encoder.images(images) @ scorer.encoder.captions(captions).T).argmax(1).tolist()
    return sum(captions[b] == own for b, own in zip(best, captions, strict=True)) / len(images)
