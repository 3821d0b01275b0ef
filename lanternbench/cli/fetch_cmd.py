"""``fetch``: bring published files here: targets, the weights of metrics, official prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from typer import Argument, Option

from lanternbench.cli.output import program
from lanternbench.errors import UserError

if TYPE_CHECKING:
    from lanternbench.models.entries import Entry

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
        if remotes is None or name in catalogue():
            _target(entry(name), dry_run, verify)
            continue
        if not remotes:
            _nothing(name)
        for remote in remotes:
            if remote.path.is_file() and not dry_run:
                checked(remote.path, remote.sha256, again=verify)
            if dry_run or remote.path.is_file():
                state = "here: " if remote.path.is_file() else f"{size_of(remote)}, {remote.url} -> "
                _CONSOLE.print(f"{remote.title}: {state}{remote.path}")
            else:
                _download(remote)


def _nothing(name: str) -> None:
    _CONSOLE.print(f"{name} comes with the package: there is nothing to fetch")


def _download(remote) -> None:
    from lanternbench.utils.download import download

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(remote.path.name, total=None)
        download(remote, lambda done, of: bar.update(task, completed=done, total=of))
    _CONSOLE.print(f"{remote.title}: {remote.path}")


def _target(row: Entry, dry_run: bool, verify: bool) -> None:
    from lanternbench.experiment import fetching

    if not row.files:
        _nothing(row.name)
        return
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
