"""The feature nets behind FID and its relatives: the embedded one, and Inception-V3 with three ways to 299×299 pixels.

- "": as torchmetrics does by default, bilinear with anti-aliasing, without rounding;
- "-clean": as clean-fid does (Parmar et al., CVPR 2022): Pillow's bicubic on each colour as float; rounded to 8 bits
  here, as torchmetrics' net takes no other;
- "-legacy": as pytorch-fid and torch-fidelity do: TensorFlow 1's bilinear without anti-aliasing.
"""

from __future__ import annotations

import pickle
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.features import Net
from lanternbench.metrics.setup import Setup, seeded

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics.image.fid import NoTrainInceptionV3

SIDE = 299  # pixels that Inception sees
FID_TINY = files.Embedded("fid.safetensors", "FID net")
INCEPTION = files.Weights(
    name="inception",
    title="Inception-V3 (FID, 2048 features)",
    file="weights-inception-2015-12-05-6726825d.pth",
    gigabytes=0.1,
    url="https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/weights-inception-2015-12-05-6726825d.pth",
    sha256="6726825d",
    elsewhere=(
        "$TORCH_HOME/hub/checkpoints/weights-inception-2015-12-05-6726825d.pth",
        "~/.cache/torch/hub/checkpoints/weights-inception-2015-12-05-6726825d.pth",
    ),
)


def tiny_image(image: Image.Image) -> Tensor:
    """RGB image of any size -> uint8 [3, 64, 64]."""
    from lanternbench.models.tiny import clip as clip_tiny

    return clip_tiny.to_uint8([image])[0]


def plain_image(image: Image.Image) -> Tensor:
    """RGB image -> uint8 [3, H, W]; Inception scales by itself."""
    import torch

    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def clean_image(image: Image.Image) -> Tensor:
    """RGB image of any size -> uint8 [3, 299, 299] as clean-fid scales: Pillow's bicubic on each colour as float."""
    import torch

    planes = [np.asarray(plane, np.float32) for plane in image.convert("RGB").split()]
    scaled = [Image.fromarray(plane).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for plane in planes]
    return torch.from_numpy((np.stack([np.asarray(s) for s in scaled]).clip(0, 255) + 0.5).astype(np.uint8))


@cache
def tiny_net() -> tuple[Net, dict[str, Tensor]]:
    """The embedded net, and the statistics of real scenes beside it."""
    from lanternbench.models.tiny import feature_net

    net, kept = feature_net.load(files.embedded(FID_TINY.file))
    return Net(net, tiny_image), kept


def inception(path: Path | None, features: str = "2048", antialias: bool = True) -> NoTrainInceptionV3:
    """FID's Inception-V3 from its file; with random weights (He et al., 2015) without one.

    ``features``: "2048", or "logits_unbiased".  Raises UserError when the file is another, is damaged, or holds code.
    """
    import torch
    from torch import nn
    from torchmetrics.image.fid import NoTrainInceptionV3

    class Untrained(NoTrainInceptionV3):
        def load_state_dict(self, *_: object, **__: object) -> None:  # type: ignore[override]
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d):
                    nn.init.kaiming_normal_(layer.weight)

    what = ("inception-v3-compat", [features])
    if path is None:
        with tempfile.NamedTemporaryFile(suffix=".pth") as empty, seeded():  # the class wants a file
            torch.save({}, empty.name)
            return Untrained(*what, empty.name, antialias=antialias)
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=False)  # refuses a pickle that runs code
        return NoTrainInceptionV3(*what, str(path), antialias=antialias)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(
            f"{path} is not the Inception-V3 file of FID ({type(error).__name__}); download it again."
        ) from None


RESIZES = {"": (plain_image, True), "-clean": (clean_image, True), "-legacy": (plain_image, False)}


def inception_net(setup: Setup, resize: str = "", features: str = "2048") -> Net:
    """Inception-V3 on the setup's device, with one of ``RESIZES``."""
    prepare, antialias = RESIZES[resize]
    found = setup.find(INCEPTION)
    settings = f"inception {features}{resize} {files.stamp(found) if found else 'random'}"
    return Net(inception(found, features, antialias).to(setup.device), prepare, settings)
