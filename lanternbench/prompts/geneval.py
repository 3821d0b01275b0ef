"""``geneval``: the 553 prompts of GenEval (arXiv 2310.11513), each with the objects that it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lanternbench.errors import UserError
from lanternbench.prompts.formats import json_lines, read_text
from lanternbench.prompts.prompt_set import Prompt
from lanternbench.prompts.source import Caption, Official, PromptSource
from lanternbench.registry import register

REPOSITORY = "https://raw.githubusercontent.com/djghosh13/geneval/af4902f24d3ca90ebbb446dd9891a59e0f82725f"
OFFICIAL = Official("geneval_metadata.jsonl", f"{REPOSITORY}/prompts/evaluation_metadata.jsonl")


def read_metadata(path: Path) -> list[dict[str, Any]]:
    """The lines of the official file.  Raises UserError when it is another."""
    lines = [dict(fields) for _, fields in json_lines(read_text(path), path)]
    for line in lines:
        if not (isinstance(line.get("prompt"), str) and isinstance(line.get("include"), list) and line.get("tag")):
            raise UserError(f"{path} has an entry without prompt, include or tag: give GenEval's own metadata.")
    return lines


@register("prompts", "geneval")
class GenEval(PromptSource):
    """The official metadata; the id is the number of the line, as the official scorer numbers its folders."""

    official = OFFICIAL

    def read(self, path: Path | None, seed: int, caption: Caption) -> Iterator[Prompt]:
        """The task is the category."""
        assert path is not None
        for number, line in enumerate(read_metadata(path)):
            yield Prompt(f"{number:05d}", line["prompt"], category=line["tag"])
