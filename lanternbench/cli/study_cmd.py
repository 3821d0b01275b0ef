"""``verify``, ``profile``, ``tune``, ``predict``, ``codebook``: proofs of methods, and what their
time depends on.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.options import From, Given, Takes
from lanternbench.cli.output import (
    display,
    print_cells,
    print_json,
    print_notes,
    program,
    stdout,
    table_of,
)
from lanternbench.errors import UserError
from lanternbench.methods.method import Method, method
from lanternbench.registry import components
from lanternbench.settings import Dtype, ModelSpec, PromptSpec, Sampling, Tune, checked
from lanternbench.utils.device import choose
from lanternbench.utils.files import OUT, TRACE, check_writable, replacing

if TYPE_CHECKING:
    from lanternbench.lossless import Row

DEVICES = "a100-40g, a100-80g, h100, h200, rtx-4090, l40s, or `this`: this machine, probed"
MAX_SIZE = 10**6
TITLES = ("method", "check", "", "measured", "limit", "detail")
MARKS = {True: Text("pass", "green"), False: Text("FAIL", "red"), None: "–"}


def verify(
    seed: Annotated[int, From(PromptSpec)],
    method_options: options.MethodOptions,
    names: Annotated[
        list[str] | None, Argument(metavar="[METHOD]...", help="Methods; all by default.")
    ] = None,
    every: Annotated[bool, Option("--all", help="Every method.")] = False,
    as_json: options.AsRows = False,
) -> None:
    """Prove methods: exact enumeration on small tables, and statistics on the embedded model; exit
    1 on failure.

    Example: lanternbench verify eagle-1 --tree chain --acceptance block
    """
    from lanternbench.lossless import verify_all
    from lanternbench.models.catalogue import load_target

    names = list(components("preset")) if every or not names else list(names)
    chosen: list[str | Method] = [*names]
    if method_options:
        chosen = [
            method(spec.pop("method"), **spec) for spec in options.specs(names, method_options)
        ]
    with display("verifying") as bars:
        rows = verify_all(
            chosen, load_target("tiny"), seed,
            on_row=lambda row: bars.show(0, 0, f"verified {row.method}: {row.check}"),
            on_world=lambda what, done, of: bars.show(done, of, what),
        )  # fmt: skip
    if as_json:
        print_json(rows)
    else:
        stdout().print(checks_table(rows))
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)


def checks_table(rows: "list[Row]") -> Table:
    """The checks for a terminal."""
    numbers = [["–" if x is None else f"{x:.3g}" for x in (r.value, r.limit)] for r in rows]
    cells = (
        (r.method, r.check, MARKS[r.passed], *each, r.detail) for r, each in zip(rows, numbers)
    )
    return table_of(TITLES, cells, left=TITLES, padding=(0, 1, 0, 0), pad_edge=False)


def profile(
    spec: Annotated[ModelSpec, Takes()],
    sampling: Annotated[Sampling, Takes()],
    methods: Annotated[list[str] | None, Argument(metavar="[METHOD]...", help="Presets.")] = None,
    num_prompts: Annotated[
        int, Option("--num-prompts", "-n", min=1, help="Demo captions to decode.")
    ] = 4,
    trace: Annotated[
        Path | None, Option(help="Write a Chrome trace of a few steps of the last method.")
    ] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    as_json: options.AsRows = False,
) -> None:
    """Split a method's step into draft, verification, commit and host.

    Example: lanternbench profile eagle-1 cool-sd
    """
    from lanternbench import prompts
    from lanternbench.costs.forward_cost import bandwidth
    from lanternbench.methods.build import build
    from lanternbench.models.catalogue import load_with_drafter
    from lanternbench.profile import step_profile

    if trace is not None:
        check_writable(trace, TRACE)
    chosen = [
        method(name)
        for name in ("ar", *(n for n in methods or ["eagle-1", "cool-sd"] if n != "ar"))
    ]
    used = {m.choices.proposal for m in chosen}
    model = load_with_drafter(spec, choose(device, threads), used)
    decoders = [build(model, m, sampling, spec.simulate_acceptance) for m in chosen]
    captions = prompts.captions_for(model.labels, num_prompts)
    with display("profiling"):
        limit = bandwidth(model.device)
        profiles = step_profile.profile(decoders, captions)
        if trace is not None:
            step_profile.chrome_trace(decoders[-1], captions[0], trace)
    if as_json:
        print_json(
            {"bandwidth": limit.best, "bandwidth_median": limit.median, "methods": profiles}
        )
        return
    rows = []
    for p in profiles:
        times = (
            f"{t:.2f}"
            for t in (p.tau, p.step_ms, p.draft_ms, p.verify_ms, p.commit_ms, p.other_ms)
        )
        rates = (
            f"{p.overhead_fraction:.1%}",
            f"{p.speedup:.2f}×",
            f"{p.roofline:.2f}×",
            f"{p.achieved:.1f}",
        )
        rows.append((p.label, *times, *rates))
    titles = (
        "method",
        "τ",
        "step",
        "draft",
        "verify",
        "commit",
        "other",
        "out",
        "speedup",
        "limit",
        "GB/s",
    )
    print_cells(titles, rows, padding=(0, 1, 0, 0), pad_edge=False)
    share = profiles[0].achieved / limit.best
    print(
        "step and its phases in ms; out: share outside forwards; limit: the speedup that the bandwidth allows"
    )
    print(
        f"memory reads at {limit.best:.1f} GB/s here (best of {limit.passes} passes with {limit.threads} thread(s), "
        f"their median {limit.spread:.0%} below); ar's forward uses {share:.0%} of that"
    )


def tune(
    method: Annotated[
        str, Option("--method", "-m", help="A drafting method: see `lanternbench methods`.")
    ],
    given: Annotated[Given, Takes(Tune)],
    where: Annotated[options.Place, Takes()],
    method_options: options.MethodOptions,
    as_json: options.AsJson = False,
) -> None:
    """Find the sizes of a method's tree, or window, that suit this machine, and write them as a
    preset.

    Example: lanternbench tune --method eagle-1
    """
    from lanternbench.tune import tuning as search
    from lanternbench.tune.result import with_interval, write_plot

    config, device = (
        checked(Tune, given | {"method": method, "options": method_options}),
        where.device,
    )
    with display(f"tuning {method}") as bars:
        chosen = choose(device, where.threads)
        path, tuning = search.tune(
            config, where.out, fresh=where.fresh, device=chosen, progress=bars.show
        )
        plot, _ = write_plot(tuning, path.with_suffix(""))
    if as_json:
        about = {
            "preset": str(path),
            "plot": str(plot),
            "verdict": tuning.verdict,
            "best": tuning.best,
        }
        print_json(about | {"results": tuning.rows(), "cost": tuning.cost.model_dump()})
        return
    rows = []
    for r in tuning.results:
        label = f"{r.label}{' (its own)' if r.name == 'default' else ''}{' ←' if r.name == tuning.best else ''}"
        nodes, tau, speed = "1", "–", "–"
        if e := r.expected:
            nodes, tau = str(e.shape.nodes), f"{e.tau:.2f}"
            speed = speed if tuning.disturbed else f"{e.tokens_per_s:.1f}"
        loss = "–" if r.fidelity_loss is None else f"{r.fidelity_loss:.3f}"
        measured = (
            f"{r.tau:.2f}",
            speed,
            f"{r.robust_tokens_per_s:.1f}",
            with_interval(r.robust_ratio),
            loss,
        )
        rows.append((label, nodes, tau, *measured))
    titles = (
        "sizes",
        "nodes",
        "τ expected",
        "τ",
        "tokens/s expected",
        "tokens/s",
        "× its own [95 %]",
        "fidelity loss",
    )
    print_cells(titles, rows, ("sizes",), pad_edge=False)
    print_notes(filter(None, [tuning.disturbed]))
    print(f"{tuning.verdict}\n{path}  ·  plot: {plot}\nnext: {program()} run --method {path}")


def predict(
    run: Annotated[str, Argument(help="Run id or folder.")],
    device: Annotated[
        list[str] | None, Option(help=f"{DEVICES}; repeatable (default: h100).")
    ] = None,
    target: Annotated[
        str | None, Option(help="A target, or chameleon-34b (default: the run's).")
    ] = None,
    drafter: Annotated[
        str | None, Option(help="A smaller target that drafts, for methods such as sd.")
    ] = None,
    batch: Annotated[str, Option(help="Batch sizes, comma-separated.")] = "1,8,64,512",
    dtype: Annotated[
        str, Option(help="Of weights: bfloat16 or float32; `this` takes the run's.")
    ] = "bfloat16",
    compile_mode: Annotated[
        str, Option("--compile", help="graphs: CUDA graphs; eager: launched kernels.")
    ] = "graphs",
    results: options.Results = Path("results"),
    out: Annotated[
        Path | None, Option(help="Folder for a table (JSON, Markdown) and a plot.")
    ] = None,
    threads: options.Threads = None,
    as_json: options.AsRows = False,
) -> None:
    """Replay a run's accepted lengths and tree sizes on models of devices: predictions, never
    mixed with results.

    Example: lanternbench predict RUN --device h100 --device rtx-4090 --target anole-7b --batch
    1,16
    """
    from lanternbench.costs.roofline import THIS, device_model
    from lanternbench.experiment import find, read_run, read_samples
    from lanternbench.models.loading import dtype_named
    from lanternbench.predict import predict as prediction
    from lanternbench.predict import replay
    from lanternbench.predict.machines import Measured, Roofline, probe

    names = list(
        dict.fromkeys(
            name if name == THIS else device_model(name).name for name in device or ["h100"]
        )
    )
    dtype_named(dtype)
    if compile_mode not in ("graphs", "eager"):
        raise UserError(f"unknown mode '{compile_mode}': give --compile graphs or eager")
    if out is not None and (out / "run.json").exists():
        raise UserError(
            f"{out} is a run folder, which holds measurements: choose another folder with --out"
        )
    parts = options.listed(batch)
    if not parts or not all(part.isdecimal() and 1 <= int(part) <= 65536 for part in parts):
        raise UserError(
            f"--batch {batch} cannot be read: give whole numbers from 1 to 65536, such as 1,8,64"
        )
    sizes = list(dict.fromkeys(map(int, parts)))
    folder = find(results, [run])[0]
    record, samples = read_run(folder), read_samples(folder)
    its_target, its_drafter, guidance = replay.of_run(record)
    source = replay.sketch(its_target, its_drafter)
    same = target in (None, its_target) and drafter is None
    goal = source if same else replay.sketch(target or its_target, drafter)
    cases = replay.cases(
        samples, source, goal, guidance if target in (None, its_target) else None, str(folder)
    )
    machines: list[tuple[Roofline, Measured | None]] = []
    checked: list[prediction.Validation] = []
    notes, graphs = list(cases.notes), compile_mode == "graphs"
    for name in names:
        if name != THIS:
            machines.append((Roofline(device_model(name), dtype, graphs), None))
            notes.append(device_model(name).sentence(graphs))
            continue
        with display("probing this machine") as bars:
            roof, measured, about = probe(
                record, folder, cases, samples[0].prompt, threads, bars.show
            )
        machines.append((roof, measured if same else None))
        if same and record["config"].get("batch", 1) == 1:
            checked = prediction.validate(measured, cases.traces, samples)
        notes += [*about, *prediction.errors(checked)]
    rows, curve = [], []
    with display("predicting") as bars:
        for done, (roof, alone) in enumerate(machines):
            bars.show(done, len(machines), roof.name)
            rows += prediction.predict(roof, cases.traces, sizes, alone)
            if out is not None:  # for the plot
                curve += prediction.predict(roof, cases.traces, prediction.BATCHES, alone)
    records = [{"predicted": True, **row._asdict()} for row in rows]
    document = {"predicted": True, "rows": records, "validation": checked, "notes": notes}
    if out is not None:
        prediction.write(out, document, rows, curve)
    if as_json:
        print_json({"run": str(folder), **document})
        return
    for part in prediction.terminal_tables(rows, checked):
        stdout().print(part)
    print_notes(notes)


def codebook(
    seed: Annotated[int, From(PromptSpec)],
    dtype: Annotated[Dtype | None, From(ModelSpec)],
    target: Annotated[
        str, Argument(help="A target of `lanternbench targets`, or a folder.")
    ] = "tiny",
    k: Annotated[str, Option(help="Sizes of neighbourhoods, the token included.")] = "2,10,100",
    proximity: Annotated[
        Literal["l2", "cosine", "random"], Option(help="What nearest means.")
    ] = "l2",
    num_prompts: Annotated[
        int, Option("--num-prompts", "-n", min=1, help="Demo captions to draw.")
    ] = 4,
    out: Annotated[Path | None, Option(help="Write the images side by side (PNG).")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    as_json: options.AsRows = False,
) -> None:
    """Swap every token of drawn images for a near code: what LANTERN's neighbourhoods cost, and
    how likely they are.

    Example: lanternbench codebook tiny --k 2,10,100 --out codebook.png
    """
    from lanternbench import prompts
    from lanternbench.measure import code_swaps as codebooks
    from lanternbench.models.catalogue import load_target

    try:
        sizes = sorted({int(x) for x in k.split(",")})
    except ValueError:
        raise UserError(f"--k {k} is no list of numbers: write for example --k 2,10,100") from None
    if sizes[-1] > MAX_SIZE:
        raise UserError(
            f"--k has a size over {MAX_SIZE}: give at most the size of the target's vocabulary"
        )
    if out is not None:
        check_writable(out, OUT)
    model = load_target(target, choose(device, threads), dtype=dtype)
    captions = prompts.captions_for(model.labels, num_prompts)
    with display("drawing and swapping"):
        study = codebooks.study_codebook(model, captions, sizes, proximity, seed)
    if out is not None:
        from lanternbench.report.images import images_figure

        heads = ["as drawn", *(f"k = {x.k}" for x in study.likenesses)]
        with replacing(out, OUT) as file:
            images_figure(heads, study.images, captions).savefig(file, format="png", dpi=200)
    if as_json:
        about = {"codes": study.codes, "width": study.width, "twins": study.twins}
        print_json(about | {"neighbourhoods": study.likenesses})
        return
    cells = (
        (
            str(x.k),
            f"{x.distance:.2f}",
            f"{x.mass:.3f}",
            "the same" if x.psnr is None else f"{x.psnr:.1f}",
        )
        for x in study.likenesses
    )
    print_cells(("k", "distance", "probability", "images swapped, dB"), cells)
    print(
        f"{study.codes} codes of width {study.width}, {study.twins} like another. Distance: of the k-th nearest, in "
        "those of random pairs.\nProbability: the target's, of a drawn token and its neighbours. dB: PSNR against the "
        "images as drawn."
    )
