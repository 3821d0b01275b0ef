"""``verify``, ``profile``, ``codebook``: proofs of methods, where their time goes, how alike a target's codes are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.fields import MethodOptions, Takes, specs
from lanternbench.cli.output import print_cells, print_json, stdout, table_of
from lanternbench.cli.progress import display
from lanternbench.errors import UserError
from lanternbench.utils.device import choose

if TYPE_CHECKING:
    from lanternbench.lossless import Row

MAX_SIZE = 10**6
TITLES = ("method", "check", "", "measured", "limit", "detail")
MARKS = {True: Text("pass", "green"), False: Text("FAIL", "red"), None: "–"}


def verify(
    config: Annotated[Any, Takes("seed")],
    method_options: MethodOptions,
    names: Annotated[list[str] | None, Argument(metavar="[METHOD]...", help="Methods; all by default.")] = None,
    every: Annotated[bool, Option("--all", help="Every method.")] = False,
    as_json: options.AsRows = False,
) -> None:
    """Prove methods: exact enumeration on small tables, and statistics on the embedded model; exit 1 on failure.

    Example: lanternbench verify eagle-1 --tree chain --acceptance block
    """
    from lanternbench.lossless import verify_all
    from lanternbench.methods.method import Method, method
    from lanternbench.models.catalogue import load_target
    from lanternbench.registry import components

    names = list(components("preset")) if every or not names else list(names)
    chosen: list[str | Method] = [*names]
    if method_options:
        chosen = [method(spec.pop("method"), **spec) for spec in specs(names, method_options)]
    with display("verifying") as bars:

        def on_row(row: Row) -> None:
            bars.show(0, 0, f"verified {row.method}: {row.check}")

        def on_world(what: str, done: int, of: int) -> None:
            bars.show(done, of, what)

        rows = verify_all(chosen, load_target("tiny"), config.seed, on_row=on_row, on_world=on_world)
    if as_json:
        print_json(rows)
    else:
        stdout().print(checks_table(rows))
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)


def checks_table(rows: list[Row]) -> Table:
    """The checks for a terminal."""
    cells = (
        (r.method, r.check, MARKS[r.passed], *("–" if x is None else f"{x:.3g}" for x in (r.value, r.limit)), r.detail)
        for r in rows
    )
    return table_of(TITLES, cells, left=TITLES, padding=(0, 1, 0, 0), pad_edge=False)


def profile(
    c: Annotated[Any, Takes("target drafter dtype compile random_weights simulate_acceptance temperature")],
    methods: Annotated[list[str] | None, Argument(metavar="[METHOD]...", help="Presets.")] = None,
    num_prompts: Annotated[int, Option("--num-prompts", "-n", min=1, help="Demo captions to decode.")] = 4,
    trace: Annotated[Path | None, Option(help="Write a Chrome trace of a few steps of the last method.")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    as_json: options.AsRows = False,
) -> None:
    """Split a method's step into draft, verification, commit and host.

    Example: lanternbench profile eagle-1 cool-sd
    """
    from lanternbench import prompts
    from lanternbench.costs.bandwidth import bandwidth
    from lanternbench.methods.build import build
    from lanternbench.methods.method import method
    from lanternbench.models.catalogue import load_with_drafter
    from lanternbench.profile import step_profile
    from lanternbench.utils.files import TRACE, check_writable

    if trace is not None:
        check_writable(trace, TRACE)
    chosen = [method(name) for name in ("ar", *(n for n in methods or ["eagle-1", "cool-sd"] if n != "ar"))]
    used = {m.choices.proposal for m in chosen}
    model = load_with_drafter(c.target, c.drafter, choose(device, threads), c.random_weights, c.dtype, used, c.compile)
    decoders = [build(model, m, c.temperature, simulate_acceptance=c.simulate_acceptance) for m in chosen]
    captions = prompts.captions_for(model.labels, num_prompts)
    with display("profiling"):
        limit = bandwidth(model.device)
        profiles = step_profile.profile(decoders, captions)
        if trace is not None:
            step_profile.chrome_trace(decoders[-1], captions[0], trace)
    if as_json:
        print_json({"bandwidth": limit.best, "bandwidth_median": limit.median, "methods": profiles})
        return
    rows = []
    for p in profiles:
        times = (f"{t:.2f}" for t in (p.tau, p.step_ms, p.draft_ms, p.verify_ms, p.commit_ms, p.other_ms))
        rates = (f"{p.overhead_fraction:.1%}", f"{p.speedup:.2f}×", f"{p.roofline:.2f}×", f"{p.achieved:.1f}")
        rows.append((p.label, *times, *rates))
    titles = ("method", "τ", "step", "draft", "verify", "commit", "other", "out", "speedup", "limit", "GB/s")
    print_cells(titles, rows, padding=(0, 1, 0, 0), pad_edge=False)
    share = profiles[0].achieved / limit.best
    print("step and its phases in ms; out: share outside forwards; limit: the speedup that the bandwidth allows")
    print(
        f"memory reads at {limit.best:.1f} GB/s here (best of {limit.passes} passes with {limit.threads} thread(s), "
        f"their median {limit.spread:.0%} below); ar's forward uses {share:.0%} of that"
    )


def codebook(
    config: Annotated[Any, Takes("seed dtype")],
    target: Annotated[str, Argument(help="A target of `lanternbench targets`, or a folder.")] = "tiny",
    k: Annotated[str, Option(help="Sizes of neighbourhoods, the token included.")] = "2,10,100",
    proximity: Annotated[Literal["l2", "cosine", "random"], Option(help="What nearest means.")] = "l2",
    num_prompts: Annotated[int, Option("--num-prompts", "-n", min=1, help="Demo captions to draw.")] = 4,
    out: Annotated[Path | None, Option(help="Write the images side by side (PNG).")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    as_json: options.AsRows = False,
) -> None:
    """Swap every token of drawn images for a near code: what LANTERN's neighbourhoods cost, and how likely they are.

    Example: lanternbench codebook tiny --k 2,10,100 --out codebook.png
    """
    from lanternbench import prompts
    from lanternbench.measure import code_swaps as codebooks
    from lanternbench.models.catalogue import load_target
    from lanternbench.utils.files import OUT, check_writable, replacing

    try:
        sizes = sorted({int(x) for x in k.split(",")})
    except ValueError:
        raise UserError(f"--k {k} is no list of numbers: write for example --k 2,10,100") from None
    if sizes[-1] > MAX_SIZE:
        raise UserError(f"--k has a size over {MAX_SIZE}: give at most the size of the target's vocabulary")
    if out is not None:
        check_writable(out, OUT)
    model = load_target(target, choose(device, threads), dtype=config.dtype)
    captions = prompts.captions_for(model.labels, num_prompts)
    with display("drawing and swapping"):
        study = codebooks.study_codebook(model, captions, sizes, proximity, config.seed)
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
        (str(x.k), f"{x.distance:.2f}", f"{x.mass:.3f}", "the same" if x.psnr is None else f"{x.psnr:.1f}")
        for x in study.likenesses
    )
    print_cells(("k", "distance", "probability", "images swapped, dB"), cells)
    print(
        f"{study.codes} codes of width {study.width}, {study.twins} like another. Distance: of the k-th nearest, in "
        "those of random pairs.\nProbability: the target's, of a drawn token and its neighbours. dB: PSNR against the "
        "images as drawn."
    )
