"""``doctor``: this machine, what is missing, and whether a drafter belongs to a target."""

from typing import Annotated, Any

import typer
from typer import Option

from lanternbench.cli import options
from lanternbench.cli.output import print_rows
from lanternbench.cli.progress import display
from lanternbench.errors import UserError
from lanternbench.utils.device import choose


def doctor(
    target: Annotated[str | None, Option(help="Check this target and its drafters by a short decode.")] = None,
    drafter: Annotated[str | None, Option(help="With --target: this drafter in place of its own.")] = None,
    prompts: Annotated[str, Option(help="What a check decodes: demo, or a text file.")] = "demo",
    random_weights: Annotated[bool, Option(help="Check with random weights.")] = False,
    gpu: Annotated[bool, Option("--gpu", help="Check this GPU: bandwidth, CUDA graphs, batches.")] = False,
    device: str = "auto",
    as_json: options.AsRows = False,
) -> None:
    """Show this machine, what is missing, and how to get it; check this GPU, or that a drafter belongs to a target.

    Example: lanternbench doctor --target llamagen-xl-stage1 --drafter my-drafter/
    """
    if drafter is not None and target is None and not gpu:
        raise UserError("--drafter is checked against a target: give --target too")
    if gpu:
        rows = _gpu(device)
    elif target is not None:
        rows = _pair(target, drafter, prompts, random_weights, device)
    else:
        rows = _machine()
    print_rows(rows, as_json, " ".join(rows[0]))
    if any(row.get("ok") is False for row in rows):
        raise typer.Exit(1)


def _machine() -> list[dict[str, Any]]:
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
    return rows


def _gpu(device: str) -> list[dict[str, Any]]:
    from lanternbench.doctor.gpu_check import check_gpu
    from lanternbench.experiment.environment import environment

    with display("checking the GPU"):
        return check_gpu(choose(device), environment()["gpus"])


def _pair(target: str, drafter: str | None, prompts: str, random_weights: bool, device: str) -> list[dict[str, Any]]:
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
        return [check for kind in kinds for check in check_pair(loaded, kind, captions, row)]
