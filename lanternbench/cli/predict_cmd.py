"""``predict``: what a measured run's methods would gain on other devices, for other targets, in other batches."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lanternbench.cli import options
from lanternbench.cli.output import print_json, print_notes, stdout
from lanternbench.cli.progress import display
from lanternbench.errors import UserError

if TYPE_CHECKING:
    from lanternbench.costs.device_models import DeviceModel
    from lanternbench.predict.cases import Cases
    from lanternbench.predict.predict import Machine, Prediction, Roofline, Validation

DEFAULT = "h100"


def predict(
    run: Annotated[str, typer.Argument(help="Run id or folder.")],
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            help="a100-40g, a100-80g, h100, h200, rtx-4090, l40s, or `this`: this machine, probed; repeatable "
            "(default: h100).",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Of `lanternbench targets`, or chameleon-34b (default: the run's).")
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="A smaller target that drafts, for methods such as sd.")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,8,64,512",
    dtype: Annotated[
        str, typer.Option(help="Of the weights on a device model: bfloat16 or float32; `this` takes the run's.")
    ] = "bfloat16",
    compile_mode: Annotated[
        str, typer.Option("--compile", help="graphs: a step is CUDA graphs; eager: the host issues each kernel.")
    ] = "graphs",
    results: options.Results = Path("results"),
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the table (JSON, Markdown) and a plot (default: none).")
    ] = None,
    threads: options.Threads = None,
    as_json: options.AsRows = False,
) -> None:
    """Replay a run's accepted lengths and tree sizes on models of devices: predictions, never mixed with results.

    Example: lanternbench predict RUN --device h100 --device rtx-4090 --target anole-7b --batch 1,16
    """
    from lanternbench.costs.device_models import THIS, device_model
    from lanternbench.experiment import find, read_run, read_samples
    from lanternbench.predict import cases as replayed
    from lanternbench.predict.predict import BATCHES, Roofline, record, validate
    from lanternbench.predict.table import write
    from lanternbench.predict.this_machine import probe

    names = list(dict.fromkeys(name if name == THIS else device_model(name).name for name in device or [DEFAULT]))
    models = {name: device_model(name) for name in names if name != THIS}
    sizes = _check(batch, dtype, compile_mode, out)
    folder = find(results, [run])[0]
    facts, samples = read_run(folder), read_samples(folder)
    own, its_drafter, guidance = replayed.of_run(facts)
    source = replayed.sketch(own, its_drafter)
    same = target in (None, own) and drafter is None
    there = source if same else replayed.sketch(target or own, drafter)
    found = replayed.cases(samples, source, there, guidance if target in (None, own) else None, str(folder))
    machines: list[tuple[Machine, Roofline]] = []
    checked: list[Validation] = []
    notes = list(found.notes)
    for name in names:
        if name in models:
            roof = Roofline(models[name], dtype, compile_mode == "graphs")
            machines.append((roof, roof))
            notes.append(_source(models[name], compile_mode))
            continue
        with display("probing this machine") as shown:
            here = probe(facts, folder, found, samples[0].prompt, threads, shown.show)
        machines.append((here.measured if same else here.roofline, here.roofline))
        notes += here.notes
        if same and facts["config"].get("batch", 1) == 1:
            checked = validate(here.measured, found.traces, samples)
        if checked:
            notes.append(_error(checked))
    every = list(BATCHES) if out is not None else []  # for the plot
    rows, curve = [], []
    with display("predicting") as shown:
        for done, pair in enumerate(machines):
            shown.show(done, len(machines), pair[1].name)
            rows += _rows(*pair, found, sizes)
            curve += _rows(*pair, found, every)
    if out is not None:
        write(out, rows, curve, checked, notes)
    if as_json:
        fields = {"run": str(folder), "rows": list(map(record, rows)), "validation": [v._asdict() for v in checked]}
        print_json({"predicted": True, **fields, "notes": notes})
    else:
        _print(rows, checked, notes)


def _check(batch: str, dtype: str, compile_mode: str, out: Path | None) -> list[int]:
    """The batch sizes.  Raises UserError for what cannot be read."""
    from lanternbench.models.loading import dtype_named

    dtype_named(dtype)
    if compile_mode not in ("graphs", "eager"):
        raise UserError(f"unknown mode '{compile_mode}': give --compile graphs or eager")
    if out is not None and (out / "run.json").exists():
        raise UserError(f"{out} is a run folder, which holds measurements: choose another folder with --out")
    parts = options.listed(batch)
    if not parts or not all(part.isdecimal() and 1 <= int(part) <= 65536 for part in parts):
        raise UserError(f"--batch {batch} cannot be read: give whole numbers from 1 to 65536, such as 1,8,64")
    return list(dict.fromkeys(map(int, parts)))


def _rows(machine: Machine, roof: Roofline, found: Cases, sizes: list[int]) -> list[Prediction]:
    """Batches on a probed machine come from the device model that the probe gave: it decoded single images."""
    from lanternbench.predict.predict import predict as predicted
    from lanternbench.predict.predict import with_limits

    if not sizes:
        return []
    alone = [size for size in sizes if size == 1]
    rest = [size for size in sizes if size > 1]
    rows = predicted(machine, found.traces, alone) + predicted(roof, found.traces, rest)
    return with_limits(rows, roof, found.traces)


def _error(checked: list[Validation]) -> str:
    """How far the predictions are from what was measured."""
    wall, robust = (median(getattr(v, name) for v in checked) for name in ("error", "robust_error"))
    said = f"median error on this machine: {wall:.1%} of the latency, {robust:.1%} of the robust latency"
    ratios = [v.speedup_error for v in checked if v.speedup_error is not None]
    return said + (f", {median(ratios):.1%} of the speedup" if ratios else "")


def _source(model: DeviceModel, compile_mode: str) -> str:
    graphs = compile_mode == "graphs"
    per_kernel = f"{model.gap:g} µs a kernel in a graph" if graphs else f"{model.issue:g} µs to issue a kernel"
    return (
        f"{model.name}: {model.about}, {model.bandwidth:g} GB/s, {model.memory:g} GB ({model.source}); {per_kernel}, "
        "an estimate"
    )


def _print(rows: list[Prediction], checked: list[Validation], notes: list[str]) -> None:
    from lanternbench.predict import table as shown

    console = stdout()
    for group in shown.setups(rows):
        console.print(shown.terminal_table(group))
    if checked:
        console.print(shown.validation_table(checked))
    print_notes(notes, Console(stderr=True))
