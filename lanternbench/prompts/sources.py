"""Prompts: our demo captions, COCO, PartiPrompts from their official files, ImageNet classes, or the user's own list.

A selection is a pure function of (file, seed, count): each prompt gets a rank from SHA-256 of seed and id, the best
``count`` ranks are taken and put back in file order.  So a larger count keeps every prompt of a smaller one, and no
library version changes which prompts a seed means.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, get_args

from lanternbench.errors import UserError
from lanternbench.utils.files import cache_dir, shipped

Caption = Literal["first", "longest", "random"]
TEXT_FIELDS = ("prompt", "text", "caption")
ID_FIELDS = ("id", "prompt_id", "image_id")
IMAGE_FIELDS = ("image", "file_name")
IMAGENET = Path("imagenet")  # no file: the classes come with open_clip
OFFICIAL = {
    "coco2017": "captions_val2017.json",
    "coco2014": "captions_val2014.json",
    "parti": "PartiPrompts.tsv",
}


class Prompt(NamedTuple):
    """One prompt; ``id`` is unique in its set, ``image`` is the file name (no folder) of a reference image."""

    id: str
    text: str
    category: str | None = None
    challenge: str | None = None
    image: str | None = None


@dataclass(frozen=True)
class PromptSet:
    """The selected prompts and where they come from; ``notes`` tells what a reader of the results should know."""

    prompts: tuple[Prompt, ...]
    source: str
    dataset: str
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """SHA-256 (hex) over the ids and texts of the selection, in order."""
        pairs = json.dumps([[prompt.id, prompt.text] for prompt in self.prompts])
        return hashlib.sha256(pairs.encode()).hexdigest()

    def record(self) -> dict[str, Any]:
        """What ``run.json`` keeps of the selection."""
        return {
            "source": self.source,
            "dataset": self.dataset,
            "count": len(self.prompts),
            "seed": self.seed,
            "hash": self.hash,
            "notes": list(self.notes),
        }

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)


def captions_for(target: str, count: int) -> list[str]:
    """Our own captions, or class names for a class-conditional target."""
    return [prompt.text for prompt in load("imagenet" if "c2i" in target else "demo", count)]


def load(spec: str, count: int | None = None, seed: int = 0, caption: Caption = "first") -> PromptSet:
    """Read and select prompts.

    spec: ``demo``; ``imagenet``, the class numbers 0…999 for class-conditional targets, with their names as category;
    ``coco2017``, ``coco2014`` or ``parti``, each with ``:PATH`` of its official file or, without, from the cache
    folder; or a path to .txt, .csv, .tsv, .json or .jsonl with a column called prompt, text or caption.
    count: how many (None: all); ``demo`` gives its first ones, every other source a seeded choice. caption: which of
    the captions of a COCO image. Raises UserError for an unknown source, a file that is missing, empty or malformed,
    and a count that the source cannot give.
    """
    if caption not in get_args(Caption):
        raise UserError(f"there is no caption choice {caption!r}: use {', '.join(get_args(Caption))}.")
    if count is not None and count < 1:
        raise UserError(f"cannot select {count} prompts: give --num-prompts of 1 or more.")
    dataset, path = _locate(spec.strip())
    prompts, notes = _unique(list(_imagenet() if path == IMAGENET else _read(path, dataset, seed, caption)))
    if not prompts:
        raise UserError(f"{path} has no prompts: give a file with a caption a line or in a column called prompt.")
    if count is not None and count > len(prompts):
        raise UserError(f"{path} has {len(prompts)} prompts but {count} were asked for: lower --num-prompts.")
    if dataset == "demo":
        chosen = prompts[:count]
    else:
        chosen = _select(prompts, count, seed)
    builtin = dataset == "demo" or path == IMAGENET
    source = dataset if builtin else f"{dataset}:{path.name}"  # no folder: it may name a person
    return PromptSet(tuple(chosen), source, dataset, seed, tuple(notes))


def _rank(seed: int, *names: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join([str(seed), *names]).encode()).digest()[:8], "big")


def _select(prompts: list[Prompt], count: int | None, seed: int) -> list[Prompt]:
    """``count`` prompts without replacement, in file order."""
    best = sorted(range(len(prompts)), key=lambda i: (_rank(seed, "prompt", prompts[i].id), i))
    return [prompts[i] for i in sorted(best[:count])]


def _locate(spec: str) -> tuple[str, Path]:
    """(dataset name, file) of a spec."""
    name, colon, where = spec.partition(":")
    if spec == "demo":
        return "demo", shipped("prompts", "demo.txt")
    if spec == "imagenet":
        return "imagenet", IMAGENET
    if name in OFFICIAL and colon:
        path = Path(where).expanduser()
        inside = [path / OFFICIAL[name], path / "annotations" / OFFICIAL[name]]
        path = next((place for place in inside if place.is_file()), path)
        if path.is_dir() or not where:
            raise UserError(f"{OFFICIAL[name]} is not in {where or 'the empty path'}: give the file, {_example(name)}.")
        return name, path
    if name in OFFICIAL:
        path = cache_dir() / "prompts" / OFFICIAL[name]
        if not path.is_file():
            raise UserError(
                f"the prompts of {name} are not at {path}: get them with `lanternbench fetch {name}`, "
                f"or give their official file, {_example(name)}."
            )
        return name, path
    path = Path(spec).expanduser()
    if path.suffix.lower() not in READERS:
        known = ", ".join(["demo", "imagenet", *OFFICIAL])
        raise UserError(f"there are no prompts {spec!r}: use {known}, or the path of a {', '.join(READERS)} file.")
    return path.stem, path


def _example(name: str) -> str:
    return f"`--prompts {name}:PATH/{OFFICIAL[name]}`"


def _read(path: Path, dataset: str, seed: int, caption: Caption) -> Iterator[Prompt]:
    """Every prompt of a file, blank ones left out."""
    text = _decode(path)
    if not text.strip():
        raise UserError(f"{path} is empty: give a file with a caption a line or in a column called prompt.")
    if dataset == "demo":
        for number, fields in _lines(text, path):
            yield from _prompt(fields, f"demo-{number:02d}", path)
        return
    if dataset.startswith("coco") and dataset in OFFICIAL:
        yield from _coco(_json(text, path), path, seed, caption)
        return
    suffix = ".tsv" if dataset == "parti" else path.suffix.lower()
    if suffix == ".json":
        value = _json(text, path)
        if isinstance(value, Mapping) and "annotations" in value:
            yield from _coco(value, path, seed, caption)
            return
    for number, fields in READERS[suffix](text, path):
        yield from _prompt(fields, str(number), path)


def _decode(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start + 1}): save it as UTF-8.") from None
    except FileNotFoundError:
        raise UserError(f"there is no file {path}: check the path given to --prompts.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path} ({reason}): check the path given to --prompts.") from None


def _prompt(fields: Mapping[str, Any], fallback: str, path: Path) -> Iterator[Prompt]:
    """The prompt of one row (lower-case field names), or nothing for a blank one."""
    column = next((name for name in TEXT_FIELDS if name in fields), None)
    if column is None:
        found = ", ".join(repr(str(name)) for name in list(fields)[:8] if name) or "none"
        raise UserError(f"{path} has no column called prompt, text or caption (it has {found}): rename one to prompt.")
    if fields[column] is not None and not isinstance(fields[column], str):
        raise UserError(f"{path} entry {fallback} has a {column} that is no text: put it in quotes.")
    text = _clean(fields[column])
    if text:
        name = next((_clean(fields[key]) for key in ID_FIELDS if _clean(fields.get(key))), fallback)
        image = next((_clean(fields[key]) for key in IMAGE_FIELDS if _clean(fields.get(key))), None)
        category, challenge = _clean(fields.get("category")) or None, _clean(fields.get("challenge")) or None
        yield Prompt(name, text, category, challenge, _file_name(image))


def _clean(value: Any) -> str:
    """One line of valid Unicode: line breaks become spaces, half a surrogate pair becomes '?'."""
    if value is None or isinstance(value, Mapping | list):
        return ""
    text = str(value).replace("\0", " ").encode("utf-8", "replace").decode()
    return " ".join(part.strip() for part in text.splitlines()).strip()


def _file_name(image: str | None) -> str | None:
    """The last part of a path: a prompt file cannot point outside the folder of reference images."""
    name = PurePosixPath((image or "").replace("\\", "/")).name
    return name if name not in ("", "..") else None


def _unique(prompts: list[Prompt]) -> tuple[list[Prompt], list[str]]:
    """Prompts with distinct ids (a suffix -2, -3, … where needed), and a note of how many were not."""
    # the key of a sample is id|label|seed
    prompts = [prompt._replace(id=prompt.id.replace("|", "_")) for prompt in prompts]
    taken, result, repeated = {prompt.id for prompt in prompts}, [], 0
    seen: set[str] = set()
    for prompt in prompts:
        name, number = prompt.id, 1
        while name in seen or (number > 1 and name in taken):
            number += 1
            name = f"{prompt.id}-{number}"
        repeated += number > 1
        seen.add(name)
        result.append(prompt._replace(id=name))
    notes = [f"{repeated} prompts with a repeated id got a suffix (-2, -3, …)."] if repeated else []
    return result, notes


def _coco(data: Any, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
    """One prompt per image of a COCO captions file, in the file's order of images."""
    captions: dict[Any, list[str]] = {}
    try:
        images = [(image["id"], str(image.get("file_name") or "")) for image in data["images"]]
        for annotation in data["annotations"]:
            captions.setdefault(annotation["image_id"], []).append(_clean(annotation["caption"]))
    except (KeyError, TypeError, AttributeError):
        wanted = "images[].id and annotations[].image_id, caption"
        raise UserError(f"{path} is no COCO captions file ({wanted}): give captions_val2017.json.") from None
    for number, file_name in images:
        texts = [text for text in captions.get(number, []) if text]
        if texts:
            pick = {
                "first": 0,
                "longest": max(range(len(texts)), key=lambda i: len(texts[i])),
                "random": _rank(seed, "caption", str(number)) % len(texts),
            }[caption]
            yield Prompt(str(number), texts[pick], image=_file_name(file_name))


