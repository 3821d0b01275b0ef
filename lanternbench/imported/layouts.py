"""Images that other code made, read from files in several layouts.  Nothing is unpickled.

Folders are read as published code leaves them behind:

- LANTERN (``entrypoints/generate_images.py``): ``prompt_N.png``, and
  ``global_statistics_A_B.json`` with the prompt, tokens a step ("step_compression") and seconds
  ("latency") of each.
- SJD (``eval_model.py``): ``N.png``, N the row of PartiPrompts.tsv from 0; neither steps nor
  seconds.
- ZipAR for LlamaGen (``sample_c2i_ddp_zipar.py``): ``NNNNNN.png`` and ``arr_0`` of a .npz; neither
  classes nor times.
"""

import json
import math
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter
from safetensors import SafetensorError, safe_open

from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import reason
from lanternbench.metrics.images import images_in
from lanternbench.utils.files import open_file

LAYOUTS = "a .jsonl, .npz or .safetensors file, or a folder of images (docs/import.md)"
_UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    EOFError,
    MemoryError,
    zipfile.BadZipFile,
    SafetensorError,
)


class Entry(NamedTuple):
    """One image: its ``tokens``, or an ``image``; ``steps`` and ``seconds`` as the other code
    states them.
    """

    where: str
    caption: str | None = None
    tokens: NDArray[np.int64] | None = None  # [L]
    image: Path | NDArray[np.uint8] | None = None  # a file, or pixels [H, W, 3]
    steps: int | None = None
    seconds: float | None = None
    id: str | None = None
    number: int | None = None  # of its prompt from 0, without a caption
    per_step: float | None = None  # tokens a step, in place of ``steps``

    def with_defaults(self, steps: int | None, seconds: float | None) -> Self:
        """Return the entry with what its file does not say."""
        if self.seconds is not None:
            seconds = self.seconds
        return self._replace(steps=self.steps or steps, seconds=seconds)


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Line(_Part):
    """A line of a .jsonl file; a samples.jsonl of ours is one too."""

    caption: str = Field(validation_alias=AliasChoices("caption", "prompt", "text"), min_length=1)
    tokens: list[int] | list[list[int]] | None = Field(
        None, validation_alias=AliasChoices("token_ids", "tokens")
    )
    image: str | None = None
    steps: int | None = Field(None, ge=1, le=2**24)
    seconds: float | None = Field(
        None, ge=0, le=1e9, validation_alias=AliasChoices("seconds", "decode_s")
    )
    id: str | None = Field(None, validation_alias=AliasChoices("id", "prompt_id"))
    label: str | None = None

    def entry(self, where: str, folder: Path) -> Entry:
        """Return the line as an entry.  Raises ValueError for one without tokens and image."""
        tokens = None
        image = None
        if self.tokens is not None:
            tokens = np.asarray(self.tokens, np.int64).reshape(-1)
        elif self.image is not None:
            image = _file_of(folder, self.image)
        else:
            raise ValueError("it has neither tokens nor image")
        return Entry(where, self.caption, tokens, image, self.steps, self.seconds, self.id)


class _Columns(_Part):
    """Arrays that may accompany tokens or images, with an entry for each."""

    captions: list[str] | None = None
    steps: list[Annotated[int, Field(ge=1)]] | None = None
    seconds: list[Annotated[float, Field(ge=0)]] | None = None


class _Statistics(_Part):
    """LANTERN's statistics of one image."""

    prompt: str
    step_compression: float = Field(gt=0, le=2**24)
    latency: float = Field(ge=0, le=1e9)


def read(path: Path) -> list[Entry]:
    """Return the entries of a file or folder.  Raises UserError for an unknown layout, and for
    what is damaged.
    """
    if path.is_dir():
        return _folder(path)
    readers: dict[str, Callable[[Path], list[Entry]]] = {
        ".jsonl": _lines,
        ".npz": _npz,
        ".safetensors": _safetensors,
    }
    if path.suffix not in readers:
        raise UserError(f"{path} is nothing to import: give {LAYOUTS}.")
    try:
        entries = readers[path.suffix](path)
    except _UNREADABLE as error:
        why = reason(error).partition("\n")[0]
        raise UserError(f"{path} cannot be imported ({why}): give {LAYOUTS}.") from None
    if not entries:
        raise UserError(f"{path} has no images: give {LAYOUTS}.")
    return entries


def _lines(path: Path) -> list[Entry]:
    entries = []
    labels = set()
    with open_file(path) as lines:
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            where = f"line {number}"
            try:
                line = _Line.model_validate_json(text)
                entries.append(line.entry(where, path.parent))
            except ValueError as error:
                raise ValueError(f"{where}: {reason(error)}") from None
            labels.add(line.label)
    if len(labels) > 1:
        raise ValueError(f"it has images of {len(labels)} methods: keep the lines of one")
    return entries


