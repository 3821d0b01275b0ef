"""``run``: measure one method, or a few, against autoregressive decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lanternbench.cli import options
from lanternbench.cli.measuring import execute, finish
from lanternbench.cli.method_options import pairs, specs


def run(
    methods: Annotated[
        list[str],
        typer.Option(
            "--method",
            "-m",
            help="A preset: see `lanternbench methods`; or a file that `tune` wrote; may be given repeatedly.",
        ),
    ],
    option: options.MethodOption = None,
    target: options.TargetName = "tiny",
    drafter: options.Drafter = None,
    dtype: options.Dtype = None,
    compile_mode: options.Compile = None,
    random_weights: options.RandomWeights = False,
    simulate_acceptance: options.Simulate = None,
    prompts: options.Prompts = "demo",
    num_prompts: options.NumPrompts = None,
    caption: Annotated[str, typer.Option(help="Which caption of a COCO image: first, longest, random.")] = "first",
    seed: options.Seed = 0,
    repeats: options.Repeats = None,
    temperature: options.Temperature = None,
    top_k: Annotated[int | None, typer.Option(help="Default: the target's.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default: the target's.")] = None,
    guidance: Annotated[float | None, typer.Option(help="CFG scale (default: the target's).")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Prompts decoded together; latency is measured at 1 only.")] = 1,
    metrics: Annotated[str, typer.Option(help="Comma-separated.")] = "clip,fid",
    baseline: Annotated[bool, typer.Option(help="Measure ar alongside, interleaved.")] = True,
    device: options.Device = "auto",
    threads: options.Threads = None,
    out: options.Out = Path("results"),
    name: options.RunName = None,
    fresh: options.Fresh = False,
    as_json: options.AsJson = False,
    method_options: dict[str, Any] | None = None,
) -> None:
    """Measure one method, or several, against autoregressive decoding.

    Example: lanternbench run --method cool-sd --lambda 2
    """
    from lanternbench.experiment import config as settings

    given = pairs(option or []) | (method_options or {})
    values = dict(
        name=name or _name(methods, target, prompts), target=target, prompts=prompts,
        caption=caption, seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, guidance=guidance, batch=batch,
        metrics=options.listed(metrics), baseline=baseline, methods=specs(methods, given),
        random_weights=random_weights, simulate_acceptance=simulate_acceptance, drafter=drafter, dtype=dtype,
        compile=compile_mode, repeats=1 if repeats is None else repeats,
    )  # fmt: skip
    values |= {} if num_prompts is None else {"num_prompts": num_prompts}
    path, summary = execute(settings.sweep(values, "the command line"), device, threads, out, fresh)
    finish(path, summary, as_json)


def _name(methods: list[str], target: str, prompts: str) -> str:
    """Of the run: its methods, and the target and prompts where they are not the default."""
    from lanternbench.experiment.config import name_part, prompts_name

    names = [Path(m).stem if m.endswith((".yaml", ".yml")) else m for m in methods]
    parts = ["run", "+".join(names)]
    parts += [] if target == "tiny" else [Path(target.partition("=")[0]).name]
    parts += [] if prompts == "demo" else [prompts_name(prompts)]
    return name_part("-".join(parts))
