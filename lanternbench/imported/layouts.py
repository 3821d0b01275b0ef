"""Images that other code made, from files in several layouts.  Nothing is unpickled.

Folders are read as published code leaves them behind:

- LANTERN (``entrypoints/generate_images.py``): ``prompt_N.png``, and ``global_statistics_A_B.json`` with the prompt,
  tokens a step ("step_compression") and seconds ("latency") of each.
- SJD (``eval_model.py``): ``N.png``, N the row of PartiPrompts.tsv from 0; neither steps nor seconds.
- ZipAR for LlamaGen (``sample_c2i_ddp_zipar.py``): ``NNNNNN.png`` and ``arr_0`` of a .npz; neither classes nor times.
"""

import json
import math
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter
from safetensors import SafetensorError, safe_open

from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import reason
from lanternbench.metrics.reference import images_in
from lanternbench.utils.files import open_file

LAYOUTS = "a .jsonl, .npz or .safetensors file, or a folder of images (docs/import.md)"


class Entry(NamedTuple):
    """One image: its ``tokens`` [L], or an ``image`` (a file, or pixels [H, W, 3]).

    ``number``: of its prompt from 0, without a caption.  ``steps``, ``seconds``: as the other code states them;
    ``per_step``: tokens a step, in place of ``steps``.
    """

    where: str
    caption: str | None = None
    tokens: NDArray[np.int64] | None = None
    image: Path | NDArray[np.uint8] | None = None
    steps: int | None = None
    seconds: float | None = None
    id: str | None = None
    number: int | None = None
    per_step: float | None = None


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Line(_Part):
    """A line of a .jsonl file; a samples.jsonl of ours is one too."""

    caption: str = Field(validation_alias=AliasChoices("caption", "prompt", "text"), min_length=1)
    tokens: list[int] | list[list[int]] | None = Field(None, validation_alias=AliasChoices("token_ids", "tokens"))
    image: str | None = None
    steps: int | None = Field(None, ge=1, le=2**24)
    seconds: float | None = Field(None, ge=0, le=1e9, validation_alias=AliasChoices("seconds", "decode_s"))
    id: str | None = Field(None, validation_alias=AliasChoices("id", "prompt_id"))
    label: str | None = None


class _Statistics(_Part):
    prompt: str
    step_compression: float = Field(gt=0, le=2**24)
    latency: float = Field(ge=0, le=1e9)


def read(path: Path) -> list[Entry]:
    """The entries of a file or folder.  Raises UserError for a layout that is unknown, and for what is damaged."""
    kinds: dict[str, Callable[[Path], list[Entry]]] = {".jsonl": _lines, ".npz": _npz, ".safetensors": _safetensors}
    if path.is_dir():
        return _folder(path)
    if path.suffix not in kinds:
        raise UserError(f"{path} is nothing to import: give {LAYOUTS}.")
    try:
        entries = kinds[path.suffix](path)
    except (OSError, ValueError, LookupError, EOFError, MemoryError, zipfile.BadZipFile, SafetensorError) as error:
        why = reason(error).partition("\n")[0]
        raise UserError(f"{path} cannot be imported ({why}): give {LAYOUTS}.") from None
    if not entries:
        raise UserError(f"{path} has no images: give {LAYOUTS}.")
    return entries


def _lines(path: Path) -> list[Entry]:
    entries, labels = [], set()
    with open_file(path) as lines:
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                line = _Line.model_validate_json(text)
                tokens = None if line.tokens is None else np.asarray(line.tokens, np.int64).reshape(-1)
                if tokens is None and line.image is None:
                    raise ValueError("it has neither tokens nor image")
            except ValueError as error:
                raise ValueError(f"line {number}: {reason(error)}") from None
            image = None if tokens is not None or line.image is None else _beside(path, line.image)
            labels.add(line.label)
            entries.append(Entry(f"line {number}", line.caption, tokens, image, line.steps, line.seconds, line.id))
    if len(labels) > 1:
        raise ValueError(f"it has images of {len(labels)} methods: keep the lines of one")
    return entries


