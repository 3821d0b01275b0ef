"""``sweep``: measure every method of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lanternbench.cli import options
from lanternbench.cli.measuring import execute, show, show_plan
from lanternbench.cli.output import print_json, record


def sweep(
    file: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="A sweep file such as configs/demo.yaml.")],
    prompts: Annotated[str | None, typer.Option(help="In place of the file's.")] = None,
    num_prompts: options.NumPrompts = None,
    seed: Annotated[int | None, typer.Option(callback=options.in_range, help="In place of the file's.")] = None,
    repeats: options.Repeats = None,
    temperature: Annotated[float | None, typer.Option(help="In place of the file's.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="In place of the file's.")] = None,
    target: Annotated[str | None, typer.Option(help="In place of the file's.")] = None,
    drafter: options.Drafter = None,
    dtype: options.Dtype = None,
    compile_mode: options.Compile = None,
    random_weights: options.RandomWeights = False,
    simulate_acceptance: options.Simulate = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    executor: options.Executor = "local",
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    time_budget: options.TimeBudget = None,
    until_told_apart: options.UntilToldApart = False,
    out: options.Out = Path("results"),
    name: options.RunName = None,
    fresh: options.Fresh = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure every method of a sweep file, interleaved prompt by prompt; continues where it stopped.

    --until-told-apart tests each method against ar after 11 to 16 prompts and three times after twice as many, with p
    corrected for four looks; it ends within --time-budget.

    A list as target, seed, temperature, top_k, guidance or batch makes a run of every combination.

    Example: lanternbench sweep configs/tradeoff.yaml
    """
    from lanternbench.experiment import sweep_file

    given = dict(
        prompts=prompts, seed=seed, temperature=temperature, batch=batch, target=target, drafter=drafter, dtype=dtype,
        compile=compile_mode, repeats=repeats, simulate_acceptance=simulate_acceptance, num_prompts=num_prompts,
        random_weights=random_weights or None, until_told_apart=until_told_apart or None, name=name,
    )  # fmt: skip
    if until_told_apart and num_prompts is None:
        given["num_prompts"] = 0  # the file's number is no bound
    runs = sweep_file.read(file, {k: v for k, v in given.items() if v is not None})
    if dry_run:
        show_plan(runs, device, threads, as_json)
        return
    found = []
    for config in runs:
        found.append(execute(config, device, threads, out, fresh, executor, workers, ray_address, time_budget))
        if not as_json:
            show(*found[-1], title=config.name if len(runs) > 1 else None)
    if as_json:
        records = [record(path, summary) for path, summary in found]
        print_json(records[0] if len(records) == 1 else {"runs": records})
