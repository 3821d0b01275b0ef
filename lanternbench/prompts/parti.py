"""``parti``: PartiPrompts (arXiv 2206.10789), 1,632 prompts with category and challenge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lanternbench.prompts.formats import prompts_of, read_text, tab_separated
from lanternbench.prompts.prompt_set import Prompt
from lanternbench.prompts.source import Caption, Official, PromptSource
from lanternbench.registry import register


@register("prompts", "parti")
class Parti(PromptSource):
    """The official tab-separated file."""

    official = Official(
        "PartiPrompts.tsv",
        "https://raw.githubusercontent.com/google-research/parti/main/PartiPrompts.tsv",
        "fab29e41bb512a169b56acab4cf2a41dcb675e285df2efcde6640c7dd3c440eb",
    )

    def read(self, path: Path | None, seed: int, caption: Caption) -> Iterator[Prompt]:
        """A prompt a line, its line number as id."""
        assert path is not None
        return prompts_of(tab_separated(read_text(path), path), path)
