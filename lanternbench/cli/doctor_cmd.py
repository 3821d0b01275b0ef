"""``doctor``: checks of the machine, its GPU, and drafters."""

import itertools
from typing import Annotated

import typer
from typer import Option

from lanternbench.cli import options
from lanternbench.cli.options import From
from lanternbench.cli.output import display, print_rows
from lanternbench.doctor.check import Check
from lanternbench.errors import UserError
from lanternbench.models.entries import catalogue, lacking
from lanternbench.settings import Machine, ModelSpec
from lanternbench.utils.device import choose


def doctor(
    device: Annotated[str, From(Machine)],
    target: Annotated[
        str | None, Option(help="Check this target and its drafters with a short decode.")
    ] = None,
    drafter: Annotated[
        str | None, Option(help="With --target: check this drafter instead of its own.")
    ] = None,
    prompts: Annotated[
        str, Option(help="Prompts that are decoded: demo, or a text file.")
    ] = "demo",
    random_weights: Annotated[bool, Option(help="Check with random weights.")] = False,
    gpu: Annotated[
        bool, Option("--gpu", help="Check the GPU: bandwidth, CUDA graphs, batches.")
    ] = False,
    as_json: options.AsRows = False,
) -> None:
    """Show this machine and how to get missing files; check the GPU, or a target and its drafters.

    Example: lanternbench doctor --target llamagen-xl-stage1 --drafter my-drafter/
    """
    if drafter is not None and target is None and not gpu:
        raise UserError("--drafter is checked against a target: give --target too")
    if gpu:
        checks = _check_gpu(device)
    elif target is not None:
        checks = _check_pairs(target, drafter, prompts, random_weights, device)
    else:
        checks = _machine()
    has_verdicts = gpu or target is not None
    rows = [check._asdict() for check in checks]
    print_rows(rows, as_json, "item value ok" if has_verdicts else "item value")
    if any(check.ok is False for check in checks):
        raise typer.Exit(1)


def _check_gpu(device: str) -> list[Check]:
    from lanternbench.doctor.gpu import check_gpu
    from lanternbench.experiment.environment import environment

    with display("checking the GPU"):
        return check_gpu(choose(device), environment()["gpus"])


def _machine() -> list[Check]:
    from lanternbench.experiment.environment import environment
    from lanternbench.metrics import names, scorers_for

    checks = [Check(name, value) for name, value in environment().items()]
    for name, row in catalogue().items():
        state = "available"
        if absent := lacking(row):
            fetch = f"`lanternbench fetch {name}` gets it ({row.gigabytes:g} GB)"
            state = f"missing: {absent}; {fetch}"
        checks.append(Check(f"target {name}", state))
    for name in names():
        (scorer,) = scorers_for([name], "full")
        problem = scorer.available()
        checks.append(Check(f"metric {name}", problem.text if problem else "available"))
    return checks


def _check_pairs(
    name: str, drafter: str | None, prompts: str, random_weights: bool, device: str
) -> list[Check]:
    """Check each drafter of a target, or the given one."""
    from lanternbench import prompts as sets
    from lanternbench.doctor.pair import STEPS, TEMPERATURES, check_pair
    from lanternbench.models.catalogue import check_memory, load_target, with_drafter
    from lanternbench.models.footprint import Demand

    device = choose(device)
    captions = [prompt.text for prompt in sets.load(prompts, 2).prompts]
    row = None if random_weights else catalogue().get(name.partition("=")[0])
    with display(f"loading {name}", each=False) as bars:
        spec = ModelSpec(target=name, drafter=drafter, random_weights=random_weights)
        check_memory(spec, device, Demand(batch=len(captions)))
        target = load_target(name, device, random_weights)
        kinds = list(target.drafters)
        if drafter is not None:
            target, kind = with_drafter(target, drafter, device, random_weights)
            kinds = [kind]
        if not kinds:
            raise UserError(f"target '{name}' has no drafter: give one with --drafter")
        steps = len(kinds) * len(TEMPERATURES) * STEPS
        counter = itertools.count(1)

        def show_step(tokens: int, of: int) -> None:
            bars.show(next(counter), steps, f"decoding with drafters of {name}")

        checks: list[Check] = []
        for kind in kinds:
            checks += check_pair(target, kind, captions, row, show_step)
    return checks
