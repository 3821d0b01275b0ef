"""The real images that metrics compare with: a folder of images, or the statistics of some that
pytorch-fid, clean-fid or guided-diffusion wrote as an ``.npz`` file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics.images import images_below, sha256
from lanternbench.utils.download import digest
from lanternbench.utils.files import open_file

if TYPE_CHECKING:
    from lanternbench.metrics.set_distances import Moments

STATISTICS = ".npz"
LOOKED_AT = 100  # images whose sizes are compared


def is_statistics(reference: Path | None) -> bool:
    return reference is not None and reference.suffix.lower() == STATISTICS


def check_reference(reference: Path) -> None:
    """Raise UserError for what is no folder and no file of statistics."""
    if not reference.is_dir() and not (is_statistics(reference) and reference.is_file()):
        raise UserError(
            f"there is no folder {reference}: give --reference the folder of real images, or an "
            ".npz file of their statistics."
        )


def described(reference: Path) -> dict[str, Any]:
    """Return real images as results record them: the name of the folder or file, how many (None
    if a file does not say it), and a hash, of a folder over names and sizes.
    """
    name = reference.resolve().name
    if is_statistics(reference):
        return {"folder": name, "images": None, "hash": digest(reference)}
    paths = images_below(reference)
    lines = [f"{path.relative_to(reference)} {path.stat().st_size}" for path in paths]
    return {"folder": name, "images": len(paths), "hash": sha256(lines)}


def read_moments(path: Path, width: int) -> Moments:
    """Mean and covariance of features ``width`` wide, from a file of statistics.

    Raises UserError for a damaged file, and for one without ``mu`` and ``sigma`` of this width.
    """
    import torch

    from lanternbench.metrics.set_distances import Moments

    try:
        with np.load(path, allow_pickle=False) as stored:
            mean = torch.from_numpy(stored["mu"].astype(np.float64))
            covariance = torch.from_numpy(stored["sigma"].astype(np.float64))
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        cause = (str(error).strip("'\" ") or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{path} holds no statistics of images ({cause[:200]}): give a file with mu and sigma, "
            "as pytorch-fid, clean-fid and guided-diffusion write it"
        ) from None
    if mean.shape != (width,) or covariance.shape != (width, width):
        raise UserError(
            f"{path} has statistics of features {len(mean.flatten())} wide, and Inception-V3's are "
            f"{width} wide: give those of its 2048 features"
        )
    if not (mean.isfinite().all() and covariance.isfinite().all()):
        raise UserError(f"{path} has statistics that are not finite: write it again")
    return Moments(mean, covariance, None)


def image_sizes(paths: Sequence[Path]) -> set[tuple[int, int]]:
    """Return the widths and heights of a sample of images, without those that cannot be read."""
    sizes = set()
    for path in paths[:: -(-len(paths) // LOOKED_AT) or 1]:
        try:
            with open_file(path) as file, Image.open(file) as image:
                sizes.add(image.size)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
    return sizes


def other_sizes(generated: Sequence[Path], real: Sequence[Path]) -> str:
    """Return a caution if real images have other sizes than generated ones; else ""."""
    made = image_sizes(generated)
    found = image_sizes(real)
    if not made or not found or made == found:
        return ""
    return (
        f"the generated images have {_listed(made)} pixels, the real ones {_listed(found)}: how "
        "they were scaled counts too"
    )


def _listed(sizes: set[tuple[int, int]]) -> str:
    first = [f"{width}×{height}" for width, height in sorted(sizes)[:2]]
    return ", ".join(first) + (", …" if len(sizes) > 2 else "")
