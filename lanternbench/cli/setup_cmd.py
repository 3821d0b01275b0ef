"""``fetch`` and ``train``: published files, and new drafters."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from typer import Argument, Option

from lanternbench import __version__
from lanternbench.cli.options import From, Takes
from lanternbench.cli.output import display, program
from lanternbench.errors import UserError
from lanternbench.models.drafters.kinds import BY_RECIPE, Sizes
from lanternbench.models.entries import Entry, catalogue, entry
from lanternbench.settings import Dtype, Machine, ModelSpec, PromptSpec
from lanternbench.utils.device import choose

if TYPE_CHECKING:
    from lanternbench.utils.download import Remote


def say(line: str) -> None:
    """Print a line on stderr."""
    print(line, file=sys.stderr, flush=True)


def fetch(
    names: Annotated[
        list[str],
        Argument(metavar="NAME...", help="Targets, metrics, prompt sets such as coco2017."),
    ],
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print what would be downloaded, and its size.")
    ] = False,
    verify: Annotated[
        bool, Option("--verify", help="Also read existing files and compare their digests.")
    ] = False,
) -> None:
    """Download published files and check them; existing files are not downloaded again.

    An interrupted download continues where it stopped.  A file that was changed is reported; one
    without a published digest is compared with its first download.

    Example: lanternbench fetch llamagen-xl-stage1 --dry-run
    """
    from lanternbench.experiment.fetching import plain_files

    for name in names:
        files = plain_files(name)
        target = entry(name) if files is None or name in catalogue() else None
        if target is not None and target.files:
            fetch_target(target, dry_run, verify)
        elif target is not None or not files:
            print(f"{name} comes with the package: there is nothing to download")
        else:
            for file in files:
                fetch_file(file, dry_run, verify)


def fetch_file(file: Remote, dry_run: bool, verify: bool) -> None:
    """Download a file unless it exists, and check it."""
    from lanternbench.utils import download

    if file.path.is_file():
        if not dry_run:
            download.checked(file.path, file.sha256, again=verify)
        print(f"{file.title}: downloaded: {file.path}")
        return
    if dry_run:
        print(f"{file.title}: {download.size_of(file)}, {file.url} -> {file.path}")
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(file.path.name, total=None)
        download.download(file, lambda done, of: bar.update(task, completed=done, total=of))
    print(f"{file.title}: {file.path}")


def fetch_target(target: Entry, dry_run: bool, verify: bool) -> None:
    """Download the files of a target, or list them."""
    from lanternbench.experiment import fetching

    place = f"into {target.folder} (licence: {target.licence}; gate: {target.gate})"
    try:
        files = fetching.plan(target)
    except UserError as error:
        if not dry_run:
            raise
        for role, source in target.files.items():
            print(f"{role}: {', '.join(source.files)} of {source.repo}")
        print(f"about {target.gigabytes:g} GB {place}; sizes are unknown: {error}")
        return
    if dry_run:
        for file in files:
            print(f"{file.role}: {file.name} of {file.repo}, {file.size / 1e9:.2f} GB")
        print(f"{sum(file.size for file in files) / 1e9:.2f} GB {place}")
        return
    folder = fetching.fetch(target, files, print, verify)
    command = f"{program()} run --target {target.name} --method cool-sd --lambda 2"
    print(f"{folder}  ·  next: {command}")


@dataclass(frozen=True)
class Training:
    """The recipe of a drafter's training, and its sizes."""

    recipe: Annotated[
        Literal[tuple(BY_RECIPE)],  # type: ignore[valid-type]
        Option(help="The kind of drafter, and how it is trained."),
    ] = "eagle-1"
    steps: Annotated[int, Option(min=1, max=10**9, help="Optimiser steps.")] = 2000
    batch: Annotated[int, Option(min=1, max=1024, help="Images per step.")] = 4
    lr: Annotated[
        float,
        Option(min=1e-8, max=1.0, help="Learning rate of AdamW; Muon's is 6 times as large."),
    ] = 3e-3
    start: Annotated[
        Path | None, Option(help="A drafter to continue from (default: a new one).")
    ] = None
    block: Annotated[
        int, Option(min=2, max=65, help="dflash: tokens per block, including the anchor.")
    ] = 6
    layers: Annotated[
        int, Option(min=1, max=64, help="dflash, flashar: layers of the drafter.")
    ] = 1
    causal: Annotated[
        bool, Option("--causal", help="dflash: a slot sees only earlier slots (JetSpec).")
    ] = False
    mask: Annotated[
        Literal["published", "raster", "both"],
        Option(help="flashar: the mask that it learns for; both: by turns."),
    ] = "published"


