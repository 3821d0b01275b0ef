"""``prompts``: what a prompt source gives."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer
from rich.console import Console

from lanternbench.cli import options
from lanternbench.cli.output import print_json, print_notes, print_rows


def prompts(
    spec: Annotated[str, typer.Argument(help="demo, coco2017:FILE, parti:FILE, or a text file.")] = "demo",
    num_prompts: Annotated[int, typer.Option("--num-prompts", "-n", help="How many; 0 for all.")] = 8,
    seed: options.Seed = 0,
    caption: str = "first",
    as_json: options.AsRows = False,
) -> None:
    """Preview and validate a prompt source; prints the hash that identifies the selection.

    Example: lanternbench prompts demo -n 4
    """
    from lanternbench import prompts as sets

    chosen = sets.load(spec, num_prompts or None, seed, cast(Any, caption))
    rows = [{"id": p.id, "category": p.category or "", "prompt": p.text} for p in chosen]
    if as_json:
        print_json(chosen.record() | {"prompts": rows})
        return
    print_rows(rows, False, {"id": "id", "category": "category", "prompt": "prompt"})
    print_notes(chosen.notes, Console(stderr=True))
    print(f"{len(chosen)} prompts, selection {chosen.hash[:16]}")
