"""The bundled evaluators: CLIP-tiny, an open_clip ``CLIP`` over hashed words, and the feature net
of FID-tiny.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip.model import CLIP
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from lanternbench.models.loading import Net
from lanternbench.models.tiny.checkpoint import padded
from lanternbench.models.token_decoder import BUCKETS, word_id, words

SIZE = 64  # pixels a side that both evaluators see
CONTEXT = 32
EOT = BUCKETS  # the largest id: open_clip reads a caption's embedding where the id is highest
FEATURES = 128  # of both
WIDTHS = (32, 64, 96, 96)  # of the feature net
CONFIG: dict[str, Any] = {  # an open_clip model config
    "embed_dim": FEATURES,
    "vision_cfg": {"layers": (1, 1, 1, 1), "width": 16, "head_width": 64, "image_size": SIZE},
    "text_cfg": {
        "context_length": CONTEXT,
        "vocab_size": EOT + 1,
        "width": 80,
        "heads": 4,
        "layers": 2,
    },
}


def build() -> CLIP:
    """Return an untrained CLIP-tiny: ``encode_image`` takes the output of ``pixels``,
    ``encode_text`` that of ``tokenize``.
    """
    return CLIP(**CONFIG)


def tokenize(captions: list[str]) -> Tensor:
    """Return int64 [B, 32]: hashed words, the end mark, zeros.  Any Unicode is a caption, also the
    empty string.
    """
    rows = []
    for caption in captions:
        ids = [word_id(word) for word in words(caption) if word != ","]
        rows.append([*ids[: CONTEXT - 1], EOT])
    return padded(rows, CONTEXT)


def to_uint8(images: list[Image.Image]) -> Tensor:
    """RGB images of any size -> uint8 [B, 3, 64, 64]."""
    arrays = []
    for image in images:
        small = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        arrays.append(np.asarray(small))
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)


def to_float(images: Tensor) -> Tensor:
    """uint8 [B, 3, H, W] -> float in −1…1."""
    return images.float() / 127.5 - 1


def pixels(images: list[Image.Image]) -> Tensor:
    """RGB images of any size -> float [B, 3, 64, 64] in −1…1, the input of ``encode_image``."""
    return to_float(to_uint8(images))


def _block(c_in: int, c_out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU()
    )


class FeatureNet(nn.Module):
    """Classifies scenes; uint8 [B, 3, 64, 64] -> its last hidden layer, as Inception's in FID,
    float64 [B, 128].
    """

    num_features = FEATURES  # the attribute by which torchmetrics sizes its statistics

    def __init__(self) -> None:
        super().__init__()
        a, b, c, d = WIDTHS
        self.body = nn.Sequential(
            _block(3, a, 2), _block(a, b, 2), _block(b, c, 2), _block(c, d, 1)
        )
        # the 4×4 grid is kept up to the last layer: positions of objects are a part of a scene
        self.feature = nn.Sequential(
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16 * d, FEATURES), nn.GELU()
        )

    def features(self, images: Tensor) -> Tensor:
        """float [B, 3, 64, 64] in −1…1 -> [B, 128]."""
        return self.feature(self.body(images))

    def forward(self, images: Tensor) -> Tensor:
        return self.features(to_float(images)).double()


def load_clip(path: Path) -> CLIP:
    return _filled(build(), load_file(path))


def load_feature_net(path: Path) -> tuple[FeatureNet, dict[str, Tensor]]:
    """Return the net, and statistics of real scenes: float64 sums of features, "total" [128], and
    of their outer products, "products" [128, 128], and the number of scenes, "count" [].
    """
    weights = {}
    reference = {}
    for key, value in load_file(path).items():
        name = key.removeprefix("reference.")
        if name == key:
            weights[key] = value
        else:
            reference[name] = value
    return _filled(FeatureNet(), weights), reference


def _filled(net: Net, tensors: dict[str, Tensor]) -> Net:
    """Return the net in evaluation mode, in float32, with tensors that are float16 on disk."""
    net.load_state_dict(tensors)
    return net.eval().requires_grad_(False)