def drafter(
    target: Annotated[str, From(ModelSpec)],
    prompts: Annotated[str, From(PromptSpec)],
    seed: Annotated[int, From(PromptSpec)],
    dtype: Annotated[Dtype | None, From(ModelSpec)],
    machine: Annotated[Machine, Takes()],
    training: Annotated[Training, Takes()],
    num_prompts: Annotated[
        int, Option("--num-prompts", "-n", help="Number of prompts; 0 for all.")
    ] = 0,
    out: Annotated[Path, Option(help="Folder for the drafter.")] = Path("drafter"),
    work: Annotated[
        Path, Option(help="Folder for samples and checkpoints, which resuming needs.")
    ] = Path("train-drafter"),
) -> None:
    """Train a drafter on the target's own samples.

    eagle-1 reads the target's final hidden states and learns to predict them and the target's
    distributions, three levels deep.  eagle-3 reads low, middle and final hidden states and learns
    only the distributions, five levels deep.  dflash reads hidden states at six depths and learns
    the distributions of a whole block at once.  flashar learns the token below, and gates that mix it
    with the target's own prediction.

    An interrupted training continues.  Some prompts are held out; the share of first draft tokens
    accepted in their images is printed, before and after.  Use it with `--drafter OUT`.

    Example: lanternbench train drafter --target anole-7b --prompts parti:PartiPrompts.tsv --out
    anole-eagle
    """
    import torch

    from lanternbench import prompts as sets
    from lanternbench.training.drafter import Plan, train

    device = machine.choose()
    selected = sets.load(prompts, num_prompts or None, seed)
    plan = Plan(
        target=target,
        prompts=selected,
        steps=training.steps,
        batch=training.batch,
        lr=training.lr,
        seed=seed,
        start=training.start,
        dtype=dtype,
        recipe=training.recipe,
        sizes=Sizes(training.block, training.layers, training.causal),
        mask=training.mask,
    )
    try:
        with display("loading the target", bars=False, each=False) as bars:
            trained = train(plan, device, work, out, log=say, progress=bars.show)
    except torch.OutOfMemoryError:
        fix = "lower --batch, or give --dtype bfloat16"
        raise UserError(f"{device} has too little memory: {fix}") from None
    print(
        f"first draft tokens accepted in held-out images: {trained.before:.3f} before,"
        f" {trained.after:.3f} after training"
    )
    arguments = ["--method", training.recipe, "--target", target, "--drafter", str(out)]
    if prompts != "demo":
        arguments += ["--prompts", prompts]
    say(f"{out}  ·  next: {program()} run {shlex.join(arguments)}")


def tiny(
    out: Annotated[Path, Option(help="Folder for the weights.")] = Path("weights"),
    work: Annotated[
        Path, Option(help="Folder for scenes, tokens and checkpoints, which resuming needs.")
    ] = Path("train-tiny"),
    scale: Annotated[
        float, Option(min=0.0001, max=10.0, help="Multiply every number of steps.")
    ] = 1.0,
    threads: Annotated[int | None, Option(min=1, help="CPU threads (default: all cores).")] = None,
) -> None:
    """Train the toy model: tokeniser, target, drafters and evaluators, on rendered scenes.

    It takes about eight hours on two cores and needs a checkout of the source.  An interrupted
    training continues from the last checkpoint.  Use the result with `--target OUT`.

    Example: lanternbench train tiny --out weights
    """
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "tools/train_tiny").is_dir():
        raise UserError(
            "`train tiny` needs the folder tools/train_tiny, which an installed package lacks: run"
            f" it in a checkout of lanternbench {__version__}'s source (`pip install --editable .`)"
        )
    sys.path.insert(0, str(checkout))
    from tools.train_tiny.world import train

    choose("cpu", threads)
    train(work, out, scale, log=say)
    say(f"{out}  ·  next: {program()} run --method cool-sd --target {out}")
