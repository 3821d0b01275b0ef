"""Images that other code made, read from files in several layouts.  Nothing is unpickled.

Folders are read as published code leaves them behind:

- LANTERN (``entrypoints/generate_images.py``): ``prompt_N.png``, and
  ``global_statistics_A_B.json`` with the prompt, tokens a step ("step_compression") and seconds
  ("latency") of each.
- SJD (``eval_model.py``): ``N.png``, N the row of PartiPrompts.tsv from 0; neither steps nor
  seconds.  ``N_S.png`` is sample S of that prompt.
- ZipAR for LlamaGen (``sample_c2i_ddp_zipar.py``): ``NNNNNN.png`` and ``arr_0`` of a .npz; neither
  classes nor times.
"""

import json
import math
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    model_validator,
)
from safetensors import safe_open

from lanternbench.errors import UserError, cause
from lanternbench.measure.samples import Seconds
from lanternbench.metrics.images import images_in
from lanternbench.utils.files import open_file

INFLATED = 2**26  # bytes that any array may take
RATIO = 100  # bytes of an array for each compressed byte, of larger ones
LAYOUTS = "a .jsonl, .npz or .safetensors file, or a folder of images (docs/import.md)"


class Entry(NamedTuple):
    """One image: its ``tokens``, or an ``image``; ``steps`` and ``seconds`` as the other code
    states them.
    """

    where: str
    caption: str | None = None
    tokens: NDArray[np.int64] | None = None  # [L]
    shape: tuple[int, ...] = ()  # of the tokens in the file
    image: Path | NDArray[np.uint8] | None = None  # a file, or pixels [H, W, 3]
    steps: int | None = None
    seconds: float | None = None
    id: str | None = None  # of its prompt, as the file says
    number: int | None = None  # of its prompt from 0, without a caption
    per_step: float | None = None  # tokens a step, in place of ``steps``

    def with_defaults(self, stated: "Stated") -> Self:
        """Return the entry with what its file does not say."""
        seconds = stated.seconds if self.seconds is None else self.seconds
        return self._replace(steps=self.steps or stated.steps, seconds=seconds)


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


Steps = Annotated[int, Field(ge=1, le=2**24)]
Token = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Name = Annotated[str, Field(min_length=1)]
Id = Annotated[Name, BeforeValidator(lambda name: str(name) if isinstance(name, int) else name)]


class Stated(_Part):
    """An image as other code reports it."""

    steps: Steps | None = None
    seconds: Seconds | None = Field(None, validation_alias=AliasChoices("seconds", "decode_s"))


class _Line(Stated):
    """A line of a .jsonl file; a samples.jsonl of ours is one too."""

    caption: Name | None = Field(None, validation_alias=AliasChoices("caption", "prompt", "text"))
    tokens: list[Token] | list[list[Token]] | None = Field(
        None, validation_alias=AliasChoices("token_ids", "tokens")
    )
    image: str | None = None
    id: Id | None = Field(None, validation_alias=AliasChoices("id", "prompt_id"))
    label: str | None = None

    @model_validator(mode="after")
    def _names_its_prompt(self) -> Self:
        if self.caption is None and self.id is None:
            raise ValueError("it has neither caption nor id")
        return self

    def entry(self, where: str, folder: Path) -> Entry:
        """Return the line as an entry.  Raises ValueError for one without tokens and image."""
        entry = Entry(where, self.caption, steps=self.steps, seconds=self.seconds, id=self.id)
        if self.tokens is not None:
            widths = {len(row) for row in self.tokens if isinstance(row, list)}
            if len(widths) > 1:
                raise ValueError("its rows of tokens have different lengths")
            tokens = np.asarray(self.tokens, np.int64)
            return entry._replace(tokens=tokens.reshape(-1), shape=tokens.shape)
        if self.image is not None:
            return entry._replace(image=_file_of(folder, self.image))
        raise ValueError("it has neither tokens nor image")


class _Columns(_Part):
    """Arrays that may accompany tokens or images, with an entry for each."""

    captions: list[str] = []
    ids: list[Id] = []
    steps: list[Steps] = []
    seconds: list[Seconds] = []


FIELDS = {"captions": "caption", "ids": "id", "steps": "steps", "seconds": "seconds"}  # of entries
ARRAYS = ("tokens", "images", "arr_0", *FIELDS)  # what is read of a file


class _Statistics(_Part):
    """LANTERN's statistics of one image."""

    prompt: str
    step_compression: float = Field(ge=1, le=2**24)
    latency: Seconds


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
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise UserError(f"{path} is nothing to import: give {LAYOUTS}.")
    try:
        entries = readers[suffix](path)
    except Exception as error:  # a damaged file makes its library raise almost anything
        why = cause(error).partition("\n")[0]
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
                raise ValueError(f"{where}: {cause(error)}") from None
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
    with open_file(path) as file, zipfile.ZipFile(file) as archive:
        present = set(archive.namelist())
        names = [name for name in ARRAYS if f"{name}.npy" in present]
        return arrays({name: _array(archive, name) for name in names})