def _beside(path: Path, name: str) -> Path:
    """A file of the folder of ``path``, and of no other."""
    place = (path.parent / name).resolve()
    if not place.is_relative_to(path.parent.resolve()):
        raise ValueError(f"image '{name}' is outside its folder")
    return place


def _npz(path: Path) -> list[Entry]:
    with np.load(path, allow_pickle=False) as file:
        return arrays({name: file[name] for name in file.files})


def _safetensors(path: Path) -> list[Entry]:
    with safe_open(path, "numpy") as file:
        captions = json.loads((file.metadata() or {}).get("captions", "null"))
        columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return arrays(columns if captions is None else columns | {"captions": np.asarray(captions)})


def arrays(columns: Mapping[str, Any]) -> list[Entry]:
    """``tokens`` [N, …] or ``images``, ``arr_0`` [N, H, W, 3]; captions, steps, seconds [N].  Raises ValueError."""
    tokens, images = columns.get("tokens"), columns.get("images", columns.get("arr_0"))
    whole = images if tokens is None else tokens
    if whole is None:
        raise ValueError("it has no 'tokens'")
    if tokens is not None and (tokens.dtype.kind not in "iu" or tokens.ndim < 2):
        raise ValueError(f"tokens are {tokens.dtype}{list(tokens.shape)}, and not whole numbers [images, tokens]")
    if tokens is None and (images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3):
        raise ValueError(f"images are {images.dtype}{list(images.shape)}, and not uint8 [images, height, width, 3]")
    n = len(whole)
    captions, steps = _column(columns, "captions", "U", n), _column(columns, "steps", "iu", n)
    seconds = [None if s is None else float(s) for s in _column(columns, "seconds", "iuf", n)]
    if not all(s is None or 0 <= s < math.inf for s in seconds):
        raise ValueError("seconds have a NaN, an infinite or a negative value")
    if not all(s is None or s >= 1 for s in steps):
        raise ValueError("steps have a value below 1")
    rows = [None] * n if tokens is None else [image.reshape(-1).astype(np.int64) for image in tokens]
    pixels = [None] * n if tokens is not None else images
    each = zip(captions, rows, pixels, steps, seconds, strict=True)
    return [Entry(f"image {i + 1}", *of_image, number=i) for i, of_image in enumerate(each)]


def _column(columns: Mapping[str, Any], name: str, kinds: str, n: int) -> list[Any]:
    """The values of a column, one for each of ``n`` images; None for each without such a column."""
    if (column := columns.get(name)) is None:
        return [None] * n
    if column.shape != (n,) or column.dtype.kind not in kinds:
        raise ValueError(f"{name} are {column.dtype}{list(column.shape)}, and not one for each of {n} images")
    return column.tolist()


def _folder(path: Path) -> list[Entry]:
    """The images of a folder, by its statistics or by the number in each name.  Raises UserError for others."""
    statistics = _statistics(path)
    images = images_in(path)
    if not images:
        more = ": .pt files may run code when they are read; save them as .npz" if [*path.glob("*.pt")] else ""
        raise UserError(f"{path} has no images{more}: give {LAYOUTS}.")
    entries = []
    for image in images:
        if statistics and image.stem not in statistics:
            raise UserError(f"{image} is not in the global_statistics of its folder: remove it, or put them back.")
        number = re.search(r"(\d{1,9})$", image.stem)
        if statistics:
            s = statistics[image.stem]
            entries.append(Entry(image.name, s.prompt, image=image, seconds=s.latency, per_step=s.step_compression))
        elif number:
            entries.append(Entry(image.name, image=image, number=int(number[1])))
        else:
            raise UserError(f"{image} has no number at the end of its name: number images by their prompts from 0.")
    return sorted(entries, key=lambda entry: (entry.number or 0, entry.where))


def _statistics(path: Path) -> dict[str, _Statistics]:
    statistics: dict[str, _Statistics] = {}
    for file in sorted(path.glob("global_statistics_*.json")):
        try:
            with open_file(file) as opened:
                statistics |= TypeAdapter(dict[str, _Statistics]).validate_python(json.loads(opened.read()))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{file} is damaged ({reason(error)}): put back what LANTERN wrote.") from None
    return statistics
