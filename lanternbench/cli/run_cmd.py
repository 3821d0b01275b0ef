"""``run``: measure one method, or a few, against autoregressive decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lanternbench.cli.measuring import execute, show
from lanternbench.cli.method_options import pairs
from lanternbench.cli.options import (
    AsJson,
    Compile,
    Device,
    Drafter,
    Dtype,
    Fresh,
    MethodOption,
    NumPrompts,
    Out,
    Prompts,
    RandomWeights,
    Repeats,
    Seed,
    Simulate,
    TargetName,
    Threads,
    listed,
)
from lanternbench.cli.output import print_json, record


def run(
    methods: Annotated[
        list[str],
        typer.Option(
            "--method",
            "-m",
            help="A preset: see `lanternbench methods`; or a file that `tune` wrote; may be given repeatedly.",
        ),
    ],
    option: MethodOption = None,
    target: TargetName = "tiny",
    drafter: Drafter = None,
    dtype: Dtype = None,
    compile_mode: Compile = None,
    random_weights: RandomWeights = False,
    simulate_acceptance: Simulate = None,
    prompts: Prompts = "demo",
    num_prompts: NumPrompts = 8,
    caption: Annotated[str, typer.Option(help="Which caption of a COCO image: first, longest, random.")] = "first",
    seed: Seed = 0,
    repeats: Repeats = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Default: the target's.")] = None,
    top_p: float = 1.0,
    guidance: Annotated[float | None, typer.Option(help="CFG scale (default: the target's).")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Prompts decoded together; latency is measured at 1 only.")] = 1,
    metrics: Annotated[str, typer.Option(help="Comma-separated.")] = "clip,fid",
    baseline: Annotated[bool, typer.Option(help="Measure ar alongside, interleaved.")] = True,
    device: Device = "auto",
    threads: Threads = None,
    out: Out = Path("results"),
    fresh: Fresh = False,
    as_json: AsJson = False,
    method_options: dict[str, Any] | None = None,
) -> None:
    """Measure one method, or several, against autoregressive decoding.

    Example: lanternbench run --method cool-sd --lambda 2
    """
    from lanternbench.experiment import config as settings

    options = pairs(option or []) | (method_options or {})
    values = dict(
        name=_name(methods), target=target, prompts=prompts, num_prompts=num_prompts,
        caption=caption, seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, guidance=guidance, batch=batch,
        metrics=listed(metrics), baseline=baseline, methods=_specs(methods, options),
        random_weights=random_weights, simulate_acceptance=simulate_acceptance, drafter=drafter, dtype=dtype,
        compile=compile_mode, repeats=1 if repeats is None else repeats,
    )  # fmt: skip
    path, summary = execute(settings.sweep(values, "the command line"), device, threads, out, fresh)
    if as_json:
        print_json(record(path, summary))
    else:
        show(path, summary)


def _name(methods: list[str]) -> str:
    """Of the run: a file's name stands for its path."""
    names = [Path(m).stem if m.endswith((".yaml", ".yml")) else m for m in methods]
    return f"run-{'+'.join(names)}".replace("/", "-")[:80]


def _specs(names: list[str], options: dict[str, Any]) -> list[dict[str, Any]]:
    """An entry per method, each with the options that it reads; those that no method takes are left for the error."""
    from lanternbench.errors import UserError
    from lanternbench.methods import preset_file
    from lanternbench.methods.method import method

    choices = {key: options[key] for key in ("proposal", "tree", "acceptance", "residual") if key in options}

    def takes(spec: dict[str, Any], key: str) -> bool:
        try:
            method(spec["method"], **choices | {key: options[key]})
        except UserError:
            return False
        return True

    specs = preset_file.expanded([{"method": name} for name in names])
    for spec in specs:
        method(spec["method"])  # an unknown name is reported as such
    if len(specs) == 1:
        return [specs[0] | options]
    takers = {key: [spec for spec in specs if takes(spec, key)] for key in options if key not in choices}
    return [spec | {key: v for key, v in options.items() if spec in (takers.get(key) or specs)} for spec in specs]
