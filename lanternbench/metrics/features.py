"""Features of images by a network, cached on disk in blocks of image files.

The nets: the bundled one, CLIP ViT-L/14, and Inception-V3 with three ways to 299×299 pixels.

- "": as torchmetrics does by default, bilinear with anti-aliasing, without rounding;
- "-clean": as clean-fid does (Parmar et al., CVPR 2022): Pillow's bicubic on each colour as float;
  rounded to 8 bits,
  because torchmetrics' net takes no other;
- "-legacy": as pytorch-fid and torch-fidelity do: TensorFlow 1's bilinear without anti-aliasing.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torchmetrics.image.fid import NoTrainInceptionV3

from lanternbench.metrics import files
from lanternbench.metrics.clip import MEAN, STD, clip_encoder
from lanternbench.metrics.images import ImageFiles, sha256
from lanternbench.metrics.metric import Setup
from lanternbench.metrics.set_distances import Moments
from lanternbench.models.tiny import evaluators
from lanternbench.utils.device import hardware
from lanternbench.utils.files import HOME, cache_dir, make_folder, write_file

BLOCK = 64  # the largest batch, and the number of images in one cache file
SIDE = 299  # pixels that Inception sees
CLIP_SIDE = 336  # pixels that CLIP sees


class Net(NamedTuple):
    """A feature net and how images enter it."""

    module: Callable[[Tensor], Tensor]  # uint8 [B, 3, H, W] -> [B, D]
    prepare: Callable[[Image.Image], Tensor]  # RGB image -> uint8 [3, H, W]
    # all that features depend on except the images; without it nothing is cached
    settings: str | None = None
    device: str = "cpu"


def features(net: Net, images: Iterable[Image.Image]) -> Tensor:
    """Features of the images, float64 [N, D] on the CPU, [0, 0] for none; of ``ImageFiles`` cached
    block by block.
    """
    with torch.inference_mode():
        blocks = [block.double() for block in _blocks(net, images) if len(block)]
        return torch.cat(blocks) if blocks else torch.zeros(0, 0, dtype=torch.float64)


def _blocks(net: Net, images: Iterable[Image.Image]) -> Iterator[Tensor]:
    if not isinstance(images, ImageFiles) or net.settings is None:
        yield from _computed(net, images)
        return
    for start in range(0, len(images.paths), BLOCK):
        yield _cached(net, images, images.paths[start : start + BLOCK])


def _cached(net: Net, images: ImageFiles, block: list[Path]) -> Tensor:
    """Features [n, D] of a block of files, stored or computed.  Raises UserError when the disk is
    full or read-only.
    """
    lines = [f"features {net.settings} {hardware(net.device)}"]
    lines += [f"{path.parent.resolve()} {files.stamp(path)}" for path in block]
    digest = sha256(lines)
    path = cache_dir() / "features" / f"{digest[:16]}.safetensors"
    with suppress(OSError, SafetensorError, KeyError, ValueError):  # absent or damaged
        stored = load_file(path)["features"]
        # else some were unreadable and must be reported again
        if stored.ndim == 2 and len(stored) == len(block):
            return stored
    result = torch.cat([torch.zeros(0), *_computed(net, images.images(block))])
    about = {"settings": str(net.settings), "fingerprint": digest}
    make_folder(path.parent, HOME)
    write_file(path, save({"features": result}, about), HOME, shared=True)
    return result


def _computed(net: Net, images: Iterable[Image.Image]) -> Iterator[Tensor]:
    """[B, D] on the CPU, neighbours of one size together."""
    for _, same_size in groupby(map(net.prepare, images), key=lambda pixels: pixels.shape):
        while block := list(islice(same_size, BLOCK)):
            yield net.module(torch.stack(block).to(net.device)).cpu()


def plain_image(image: Image.Image) -> Tensor:
    """RGB image -> uint8 [3, H, W]; Inception scales by itself."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def clean_image(image: Image.Image) -> Tensor:
    """RGB image of any size -> uint8 [3, 299, 299] as clean-fid scales: Pillow's bicubic on each
    colour as float.
    """
    planes = []
    for plane in image.convert("RGB").split():
        scaled = plane.convert("F").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        planes.append(np.asarray(scaled))
    rounded = np.stack(planes).clip(0, 255) + 0.5
    return torch.from_numpy(rounded.astype(np.uint8))


def square_image(image: Image.Image) -> Tensor:
    """RGB image of any size -> uint8 [3, 336, 336]: the central square, scaled by Pillow's
    bicubic.
    """
    width, height = image.size
    side = min(width, height)
    left = (width - side) // 2
    top = (height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    return plain_image(square.resize((CLIP_SIDE, CLIP_SIDE), Image.Resampling.BICUBIC))


@cache
def tiny_net() -> tuple[Net, Moments]:
    """Return the bundled net on images scaled to 64×64 pixels, and its statistics of real
    scenes.
    """
    net, real = evaluators.load_feature_net(files.WEIGHTS / files.FID_TINY.file)
    moments = Moments.of_sums(real["total"], real["products"], int(real["count"]))
    return Net(net, lambda image: evaluators.to_uint8([image])[0]), moments


def clip_net(setup: Setup) -> Net:
    """Unit embeddings of CLIP ViT-L/14 at 336 pixels on the setup's device."""
    (weights,) = files.published("clip-l14-336")
    model = clip_encoder(setup, weights, "ViT-L-14-336-quickgelu").model
    mean = torch.tensor(MEAN, device=setup.device)[:, None, None]
    std = torch.tensor(STD, device=setup.device)[:, None, None]

    def embed(images: Tensor) -> Tensor:
        pixels = (images / 255 - mean) / std
        return nn.functional.normalize(model.encode_image(pixels), dim=-1)

    return Net(embed, square_image, f"cmmd {content(setup.find(weights))}", setup.device)


RESIZES = {"": (plain_image, True), "-clean": (clean_image, True), "-legacy": (plain_image, False)}


def inception_net(setup: Setup, resize: str = "", features: str = "2048") -> Net:
    """Inception-V3 on the setup's device, with one of ``RESIZES``."""
    prepare, antialias = RESIZES[resize]
    path = setup.find(*files.published("inception"))
    net = inception(path, features, antialias).to(setup.device)
    return Net(net, prepare, f"inception {features}{resize} {content(path)}", setup.device)


def content(weights: Path | None) -> str:
    """Return a digest of a weights file; "random" for random weights."""
    return "random" if weights is None else files.content([weights])


def inception(
    path: Path | None, features: str = "2048", antialias: bool = True
) -> NoTrainInceptionV3:
    """FID's Inception-V3 from its file; with random weights (He et al., 2015) without one.

    ``features``: "2048", or "logits_unbiased".  Raises UserError for another file, a damaged one,
    or one with code.
    """

    class Untrained(NoTrainInceptionV3):
        def load_state_dict(self, *_: object, **__: object) -> None:  # type: ignore[override]
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d):
                    nn.init.kaiming_normal_(layer.weight)

    what = ("inception-v3-compat", [features])
    if path is None:
        # the class requires a file
        with tempfile.NamedTemporaryFile(suffix=".pth") as empty, files.seeded():
            torch.save({}, empty.name)
            return Untrained(*what, empty.name, antialias=antialias)
    (weights,) = files.published("inception")
    # torchmetrics would run code in it
    files.tensors(path, weights.title, weights.sha256)
    with files.reading(path, weights.title):
        return NoTrainInceptionV3(*what, str(path), antialias=antialias)
