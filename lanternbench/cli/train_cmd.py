"""``train``: a drafter for any target, or the embedded world again."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from lanternbench import __version__
from lanternbench.cli import options
from lanternbench.cli.fields import Takes
from lanternbench.cli.output import program
from lanternbench.cli.progress import display
from lanternbench.errors import UserError
from lanternbench.utils.device import choose


def drafter(
    c: Annotated[Any, Takes("target prompts seed dtype")],
    recipe: Annotated[
        Literal["eagle-1", "eagle-3", "dflash"], Option(help="The drafter's kind, and how it is trained.")
    ] = "eagle-1",
    num_prompts: Annotated[int, Option("--num-prompts", "-n", help="How many; 0 for all.")] = 0,
    steps: Annotated[int, Option(min=1, help="Optimiser steps.")] = 2000,
    batch: Annotated[int, Option(min=1, help="Images a step.")] = 4,
    lr: Annotated[float, Option(min=1e-8, max=1.0, help="AdamW's learning rate; Muon's is six times it.")] = 3e-3,
    start: Annotated[Path | None, Option(help="A drafter to go on from (default: a fresh one).")] = None,
    block: Annotated[int, Option(min=2, max=65, help="dflash: tokens of a block, the anchor included.")] = 6,
    layers: Annotated[int, Option(min=1, max=64, help="dflash: layers of the drafter.")] = 1,
    causal: Annotated[bool, Option("--causal", help="dflash: a slot sees earlier slots alone (JetSpec).")] = False,
    out: Annotated[Path, Option(help="Where the drafter goes.")] = Path("drafter"),
    work: Annotated[Path, Option(help="Samples and checkpoints; kept for resuming.")] = Path("train-drafter"),
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Train a drafter on the target's own samples.

    eagle-1 reads the target's last states and learns to predict them and its distributions, three levels deep; eagle-3
    reads low, middle and last states and learns the distributions alone, five levels deep; dflash reads states at six
    depths and learns the distributions of a whole block at once.

    Stopped at any point, the same command continues.  Some prompts are kept out of training: the share of first tokens
    accepted in their images is printed, before and after.  Use the result with `--drafter OUT`.

    Example: lanternbench train drafter --target anole-7b --prompts parti:PartiPrompts.tsv --out anole-eagle
    """
    import shlex

    import torch
    from rich.console import Console

    from lanternbench import prompts as sets
    from lanternbench.training.drafter import Plan, train

    chosen = choose(device, threads)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    selected = sets.load(c.prompts, num_prompts or None, c.seed)
    network: Any = {"block": block, "layers": layers, "causal": causal}
    plan = Plan(c.target, selected, steps, batch, lr, c.seed, start, c.dtype, recipe, **network)
    try:
        with display("loading the target", bars=False, each=False) as bars:
            trained = train(plan, chosen, work, out, log=console.print, progress=bars.show)
    except torch.OutOfMemoryError:
        raise UserError(f"{chosen} has too little memory: lower --batch, or give --dtype bfloat16") from None
    print(f"first tokens accepted in images held out: {trained.before:.3f} before, {trained.after:.3f} after training")
    prompts = "" if c.prompts == "demo" else f" --prompts {shlex.quote(c.prompts)}"
    drafter = f"--target {shlex.quote(c.target)} --drafter {shlex.quote(str(out))}"
    console.print(f"{out}  ·  next: {program()} run --method {recipe} {drafter}{prompts}")


def tiny(
    out: Annotated[Path, Option(help="Where the weights go.")] = Path("weights"),
    work: Annotated[Path, Option(help="Scenes, tokens and checkpoints; kept for resuming.")] = Path("train-tiny"),
    scale: Annotated[float, Option(min=0.0001, max=10.0, help="Multiply every number of steps.")] = 1.0,
    threads: Annotated[int | None, Option(min=1, help="CPU threads (default: all cores).")] = None,
) -> None:
    """Render scenes, then train tokeniser, target, drafters and evaluators; about eight hours on two cores.

    Stopped at any point, the same command continues from the last checkpoint.  Use the result with
    `--target OUT`.  It needs a checkout of the source.

    Example: lanternbench train tiny --out weights
    """
    from rich.console import Console

    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "tools/train_tiny").is_dir():
        text = "`train tiny` needs the folder tools/train_tiny, which an installed package lacks: run it in a checkout"
        raise UserError(f"{text} of lanternbench {__version__}'s source (`pip install --editable .`)")
    sys.path.insert(0, str(checkout))
    from tools.train_tiny.world import train

    choose("cpu", threads)
    console = Console(stderr=True, highlight=False, markup=False)
    train(work, out, scale, log=console.print)
    console.print(f"{out}  ·  next: {program()} run --method cool-sd --target {out}")
