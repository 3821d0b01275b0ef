"""Images in the layouts that the official scorers of GenEval and DPG-Bench read."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics.images import read_image
from lanternbench.prompts import load
from lanternbench.prompts.sources import geneval_metadata
from lanternbench.registry import component
from lanternbench.utils.files import OUT, replacing, writing

MAX_NAME = 240  # bytes of a file name, less its ending
GRID = 4  # images of a prompt in a DPG-Bench file, two by two


def export(layout: str, images: Mapping[str, Sequence[Path]], folder: Path) -> str:
    """Write image files, by prompt text, into ``folder`` in a layout; returns what was written, as a sentence.

    layout: "geneval" or "dpg", with ``:FILE`` of the official prompts as in ``--prompts``.  Raises UserError for any
    other layout and as the two functions below do.
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


def export_geneval(images: Mapping[str, Sequence[Path]], metadata: Sequence[Mapping[str, Any]], folder: Path) -> int:
    """Write ``NNNNN/metadata.jsonl`` and ``NNNNN/samples/NNNN.png``, NNNNN the line of the metadata; how many images.

    Raises UserError when none belongs to a prompt, one cannot be read, or the disk is full.
    """
    count = 0
    for number, line in enumerate(metadata):
        place = folder / f"{number:05d}"
        for sample, path in enumerate(images.get(line["prompt"], ())):
            _save(read_image(path), place / "samples" / f"{sample:04d}.png")
            with replacing(place / "metadata.jsonl", OUT) as file:
                file.write(json.dumps(line).encode())
            count += 1
    if not count:
        raise UserError("no image has a prompt of GenEval: run with --prompts geneval, then export.")
    return count


def export_dpg(images: Mapping[str, Sequence[Path]], ids: Mapping[str, str], folder: Path) -> tuple[int, int]:
    """Write one ``ID.png`` for each prompt: four images as a 2 × 2 grid, or the first where there are fewer.

    ids: DPG-Bench's id of each prompt text.  Returns how many files were written, and the side of one image in pixels.
    Raises UserError when none belongs to a prompt, an id is no file name, images differ in size or are not square, or
    the disk is full.
    """
    if wrong := [name for name in ids.values() if Path(name).name != name or len(name.encode()) > MAX_NAME]:
        raise UserError(f"the id {wrong[0][:60]!r} is no file name: correct it in the prompts of DPG-Bench.")
    sides, count = set(), 0
    for text, name in ids.items():
        parts = [read_image(path) for path in images.get(text, ())[:GRID]]
        if not parts:
            continue
        parts = parts if len(parts) == GRID else parts[:1]
        sides |= {side for part in parts for side in part.size}
        if len(sides) > 1:
            raise UserError(
                f"DPG-Bench reads square images of one size, and there are sides of {sorted(sides)} pixels."
            )
        side = parts[0].width
        whole = Image.new("RGB", parts[0].size if len(parts) == 1 else (2 * side, 2 * side))
        for i, part in enumerate(parts):  # row by row
            whole.paste(part, (i % 2 * side, i // 2 * side))
        _save(whole, folder / f"{name}.png")
        count += 1
    if not count:
        raise UserError("no image has a prompt of DPG-Bench: run with --prompts dpg, then export.")
    return count, sides.pop()


def _save(image: Image.Image, path: Path) -> None:
    with writing(path.parent, OUT):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, OUT) as file:
        image.save(file, format="PNG")
