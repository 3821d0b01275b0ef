"""``fetch`` and ``train``: published files brought here, and new drafters."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from typer import Argument, Option

from lanternbench import __version__
from lanternbench.cli import options
from lanternbench.cli.options import From
from lanternbench.cli.output import display, program
from lanternbench.errors import UserError
from lanternbench.models.drafters.kinds import BY_RECIPE
from lanternbench.models.entries import Entry, catalogue, entry
from lanternbench.settings import Dtype, ModelSpec, PromptSpec
from lanternbench.utils.device import choose

_CONSOLE = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def fetch(
    names: Annotated[
        list[str],
        Argument(metavar="NAME...", help="Targets, metrics, prompt sets such as coco2017."),
    ],
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print what would be fetched, and how much.")
    ] = False,
    verify: Annotated[
        bool, Option("--verify", help="Read what is here again, and compare its digest.")
    ] = False,
) -> None:
    """Download published files, resumably, and check them; what is here already is not fetched
    again.

    A file that was changed since is reported; one without a published digest is compared with its
    first download.

    Example: lanternbench fetch llamagen-xl-stage1 --dry-run
    """
    from lanternbench.experiment.fetching import plain_files
    from lanternbench.utils.download import checked, download, size_of

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
                columns = (
                    TextColumn("{task.description}"),
                    BarColumn(),
                    DownloadColumn(),
                    TransferSpeedColumn(),
                )
                with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
                    task = bar.add_task(remote.path.name, total=None)
                    download(remote, lambda done, of: bar.update(task, completed=done, total=of))  # noqa: B023 - called here
            size = f"{size_of(remote)}, {remote.url} -> " if dry_run and not present else ""
            _CONSOLE.print(f"{remote.title}: {'here: ' if present else size}{remote.path}")


def _target(row: Entry, dry_run: bool, verify: bool) -> None:
    from lanternbench.experiment import fetching

    try:
        files = fetching.plan(row)
    except UserError as error:
        if not dry_run:
            raise
        for role, source in row.files.items():
            _CONSOLE.print(f"{role}: {', '.join(source.files)} of {source.repo}")
        _CONSOLE.print(
            f"about {row.gigabytes:g} GB into {row.folder} (licence: {row.licence}); not looked up: {error}"
        )
        return
    if dry_run:
        for file in files:
            _CONSOLE.print(f"{file.role}: {file.name} of {file.repo}, {file.size / 1e9:.2f} GB")
        _CONSOLE.print(
            f"{sum(f.size for f in files) / 1e9:.2f} GB into {row.folder} (licence: {row.licence})"
        )
        return
    where = fetching.fetch(row, files, _CONSOLE.print, verify)
    _CONSOLE.print(
        f"{where}  ·  next: {program()} run --target {row.name} --method cool-sd --lambda 2"
    )


def drafter(
    target: Annotated[str, From(ModelSpec)],
    prompts: Annotated[str, From(PromptSpec)],
    seed: Annotated[int, From(PromptSpec)],
    dtype: Annotated[Dtype | None, From(ModelSpec)],
    recipe: Annotated[
        Literal[tuple(BY_RECIPE)],  # type: ignore[valid-type]
        Option(help="The drafter's kind, and how it is trained."),
    ] = "eagle-1",
    num_prompts: Annotated[int, Option("--num-prompts", "-n", help="How many; 0 for all.")] = 0,
    steps: Annotated[int, Option(min=1, help="Optimiser steps.")] = 2000,
    batch: Annotated[int, Option(min=1, help="Images a step.")] = 4,
    lr: Annotated[
        float, Option(min=1e-8, max=1.0, help="AdamW's learning rate; Muon's is six times it.")
    ] = 3e-3,
    start: Annotated[
        Path | None, Option(help="A drafter to go on from (default: a fresh one).")
    ] = None,
    block: Annotated[
        int, Option(min=2, max=65, help="dflash: tokens of a block, the anchor included.")
    ] = 6,
    layers: Annotated[int, Option(min=1, max=64, help="dflash: layers of the drafter.")] = 1,
    causal: Annotated[
        bool, Option("--causal", help="dflash: a slot sees earlier slots alone (JetSpec).")
    ] = False,
    out: Annotated[Path, Option(help="Where the drafter goes.")] = Path("drafter"),
    work: Annotated[Path, Option(help="Samples and checkpoints; kept for resuming.")] = Path(
        "train-drafter"
    ),
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Train a drafter on the target's own samples.

    eagle-1 reads the target's last states and learns to predict them and its distributions, three
    levels deep; eagle-3 reads low, middle and last states and learns the distributions alone, five
    levels deep; dflash reads states at six depths and learns the distributions of a whole block at
    once.

    Stopped at any point, the same command continues.  Some prompts are kept out of training: the
    share of first tokens accepted in their images is printed, before and after.  Use the result
    with `--drafter OUT`.

    Example: lanternbench train drafter --target anole-7b --prompts parti:PartiPrompts.tsv --out
    anole-eagle
    """
    import torch

    from lanternbench import prompts as sets
    from lanternbench.training.drafter import Plan, train

    chosen = choose(device, threads)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    selected = sets.load(prompts, num_prompts or None, seed)
    network: Any = {"block": block, "layers": layers, "causal": causal}
    plan = Plan(target, selected, steps, batch, lr, seed, start, dtype, recipe, **network)
    try:
        with display("loading the target", bars=False, each=False) as bars:
            trained = train(plan, chosen, work, out, log=console.print, progress=bars.show)
    except torch.OutOfMemoryError:
        raise UserError(
            f"{chosen} has too little memory: lower --batch, or give --dtype bfloat16"
        ) from None
    print(
        f"first tokens accepted in images held out: {trained.before:.3f} before, {trained.after:.3f} after training"
    )
    with_prompts = "" if prompts == "demo" else f" --prompts {shlex.quote(prompts)}"
    drafter = f"--target {shlex.quote(target)} --drafter {shlex.quote(str(out))}"
    console.print(f"{out}  ·  next: {program()} run --method {recipe} {drafter}{with_prompts}")


def tiny(
    out: Annotated[Path, Option(help="Where the weights go.")] = Path("weights"),
    work: Annotated[
        Path, Option(help="Scenes, tokens and checkpoints; kept for resuming.")
    ] = Path("train-tiny"),
    scale: Annotated[
        float, Option(min=0.0001, max=10.0, help="Multiply every number of steps.")
    ] = 1.0,
    threads: Annotated[int | None, Option(min=1, help="CPU threads (default: all cores).")] = None,
) -> None:
    """Render scenes, then train tokeniser, target, drafters and evaluators; about eight hours on
    two cores.

    Stopped at any point, the same command continues from the last checkpoint.  Use the result with
    `--target OUT`.  It needs a checkout of the source.

    Example: lanternbench train tiny --out weights
    """
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "tools/train_tiny").is_dir():
        text = "`train tiny` needs the folder tools/train_tiny, which an installed package lacks: run it in a checkout"
        raise UserError(
            f"{text} of lanternbench {__version__}'s source (`pip install --editable .`)"
        )
    sys.path.insert(0, str(checkout))
    from tools.train_tiny.world import train

    choose("cpu", threads)
    console = Console(stderr=True, highlight=False, markup=False)
    train(work, out, scale, log=console.print)
    console.print(f"{out}  ·  next: {program()} run --method cool-sd --target {out}")
