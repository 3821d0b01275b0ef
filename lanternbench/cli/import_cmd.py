"""``import``: tokens and images of other code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.fields import Takes
from lanternbench.cli.measuring import Execution, finish
from lanternbench.cli.progress import display
from lanternbench.utils.device import choose


def import_(
    source: Annotated[Path, Argument(metavar="FILE|DIR", help=".jsonl, .npz or .safetensors; or images.")],
    label: Annotated[str, Option(help="What the tables call it, followed by (imported).")],
    settings: Annotated[dict[str, Any], Takes("target caption top_k guidance dtype seed baseline metrics name")],
    where: Annotated[Execution, Takes("device threads out fresh")],
    steps: Annotated[int | None, Option(min=1, help="Target forwards an image, if unsaid.")] = None,
    seconds: Annotated[float | None, Option(min=0, help="Seconds an image, if unsaid.")] = None,
    prompts: Annotated[str | None, Option(help="What it was made with (default: its captions).")] = None,
    temperature: Annotated[float, Option(help="Of the sampling that it was made with, as top-k and top-p.")] = 1.0,
    top_p: float = 1.0,
    as_json: options.AsJson = False,
) -> None:
    """Score tokens or images of other code beside ar; the tables mark them as imported.

    Example: lanternbench import tokens.npz --target tiny --label ZipAR --seconds 3.2
    """
    from lanternbench import prompts as sources
    from lanternbench.experiment import scoring
    from lanternbench.experiment.config import sweep
    from lanternbench.experiment.sweep_file import name_part
    from lanternbench.imported import layouts, run
    from lanternbench.metrics.setup import Setup

    entries = [
        entry._replace(seconds=seconds if entry.seconds is None else entry.seconds, steps=entry.steps or steps)
        for entry in layouts.read(source)
    ]
    selected = None if prompts is None else sources.load(prompts, None, settings["seed"], settings["caption"])
    settings = {"name": f"import-{name_part(Path(settings['target'].partition('=')[0]).name)}"} | settings
    metrics = settings.pop("metrics")
    settings |= {"prompts": prompts or "captions", "temperature": temperature, "top_p": top_p}
    config = sweep(settings | {"metrics": [], "methods": ["ar"], "num_prompts": 1}, "the command line")
    device = choose(where.device, where.threads)
    with display("import") as bars:
        folder = run.import_run(entries, label, config, selected, where.out, device, where.fresh, bars.show)
        summary = scoring.score_run(folder, metrics, Setup(device=device), progress=bars.show)
    finish(folder, summary, as_json)
