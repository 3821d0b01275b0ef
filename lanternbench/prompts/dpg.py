"""``dpg``: the 1,065 dense prompts of DPG-Bench (arXiv 2403.05135)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lanternbench.errors import UserError
from lanternbench.prompts.formats import clean, comma_separated, json_lines, prompts_of, read_text
from lanternbench.prompts.prompt_set import Prompt
from lanternbench.prompts.source import Caption, Official, PromptSource
from lanternbench.registry import register


@register("prompts", "dpg")
class Dpg(PromptSource):
    """The official table, the official folder of text files, or a list of them as .jsonl with id and prompt."""

    official = Official(
        "dpg_bench.csv", "https://raw.githubusercontent.com/TencentQQGYLab/ELLA/main/dpg_bench/dpg_bench.csv"
    )

    def locate(self, name: str, where: str | None) -> Path | None:
        """As for every source; also a folder of text files."""
        folder = Path(where or "").expanduser()
        return folder if where and any(folder.glob("*.txt")) else super().locate(name, where)

    def read(self, path: Path | None, seed: int, caption: Caption) -> Iterator[Prompt]:
        """The id is the official one: the scorer finds the questions of an image by it."""
        assert path is not None
        if path.is_dir():
            for file in sorted(path.glob("*.txt")):
                yield Prompt(file.stem, clean(read_text(file)))
        elif path.suffix.lower() == ".csv":
            yield from _of_table(path)
        else:
            yield from prompts_of(json_lines(read_text(path), path), path)


def _of_table(path: Path) -> Iterator[Prompt]:
    """The table has a row for every question, with the prompt's id and text in each."""
    seen = set()
    for number, row in comma_separated(read_text(path), path):
        if not {"item_id", "text"} <= set(row):
            raise UserError(f"{path} has no columns item_id and text: give DPG-Bench's own dpg_bench.csv.")
        name, text = clean(row["item_id"]), clean(row["text"])
        if number and text and name not in seen:
            seen.add(name)
            yield Prompt(name, text)
