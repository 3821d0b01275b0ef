"""Image files: read, whatever is in them, as plain 8-bit RGB; folders of real images; the layouts
that the official scorers of GenEval and DPG-Bench read."""

import hashlib
import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from lanternbench.errors import UserError
from lanternbench.prompts import load
from lanternbench.prompts.sources import GenEvalLine, geneval_metadata
from lanternbench.registry import component
from lanternbench.utils.files import OUT, make_folder, open_file, replacing, write_file

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}
MAX_NAME = 240  # bytes of a file name, less its ending
GRID = 4  # images of a prompt in a DPG-Bench file, two by two
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    IndexError,
    TypeError,
    OverflowError,
)


def read_image(path: str | PathLike[str]) -> Image.Image:
    """Return the image (of an animation: the first frame) as 8-bit RGB, rotated as its EXIF tag
    says, transparency on white.

    Greyscale, palette, CMYK, 16-bit and float files are converted by value, not clipped. Raises
    UserError naming the file when it is missing, no image, truncated, or larger than Pillow's safe
    size.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with open_file(Path(path)) as file, Image.open(file) as opened:
                opened.load()
                return _to_rgb(ImageOps.exif_transpose(opened))
    except FileNotFoundError:
        raise UserError(f"There is no image {path}; check the path.") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        limit = (Image.MAX_IMAGE_PIXELS or 0) // 10**6
        raise UserError(
            f"The image {path} has more than {limit} million pixels; scale it down first."
        ) from None
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


class ImageFiles:
    """Image files, read one by one as RGB images; ``read`` counts them.

    A file that cannot be read is left out and listed in ``broken``, or raises UserError if
    ``strict``.
    """

    def __init__(self, paths: Sequence[Path], strict: bool = False):
        self.paths = list(paths)
        self.strict = strict
        self.broken: list[str] = []
        self.read = 0

    def __iter__(self) -> Iterator[Image.Image]:
        return self.images(self.paths)

    def images(self, paths: Sequence[Path]) -> Iterator[Image.Image]:
        for path in paths:
            try:
                image = read_image(path)
                self.read += 1
                yield image
            except UserError as error:
                if self.strict:
                    raise
                self.broken.append(str(error))


def images_in(folder: Path | None) -> list[Path]:
    """The image files of a folder, sorted by name; an empty list without a folder."""
    return _images(folder, "*")


def images_below(folder: Path | None) -> list[Path]:
    """The image files of a folder and of its sub-folders."""
    return _images(folder, "**/*")


def _images(folder: Path | None, pattern: str) -> list[Path]:
    """Return the paths with an image's ending, sorted; without hidden files and folders, which some
    systems write next to images.
    """
    if folder is None or not folder.is_dir():
        return []
    paths = []
    for path in folder.glob(pattern):
        is_hidden = any(name.startswith(".") for name in path.relative_to(folder).parts)
        if path.suffix.lower() in SUFFIXES and not is_hidden:
            paths.append(path)
    return sorted(paths)


def sha256(lines: list[str]) -> str:
    """SHA-256 (hex) of lines of text."""
    return hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()


def export(layout: str, images: Mapping[str, Sequence[Path]], folder: Path) -> str:
    """Write image files, by prompt text, into ``folder`` in a layout; returns what was written, as
    a sentence.

    layout: "geneval" or "dpg", with ``:FILE`` of the official prompts as in ``--prompts``.  Raises
    UserError for any other layout and as the two functions below do.
    """
    name, colon, where = layout.partition(":")
    if name == "geneval":
        path = component("prompts", name)().locate(name, where if colon else None)
        return f"{export_geneval(images, geneval_metadata(path), folder)} images in {folder}"
    if name == "dpg":
        ids = {prompt.text: prompt.id for prompt in load(layout)}
        count, side = export_dpg(images, ids, folder)
        return f"{count} files in {folder}, for --resolution {side}"
    raise UserError(f"there is no layout {name}: use geneval or dpg.")


def export_geneval(
    images: Mapping[str, Sequence[Path]], metadata: Sequence[GenEvalLine], folder: Path
) -> int:
    """Write ``NNNNN/metadata.jsonl`` and ``NNNNN/samples/NNNN.png``, NNNNN the line of the
    metadata; how many images.

    Raises UserError when none belongs to a prompt, one cannot be read, or the disk is full.
    """
    count = 0
    for number, line in enumerate(metadata):
        place = folder / f"{number:05d}"
        for sample, path in enumerate(images.get(line.prompt, ())):
            _save(read_image(path), place / "samples" / f"{sample:04d}.png")
            text = line.model_dump_json(by_alias=True, exclude_unset=True)
            write_file(place / "metadata.jsonl", text, OUT)
            count += 1
    if not count:
        raise UserError(
            "no image has a prompt of GenEval: run with --prompts geneval, then export."
        )
    return count


def export_dpg(
    images: Mapping[str, Sequence[Path]], ids: Mapping[str, str], folder: Path
) -> tuple[int, int]:
    """Write one ``ID.png`` for each prompt: four images as a 2 × 2 grid, or the first if there
    are fewer.

    ids: DPG-Bench's id of each prompt text.  Returns how many files were written, and the side of
    one image in pixels. Raises UserError when none belongs to a prompt, an id is no file name,
    images differ in size or are not square, or the disk is full.
    """
    for name in ids.values():
        if Path(name).name != name or len(name.encode()) > MAX_NAME:
            raise UserError(
                f"the id {name[:60]!r} is no file name: correct it in the prompts of DPG-Bench."
            )
    sides = set[int]()
    count = 0
    for text, name in ids.items():
        parts = [read_image(path) for path in images.get(text, ())[:GRID]]
        if not parts:
            continue
        if len(parts) < GRID:
            parts = parts[:1]
        for part in parts:
            sides.update(part.size)
        if len(sides) > 1:
            raise UserError(
                "DPG-Bench reads square images of one size, and there are sides of "
                f"{sorted(sides)} pixels."
            )
        _save(_grid(parts), folder / f"{name}.png")
        count += 1
    if not count:
        raise UserError("no image has a prompt of DPG-Bench: run with --prompts dpg, then export.")
    return count, sides.pop()


def _grid(parts: Sequence[Image.Image]) -> Image.Image:
    """Four square images of one size, two by two, row by row; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    side = parts[0].width
    whole = Image.new("RGB", (2 * side, 2 * side))
    for i, part in enumerate(parts):
        row, column = divmod(i, 2)
        whole.paste(part, (column * side, row * side))
    return whole


def _save(image: Image.Image, path: Path) -> None:
    make_folder(path.parent, OUT)
    with replacing(path, OUT) as file:
        image.save(file, format="PNG")
