"""The sources of prompts, registered under the name that ``--prompts`` takes, and how their
prompts are selected.

A selection is a pure function of (file, seed, count): the best ``count`` ranks, from SHA-256 of
seed and id, in file order.  So a larger count keeps every prompt of a smaller one, whatever the
versions of libraries.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, get_args

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError, model_validator

from lanternbench.errors import UserError, first_mistake
from lanternbench.prompts import formats
from lanternbench.prompts.formats import Rows, clean, json_lines, read_text
from lanternbench.registry import components, plugin_errors, register
from lanternbench.settings import Caption
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


@dataclass(frozen=True)
class PromptSet:
    """The selected prompts and where they come from; ``notes`` are for readers of the results."""

    prompts: tuple[Prompt, ...]
    source: str
    dataset: str
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        return prompts_hash(self.prompts)

    def record(self) -> dict[str, Any]:
        """What ``run.json`` keeps of the selection."""
        facts = {
            "source": self.source,
            "dataset": self.dataset,
            "count": len(self.prompts),
            "seed": self.seed,
        }
        return facts | {"hash": self.hash, "notes": list(self.notes)}

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)


def prompts_hash(prompts: Iterable[Prompt]) -> str:
    """SHA-256 (hex) over the ids and texts of prompts, in order."""
    return hashlib.sha256(
        json.dumps([[prompt.id, prompt.text] for prompt in prompts]).encode()
    ).hexdigest()


def rank(seed: int, *names: str) -> int:
    """A number below 2⁶⁴, as good as random."""
    return int.from_bytes(
        hashlib.sha256("\0".join([str(seed), *names]).encode()).digest()[:8], "big"
    )


def unique(prompts: list[Prompt]) -> tuple[list[Prompt], list[str]]:
    """Prompts with distinct ids (a suffix -2, -3, … where needed), and a note of how many were
    not.
    """
    # the key of a sample is id|method|seed
    prompts = [prompt._replace(id=prompt.id.replace("|", "_")) for prompt in prompts]
    ids, repeated = {prompt.id for prompt in prompts}, 0
    result: dict[str, Prompt] = {}
    for prompt in prompts:
        name, number = prompt.id, 1
        while name in result or (number > 1 and name in ids):
            number += 1
            name = f"{prompt.id}-{number}"
        repeated += number > 1
        result[name] = prompt._replace(id=name)
    notes = (
        [f"{repeated} prompts with a repeated id got a suffix (-2, -3, …)."] if repeated else []
    )
    return list(result.values()), notes


def captions_for(labels: bool, count: int) -> list[str]:
    """Our own captions; with ``labels``, class names for a class-conditional target."""
    return [prompt.text for prompt in load("imagenet" if labels else "demo", count)]


def load(
    spec: str, count: int | None = None, seed: int = 0, caption: Caption = "first"
) -> PromptSet:
    """Read and select prompts.

    spec: the name of a registered source (``demo``, ``coco2017``, …), with ``:PATH`` of its
    official file or, without, from the cache folder; or a path to .txt, .csv, .tsv, .json or
    .jsonl with a column called prompt, text or caption. count: how many (None: all); ``demo``
    gives its first ones, every other source a seeded choice. caption: which of the captions of a
    COCO image. Raises UserError for an unknown source, a file that is missing, empty or malformed,
    and a count that the source cannot give.
    """
    if caption not in get_args(Caption):
        raise UserError(
            f"there is no caption choice {caption!r}: use {', '.join(get_args(Caption))}."
        )
    if count is not None and count < 1:
        raise UserError(f"cannot select {count} prompts: give --num-prompts of 1 or more.")
    name, colon, where = spec.strip().partition(":")
    known, in_order = components("prompts"), False
    if name in known:
        source = known[name]()
        path, in_order = source.locate(name, where if colon else None), source.in_order
        with plugin_errors(source):
            read = list(source.read(path, seed, caption))
        title = f"{name}:{path.name}" if path else name  # no folder: it may name a person
    else:
        path = Path(spec.strip()).expanduser()
        if path.suffix.lower() not in formats.READERS:
            text = f"use {', '.join(known)}, or the path of a {', '.join(formats.READERS)} file."
            raise UserError(f"there are no prompts {spec.strip()!r}: {text}")
        read, title, name = list(_of_file(path, seed, caption)), path.name, path.name
    prompts, notes = unique(read)
    if not prompts:
        raise UserError(
            f"{title} has no prompts: give a file with a caption a line or in a column called prompt."
        )
    if count is not None and count > len(prompts):
        asked = one_line(str(count), 20)
        raise UserError(
            f"{title} has {len(prompts)} prompts but {asked} were asked for: lower --num-prompts."
        )
    every = range(len(prompts))
    best = (
        every
        if in_order
        else sorted(every, key=lambda i: (rank(seed, "prompt", prompts[i].id), i))
    )
    return PromptSet(
        tuple(prompts[i] for i in sorted(best[:count])), title, name, seed, tuple(notes)
    )


def _of_file(path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
    text, suffix = read_text(path), path.suffix.lower()
    if (
        suffix == ".json"
        and isinstance(value := formats.parsed(text, path), dict)
        and "annotations" in value
    ):
        return _coco_prompts(value, path, seed, caption)
    return prompts_of(formats.READERS[suffix](text, path), path)


def prompts_of(rows: Rows, path: Path) -> Iterator[Prompt]:
    """The prompts of the rows of a file, without blank ones."""
    for number, fields in rows:
        column = next((name for name in ("prompt", "text", "caption") if name in fields), None)
        if column is None:
            names = ", ".join(repr(str(name)) for name in list(fields)[:8] if name) or "none"
            fix = "rename one to prompt"
            raise UserError(
                f"{path} has no column called prompt, text or caption (it has {names}): {fix}."
            )
        if fields[column] is not None and not isinstance(fields[column], str):
            raise UserError(
                f"{path} entry {number} has a {column} that is no text: put it in quotes."
            )
        if text := clean(fields[column]):
            name = _first(fields, "id", "prompt_id", "image_id") or str(number)
            image = formats.file_name(_first(fields, "image", "file_name"))
            yield Prompt(
                name, text, _first(fields, "category"), _first(fields, "challenge"), image
            )


def _first(fields: Mapping[str, Any], *names: str) -> str | None:
    """The first of these fields that is not blank."""
    return next((text for name in names if (text := clean(fields.get(name)))), None)


class Official(NamedTuple):
    """A published prompt file, and where ``lanternbench fetch NAME`` gets it."""

    file: str
    url: str
    sha256: str = ""  # of the file; nothing where none is published
    member: str | None = None  # of a zip archive
    gigabytes: float = 0.0  # about; 0: next to nothing


class PromptSource:
    """Base of all sources.  A subclass implements ``read`` and sets the attributes that differ
    from these.
    """

    official: ClassVar[Official | None] = None  # None: the prompts come with the source
    in_order: ClassVar[bool] = False  # a smaller number means the first ones, not a seeded choice

    def read(self, path: Any, seed: int, caption: Caption) -> Iterable[Prompt]:
        """Every prompt, in the order of the file; those without text left out.

        path: the official file; None for a source without one.  caption: which of several captions
        of an image, a random one by ``seed``.  Raises UserError for a file that is missing or
        malformed.
        """
        raise NotImplementedError

    def locate(self, name: str, where: str | None) -> Path | None:
        """The official file: at ``where`` (it or its folder), else in the cache.  Raises UserError
        where it is not.
        """
        if self.official is None:
            if where is not None:
                raise UserError(
                    f"the prompts '{name}' come without a file: write --prompts {name}."
                )
            return None
        file, example = self.official.file, f"`--prompts {name}:PATH/{self.official.file}`"
        if where is None:
            path = cache_dir() / "prompts" / file
            if not path.is_file():
                text = f"the prompts of {name} are not at {path}: get them with `lanternbench fetch {name}`"
                raise UserError(f"{text}, or give their official file, {example}.")
            return path
        folder = Path(where).expanduser()
        path = next(
            (p for p in (folder / file, folder / "annotations" / file) if p.is_file()), folder
        )
        if path.is_dir() or not where:
            raise UserError(
                f"{file} is not in {where or 'the empty path'}: give the file, {example}."
            )
        return path


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


def _coco_prompts(data: Any, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
    """One prompt per image of a parsed captions file, in its order of images.  Raises UserError
    for another file.
    """
    captions: dict[Any, list[str]] = {}
    try:
        images = [(image["id"], str(image.get("file_name") or "")) for image in data["images"]]
        for annotation in data["annotations"]:
            captions.setdefault(annotation["image_id"], []).append(clean(annotation["caption"]))
    except (KeyError, TypeError, AttributeError):
        wanted = "images[].id and annotations[].image_id, caption"
        raise UserError(
            f"{path} is no COCO captions file ({wanted}): give captions_val2017.json."
        ) from None
    for number, image in images:
        if texts := [text for text in captions.get(number, []) if text]:
            longest, chance = (
                max(texts, key=len),
                texts[rank(seed, "caption", str(number)) % len(texts)],
            )
            text = {"first": texts[0], "longest": longest, "random": chance}[caption]
            yield Prompt(str(number), text, image=formats.file_name(image))


@register("prompts", "demo")
class Demo(PromptSource):
    """128 captions in the words that the embedded model knows; any of their prefixes covers many
    of these.
    """

    in_order = True

    def read(self, path: None, seed: int, caption: Caption) -> Iterator[Prompt]:
        for number, line in formats.numbered_lines(read_text(shipped("prompts", "demo.txt"))):
            if line.strip():
                yield Prompt(f"demo-{number:02d}", line.strip())


@register("prompts", "dpg")
class Dpg(PromptSource):
    """DPG-Bench's 1,065 dense prompts (arXiv 2403.05135): its table, folder of texts, or .jsonl;
    ids are its own.
    """

    official = Official(
        "dpg_bench.csv", f"{_GITHUB}/TencentQQGYLab/ELLA/main/dpg_bench/dpg_bench.csv"
    )

    def locate(self, name: str, where: str | None) -> Path | None:
        folder = Path(where or "").expanduser()
        return folder if where and any(folder.glob("*.txt")) else super().locate(name, where)

    def read(self, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
        if path.is_dir():
            for file in sorted(path.glob("*.txt")):
                yield Prompt(file.stem, clean(read_text(file)))
        # a row for every question, with the prompt's id and text in each
        elif path.suffix.lower() == ".csv":
            texts: dict[str, str] = {}
            for number, row in formats.comma_separated(read_text(path), path):
                if not {"item_id", "text"} <= set(row):
                    raise UserError(
                        f"{path} has no columns item_id and text: give DPG-Bench's own dpg_bench.csv."
                    )
                if number and (text := clean(row["text"])):
                    texts.setdefault(clean(row["item_id"]), text)
            yield from (Prompt(name, text) for name, text in texts.items())
        else:
            yield from prompts_of(json_lines(read_text(path), path), path)


@register("prompts", "geneval")
class GenEvalPrompts(PromptSource):
    """GenEval's 553 prompts (arXiv 2310.11513); ids are the lines' numbers, as for its scorer,
    tasks the categories.
    """

    official = Official("geneval_metadata.jsonl", f"{_GENEVAL}/prompts/evaluation_metadata.jsonl")

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
    lines = []
    for number, text in formats.numbered_lines(read_text(path)):
        if text.strip():
            try:
                lines.append(GenEvalLine.model_validate(formats.parsed(text, path, number)))
            except ValidationError as error:
                raise UserError(
                    f"{path} line {number} is none of GenEval's metadata ({' '.join(first_mistake(error))}): "
                    "give prompt, tag and include as the official file has them."
                ) from None
    return lines


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
