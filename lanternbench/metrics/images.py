"""Reading image files, whatever is in them, as plain 8-bit RGB."""

import struct
import warnings
import zlib
from os import PathLike

import numpy as np
from PIL import Image, ImageOps

from lanternbench.errors import UserError

_BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, IndexError, TypeError, OverflowError)


def read_image(path: str | PathLike[str]) -> Image.Image:
    """The image (of an animation: the first frame) as 8-bit RGB, upright by its EXIF mark, transparency on white.

    Greyscale, palette, CMYK, 16-bit and float files are converted by value, not clipped.
    Raises UserError naming the file when it is missing, no image, truncated, or larger than Pillow's safe size.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                opened.load()
                return _to_rgb(ImageOps.exif_transpose(opened))
    except FileNotFoundError:
        raise UserError(f"There is no image {path}; check the path.") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        limit = (Image.MAX_IMAGE_PIXELS or 0) // 10**6
        raise UserError(f"The image {path} has more than {limit} million pixels; scale it down first.") from None
    except _BROKEN as error:
        raise UserError(f"The image {path} cannot be read ({error}); replace the file.") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        values = np.nan_to_num(np.asarray(image))
        return _grey(values * 255 if values.max() <= 1 else values)
    if image.mode.startswith("I"):  # 16-bit files; a convert() would clip them at 255
        return _grey(np.asarray(image) / 257)
    if image.has_transparency_data:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB")
    return image.convert("RGB")


def _grey(values: np.ndarray) -> Image.Image:
    """[H, W] values on the scale 0…255 -> RGB."""
    return Image.fromarray(np.clip(values + 0.5, 0, 255).astype(np.uint8)).convert("RGB")
