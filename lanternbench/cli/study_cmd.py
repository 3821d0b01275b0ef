"""``verify``, ``profile``, ``tune``, ``predict``, ``codebook``: proofs of methods, and studies of
their speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from lanternbench.settings import (
    Dtype,
    Machine,
    ModelSpec,
    Place,
    PromptSpec,
    Sampling,
    Tune,
    checked,
)
from lanternbench.utils.files import OUT, TRACE, check_writable, replacing
from lanternbench.utils.progress import counted

if TYPE_CHECKING:
    from lanternbench.costs.forward_cost import Bandwidth
    from lanternbench.lossless import Row
    from lanternbench.measure.code_swaps import Codebook
    from lanternbench.measure.run_record import RunRecord
    from lanternbench.measure.samples import Sample
    from lanternbench.predict.machines import Measured, Roofline
    from lanternbench.predict.predict import Prediction, Validation
    from lanternbench.profile.step_profile import Profile
    from lanternbench.tune.result import Result, Tuning

DEVICES = "a100-40g, a100-80g, h100, h200, rtx-4090, l40s, or `this` for this machine"
MAX_SIZE = 10**6
MAX_BATCH = 65536
TITLES = ("method", "check", "", "measured", "limit", "detail")
MARKS = {True: Text("pass", "green"), False: Text("FAIL", "red"), None: "–"}
Captions = Annotated[int, Option("--num-prompts", "-n", min=1, help="Demo captions to decode.")]


def verify(
    seed: Annotated[int, From(PromptSpec)],
    method_options: options.MethodOptions,
    names: Annotated[
        list[str] | None, Argument(metavar="[METHOD]...", help="Methods (default: all).")
    ] = None,
    every: Annotated[bool, Option("--all", help="Verify every method.")] = False,
    as_json: options.AsRows = False,
) -> None:
    """Prove methods by exact enumeration on small tables and statistics on the bundled model.

    The exit code is 1 if a check fails.

    Example: lanternbench verify eagle-1 --tree chain --acceptance block
    """
    from lanternbench.experiment.config import specs
    from lanternbench.lossless import verify_all
    from lanternbench.models.catalogue import load_target

    if every or not names:
        names = list(components("preset"))
    chosen: list[str | Method] = list(names)
    if method_options:
        entries = specs(names, method_options)
        chosen = [method(entry.pop("method"), **entry) for entry in entries]
    with display("verifying") as bars:
        rows = verify_all(
            chosen,
            load_target("tiny"),
            seed,
            on_row=lambda row: bars.show(0, 0, f"verified {row.method}: {row.check}"),
            progress=bars.show,
        )
    if as_json:
        print_json(rows)
    else:
        stdout().print(checks_table(rows))
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)


def checks_table(rows: list[Row]) -> Table:
    """Return the checks as a table for a terminal."""
    cells = []
    for row in rows:
        numbers = ["–" if x is None else f"{x:.3g}" for x in (row.value, row.limit)]
        cells.append((row.method, row.check, MARKS[row.passed], *numbers, row.detail))
    return table_of(TITLES, cells, left=TITLES)


def profile(
    spec: Annotated[ModelSpec, Takes()],
    sampling: Annotated[Sampling, Takes()],
    machine: Annotated[Machine, Takes()],
    methods: Annotated[
        list[str] | None,
        Argument(metavar="[METHOD]...", help="Methods (default: eagle-1, cool-sd)."),
    ] = None,
    num_prompts: Captions = 4,
    trace: Annotated[
        Path | None, Option(help="Write a Chrome trace of a few steps of the last method.")
    ] = None,
    as_json: options.AsRows = False,
) -> None:
    """Measure how a method's step divides into draft, verification, commit and host.

    Example: lanternbench profile eagle-1 cool-sd
    """
    from lanternbench import prompts
    from lanternbench.costs.forward_cost import bandwidth
    from lanternbench.methods.build import build
    from lanternbench.models.catalogue import load_with_drafter
    from lanternbench.profile import step_profile

    if trace is not None:
        check_writable(trace, TRACE)
    names = dict.fromkeys(["ar", *(methods or ["eagle-1", "cool-sd"])])
    chosen = [method(name) for name in names]
    target = load_with_drafter(spec, machine.choose(), {m.choices.proposal for m in chosen})
    decoders = [build(target, m, sampling, spec.simulate_acceptance) for m in chosen]
    captions = prompts.captions_for(target.labels, num_prompts)
    with display("profiling"):
        limit = bandwidth(target.device)
        profiles = step_profile.profile(decoders, captions)
        if trace is not None:
            step_profile.chrome_trace(decoders[-1], captions[0], trace)
    if as_json:
        figures = {"bandwidth": limit.best, "bandwidth_median": limit.median}
        print_json(figures | {"methods": profiles})
    else:
        print_profiles(profiles, limit)


def print_profiles(profiles: Sequence[Profile], limit: Bandwidth) -> None:
    """Print a line per method, and what its columns mean."""
    rows = []
    for p in profiles:
        times = (p.tau, p.step_ms, p.draft_ms, p.verify_ms, p.commit_ms, p.other_ms)
        rates = (f"{p.overhead_fraction:.1%}", f"{p.speedup:.2f}×", f"{p.roofline:.2f}×")
        rows.append((p.label, *(f"{x:.2f}" for x in times), *rates, f"{p.achieved:.1f}"))
    phases = ("step", "draft", "verify", "commit", "other")
    titles = ("method", "τ", *phases, "out", "speedup", "limit", "GB/s")
    print_cells(titles, rows)
    share = profiles[0].achieved / limit.best
    print(
        "step and its phases in ms; out: share outside forward passes; limit: the speedup that the"
        " bandwidth allows"
    )
    print(
        f"memory reads at {limit.best:.1f} GB/s on this machine (best of {limit.passes} passes"
        f" with {limit.threads} thread(s), their median {limit.spread:.0%} below); ar's forward pass"
        f" uses {share:.0%} of that"
    )


def tune(
    method: Annotated[
        str, Option("--method", "-m", help="A drafting method: see `lanternbench methods`.")
    ],
    given: Annotated[Given, Takes(Tune)],
    place: Annotated[Place, Takes()],
    method_options: options.MethodOptions,
    as_json: options.AsJson = False,
) -> None:
    """Find the fastest tree or window sizes of a method on this machine, and write a preset.

    Example: lanternbench tune --method eagle-1
    """
    from lanternbench.tune import tuning as search
    from lanternbench.tune.result import write_plot

    config = checked(Tune, given | {"method": method, "options": method_options})
    with display(f"tuning {method}") as bars:
        path, tuning = search.tune(
            config,
            place.out,
            fresh=place.fresh,
            device=place.choose(),
            progress=bars.show,
        )
        plot, _ = write_plot(tuning, path.with_suffix(""))
    if not as_json:
        print_tuning(tuning)
        print(f"{path}  ·  plot: {plot}\nnext: {program()} run --method {path}")
        return
    document = {
        "preset": str(path),
        "plot": str(plot),
        "verdict": tuning.verdict,
        "best": tuning.best,
        "results": tuning.rows(),
        "cost": tuning.cost.model_dump(),
    }
    print_json(document)


def print_tuning(tuning: Tuning) -> None:
    """Print a line per size, and the verdict."""
    rows = [tuning_cells(tuning, result) for result in tuning.results]
    titles = (
        *("sizes", "nodes", "τ expected", "τ"),
        *("tokens/s expected", "tokens/s", "relative to the default sizes [95 %]"),
        "fidelity loss",
    )
    print_cells(titles, rows, ("sizes",))
    print_notes(filter(None, [tuning.disturbed]))
    print(tuning.verdict)


def tuning_cells(tuning: Tuning, result: Result) -> tuple[str, ...]:
    from lanternbench.tune.result import DEFAULT, with_interval

    label = result.label
    if result.name == DEFAULT:
        label += " (default sizes)"
    if result.name == tuning.best:
        label += " ←"
    nodes, tau, speed = "1", "–", "–"
    if expected := result.expected:
        nodes = str(expected.shape.nodes)
        tau = f"{expected.tau:.2f}"
        if not tuning.disturbed:
            speed = f"{expected.tokens_per_s:.1f}"
    loss = "–" if result.fidelity_loss is None else f"{result.fidelity_loss:.3f}"
    measured = (f"{result.robust_tokens_per_s:.1f}", with_interval(result.robust_ratio), loss)
    return (label, nodes, tau, f"{result.tau:.2f}", speed, *measured)


@dataclass(frozen=True)
class Elsewhere:
    """The machines and the target on which a run is replayed."""

    device: Annotated[
        list[str] | None, Option(help=f"{DEVICES}; repeat the option for several (default: h100).")
    ] = None
    target: Annotated[
        str | None, Option(help="A target, or chameleon-34b (default: the run's).")
    ] = None
    drafter: Annotated[
        str | None, Option(help="A smaller target that drafts, for methods such as sd.")
    ] = None
    batch: Annotated[str, Option(help="Batch sizes, comma-separated.")] = "1,8,64,512"
    dtype: Annotated[
        str, Option(help="Data type of weights: bfloat16 or float32; `this` takes the run's.")
    ] = "bfloat16"
    compile_mode: Annotated[
        Literal["graphs", "eager"],
        Option("--compile", help="graphs: CUDA graphs; eager: launched kernels."),
    ] = "graphs"
    temperature: Annotated[
        float | None, Option(help="Of published accepted lengths (default: the run's, or 1).")
    ] = None
    every: Annotated[
        bool, Option("--all", help="Also methods whose drafter nobody published for the target.")
    ] = False

    @property
    def names(self) -> list[str]:
        """The names of the devices.  Raises UserError for unknown ones."""
        from lanternbench.costs.roofline import THIS, device_model

        names = self.device or ["h100"]
        known = (name if name == THIS else device_model(name).name for name in names)
        return list(dict.fromkeys(known))


def predict(
    elsewhere: Annotated[Elsewhere, Takes()],
    threads: Annotated[int | None, From(Machine)],
    run: Annotated[str | None, Argument(help="Run id or folder.")] = None,
    published: Annotated[
        bool,
        Option("--published", help="All methods with accepted lengths published for --target."),
    ] = False,
    results: options.Results = Path("results"),
    out: Annotated[
        Path | None, Option(help="Folder for a table (JSON, CSV, Markdown) and a plot.")
    ] = None,
    as_json: options.AsRows = False,
) -> None:
    """Predict speedups on other devices from accepted lengths, of a run or published.

    Every row names the origin of its accepted length. Predictions are never mixed with results.

    Example: lanternbench predict --published --target anole-7b --device a100
    """
    from lanternbench.predict import predict as prediction

    sizes = options.whole_numbers("--batch", elsewhere.batch, MAX_BATCH)
    if out is not None and (out / "run.json").exists():
        raise UserError(
            f"{out} is a run folder, which holds measurements: choose another folder with --out"
        )
    replay = Replay(run, results, elsewhere, published)
    replay.add_machines(threads)
    rows = replay.predictions(sizes)
    records = [{"predicted": True, **row._asdict()} for row in rows]
    document: dict[str, object] = {
        "predicted": True,
        "rows": records,
        "validation": replay.validation,
        "notes": replay.notes,
    }
    if out is not None:
        curve = replay.predictions(prediction.BATCHES)
        prediction.write(out, document, rows, curve)
    if as_json:
        print_json({"run": str(replay.folder), **document})
        return
    for table in prediction.terminal_tables(rows, replay.validation):
        stdout().print(table)
    print_notes(replay.notes)


def advise(
    elsewhere: Annotated[Elsewhere, Takes()],
    run: Annotated[str | None, Argument(help="A run on the target, id or folder.")] = None,
    results: options.Results = Path("results"),
    as_json: options.AsRows = False,
) -> None:
    """Advise which method to use on a device, from accepted lengths published or measured.

    The fastest lossless method without and with a published drafter, and the fastest relaxed one,
    at the first batch size; and what would change the advice.

    Example: lanternbench advise --target anole-7b --device a100
    """
    from lanternbench.predict.advice import advice_of
    from lanternbench.predict.predict import BATCHES
    from lanternbench.predict.predict import predict as predictions

    batch = options.whole_numbers("--batch", elsewhere.batch, MAX_BATCH)[0]
    replay = Replay(run, results, elsewhere, published=True)
    replay.add_machines(None)
    found = []
    for roof, alone in replay.machines:
        rows = predictions(roof, replay.cases, sorted({batch, *BATCHES}), alone)
        found.append(advice_of(replay.target, batch, rows))
    if as_json:
        print_json({"predicted": True, "advice": found})
        return
    for one in found:
        print("\n".join(one.lines()))


class Replay:
    """Decodes of a run, published ones, or both, that are replayed on several machines."""

    def __init__(self, run: str | None, results: Path, elsewhere: Elsewhere, published: bool):
        from lanternbench.models.loading import dtype_named
        from lanternbench.predict.replay import Cases, sketch

        dtype_named(elsewhere.dtype)
        self.elsewhere = elsewhere
        self.folder: Path | None = None
        self.record: RunRecord | None = None
        self.samples: list[Sample] = []
        self.same = False  # whether the target and its drafters are the run's
        self.machines: list[tuple[Roofline, Measured | None]] = []
        self.validation: list[Validation] = []
        if run is not None:
            self._read(run, results)
        elif published and elsewhere.target is not None:
            self.target = sketch(elsewhere.target, elsewhere.drafter, elsewhere.every)
            self.measured = Cases([], [])
        else:
            raise UserError(
                "there are no accepted lengths to predict from: give a run, or --published and "
                "--target with a target that papers have measured, such as anole-7b"
            )
        self.cases = list(self.measured.cases)
        self.notes = list(self.measured.notes)
        if published or not self.same:
            used = {case.method.preset for case in self.cases}
            self._add_published(None if published else used)

    def _read(self, run: str, results: Path) -> None:
        """Add the decodes of a run."""
        from lanternbench.experiment import find, read_run, read_samples
        from lanternbench.predict import replay

        folder = find(results, [run])[0]
        self.folder = folder
        self.record = read_run(folder)
        self.samples = read_samples(folder)
        elsewhere = self.elsewhere
        name, drafter, guidance = replay.of_run(self.record)
        same_target = elsewhere.target in (None, name)
        self.same = same_target and elsewhere.drafter is None
        source = self.target = replay.sketch(name, drafter)
        if not self.same:
            goal = elsewhere.target or name
            self.target = replay.sketch(goal, elsewhere.drafter, elsewhere.every)
        origin = replay.origin(self.record, source, self.target, str(folder))
        scale = guidance if same_target else None
        self.measured = replay.cases(self.samples, source, self.target, scale, origin)

    def _add_published(self, methods: set[str] | None) -> None:
        """Add the published decodes of the target, of ``methods`` if given.  Raises UserError if
        there are no decodes at all.
        """
        from lanternbench.predict.published import published_cases
        from lanternbench.reproduce.recipe import guidance_of

        temperature = self.elsewhere.temperature
        if temperature is None:
            temperature = self.record.config.temperature if self.record else 1.0
        name = self.target.name
        found = published_cases(self.target, temperature, guidance_of(name), methods)
        self.cases.extend(found.cases)
        self.notes.extend(found.notes)
        if not self.cases:
            raise UserError(
                f"no accepted length is published for '{name}' at T {temperature:g}: measure one "
                f"with `lanternbench run --target {name}`, and give that run"
            )

    def add_machines(self, threads: int | None) -> None:
        """Add the devices that were asked for, this machine after probing it."""
        from lanternbench.costs.roofline import THIS, device_model
        from lanternbench.predict.machines import Roofline

        graphs = self.elsewhere.compile_mode == "graphs"
        for name in self.elsewhere.names:
            if name == THIS:
                self._probe(threads)
                continue
            model = device_model(name)
            self.machines.append((Roofline(model, self.elsewhere.dtype, graphs), None))
            self.notes.append(model.sentence(graphs))

    def _probe(self, threads: int | None) -> None:
        from lanternbench.predict import predict as prediction
        from lanternbench.predict.machines import probe

        if self.record is None:
            raise UserError("--device this probes the target of a run: give a run")
        caption = self.samples[0].prompt
        with display("probing this machine") as bars:
            config = self.record.config
            cases = self.measured.cases
            roof, machine, about = probe(config, cases, caption, threads, bars.show)
        self.machines.append((roof, machine if self.same else None))
        if self.same and self.record.config.batch == 1:
            self.validation = prediction.validate(machine, cases, self.samples)
        self.notes += [*about, *prediction.errors(self.validation)]

    def predictions(self, sizes: Sequence[int]) -> list[Prediction]:
        """Return the predictions for every machine and batch size."""
        from lanternbench.predict import predict as prediction

        rows: list[Prediction] = []
        with display("predicting") as bars:
            for roof, alone in counted(self.machines, bars.show, lambda machine: machine[0].name):
                rows += prediction.predict(roof, self.cases, sizes, alone)
        return rows


def codebook(
    seed: Annotated[int, From(PromptSpec)],
    dtype: Annotated[Dtype | None, From(ModelSpec)],
    machine: Annotated[Machine, Takes()],
    target: Annotated[
        str, Argument(help="A target of `lanternbench targets`, or a folder.")
    ] = "tiny",
    k: Annotated[
        str, Option(help="Neighbourhood sizes, including the token itself.")
    ] = "2,10,100",
    proximity: Annotated[
        Literal["l2", "cosine", "random"], Option(help="Distance between codes.")
    ] = "l2",
    num_prompts: Captions = 4,
    out: Annotated[Path | None, Option(help="Write the images side by side (PNG).")] = None,
    as_json: options.AsRows = False,
) -> None:
    """Replace every token of images by a similar code, to see what LANTERN's neighbourhoods cost.

    Example: lanternbench codebook tiny --k 2,10,100 --out codebook.png
    """
    from lanternbench import prompts
    from lanternbench.measure.code_swaps import study_codebook
    from lanternbench.models.catalogue import load_target

    sizes = sorted(options.whole_numbers("--k", k, MAX_SIZE))
    if out is not None:
        check_writable(out, OUT)
    model = load_target(target, machine.choose(), dtype=dtype)
    captions = prompts.captions_for(model.labels, num_prompts)
    with display("drawing and swapping"):
        study = study_codebook(model, captions, sizes, proximity, seed)
    if out is not None:
        write_swaps(out, study, captions)
    if as_json:
        about = {"codes": study.codes, "width": study.width, "twins": study.twins}
        print_json(about | {"neighbourhoods": study.likenesses})
    else:
        print_swaps(study)


def write_swaps(path: Path, study: Codebook, captions: list[str]) -> None:
    """Write the images side by side, a column per size."""
    from lanternbench.report.images import images_figure

    heads = ["as drawn", *(f"k = {likeness.k}" for likeness in study.likenesses)]
    figure = images_figure(heads, study.images, captions)
    with replacing(path, OUT) as file:
        figure.savefig(file, format="png", dpi=200)


def print_swaps(study: Codebook) -> None:
    """Print a line per size, and what its columns mean."""
    cells = []
    for likeness in study.likenesses:
        psnr = "the same" if likeness.psnr is None else f"{likeness.psnr:.1f}"
        cells.append((str(likeness.k), f"{likeness.distance:.2f}", f"{likeness.mass:.3f}", psnr))
    print_cells(("k", "distance", "probability", "images swapped, dB"), cells)
    print(
        f"{study.codes} codes of width {study.width}; {study.twins} are equal to another code.\n"
        "distance: to the k-th nearest code, relative to the distance of random pairs\n"
        "probability: the target's, of a drawn token and its neighbours together\n"
        "dB: PSNR against the images as drawn"
    )
