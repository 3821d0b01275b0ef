"""``demo``: captions of this package, in the words that the embedded model knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lanternbench.prompts.formats import numbered_lines, read_text
from lanternbench.prompts.prompt_set import Prompt
from lanternbench.prompts.source import Caption, PromptSource
from lanternbench.registry import register
from lanternbench.utils.files import shipped


@register("prompts", "demo")
class Demo(PromptSource):
    """128 captions, of which a smaller number means the first ones: any of their prefixes covers many words."""

    in_order = True

    def read(self, path: Path | None, seed: int, caption: Caption) -> Iterator[Prompt]:
        """A caption a line."""
        for number, line in numbered_lines(read_text(shipped("prompts", "demo.txt"))):
            if line.strip():
                yield Prompt(f"demo-{number:02d}", line.strip())
