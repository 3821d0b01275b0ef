"""The files that entries are read from: JSON lines, arrays, or a folder.  Nothing here unpickles."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

from lanternbench.errors import UserError
from lanternbench.experiment.run_reader import reason
from lanternbench.imported.entries import LAYOUTS, Entry
from lanternbench.imported.published import folder
from lanternbench.utils.files import open_file


class _Line(BaseModel):
    """A line of a .jsonl file; a samples.jsonl of ours is one too."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    caption: str = Field(validation_alias=AliasChoices("caption", "prompt", "text"), min_length=1)
    tokens: list[int] | list[list[int]] | None = Field(None, validation_alias=AliasChoices("token_ids", "tokens"))
    image: str | None = None
    steps: int | None = Field(None, ge=1, le=2**24)
    seconds: float | None = Field(None, ge=0, le=1e9, validation_alias=AliasChoices("seconds", "decode_s"))
    id: str | None = Field(None, validation_alias=AliasChoices("id", "prompt_id"))
    label: str | None = None


def read(path: Path) -> list[Entry]:
    """The entries of a file or folder.  Raises UserError for a layout that is unknown, and for what is damaged."""
    kinds: dict[str, Callable[[Path], list[Entry]]] = {".jsonl": _lines, ".npz": _npz, ".safetensors": _safetensors}
    if path.is_dir():
        return folder(path)
    if path.suffix not in kinds:
        raise UserError(f"{path} is nothing to import: give {LAYOUTS}.")
    try:
        found = kinds[path.suffix](path)
    except (OSError, ValueError, KeyError, EOFError, MemoryError, zipfile.BadZipFile, SafetensorError) as error:
        raise UserError(f"{path} cannot be imported ({_why(error)}): give {LAYOUTS}.") from None
    if not found:
        raise UserError(f"{path} has no images: give {LAYOUTS}.")
    return found


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return reason(error)
    return f"it has no '{error.args[0]}'" if isinstance(error, KeyError) else str(error).partition("\n")[0]


def _lines(path: Path) -> list[Entry]:
    found, labels = [], set()
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
                raise ValueError(f"line {number}: {_why(error)}") from None
            image = None if tokens is not None or line.image is None else _beside(path, line.image)
            labels.add(line.label)
            found.append(Entry(f"line {number}", line.caption, tokens, image, line.steps, line.seconds, line.id))
    if len(labels) > 1:
        raise ValueError(f"it has images of {len(labels)} methods: keep the lines of one")
    return found


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
        said = json.loads((file.metadata() or {}).get("captions", "null"))
        captions = {} if said is None else {"captions": np.asarray(said)}
        return arrays({name: file.get_tensor(name) for name in file.keys()} | captions)  # noqa: SIM118


def arrays(found: Mapping[str, Any]) -> list[Entry]:
    """``tokens`` [N, …] or ``images`` [N, H, W, 3] (``arr_0``, as samplers write them); captions, steps, seconds [N].

    Raises ValueError for other kinds and lengths.
    """
    tokens, images = found.get("tokens"), found.get("images", found.get("arr_0"))
    whole = images if tokens is None else tokens
    if whole is None:
        raise KeyError("tokens")
    if tokens is not None and (tokens.dtype.kind not in "iu" or tokens.ndim < 2):
        raise ValueError(f"tokens are {tokens.dtype}{list(tokens.shape)}, and not whole numbers [images, tokens]")
    if tokens is None and (images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3):
        raise ValueError(f"images are {images.dtype}{list(images.shape)}, and not uint8 [images, height, width, 3]")
    n = len(whole)
    kinds = {"captions": "U", "steps": "iu", "seconds": "iuf"}
    columns = {name: found.get(name) for name in kinds}
    for name, column in columns.items():
        if column is not None and (column.shape != (n,) or column.dtype.kind not in kinds[name]):
            raise ValueError(f"{name} are {column.dtype}{list(column.shape)}, and not one for each of {n} images")
    if (seconds := columns["seconds"]) is not None and not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise ValueError("seconds have a NaN, an infinite or a negative value")
    if (steps := columns["steps"]) is not None and (steps < 1).any():
        raise ValueError("steps have a value below 1")
    return [
        Entry(
            f"image {i + 1}",
            None if columns["captions"] is None else str(columns["captions"][i]),
            None if tokens is None else tokens[i].reshape(-1).astype(np.int64),
            None if tokens is not None else images[i],
            None if steps is None else int(steps[i]),
            None if seconds is None else float(seconds[i]),
            number=i,
        )
        for i in range(n)
    ]
