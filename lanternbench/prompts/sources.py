"""The sources of prompts, registered under the name that ``--prompts`` takes, and how their
prompts are selected.

A selection is a pure function of (file, seed, count): the best ``count`` ranks, from SHA-256 of
seed and id, in file order.  So a larger count keeps every prompt of a smaller one, whatever the
versions of libraries.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, get_args

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError, model_validator

from lanternbench.errors import UserError, cause, first_mistake
from lanternbench.prompts import formats
from lanternbench.prompts.formats import Fields, Rows, clean, json_lines, read_text
from lanternbench.registry import components, plugin_errors, register
from lanternbench.settings import Caption, PromptSpec
from lanternbench.utils.download import digest
from lanternbench.utils.files import cache_dir, shipped
from lanternbench.utils.text import one_line

_GITHUB = "https://raw.githubusercontent.com"
_COCO = "http://images.cocodataset.org/annotations"
_GENEVAL = f"{_GITHUB}/djghosh13/geneval/af4902f24d3ca90ebbb446dd9891a59e0f82725f"


class Prompt(NamedTuple):
    """One prompt; ``id`` is unique in its set, ``image`` is the file name (no folder) of a
    reference image.
    """

    id: str
    text: str
    category: str | None = None
    challenge: str | None = None
    image: str | None = None


class Official(NamedTuple):
    """A published prompt file, and the address from which ``lanternbench fetch NAME`` gets it."""

    file: str
    url: str
    sha256: str = ""  # of the file; nothing if none is published
    member: str | None = None  # of a zip archive
    gigabytes: float = 0.0  # about; 0: next to nothing


@dataclass(frozen=True)
class PromptSet:
    """The selected prompts and their source; ``notes`` are for readers of the results."""

    prompts: tuple[Prompt, ...]
    source: str
    dataset: str
    seed: int
    notes: tuple[str, ...] = ()

    @cached_property
    def hash(self) -> str:
        return prompts_hash(self.prompts)

    def record(self) -> dict[str, Any]:
        """Return what ``run.json`` keeps of the selection."""
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


def prompts_hash(prompts: Iterable[Prompt]) -> str:
    """Return the SHA-256 (hex) of the ids and texts of prompts, in order."""
    pairs = [(prompt.id, prompt.text) for prompt in prompts]
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def rank(seed: int, *names: str) -> int:
    """Return a number below 2⁶⁴ that is as good as random."""
    text = "\0".join([str(seed), *names])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def with_unique_ids(prompts: Iterable[Prompt]) -> tuple[list[Prompt], int]:
    """Return prompts with distinct ids (a suffix -2, -3, … if needed), and how many got one."""
    # the key of a sample is id|method|seed
    prompts = [prompt._replace(id=prompt.id.replace("|", "_")) for prompt in prompts]
    ids = {prompt.id for prompt in prompts}
    repeated = 0
    result: dict[str, Prompt] = {}
    for prompt in prompts:
        name = prompt.id
        number = 1
        while name in result or (number > 1 and name in ids):
            number += 1
            name = f"{prompt.id}-{number}"
        repeated += number > 1
        result[name] = prompt._replace(id=name)
    return list(result.values()), repeated


def captions_for(labels: bool, count: int) -> list[str]:
    """Return our own captions; with ``labels``, class numbers for a class-conditional target."""
    return [prompt.text for prompt in load("imagenet" if labels else "demo", count)]


def load(
    spec: str, count: int | None = None, seed: int = 0, caption: Caption = "first"
) -> PromptSet:
    """Read and select prompts.

    spec: the name of a registered source (``demo``, ``coco2017``, …), with ``:PATH`` of its
    official file or, without, from the cache folder; or a path to .txt, .csv, .tsv, .json or
    .jsonl with a column called prompt, text or caption. count: how many (None: all); ``demo``
    gives its first ones, every other source a seeded choice. caption: the choice among the
    captions of a COCO image. Raises UserError for an unknown source, a file that is missing,
    empty or malformed, and a count that the source cannot give.
    """
    if caption not in get_args(Caption):
        raise UserError(
            f"there is no caption choice {caption!r}: use {', '.join(get_args(Caption))}."
        )
    if count is not None and count < 1:
        raise UserError(f"cannot select {count} prompts: give --num-prompts of 1 or more.")
    source, path, name, title = _source_of(spec.strip())
    with plugin_errors(source):
        entries = list(source.read(path, seed, caption))
    prompts, repeated_ids = with_unique_ids(entry for entry in entries if entry.text)
    if not prompts:
        raise UserError(
            f"{title} has no prompts: give a file with a caption a line or in a column "
            "called prompt."
        )
    notes = _deviation(path, source.official)
    if blank := len(entries) - len(prompts):
        notes.append(f"{blank:,} of {len(entries):,} entries have no caption and are left out.")
    if repeated_ids:
        notes.append(f"{repeated_ids:,} prompts with a repeated id got a suffix (-2, -3, …).")
    if count is not None and count > len(prompts):
        asked = one_line(str(count), 20)
        raise UserError(
            f"{title} has {len(prompts)} prompts but {asked} were asked for: lower --num-prompts."
        )
    chosen = _selected(prompts, count, None if source.in_order else seed)
    texts = len({prompt.text for prompt in chosen})
    if texts < len(chosen):
        notes.append(
            f"the {len(chosen):,} prompts have {texts:,} different captions; intervals count those "
            "of one caption as one."
        )
    return PromptSet(tuple(chosen), title, name, seed, tuple(notes))


def selection(asked: PromptSpec) -> PromptSet:
    """Return the prompts that settings ask for.  Raises UserError as ``load``."""
    return load(asked.prompts, asked.num_prompts, asked.seed, asked.caption)


def _selected(prompts: list[Prompt], count: int | None, seed: int | None) -> list[Prompt]:
    """Return ``count`` prompts, or all, in their order: by seeded ranks, or without a seed the
    first ones.
    """
    if count is None or seed is None:
        return prompts[:count]
    places = range(len(prompts))
    best = nsmallest(count, places, key=lambda i: (rank(seed, "prompt", prompts[i].id), i))
    return [prompts[i] for i in sorted(best)]


def _source_of(spec: str) -> tuple["PromptSource", Path | None, str, str]:
    """Return a source, its file, and its name without and with that of the file."""
    name, colon, place = spec.partition(":")
    known = components("prompts")
    if name in known:
        source = known[name]()
        path = source.locate(name, place if colon else None)
        title = f"{name}:{path.name}" if path else name  # no folder: it may name a person
        return source, path, name, title
    path = Path(spec).expanduser()
    if path.suffix.lower() not in formats.READERS:
        raise UserError(
            f"there are no prompts {spec!r}: use {', '.join(known)}, or the path of a "
            f"{', '.join(formats.READERS)} file."
        )
    return UserFile(), path, path.name, path.name


def _deviation(path: Path | None, official: Official | None) -> list[str]:
    """Return a note if a file is not the official one of its source."""
    if path and official and official.sha256 and digest(path) != official.sha256:
        return [f"{path.name} is not the official {official.file}: say so with the results."]
    return []


def prompts_of(rows: Rows, path: Path) -> Iterator[Prompt]:
    """Return the prompts of the rows of a file; blank ones have an empty text."""
    for number, fields in rows:
        field = formats.caption_field(fields, path)
        value = fields[field]
        if value is not None and not isinstance(value, str):
            raise UserError(
                f"{path} entry {number} has a {field} that is no text: put it in quotes."
            )
        yield Prompt(
            _first(fields, "id", "prompt_id", "image_id") or str(number),
            clean(value),
            _first(fields, "category"),
            _first(fields, "challenge"),
            formats.file_name(_first(fields, "image", "file_name")),
        )


def _first(fields: Fields, *names: str) -> str | None:
    """Return the first of these fields that is not blank."""
    for name in names:
        if name in fields and (text := clean(fields[name])):
            return text
    return None


class PromptSource:
    """Base of all sources.  A subclass implements ``read`` and sets the attributes that differ
    from these.
    """

    official: ClassVar[Official | None] = None  # None: the prompts come with the source
    in_order: ClassVar[bool] = False  # a smaller number means the first ones, not a seeded choice

    def read(self, path: Any, seed: int, caption: Caption) -> Iterable[Prompt]:
        """Return every prompt, in the order of the file; those without text are counted and left
        out.

        path: the official file; None for a source without one.  caption: which of several captions
        of an image, a random one by ``seed``.  Raises UserError for a file that is missing or
        malformed.
        """
        raise NotImplementedError

    def locate(self, name: str, place: str | None) -> Path | None:
        """Return the official file: at ``place`` (it or its folder), else in the cache.  Raises
        UserError if it is not there.
        """
        if self.official is None:
            if place is not None:
                raise UserError(
                    f"the prompts '{name}' come without a file: write --prompts {name}."
                )
            return None
        file = self.official.file
        example = f"`--prompts {name}:PATH/{file}`"
        if place is None:
            path = cache_dir() / "prompts" / file
            if path.is_file():
                return path
            raise UserError(
                f"the prompts of {name} are not at {path}: get them with `lanternbench fetch "
                f"{name}`, or give their official file, {example}."
            )
        folder = Path(place).expanduser()
        for path in (folder / file, folder / "annotations" / file):
            if path.is_file():
                return path
        if folder.is_dir():
            raise UserError(
                f"{file} is not in {place or 'the empty path'}: give the file, {example}."
            )
        return folder


class UserFile(PromptSource):
    """A file of the user, which is read by its suffix."""

    def read(self, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
        text = read_text(path)
        suffix = path.suffix.lower()
        if suffix == ".json" and '"annotations"' in text:
            value = formats.parsed(text, path)
            if isinstance(value, dict) and "annotations" in value:
                return _coco_prompts(value, path, seed, caption)
        return prompts_of(formats.READERS[suffix](text, path), path)


def _coco(year: int, sha256: str = "") -> Official:
    file = f"captions_val{year}.json"
    return Official(
        file,
        f"{_COCO}/annotations_trainval{year}.zip",
        sha256,
        f"annotations/{file}",
        gigabytes=0.25,
    )


@register("prompts", "coco2017")
class Coco2017(PromptSource):
    """MS COCO's validation images (arXiv 1504.00325): one caption for each of the 5,000."""

    official = _coco(2017, "afe3b30e403dd7f228e2373023abbd60042a6e10ec6874d3652df034d289ebb9")

    def read(self, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
        return _coco_prompts(formats.parsed(read_text(path), path), path, seed, caption)


@register("prompts", "coco2014")
class Coco2014(Coco2017):
    """One caption for each of the 40,504 images."""

    official = _coco(2014)


class CocoImage(BaseModel):
    id: int | str
    file_name: str | None = None


class CocoAnnotation(BaseModel):
    image_id: int | str
    caption: str


class CocoCaptions(BaseModel):
    """The part of a COCO captions file that is read."""

    images: list[CocoImage]
    annotations: list[CocoAnnotation]


def _coco_prompts(value: object, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
    """Return a prompt per image of a parsed captions file, in its order of images; ids match if
    they are written alike, 1 and "1".  Raises UserError for another file, and for an image twice.
    """
    try:
        data = CocoCaptions.model_validate(value)
    except ValidationError as error:
        field, reason = first_mistake(error)
        raise UserError(
            f"{path} is no COCO captions file ({field} {reason}): give captions_val2017.json."
        ) from None
    captions: dict[str, list[str]] = {str(image.id): [] for image in data.images}
    if len(captions) < len(data.images):
        raise UserError(f"{path} has two images of one id: give each image its own.")
    for annotation in data.annotations:
        if text := clean(annotation.caption):
            captions.setdefault(str(annotation.image_id), []).append(text)
    for image in data.images:
        name = str(image.id)
        text = _one_of(captions[name], name, seed, caption)
        yield Prompt(name, text, image=formats.file_name(image.file_name))


def _one_of(texts: list[str], image: str, seed: int, caption: Caption) -> str:
    """Return the chosen caption of an image; "" if it has none."""
    if not texts or caption == "longest":
        return max(texts, key=len, default="")
    if caption == "first":
        return texts[0]
    return texts[rank(seed, "caption", image) % len(texts)]


@register("prompts", "demo")
class Demo(PromptSource):
    """128 captions in the words that the toy model knows; the first few cover many of these."""

    in_order = True

    def read(self, path: None, seed: int, caption: Caption) -> Iterator[Prompt]:
        file = shipped("prompts", "demo.txt")
        for number, fields in formats.filled_lines(read_text(file), file):
            yield Prompt(f"demo-{number:02d}", clean(fields["prompt"]))


@register("prompts", "dpg")
class Dpg(PromptSource):
    """DPG-Bench's 1,065 dense prompts (arXiv 2403.05135): its table, folder of texts, or .jsonl;
    ids are its own.
    """

    official = Official(
        "dpg_bench.csv", f"{_GITHUB}/TencentQQGYLab/ELLA/main/dpg_bench/dpg_bench.csv"
    )

    def locate(self, name: str, place: str | None) -> Path | None:
        folder = Path(place or "").expanduser()
        if place and any(folder.glob("*.txt")):
            return folder
        return super().locate(name, place)

    def read(self, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
        if path.is_dir():
            for file in sorted(path.glob("*.txt")):
                yield Prompt(file.stem, clean(read_text(file)))
        # a row for every question, with the prompt's id and text in each
        elif path.suffix.lower() == ".csv":
            texts: dict[str, str] = {}
            for _, row in formats.comma_separated(read_text(path), path):
                if not {"item_id", "text"} <= set(row):
                    raise UserError(
                        f"{path} has no columns item_id and text: give DPG-Bench's own "
                        "dpg_bench.csv."
                    )
                if text := clean(row["text"]):
                    texts.setdefault(clean(row["item_id"]), text)
            for name, text in texts.items():
                yield Prompt(name, text)
        else:
            yield from prompts_of(json_lines(read_text(path), path), path)


@register("prompts", "geneval")
class GenEvalPrompts(PromptSource):
    """GenEval's 553 prompts (arXiv 2310.11513); ids are the lines' numbers, as for its scorer,
    tasks the categories.
    """

    official = Official(
        "geneval_metadata.jsonl",
        f"{_GENEVAL}/prompts/evaluation_metadata.jsonl",
        "5c48e0813e812e3c373fa5c8ed07a8f0a483be30272b4427b0559c8048e67c13",
    )

    def read(self, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
        for number, line in enumerate(geneval_metadata(path)):
            yield Prompt(f"{number:05d}", line.prompt, category=line.tag)


class Requirement(BaseModel):
    """Objects that a GenEval prompt asks for."""

    name: str = Field(alias="class")
    count: int = Field(ge=1)
    color: str | None = None
    position: tuple[str, NonNegativeInt] | None = None  # to which earlier requirement


class GenEvalLine(BaseModel, extra="allow"):
    """A line of GenEval's metadata: a prompt, its task, and what its images must show."""

    prompt: str
    tag: str = Field(min_length=1)
    include: list[Requirement]
    exclude: list[Requirement] = []

    @model_validator(mode="after")
    def positions_name_earlier_requirements(self) -> Self:
        for place, wanted in enumerate(self.include):
            if wanted.position and wanted.position[1] >= place:
                raise ValueError("a position does not name an earlier object")
        return self


def geneval_metadata(path: Path) -> list[GenEvalLine]:
    """Return the lines of a file of GenEval's metadata.  Raises UserError if it is another."""
    lines: dict[str, GenEvalLine] = {}
    for number, text in formats.numbered_lines(read_text(path)):
        if not text.strip():
            continue
        try:
            line = GenEvalLine.model_validate(formats.parsed(text, path, number))
        except ValidationError as error:
            fault = cause(error)
            raise UserError(
                f"{path} line {number} is none of GenEval's metadata ({fault}): give prompt, tag "
                "and include as the official file has them."
            ) from None
        if lines.setdefault(line.prompt, line) is not line:
            raise UserError(
                f"{path} line {number} repeats the prompt '{line.prompt[:60]}': an image is judged "
                "by its prompt, so word them differently."
            )
    return list(lines.values())


@register("prompts", "imagenet")
class ImageNet(PromptSource):
    """The class numbers 0…999 of ILSVRC 2012, as class-conditional targets read them; names are
    categories.
    """

    def read(self, path: None, seed: int, caption: Caption) -> Iterator[Prompt]:
        from open_clip import IMAGENET_CLASSNAMES

        for number, name in enumerate(IMAGENET_CLASSNAMES):
            yield Prompt(str(number), str(number), category=name)


@register("prompts", "parti")
class Parti(PromptSource):
    """PartiPrompts (arXiv 2206.10789): 1,632 with category and challenge; the line number is the
    id.
    """

    official = Official(
        "PartiPrompts.tsv",
        f"{_GITHUB}/google-research/parti/main/PartiPrompts.tsv",
        "fab29e41bb512a169b56acab4cf2a41dcb675e285df2efcde6640c7dd3c440eb",
    )

    def read(self, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
        return prompts_of(formats.tab_separated(read_text(path), path), path)
