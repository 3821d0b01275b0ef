"""The sources of prompts, registered under the name that ``--prompts`` takes, and how their prompts are selected."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from lanternbench.errors import UserError
from lanternbench.prompts import formats
from lanternbench.prompts.formats import clean, json_lines, prompts_of, read_text
from lanternbench.prompts.prompt_set import Prompt, PromptSet, rank, select, unique
from lanternbench.registry import components, plugin_errors, register
from lanternbench.utils.files import cache_dir, shipped
from lanternbench.utils.text import one_line

Caption = Literal["first", "longest", "random"]
_COCO = "http://images.cocodataset.org/annotations"
_GENEVAL = "https://raw.githubusercontent.com/djghosh13/geneval/af4902f24d3ca90ebbb446dd9891a59e0f82725f"


def captions_for(labels: bool, count: int) -> list[str]:
    """Our own captions; with ``labels``, class names for a class-conditional target."""
    return [prompt.text for prompt in load("imagenet" if labels else "demo", count)]


def load(spec: str, count: int | None = None, seed: int = 0, caption: Caption = "first") -> PromptSet:
    """Read and select prompts.

    spec: the name of a registered source (``demo``, ``coco2017``, …), with ``:PATH`` of its official file or, without,
    from the cache folder; or a path to .txt, .csv, .tsv, .json or .jsonl with a column called prompt, text or caption.
    count: how many (None: all); ``demo`` gives its first ones, every other source a seeded choice. caption: which of
    the captions of a COCO image. Raises UserError for an unknown source, a file that is missing, empty or malformed,
    and a count that the source cannot give.
    """
    if caption not in get_args(Caption):
        raise UserError(f"there is no caption choice {caption!r}: use {', '.join(get_args(Caption))}.")
    if count is not None and count < 1:
        raise UserError(f"cannot select {count} prompts: give --num-prompts of 1 or more.")
    name, colon, where = spec.strip().partition(":")
    known, in_order = components("prompts"), False
    if name in known:
        source = known[name]()
        path, in_order = source.locate(name, where if colon else None), source.in_order
        with plugin_errors(source):
            every = list(source.read(path, seed, caption))
        title = f"{name}:{path.name}" if path else name  # no folder: it may name a person
    else:
        path = Path(spec.strip()).expanduser()
        if path.suffix.lower() not in formats.READERS:
            endings = ", ".join(formats.READERS)
            text = f"use {', '.join(known)}, or the path of a {endings} file."
            raise UserError(f"there are no prompts {spec.strip()!r}: {text}")
        every, title, name = list(_of_file(path, seed, caption)), path.name, path.name
    prompts, notes = unique(every)
    if not prompts:
        raise UserError(f"{title} has no prompts: give a file with a caption a line or in a column called prompt.")
    if count is not None and count > len(prompts):
        asked = one_line(str(count), 20)
        raise UserError(f"{title} has {len(prompts)} prompts but {asked} were asked for: lower --num-prompts.")
    chosen = prompts[:count] if in_order else select(prompts, count, seed)
    return PromptSet(tuple(chosen), title, name, seed, tuple(notes))


def _of_file(path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
    """The prompts of a user's file."""
    text, suffix = read_text(path), path.suffix.lower()
    if suffix == ".json" and isinstance(value := formats.parsed(text, path), dict) and "annotations" in value:
        return _coco_prompts(value, path, seed, caption)
    return prompts_of(formats.READERS[suffix](text, path), path)


class Official(NamedTuple):
    """A published prompt file, and where ``lanternbench fetch NAME`` gets it."""

    file: str
    url: str
    sha256: str = ""  # of the file; nothing where none is published
    member: str | None = None  # of a zip archive
    gigabytes: float = 0.0  # about; 0: next to nothing


class PromptSource:
    """Base of all sources.  A subclass implements ``read`` and sets the attributes that differ from these."""

    official: ClassVar[Official | None] = None  # None: the prompts come with the source
    in_order: ClassVar[bool] = False  # a smaller number means the first ones, not a seeded choice

    def read(self, path: Any, seed: int, caption: Caption) -> Iterable[Prompt]:
        """Every prompt, in the order of the file; those without text left out.

        path: the official file; None for a source without one.  caption: which of several captions of an image, a
        random one by ``seed``.  Raises UserError for a file that is missing or malformed.
        """
        raise NotImplementedError

    def locate(self, name: str, where: str | None) -> Path | None:
        """The official file: at ``where`` (it or its folder), else in the cache.  Raises UserError where it is not."""
        if self.official is None:
            if where is not None:
                raise UserError(f"the prompts '{name}' come without a file: write --prompts {name}.")
            return None
        file, example = self.official.file, f"`--prompts {name}:PATH/{self.official.file}`"
        if where is None:
            path = cache_dir() / "prompts" / file
            if not path.is_file():
                raise UserError(
                    f"the prompts of {name} are not at {path}: get them with `lanternbench fetch {name}`, "
                    f"or give their official file, {example}."
                )
            return path
        folder = Path(where).expanduser()
        path = next((p for p in (folder / file, folder / "annotations" / file) if p.is_file()), folder)
        if path.is_dir() or not where:
            raise UserError(f"{file} is not in {where or 'the empty path'}: give the file, {example}.")
        return path


