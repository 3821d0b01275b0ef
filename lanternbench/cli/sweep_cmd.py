"""``sweep``: measure every method of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lanternbench.cli.measuring import execute, show, show_plan
from lanternbench.cli.options import (
    AsJson,
    Compile,
    Device,
    Drafter,
    DryRun,
    Dtype,
    Executor,
    Fresh,
    NumPrompts,
    Out,
    RandomWeights,
    RayAddress,
    Repeats,
    Simulate,
    Threads,
    TimeBudget,
    Workers,
    in_range,
)
from lanternbench.cli.output import print_json, record


def sweep(
    file: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="A sweep file such as configs/demo.yaml.")],
    prompts: Annotated[str | None, typer.Option(help="In place of the file's.")] = None,
    num_prompts: NumPrompts = None,
    seed: Annotated[int | None, typer.Option(callback=in_range, help="In place of the file's.")] = None,
    repeats: Repeats = None,
    temperature: Annotated[float | None, typer.Option(help="In place of the file's.")] = None,
    target: Annotated[str | None, typer.Option(help="In place of the file's.")] = None,
    drafter: Drafter = None,
    dtype: Dtype = None,
    compile_mode: Compile = None,
    random_weights: RandomWeights = False,
    simulate_acceptance: Simulate = None,
    device: Device = "auto",
    threads: Threads = None,
    executor: Executor = "local",
    workers: Workers = None,
    ray_address: RayAddress = None,
    time_budget: TimeBudget = None,
    out: Out = Path("results"),
    fresh: Fresh = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure every method of a sweep file, interleaved prompt by prompt; continues where it stopped.

    A list as target, seed, temperature, top_k or guidance makes a run of every combination.

    Example: lanternbench sweep configs/tradeoff.yaml
    """
    from lanternbench.experiment import sweep_file

    given = dict(
        prompts=prompts, seed=seed, temperature=temperature, target=target, drafter=drafter, dtype=dtype,
        compile=compile_mode, repeats=repeats,
    )  # fmt: skip
    changed: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    if random_weights:
        changed["random_weights"] = True
    if simulate_acceptance is not None:
        changed["simulate_acceptance"] = simulate_acceptance
    if num_prompts is not None:
        changed["num_prompts"] = num_prompts
    runs = sweep_file.read(file, changed)
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
