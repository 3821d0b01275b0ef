"""``doctor``: this machine, what is missing, and whether a drafter belongs to a target."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lanternbench.cli import options
from lanternbench.cli.output import print_rows
from lanternbench.cli.progress import display
from lanternbench.errors import UserError
from lanternbench.utils.device import choose


def doctor(
    target: Annotated[str | None, typer.Option(help="Check this target and its drafters by a short decode.")] = None,
    drafter: Annotated[str | None, typer.Option(help="With --target: this drafter in place of its own.")] = None,
    prompts: Annotated[str, typer.Option(help="What a check decodes: demo, or a text file.")] = "demo",
    random_weights: Annotated[bool, typer.Option(help="Check with random weights.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="Check this GPU: bandwidth, CUDA graphs, batches.")] = False,
    device: str = "auto",
    as_json: options.AsRows = False,
) -> None:
    """Show this machine, what is missing, and how to get it; check this GPU, or that a drafter belongs to a target.

    Example: lanternbench doctor --target llamagen-xl-stage1 --drafter my-drafter/
    """
    if gpu:
        _gpu(device, as_json)
        return
    if target is not None:
        _pair(target, drafter, prompts, random_weights, device, as_json)
        return
    if drafter is not None:
        raise UserError("--drafter is checked against a target: give --target too")
    from lanternbench.experiment.environment import environment
    from lanternbench.metrics import names, scorers_for
    from lanternbench.models.entries import catalogue, missing

    rows = [{"item": k, "value": v} for k, v in environment().items()]
    for name, entry in catalogue().items():
        absent = f"missing; `lanternbench fetch {name}` gets it ({entry.gigabytes:g} GB)"
        rows.append({"item": f"target {name}", "value": absent if missing(entry) else "here"})
    for name in names():
        (scorer,) = scorers_for([name], "full")
        rows.append({"item": f"metric {name}", "value": why.text if (why := scorer.available()) else "here"})
    print_rows(rows, as_json, "item value")


def _gpu(device: str, as_json: bool) -> None:
    from lanternbench.doctor.gpu_check import check_gpu
    from lanternbench.experiment.environment import environment

    with display("checking the GPU"):
        rows = check_gpu(choose(device), environment()["gpus"])
    _judged(rows, as_json)


def _pair(target: str, drafter: str | None, prompts: str, random_weights: bool, device: str, as_json: bool) -> None:
    from lanternbench import prompts as sets
    from lanternbench.doctor.pair_check import check_pair
    from lanternbench.models.catalogue import load_target, with_drafter
    from lanternbench.models.entries import catalogue

    device = choose(device)
    loaded = load_target(target, device, random_weights)
    kinds = list(loaded.drafters)
    if drafter is not None:
        loaded, kind = with_drafter(loaded, drafter, device, random_weights)
        kinds = [kind]
    if not kinds:
        raise UserError(f"target '{target}' has no drafter: give one with --drafter")
    captions = [p.text for p in sets.load(prompts, 2).prompts]
    row = None if random_weights else catalogue().get(target.partition("=")[0])
    with display("decoding"):
        rows = [found for kind in kinds for found in check_pair(loaded, kind, captions, row)]
    _judged(rows, as_json)


def _judged(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print checks; exit code 1 where one fails."""
    print_rows(rows, as_json, "item value ok")
    if any(row["ok"] is False for row in rows):
        raise typer.Exit(1)