def _file_of(folder: Path, name: str) -> Path:
    """Return a file of the folder.  Raises ValueError for one outside it."""
    place = (folder / name).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise ValueError(f"image '{name}' is outside its folder")
    return place


def _npz(path: Path) -> list[Entry]:
    with np.load(path, allow_pickle=False) as file:
        return arrays({name: file[name] for name in file.files})


def _safetensors(path: Path) -> list[Entry]:
    with safe_open(path, "numpy") as file:
        captions = json.loads((file.metadata() or {}).get("captions", "null"))
        columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if captions is not None:
        columns["captions"] = np.asarray(captions)
    return arrays(columns)


def arrays(columns: Mapping[str, NDArray]) -> list[Entry]:
    """Return the entries of ``tokens`` [N, …] or ``images``, ``arr_0`` [N, H, W, 3]; captions,
    steps, seconds [N].  Raises ValueError.
    """
    tokens = columns.get("tokens")
    images = columns.get("images", columns.get("arr_0"))
    if tokens is not None:
        _check_tokens(tokens)
        tokens = tokens.reshape(len(tokens), math.prod(tokens.shape[1:])).astype(np.int64)
        entries = [Entry("", tokens=image) for image in tokens]
    elif images is not None:
        _check_pixels(images)
        entries = [Entry("", image=image) for image in images]
    else:
        raise ValueError("it has no 'tokens'")
    given = {name: columns[name].tolist() for name in _Columns.model_fields if name in columns}
    stated = _Columns.model_validate(given).model_dump(exclude_none=True)
    for name, column in stated.items():
        if len(column) != len(entries):
            raise ValueError(
                f"{name} are {len(column)}, and not one for each of {len(entries)} images"
            )
    captions = stated.get("captions", [None] * len(entries))
    steps = stated.get("steps", [None] * len(entries))
    seconds = stated.get("seconds", [None] * len(entries))
    return [
        entry._replace(
            where=f"image {i + 1}",
            number=i,
            caption=captions[i],
            steps=steps[i],
            seconds=seconds[i],
        )
        for i, entry in enumerate(entries)
    ]


def _check_tokens(tokens: NDArray) -> None:
    if tokens.dtype.kind not in "iu" or tokens.ndim < 2:
        text = f"tokens are {tokens.dtype}{list(tokens.shape)}"
        raise ValueError(f"{text}, and not whole numbers [images, tokens]")


def _check_pixels(images: NDArray) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
        text = f"images are {images.dtype}{list(images.shape)}"
        raise ValueError(f"{text}, and not uint8 [images, height, width, 3]")


def _folder(path: Path) -> list[Entry]:
    """Return the images of a folder, with their statistics or the number in each name.  Raises
    UserError for others.
    """
    statistics = _statistics(path)
    images = images_in(path)
    if not images:
        text = f"{path} has no images"
        if any(path.glob("*.pt")):
            text += ": .pt files may run code when they are read; save them as .npz"
        raise UserError(f"{text}: give {LAYOUTS}.")
    if statistics:
        entries = [_with_statistics(image, statistics) for image in images]
    else:
        entries = [_numbered(image) for image in images]
    return sorted(entries, key=lambda entry: (entry.number or 0, entry.where))


def _with_statistics(image: Path, statistics: Mapping[str, _Statistics]) -> Entry:
    if image.stem not in statistics:
        text = f"{image} is not in the global_statistics of its folder"
        raise UserError(f"{text}: remove it, or put them back.")
    known = statistics[image.stem]
    return Entry(
        image.name,
        known.prompt,
        image=image,
        seconds=known.latency,
        per_step=known.step_compression,
    )


def _numbered(image: Path) -> Entry:
    number = re.search(r"(\d{1,9})$", image.stem)
    if number is None:
        text = f"{image} has no number at the end of its name"
        raise UserError(f"{text}: number images by their prompts from 0.")
    return Entry(image.name, image=image, number=int(number[1]))


def _statistics(path: Path) -> dict[str, _Statistics]:
    """Return LANTERN's statistics of a folder, by the stem of the image's name."""
    statistics: dict[str, _Statistics] = {}
    reader = TypeAdapter(dict[str, _Statistics])
    for file in sorted(path.glob("global_statistics_*.json")):
        try:
            with open_file(file) as opened:
                statistics |= reader.validate_python(json.loads(opened.read()))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(
                f"{file} is damaged ({reason(error)}): put back what LANTERN wrote."
            ) from None
    return statistics
