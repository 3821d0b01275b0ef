"""``train``: remake the embedded world."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Train the embedded models from a seed.")


@app.callback()
def _group() -> None:
    """Train the embedded models from a seed."""


@app.command("tiny")
def tiny(
    out: Annotated[Path, typer.Option(help="Where the weights go.")] = Path("weights"),
    work: Annotated[Path, typer.Option(help="Scenes, tokens and checkpoints; kept for resuming.")] = Path("train-tiny"),
    scale: Annotated[float, typer.Option(min=0.0001, max=10.0, help="Multiply every number of steps.")] = 1.0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")] = None,
) -> None:
    """Render scenes, then train tokeniser, target, drafters and evaluators; about eight hours on two cores.

    Stopped at any point, the same command continues from the last checkpoint.  Use the result with
    `--target OUT`.

    Example: lanternbench train tiny --out weights
    """
    from rich.console import Console

    from lanternbench.cli.device import choose
    from lanternbench.training.tiny import train

    choose("cpu", threads)
    console = Console(stderr=True)
    train(work, out, scale, log=lambda line: console.print(line, highlight=False, markup=False))
    console.print(f"{out}  ·  next: lanternbench run --method cool-sd --target {out}", highlight=False, markup=False)
