"""Features of images by a network, cached on disk in blocks of image files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics.files import stamp
from lanternbench.metrics.images import read_image
from lanternbench.metrics.reference import sha256
from lanternbench.utils.files import HOME, cache_dir, replacing, writing

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 64  # the largest batch, and the number of images in one cache file


class Net(NamedTuple):
    """A feature net and how images enter it."""

    module: Callable[[Tensor], Tensor]  # uint8 [B, 3, H, W] -> [B, D]
    prepare: Callable[[Image.Image], Tensor]  # RGB image -> uint8 [3, H, W]
    settings: str | None = None  # all that features depend on beside the images; without it nothing is cached
    device: str = "cpu"


class ImageFiles:
    """Image files, read one by one as RGB images; ``read`` counts them.

    A file that cannot be read is left out and listed in ``broken``, or raises UserError if ``strict``.
    """

    def __init__(self, paths: Sequence[Path], strict: bool = False):
        self.paths, self.strict = list(paths), strict
        self.broken: list[str] = []
        self.read = 0

    def __iter__(self) -> Iterator[Image.Image]:
        return self.images(self.paths)

    def images(self, paths: Sequence[Path]) -> Iterator[Image.Image]:
        """The images of some of the files."""
        for path in paths:
            try:
                image = read_image(path)
            except UserError as error:
                if self.strict:
                    raise
                self.broken.append(str(error))
                continue
            self.read += 1
            yield image


def features(net: Net, images: Iterable[Image.Image]) -> Tensor:
    """Features of the images, float64 [N, D] on the CPU, [0, 0] for none; of ``ImageFiles`` cached block by block."""
    import torch

    with torch.inference_mode():
        if not isinstance(images, ImageFiles) or net.settings is None:
            blocks = list(_computed(net, images))
        else:
            starts = range(0, len(images.paths), BLOCK)
            blocks = [_cached(net, images, images.paths[i : i + BLOCK]) for i in starts]
        blocks = [block.double() for block in blocks if len(block)]
        return torch.cat(blocks) if blocks else torch.zeros(0, 0, dtype=torch.float64)


def _cached(net: Net, images: ImageFiles, block: list[Path]) -> Tensor:
    """Features [n, D] of a block of files, stored or computed.  Raises UserError when the disk is full or read-only."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save

    digest = sha256([f"features {net.settings}", *(f"{path.parent.resolve()} {stamp(path)}" for path in block)])
    path = cache_dir() / "features" / f"{digest[:16]}.safetensors"
    with suppress(OSError, SafetensorError, KeyError, ValueError):  # absent or damaged
        stored = load_file(path)["features"]
        if stored.ndim == 2 and len(stored) == len(block):  # else some were unreadable and must be reported again
            return stored
    result = torch.cat([torch.zeros(0), *_computed(net, images.images(block))])
    with writing(path, HOME):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, HOME, shared=True) as file:
        file.write(save({"features": result}, {"settings": str(net.settings), "fingerprint": digest}))
    return result


def _computed(net: Net, images: Iterable[Image.Image]) -> Iterator[Tensor]:
    """[B, D] on the CPU, neighbours of one size together."""
    import torch

    for _, run in groupby(map(net.prepare, images), key=lambda t: t.shape):
        while block := list(islice(run, BLOCK)):
            yield net.module(torch.stack(block).to(net.device)).cpu()