def _imagenet() -> Iterator[Prompt]:
    """The classes of ILSVRC 2012 in their order: the number is the prompt, the name its category."""
    from open_clip import IMAGENET_CLASSNAMES

    for number, name in enumerate(IMAGENET_CLASSNAMES):
        yield Prompt(str(number), str(number), category=name)


def _json(text: str, path: Path, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path} line {line or error.lineno} is not valid JSON ({error.msg}): correct it.") from None
    except (ValueError, RecursionError) as error:
        where = f"{path} line {line}" if line else f"{path}"
        raise UserError(f"{where} is not valid JSON ({error}): correct it.") from None


Rows = Iterator[tuple[int, Mapping[str, Any]]]  # (line or entry number from 1, lower-case fields)


def _lines(text: str, path: Path) -> Rows:
    """A caption a line."""
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        yield number, {"prompt": line}


def _table(text: str, path: Path, **dialect: Any) -> Rows:
    """Rows of a table with a header line."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, **dialect)
    begun = 1
    try:
        header = [name.strip().lower() for name in next(row for row in reader if any(cell.strip() for cell in row))]
        yield 0, dict.fromkeys(header)  # a blank prompt, so that a wrong header is reported without any row
        begun = reader.line_num + 1
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, dict(zip(header, row, strict=False)) | dict.fromkeys(header[len(row) :])
            begun = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path} line {begun} is malformed ({error}): correct its quotes.") from None


def _csv(text: str, path: Path) -> Rows:
    return _table(text, path, delimiter=",", skipinitialspace=True)


def _tsv(text: str, path: Path) -> Rows:
    """Tab-separated with quotes as they stand, as in PartiPrompts.tsv."""
    return _table(text, path, delimiter="\t", quoting=csv.QUOTE_NONE)


def _entry(value: Any, number: int, path: Path) -> tuple[int, Mapping[str, Any]]:
    if isinstance(value, str):
        return number, {"prompt": value}
    if isinstance(value, Mapping):
        return number, {str(key).strip().lower(): field for key, field in value.items()}
    raise UserError(f"{path} entry {number} is no prompt: make it a text or an object with a field called prompt.")


def _json_list(text: str, path: Path) -> Rows:
    """A JSON list of texts or objects, or an object that holds one under "prompts"."""
    value = _json(text, path)
    if isinstance(value, Mapping):
        value = value.get("prompts")
    if not isinstance(value, list):
        raise UserError(f"{path} holds no list of prompts: make it a JSON list of texts or of objects with a prompt.")
    for number, item in enumerate(value, 1):
        yield _entry(item, number, path)


def _json_lines(text: str, path: Path) -> Rows:
    """A JSON text or object a line."""
    for number, fields in _lines(text, path):
        if fields["prompt"].strip():
            yield _entry(_json(fields["prompt"], path, number), number, path)


READERS: dict[str, Callable[[str, Path], Rows]] = {
    ".txt": _lines,
    ".csv": _csv,
    ".tsv": _tsv,
    ".json": _json_list,
    ".jsonl": _json_lines,
}
