"""``run``: measure one method, or a few, against autoregressive decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from lanternbench.cli import options
from lanternbench.cli.fields import MethodOptions, Takes, specs
from lanternbench.cli.measuring import Execution, execute, finish


def run(
    methods: Annotated[
        list[str],
        Option(
            "--method",
            "-m",
            help="A preset: see `lanternbench methods`; or a file that `tune` wrote; may be given repeatedly.",
        ),
    ],
    settings: Annotated[
        dict[str, Any],
        Takes(
            "target drafter dtype compile random_weights simulate_acceptance prompts num_prompts caption seed repeats "
            "temperature top_k top_p guidance batch metrics baseline name"
        ),
    ],
    where: Annotated[Execution, Takes("device threads out fresh")],
    method_options: MethodOptions,
    as_json: options.AsJson = False,
) -> None:
    """Measure one method, or several, against autoregressive decoding.

    Example: lanternbench run --method cool-sd --lambda 2
    """
    from lanternbench.experiment.config import sweep

    settings = {"name": _name(methods, settings["target"], settings["prompts"])} | settings
    config = sweep(settings | {"methods": specs(methods, method_options)}, "the command line")
    finish(*execute(config, where), as_json)


def _name(methods: list[str], target: str, prompts: str) -> str:
    """Of the run: its methods, and the target and prompts where they are not the default."""
    from lanternbench.experiment.sweep_file import name_part, prompts_name

    names = [Path(m).stem if m.endswith((".yaml", ".yml")) else m for m in methods]
    parts = ["run", "+".join(names)]
    parts += [] if target == "tiny" else [Path(target.partition("=")[0]).name]
    parts += [] if prompts == "demo" else [prompts_name(prompts)]
    return name_part("-".join(parts))
