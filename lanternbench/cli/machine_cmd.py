"""``tune``, ``predict``: the tree with the most tokens per second here; what methods would gain on other devices."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.fields import MethodOptions, Takes
from lanternbench.cli.output import print_cells, print_json, print_notes, program, stdout
from lanternbench.cli.progress import display
from lanternbench.cli.run_cmd import MODEL, Execution
from lanternbench.errors import UserError
from lanternbench.utils.device import choose

SETTINGS = f"{MODEL} prompts num_prompts recorded few seed temperature guidance"  # of `tune`
DEFAULT = "h100"
DEVICES = "a100-40g, a100-80g, h100, h200, rtx-4090, l40s, or `this`: this machine, probed"


def tune(
    method: Annotated[str, Option("--method", "-m", help="A drafting method: see `lanternbench methods`.")],
    settings: Annotated[dict[str, Any], Takes(SETTINGS, "lanternbench.tune.tree_search:Tune")],
    where: Annotated[Execution, Takes("device threads out fresh")],
    method_options: MethodOptions,
    as_json: options.AsJson = False,
) -> None:
    """Find the sizes of a method's tree, or window, that suit this machine, and write them as a preset.

    Example: lanternbench tune --method eagle-1
    """
    from lanternbench.experiment.config import checked
    from lanternbench.tune import tuning as search
    from lanternbench.tune.result import Tune, with_interval, write_plot

    config, device = checked(Tune, settings | {"method": method, "options": method_options}), where.device
    with display(f"tuning {method}") as bars:
        chosen = choose(device, where.threads)
        path, tuning = search.tune(config, where.out, fresh=where.fresh, device=chosen, progress=bars.show)
        plot, _ = write_plot(tuning, path.with_suffix(""))
    if as_json:
        print_json({"preset": str(path), "plot": str(plot), "verdict": tuning.verdict, "best": tuning.best,
                    "results": tuning.rows(), "cost": tuning.cost.model_dump()})  # fmt: skip
        return
    rows = []
    for r in tuning.results:
        label = f"{r.label}{' (its own)' if r.name == 'default' else ''}{' ←' if r.name == tuning.best else ''}"
        nodes, tau, speed = "1", "–", "–"
        if e := r.expected:
            nodes, tau = str(e.shape.nodes), f"{e.tau:.2f}"
            speed = speed if tuning.disturbed else f"{e.tokens_per_s:.1f}"
        loss = "–" if r.fidelity_loss is None else f"{r.fidelity_loss:.3f}"
        measured = (f"{r.tau:.2f}", speed, f"{r.robust_tokens_per_s:.1f}", with_interval(r.robust_ratio), loss)
        rows.append((label, nodes, tau, *measured))
    titles = ("sizes", "nodes", "τ expected", "τ", "tokens/s expected", "tokens/s", "× its own [95 %]", "fidelity loss")
    print_cells(titles, rows, ("sizes",), pad_edge=False)
    print_notes(filter(None, [tuning.disturbed]))
    print(f"{tuning.verdict}\n{path}  ·  plot: {plot}\nnext: {program()} run --method {path}")


def predict(
    run: Annotated[str, Argument(help="Run id or folder.")],
    device: Annotated[list[str] | None, Option(help=f"{DEVICES}; repeatable (default: h100).")] = None,
    target: Annotated[
        str | None, Option(help="Of `lanternbench targets`, or chameleon-34b (default: the run's).")
    ] = None,
    drafter: Annotated[str | None, Option(help="A smaller target that drafts, for methods such as sd.")] = None,
    batch: Annotated[str, Option(help="Batch sizes, comma-separated.")] = "1,8,64,512",
    dtype: Annotated[
        str, Option(help="Of the weights on a device model: bfloat16 or float32; `this` takes the run's.")
    ] = "bfloat16",
    compile_mode: Annotated[
        str, Option("--compile", help="graphs: a step is CUDA graphs; eager: the host issues each kernel.")
    ] = "graphs",
    results: options.Results = Path("results"),
    out: Annotated[
        Path | None, Option(help="Folder for the table (JSON, Markdown) and a plot (default: none).")
    ] = None,
    threads: options.Threads = None,
    as_json: options.AsRows = False,
) -> None:
    """Replay a run's accepted lengths and tree sizes on models of devices: predictions, never mixed with results.

    Example: lanternbench predict RUN --device h100 --device rtx-4090 --target anole-7b --batch 1,16
    """
    from lanternbench.costs.device_models import THIS, device_model
    from lanternbench.experiment import find, read_run, read_samples
    from lanternbench.models.loading import dtype_named
    from lanternbench.predict import cases as replayed
    from lanternbench.predict import table
    from lanternbench.predict.machines import Measured, Roofline
    from lanternbench.predict.predict import BATCHES, Validation, validate
    from lanternbench.predict.predict import predict as predicted
    from lanternbench.predict.this_machine import probe

    names = list(dict.fromkeys(name if name == THIS else device_model(name).name for name in device or [DEFAULT]))
    dtype_named(dtype)
    sizes = _check(batch, compile_mode, out)
    folder = find(results, [run])[0]
    record, samples = read_run(folder), read_samples(folder)
    its_target, its_drafter, guidance = replayed.of_run(record)
    source = replayed.sketch(its_target, its_drafter)
    same = target in (None, its_target) and drafter is None
    goal = source if same else replayed.sketch(target or its_target, drafter)
    cases = replayed.cases(samples, source, goal, guidance if target in (None, its_target) else None, str(folder))
    machines: list[tuple[Roofline, Measured | None]] = []
    checked: list[Validation] = []
    notes = list(cases.notes)
    for name in names:
        if name != THIS:
            model = device_model(name)
            machines.append((Roofline(model, dtype, compile_mode == "graphs"), None))
            notes.append(model.sentence(compile_mode == "graphs"))
            continue
        with display("probing this machine") as bars:
            roof, measured, about = probe(record, folder, cases, samples[0].prompt, threads, bars.show)
        machines.append((roof, measured if same else None))
        notes += about
        if same and record["config"].get("batch", 1) == 1:
            checked = validate(measured, cases.traces, samples)
        notes += table.errors(checked)
    rows, curve = [], []
    with display("predicting") as bars:
        for done, (roof, alone) in enumerate(machines):
            bars.show(done, len(machines), roof.name)
            rows += predicted(roof, cases.traces, sizes, alone)
            curve += predicted(roof, cases.traces, BATCHES, alone) if out is not None else []  # for the plot
    document = table.document(rows, checked, notes)
    if out is not None:
        table.write(out, document, rows, curve)
    if as_json:
        print_json({"run": str(folder), **document})
        return
    for part in table.terminal_tables(rows, checked):
        stdout().print(part)
    print_notes(notes)


def _check(batch: str, compile_mode: str, out: Path | None) -> list[int]:
    """The batch sizes.  Raises UserError for what cannot be read."""
    if compile_mode not in ("graphs", "eager"):
        raise UserError(f"unknown mode '{compile_mode}': give --compile graphs or eager")
    if out is not None and (out / "run.json").exists():
        raise UserError(f"{out} is a run folder, which holds measurements: choose another folder with --out")
    parts = options.listed(batch)
    if not parts or not all(part.isdecimal() and 1 <= int(part) <= 65536 for part in parts):
        raise UserError(f"--batch {batch} cannot be read: give whole numbers from 1 to 65536, such as 1,8,64")
    return list(dict.fromkeys(map(int, parts)))
