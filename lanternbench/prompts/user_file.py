"""The user's own prompt files: a caption a line, a table, or JSON; the ending of the name decides which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lanternbench.prompts import formats
from lanternbench.prompts.coco import coco_prompts
from lanternbench.prompts.formats import Rows
from lanternbench.prompts.prompt_set import Prompt
from lanternbench.prompts.source import Caption

READERS: dict[str, Callable[[str, Path], Rows]] = {
    ".txt": formats.lines,
    ".csv": formats.comma_separated,
    ".tsv": formats.tab_separated,
    ".json": formats.json_list,
    ".jsonl": formats.json_lines,
}


def prompts(path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
    """Every prompt of a file, blank ones left out; a .json with COCO's annotations is read as these.

    Raises UserError for a file that is missing, empty or malformed.
    """
    text, suffix = formats.read_text(path), path.suffix.lower()
    if suffix == ".json" and isinstance(value := formats.parsed(text, path), Mapping) and "annotations" in value:
        return coco_prompts(value, path, seed, caption)
    return formats.prompts_of(READERS[suffix](text, path), path)
