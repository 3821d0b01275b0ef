"""Load and select the prompts that ``--prompts`` names."""

from pathlib import Path
from typing import get_args

from lanternbench.errors import UserError
from lanternbench.prompts import formats
from lanternbench.prompts.prompt_set import Prompt, PromptSet, select, unique
from lanternbench.prompts.sources import Caption, coco_prompts
from lanternbench.registry import components, plugin_errors
from lanternbench.utils.text import one_line


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
    every, source, dataset, in_order = _read(spec.strip(), seed, caption)
    prompts, notes = unique(every)
    if not prompts:
        raise UserError(f"{source} has no prompts: give a file with a caption a line or in a column called prompt.")
    if count is not None and count > len(prompts):
        raise UserError(
            f"{source} has {len(prompts)} prompts but {one_line(str(count), 20)} were asked for: lower --num-prompts."
        )
    chosen = prompts[:count] if in_order else select(prompts, count, seed)
    return PromptSet(tuple(chosen), source, dataset, seed, tuple(notes))


def _read(spec: str, seed: int, caption: Caption) -> tuple[list[Prompt], str, str, bool]:
    """(all prompts, what ``run.json`` calls their source, data set, whether a count takes the first ones)."""
    name, colon, where = spec.partition(":")
    known = components("prompts")
    if name in known:
        source = known[name]()
        path = source.locate(name, where if colon else None)
        with plugin_errors(source):
            prompts = list(source.read(path, seed, caption))
        title = f"{name}:{path.name}" if path else name  # no folder: it may name a person
        return prompts, title, name, source.in_order
    path = Path(spec).expanduser()
    if (suffix := path.suffix.lower()) not in formats.READERS:
        endings = ", ".join(formats.READERS)
        raise UserError(f"there are no prompts {spec!r}: use {', '.join(known)}, or the path of a {endings} file.")
    text = formats.read_text(path)
    if suffix == ".json" and isinstance(value := formats.parsed(text, path), dict) and "annotations" in value:
        prompts = list(coco_prompts(value, path, seed, caption))
    else:
        prompts = list(formats.prompts_of(formats.READERS[suffix](text, path), path))
    return prompts, path.name, path.name, False
