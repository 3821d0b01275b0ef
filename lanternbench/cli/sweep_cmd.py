"""``sweep``: measure every method of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from lanternbench.cli import options
from lanternbench.cli.fields import Takes
from lanternbench.cli.measuring import Execution, execute, show, show_plan
from lanternbench.cli.output import print_json, record


def sweep(
    file: Annotated[Path, Argument(metavar="CONFIG.yaml", help="A sweep file such as configs/demo.yaml.")],
    settings: Annotated[
        dict[str, Any],
        Takes(
            "prompts num_prompts seed repeats temperature batch target drafter dtype compile random_weights "
            "simulate_acceptance until_told_apart name",
            defaults=False,  # those of the file
        ),
    ],
    where: Annotated[Execution, Takes("device threads executor workers ray_address time_budget out fresh")],
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure every method of a sweep file, interleaved prompt by prompt; continues where it stopped.

    What is given here is in place of the file's.

    --until-told-apart tests each method against ar after 11 to 16 prompts and three times after twice as many, with p
    corrected for four looks; it ends within --time-budget.

    A list as target, seed, temperature, top_k, guidance or batch makes a run of every combination.

    Example: lanternbench sweep configs/tradeoff.yaml
    """
    from lanternbench.experiment import sweep_file

    if "until_told_apart" in settings:
        settings.setdefault("num_prompts", 0)  # the file's number is no bound
    runs = sweep_file.read(file, settings)
    if dry_run:
        show_plan(runs, where, as_json)
        return
    finished = []
    for config in runs:
        finished.append(execute(config, where))
        if not as_json:
            show(*finished[-1], title=config.name if len(runs) > 1 else None)
    if as_json:
        records = [record(path, summary) for path, summary in finished]
        print_json(records[0] if len(records) == 1 else {"runs": records})
