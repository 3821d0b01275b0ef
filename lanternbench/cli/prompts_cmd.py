"""``prompts``: what a prompt source gives."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lanternbench.cli import options
from lanternbench.cli.fields import Takes
from lanternbench.cli.output import print_json, print_notes, print_rows


def prompts(
    settings: Annotated[dict[str, Any], Takes("seed caption")],
    spec: Annotated[str, typer.Argument(help="demo, coco2017:FILE, parti:FILE, or a text file.")] = "demo",
    num_prompts: Annotated[int, typer.Option("--num-prompts", "-n", help="How many; 0 for all.")] = 8,
    as_json: options.AsRows = False,
) -> None:
    """Preview and validate a prompt source; prints the hash that identifies the selection.

    Example: lanternbench prompts demo -n 4
    """
    from lanternbench import prompts as sets
    from lanternbench.experiment.config import Decoding, checked

    seed = checked(Decoding, {"seed": settings["seed"]}).seed
    selected = sets.load(spec, num_prompts or None, seed, settings["caption"])
    rows = [{"id": p.id, "category": p.category or "", "prompt": p.text} for p in selected]
    if as_json:
        print_json(selected.record() | {"prompts": rows})
        return
    print_rows(rows, False, "id category prompt")
    print_notes(selected.notes)
    print(f"{len(selected)} prompts, selection {selected.hash[:16]}")