def _coco(year: int, sha256: str = "") -> Official:
    file = f"captions_val{year}.json"
    return Official(file, f"{_COCO}/annotations_trainval{year}.zip", sha256, f"annotations/{file}", gigabytes=0.25)


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
    """One prompt per image of a parsed captions file, in its order of images.  Raises UserError for another file."""
    captions: dict[Any, list[str]] = {}
    try:
        images = [(image["id"], str(image.get("file_name") or "")) for image in data["images"]]
        for annotation in data["annotations"]:
            captions.setdefault(annotation["image_id"], []).append(clean(annotation["caption"]))
    except (KeyError, TypeError, AttributeError):
        wanted = "images[].id and annotations[].image_id, caption"
        raise UserError(f"{path} is no COCO captions file ({wanted}): give captions_val2017.json.") from None
    for number, image in images:
        if texts := [text for text in captions.get(number, []) if text]:
            longest, chance = max(texts, key=len), texts[rank(seed, "caption", str(number)) % len(texts)]
            text = {"first": texts[0], "longest": longest, "random": chance}[caption]
            yield Prompt(str(number), text, image=formats.file_name(image))


@register("prompts", "demo")
class Demo(PromptSource):
    """128 captions in the words that the embedded model knows; any of their prefixes covers many of these."""

    in_order = True

    def read(self, path: None, seed: int, caption: Caption) -> Iterator[Prompt]:
        for number, line in formats.numbered_lines(read_text(shipped("prompts", "demo.txt"))):
            if line.strip():
                yield Prompt(f"demo-{number:02d}", line.strip())


@register("prompts", "dpg")
class Dpg(PromptSource):
    """DPG-Bench's 1,065 dense prompts (arXiv 2403.05135): its table, folder of texts, or .jsonl; ids are its own."""

    official = Official(
        "dpg_bench.csv", "https://raw.githubusercontent.com/TencentQQGYLab/ELLA/main/dpg_bench/dpg_bench.csv"
    )

    def locate(self, name: str, where: str | None) -> Path | None:
        """As for every source; also a folder of text files."""
        folder = Path(where or "").expanduser()
        return folder if where and any(folder.glob("*.txt")) else super().locate(name, where)

    def read(self, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
        if path.is_dir():
            for file in sorted(path.glob("*.txt")):
                yield Prompt(file.stem, clean(read_text(file)))
        elif path.suffix.lower() == ".csv":  # a row for every question, with the prompt's id and text in each
            texts: dict[str, str] = {}
            for number, row in formats.comma_separated(read_text(path), path):
                if not {"item_id", "text"} <= set(row):
                    raise UserError(f"{path} has no columns item_id and text: give DPG-Bench's own dpg_bench.csv.")
                if number and (text := clean(row["text"])):
                    texts.setdefault(clean(row["item_id"]), text)
            yield from (Prompt(name, text) for name, text in texts.items())
        else:
            yield from prompts_of(json_lines(read_text(path), path), path)


@register("prompts", "geneval")
class GenEvalPrompts(PromptSource):
    """GenEval's 553 prompts (arXiv 2310.11513); ids are the lines' numbers, as for its scorer, tasks the categories."""

    official = Official("geneval_metadata.jsonl", f"{_GENEVAL}/prompts/evaluation_metadata.jsonl")

    def read(self, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
        for number, line in enumerate(geneval_metadata(path)):
            yield Prompt(f"{number:05d}", line["prompt"], category=line["tag"])


def geneval_metadata(path: Path) -> list[dict[str, Any]]:
    """The lines of GenEval's official file.  Raises UserError when it is another."""
    lines = [dict(fields) for _, fields in json_lines(read_text(path), path)]
    for line in lines:
        if not (isinstance(line.get("prompt"), str) and isinstance(line.get("include"), list) and line.get("tag")):
            raise UserError(f"{path} has an entry without prompt, include or tag: give GenEval's own metadata.")
    return lines


@register("prompts", "imagenet")
class ImageNet(PromptSource):
    """The class numbers 0…999 of ILSVRC 2012, as class-conditional targets read them; names are categories."""

    def read(self, path: None, seed: int, caption: Caption) -> Iterator[Prompt]:
        from open_clip import IMAGENET_CLASSNAMES

        for number, name in enumerate(IMAGENET_CLASSNAMES):
            yield Prompt(str(number), str(number), category=name)


@register("prompts", "parti")
class Parti(PromptSource):
    """PartiPrompts (arXiv 2206.10789): 1,632 with category and challenge; the line number is the id."""

    official = Official(
        "PartiPrompts.tsv",
        "https://raw.githubusercontent.com/google-research/parti/main/PartiPrompts.tsv",
        "fab29e41bb512a169b56acab4cf2a41dcb675e285df2efcde6640c7dd3c440eb",
    )

    def read(self, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
        return prompts_of(formats.tab_separated(read_text(path), path), path)
