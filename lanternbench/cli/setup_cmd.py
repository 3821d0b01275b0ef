"""``fetch``, ``doctor``: published files brought here; this machine, what it lacks, and which drafter fits a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.output import print_rows, program
from lanternbench.cli.progress import display
from lanternbench.errors import UserError
from lanternbench.utils.device import choose

if TYPE_CHECKING:
    from lanternbench.models.entries import Entry
    from lanternbench.utils.download import Remote

_CONSOLE = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def fetch(
    names: Annotated[
        list[str], Argument(metavar="NAME...", help="Targets, metrics, prompt sets such as coco2017 or geneval.")
    ],
    dry_run: Annotated[bool, Option("--dry-run", help="Print what would be fetched, and how much.")] = False,
    verify: Annotated[bool, Option("--verify", help="Read what is here again, and compare its digest.")] = False,
) -> None:
    """Download published files, resumably, and check them; what is here already is not fetched again.

    A file that was changed since is reported; one without a published digest is compared with its first download.

    Example: lanternbench fetch llamagen-xl-stage1 --dry-run
    """
    from lanternbench.experiment.fetching import plain_files
    from lanternbench.models.entries import catalogue, entry
    from lanternbench.utils.digests import checked
    from lanternbench.utils.download import size_of

    for name in names:
        remotes = plain_files(name)
        row = entry(name) if remotes is None or name in catalogue() else None
        if row and row.files:
            _target(row, dry_run, verify)
        elif row or not remotes:
            _CONSOLE.print(f"{name} comes with the package: there is nothing to fetch")
        for remote in () if row else remotes or ():
            present = remote.path.is_file()
            if present and not dry_run:
                checked(remote.path, remote.sha256, again=verify)
            elif not present and not dry_run:
                _download(remote)
            size = f"{size_of(remote)}, {remote.url} -> " if dry_run and not present else ""
            _CONSOLE.print(f"{remote.title}: {'here: ' if present else size}{remote.path}")


def _download(remote: Remote) -> None:
    from lanternbench.utils.download import download

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(remote.path.name, total=None)
        download(remote, lambda done, of: bar.update(task, completed=done, total=of))


def _target(row: Entry, dry_run: bool, verify: bool) -> None:
    from lanternbench.experiment import fetching

    try:
        files = fetching.plan(row)
    except UserError as error:
        if not dry_run:
            raise
        for role, source in row.files.items():
            _CONSOLE.print(f"{role}: {', '.join(source.files)} of {source.repo}")
        _CONSOLE.print(f"about {row.gigabytes:g} GB into {row.folder} (licence: {row.licence}); not looked up: {error}")
        return
    if dry_run:
        for file in files:
            _CONSOLE.print(f"{file.role}: {file.name} of {file.repo}, {file.size / 1e9:.2f} GB")
        _CONSOLE.print(f"{sum(f.size for f in files) / 1e9:.2f} GB into {row.folder} (licence: {row.licence})")
        return
    where = fetching.fetch(row, files, _CONSOLE.print, verify)
    _CONSOLE.print(f"{where}  ·  next: {program()} run --target {row.name} --method cool-sd --lambda 2")


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
