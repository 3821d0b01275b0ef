"""``suite``, ``submit`` and ``leaderboard``: results that can be cited and compared between laboratories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lanternbench.cli import options
from lanternbench.cli.measuring import execute, show, show_plan
from lanternbench.cli.output import print_json, print_rows, record


def suite(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A target of the suite, or NAME=FOLDER; without: list them.")
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="In place of the suite's; may be given repeatedly.")
    ] = None,
    prompts: Annotated[str | None, typer.Option(help="Where the suite's prompts lie: coco2017:FILE.")] = None,
    drafter: options.Drafter = None,
    dtype: options.Dtype = None,
    compile_mode: options.Compile = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    executor: options.Executor = "local",
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    out: options.Out = Path("results"),
    fresh: options.Fresh = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Run the frozen protocol of a target; continues where it stopped.

    Example: lanternbench suite tiny
    """
    from lanternbench.cli.method_options import specs
    from lanternbench.suite import protocol

    if name is None:
        print_rows([_row(protocol.protocol(each)) for each in protocol.names()], as_json, ROW)
        return
    target = name.partition("=")[0]
    given: dict[str, Any] = dict(
        target=name, prompts=prompts, drafter=drafter, dtype=dtype, compile=compile_mode,
        methods=specs(methods, {}) if methods else None,
    )  # fmt: skip
    config = protocol.protocol(target).sweep({k: v for k, v in given.items() if v is not None})
    if dry_run:
        show_plan([config], device, threads, as_json)
        return
    path, summary = execute(config, device, threads, out, fresh, executor, workers, ray_address)
    if as_json:
        print_json(record(path, summary))
    else:
        show(path, summary)


ROW = {"name": "suite", "prompts": "prompts", "settings": "settings", "hash": "hash"}


def _row(found: Any) -> dict[str, str]:
    s, (title, digest) = found.settings, found.stamp.split()
    settings = f"T {s['temperature']:g}, top-k {s['top_k']}, CFG {s['guidance']:g}, seed {s['seed']}"
    return {"name": title, "prompts": f"{s['prompts']} {s['num_prompts']}", "settings": settings, "hash": digest}
