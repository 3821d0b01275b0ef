"""``import``: tokens and images of other code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lanternbench.cli import options
from lanternbench.cli.measuring import finish
from lanternbench.cli.progress import display
from lanternbench.utils.device import choose


def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE|DIR", help=".jsonl, .npz or .safetensors; or images.")],
    label: Annotated[str, typer.Option("--label", help="What the tables call it, followed by (imported).")],
    target: options.TargetName = "tiny",
    steps: Annotated[int | None, typer.Option(min=1, help="Target forwards an image, if unsaid.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Seconds an image, if unsaid.")] = None,
    prompts: Annotated[str | None, typer.Option(help="What it was made with (default: its captions).")] = None,
    caption: Annotated[str, typer.Option(help="Which caption of a COCO image: first, longest, random.")] = "first",
    temperature: Annotated[float, typer.Option(help="Sampling that it was made with, as the next three.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Default: the target's.")] = None,
    top_p: float = 1.0,
    guidance: Annotated[float | None, typer.Option(help="CFG scale (default: the target's).")] = None,
    dtype: options.Dtype = None,
    seed: options.Seed = 0,
    baseline: Annotated[bool, typer.Option(help="Decode ar on the same prompts, to compare with.")] = True,
    metrics: Annotated[str, typer.Option(help="Comma-separated.")] = "clip,fid",
    device: options.Device = "auto",
    threads: options.Threads = None,
    out: options.Out = Path("results"),
    name: options.RunName = None,
    fresh: options.Fresh = False,
    as_json: options.AsJson = False,
) -> None:
    """Score tokens or images of other code beside ar; the tables mark them as imported.

    Example: lanternbench import tokens.npz --target tiny --label ZipAR --seconds 3.2
    """
    from lanternbench import prompts as sources
    from lanternbench.experiment import config as settings
    from lanternbench.experiment import scoring
    from lanternbench.experiment.config import name_part
    from lanternbench.imported import layouts, run
    from lanternbench.metrics.setup import Setup

    found = [
        entry._replace(seconds=seconds if entry.seconds is None else entry.seconds, steps=entry.steps or steps)
        for entry in layouts.read(source)
    ]
    asked = None if prompts is None else sources.load(prompts, None, seed, caption)  # type: ignore[arg-type]
    short = name_part(Path(target.partition("=")[0]).name)
    values = dict(
        name=name or f"import-{short}", target=target, prompts=prompts or "captions", caption=caption, seed=seed,
        temperature=temperature, top_k=top_k, top_p=top_p, guidance=guidance, dtype=dtype, metrics=[], methods=["ar"],
        baseline=baseline, num_prompts=1,
    )  # fmt: skip
    chosen = choose(device, threads)
    with display("import") as shown:
        folder = run.import_run(
            found, label, settings.sweep(values, "the command line"), asked, out, chosen, fresh, shown.show
        )
        summary = scoring.score_run(folder, options.listed(metrics), Setup(device=chosen), progress=shown.show)
    finish(folder, summary, as_json)