def _array(archive: zipfile.ZipFile, name: str) -> NDArray:
    """Return an array of an .npz file.  Raises ValueError, before it is read, if its header does
    not fit the file.
    """
    member = archive.getinfo(f"{name}.npy")
    if member.file_size > max(INFLATED, RATIO * member.compress_size):
        raise ValueError(
            f"{name} has {member.compress_size:,} bytes that inflate to {member.file_size:,}"
        )
    with archive.open(member) as file:
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError(f"{name} are Python objects: save them with dtype=str or dtype=int")
        stated = math.prod(shape) * dtype.itemsize
        actual = member.file_size - file.tell()
        if stated != actual:
            raise ValueError(f"{name} should have {stated:,} bytes, and there are {actual:,}")
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def _safetensors(path: Path) -> list[Entry]:
    open_file(path).close()  # no pipe
    with safe_open(path, "numpy") as file:
        captions = json.loads((file.metadata() or {}).get("captions", "null"))
        names = [name for name in file.keys() if name in ARRAYS]  # noqa: SIM118
        for name in names:
            if file.get_slice(name).get_dtype() == "BF16":
                raise ValueError(f"{name} are bfloat16: save them as whole numbers")
        columns = {name: file.get_tensor(name) for name in names}
    if captions is not None:
        columns["captions"] = np.asarray(captions)
    return arrays(columns)


def arrays(columns: Mapping[str, NDArray]) -> list[Entry]:
    """Return the entries of ``tokens`` [N, …] or ``images``, ``arr_0`` [N, H, W, 3]; captions,
    ids, steps, seconds [N].  Raises ValueError.
    """
    tokens = columns.get("tokens")
    images = columns.get("images", columns.get("arr_0"))
    if tokens is not None:
        _check_tokens(tokens)
        flat = tokens.reshape(len(tokens), math.prod(tokens.shape[1:])).astype(np.int64)
        unnamed = [Entry("", tokens=image, shape=tokens.shape[1:]) for image in flat]
    elif images is not None:
        _check_pixels(images)
        unnamed = [Entry("", image=image) for image in images]
    else:
        raise ValueError("it has no 'tokens'")
    given = {name: columns[name].tolist() for name in FIELDS if name in columns}
    stated = _Columns.model_validate(given).model_dump(exclude_unset=True)
    for name, column in stated.items():
        if len(column) != len(unnamed):
            raise ValueError(
                f"{name} are {len(column)}, and not one for each of {len(unnamed)} images"
            )
    entries = []
    for i, entry in enumerate(unnamed):
        about = {FIELDS[name]: column[i] for name, column in stated.items()}
        if "ids" not in stated:
            about["number"] = i
        entries.append(entry._replace(where=f"image {i + 1}", **about))
    return entries


def _check_tokens(tokens: NDArray) -> None:
    if tokens.dtype.kind not in "iu" or tokens.ndim < 2:
        raise ValueError(
            f"tokens are {tokens.dtype}{list(tokens.shape)},"
            " and not whole numbers [images, tokens]"
        )
    if tokens.size and int(tokens.max()) >= 2**31:
        raise ValueError(f"tokens has {tokens.max()}, which no codebook has")


def _check_pixels(images: NDArray) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or not images.size:
        raise ValueError(
            f"images are {images.dtype}{list(images.shape)},"
            " and not uint8 [images, height, width, 3]"
        )


def _folder(path: Path) -> list[Entry]:
    """Return the images of a folder, with their statistics or what their names say.  Raises
    UserError for others.
    """
    statistics = _statistics(path)
    images = images_in(path)
    if not images:
        text = f"{path} has no images"
        if any(path.glob("*.pt")):
            text += ": .pt files may run code when they are read; save them as .npz"
        raise UserError(f"{text}: give {LAYOUTS}.")
    _check_names(path, images)
    if statistics:
        return [_with_statistics(image, statistics) for image in images]
    images.sort(key=lambda image: [int(digits) for digits in re.findall(r"\d{1,18}", image.stem)])
    return [_named(image) for image in images]


def _check_names(path: Path, images: Sequence[Path]) -> None:
    """Raise UserError for files without ending, which may be images too, and for two of a name."""
    for file in path.iterdir():
        if not file.suffix and file.is_file() and not file.name.startswith("."):
            raise UserError(f"{file} has no ending: rename it to {file.name}.png, or remove it.")
    stems: dict[str, Path] = {}
    for image in images:
        other = stems.setdefault(image.stem.lower(), image)
        if other is not image:
            raise UserError(
                f"{path} has both {other.name} and {image.name}: keep one of them, so that no"
                " image counts twice."
            )


def _with_statistics(image: Path, statistics: Mapping[str, _Statistics]) -> Entry:
    if image.stem not in statistics:
        raise UserError(
            f"{image} is not in the global_statistics of its folder: remove it, or put them back."
        )
    known = statistics[image.stem]
    return Entry(
        image.name,
        known.prompt,
        image=image,
        seconds=known.latency,
        per_step=known.step_compression,
    )


def _named(image: Path) -> Entry:
    """Return an image of the prompt that its name says: P.png and P_S.png, S a sample, or the same
    after words, such as image-P.png.
    """
    entry = Entry(image.name, image=image, id=image.stem)
    alone = r"\D*(\d{1,9})"
    with_sample = r"(?:\D*[_-])?(\d{1,9})[_-]\d{1,9}"
    named = re.fullmatch(f"{alone}|{with_sample}", image.stem)
    return entry._replace(number=int(named[1] or named[2])) if named else entry


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
                f"{file} is damaged ({cause(error)}): put back what LANTERN wrote."
            ) from None
    return statistics
