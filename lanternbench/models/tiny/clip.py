"""CLIP-tiny: open_clip's ``CLIP`` at the size of the embedded world, over the hashed words of ``text_encoder``."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip.model import CLIP
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from lanternbench.models.tiny import text_encoder as text

SIZE = 64  # pixels a side that both embedded evaluators see
CONTEXT = 32
EOT = text.BUCKETS  # the largest id: open_clip reads a caption's embedding where the id is highest
FEATURES = 128
CONFIG: dict[str, Any] = {  # an open_clip model config
    "embed_dim": FEATURES,
    "vision_cfg": {"layers": (1, 1, 1, 1), "width": 16, "head_width": 64, "image_size": SIZE},
    "text_cfg": {"context_length": CONTEXT, "vocab_size": EOT + 1, "width": 80, "heads": 4, "layers": 2},
}


def build() -> CLIP:
    """An untrained CLIP-tiny; ``encode_image`` takes what ``pixels`` gives, ``encode_text`` what ``tokenize`` gives."""
    return CLIP(**CONFIG)


def tokenize(captions: list[str]) -> Tensor:
    """int64 [B, 32]: hashed words, the end mark, zeros.  Any Unicode is a caption, the empty string included."""
    rows = [[text.word_id(w) for w in text.words(caption) if w != ","][: CONTEXT - 1] for caption in captions]
    return text.padded([[*row, EOT] for row in rows], CONTEXT)


def to_uint8(images: list[Image.Image]) -> Tensor:
    """RGB images of any size -> uint8 [B, 3, 64, 64]."""
    arrays = [np.asarray(i.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for i in images]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)


def to_float(images: Tensor) -> Tensor:
    """uint8 [B, 3, H, W] -> float in −1…1."""
    return images.float() / 127.5 - 1


def pixels(images: list[Image.Image]) -> Tensor:
    """RGB images of any size -> float [B, 3, 64, 64] in −1…1, what ``encode_image`` takes."""
    return to_float(to_uint8(images))


def load(path: Path) -> CLIP:
    """CLIP-tiny in evaluation mode from its safetensors file (float16 on disk, float32 in memory)."""
    model = build()
    model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in load_file(path).items()})
    return model.eval().requires_grad_(False)
