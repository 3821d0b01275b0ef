"""``run`` and ``sweep``: measure methods and print the table."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lanternbench.cli.output import print_json, print_notes, print_table
from lanternbench.cli.program import program
from lanternbench.cli.progress import display
from lanternbench.experiment import config as settings

Out = Annotated[Path, typer.Option("--out", help="Folder of the run folders.")]
Fresh = Annotated[
    bool, typer.Option("--fresh/--resume", help="Start a new run beside an existing one, or continue it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads (default: 1 if the model is small, else all cores).")
]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="Full size without files: speed alone.")]
Simulate = Annotated[
    float | None, typer.Option("--simulate-acceptance", help="Mean tokens a step that drafting methods yield.")
]
Drafter = Annotated[
    str | None, typer.Option(help="A smaller target as drafter, or a file or folder with an EAGLE drafter.")
]
Dtype = Annotated[str | None, typer.Option(help="Of the weights: float32, bfloat16 (default: by target and device).")]
Compile = Annotated[
    str | None,
    typer.Option("--compile", help="eager, or graphs: CUDA graphs (default on a GPU, for lone prompts)."),
]
Executor = Annotated[
    str, typer.Option(help="local, or ray: prompts shared out to the GPUs of a Ray cluster, or to this machine's CPUs.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="With ray: how many (default: one per GPU; without GPUs, one per --threads CPUs, or CPU)."
    ),
]
RayAddress = Annotated[
    str | None, typer.Option(help="Of a cluster to join (default: RAY_ADDRESS, or a cluster started for this sweep).")
]
TimeBudget = Annotated[
    float | None,
    typer.Option("--time-budget", metavar="MINUTES", min=0, help="Begin no further prompt after it; one is completed."),
]
NumPrompts = Annotated[int | None, typer.Option("--num-prompts", "-n", help="How many prompts; 0 for all.")]


def run(
    method: Annotated[str, typer.Option("--method", "-m", help="A preset: see `lanternbench methods`.")],
    lam: Annotated[float | None, typer.Option("--lambda", help="Relaxation budget λ (cool-sd, lantern++).")] = None,
    delta: Annotated[float | None, typer.Option(help="LANTERN's bound δ.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="LANTERN: neighbours of a token.")] = None,
    tree: Annotated[str | None, typer.Option(help="Tree policy: chain, static, dynamic, adaptive.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Acceptance rule in place of the preset's.")] = None,
    residual: Annotated[str | None, typer.Option(help="Residual in place of the preset's.")] = None,
    shape: Annotated[str | None, typer.Option(help="Static tree: chain-N or a name of trees.yaml.")] = None,
    depth: Annotated[int | None, typer.Option(help="Levels of a chain or dynamic tree.")] = None,
    window: Annotated[int | None, typer.Option(help="SJD: drafted tokens per step.")] = None,
    init: Annotated[str | None, typer.Option(help="Initialisation of SJD's window or of ADT-Tree's trees.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Cool-SD: exp, linear, uniform.")] = None,
    nu: Annotated[float | None, typer.Option(help="Cool-SD: decay ν of exp.")] = None,
    proximity: Annotated[str | None, typer.Option(help="LANTERN: l2, cosine, random.")] = None,
    divergence: Annotated[str | None, typer.Option(help="LANTERN: tvd, jsd.")] = None,
    variant: Annotated[str | None, typer.Option(help="paper, or reference: as the public code does.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="Any other option of the method, NAME=VALUE.")
    ] = None,
    target: Annotated[str, typer.Option(help="A target of `lanternbench targets`, or a folder.")] = "tiny",
    drafter: Drafter = None,
    dtype: Dtype = None,
    compile_mode: Compile = None,
    random_weights: RandomWeights = False,
    simulate_acceptance: Simulate = None,
    prompts: Annotated[str, typer.Option(help="demo, coco2017[:FILE], parti[:FILE], or a text file.")] = "demo",
    num_prompts: NumPrompts = 8,
    caption: Annotated[str, typer.Option(help="Which caption of a COCO image: first, longest, random.")] = "first",
    seed: Annotated[int, typer.Option(min=0)] = 0,
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
) -> None:
    """Measure one method against autoregressive decoding.

    Example: lanternbench run --method cool-sd --lambda 2
    """
    spec: dict[str, Any] = {"method": method, **_parse(option or [])}
    named = dict(
        lam=lam, delta=delta, k=k, tree=tree, acceptance=acceptance, residual=residual, shape=shape, depth=depth,
        window=window, init=init, schedule=schedule, nu=nu, proximity=proximity, divergence=divergence, variant=variant,
    )  # fmt: skip
    spec |= {name: value for name, value in named.items() if value is not None}
    values = dict(
        name=f"run-{method}".replace("/", "-"), target=target, prompts=prompts, num_prompts=num_prompts,
        caption=caption, seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, guidance=guidance, batch=batch,
        metrics=listed(metrics), baseline=baseline, methods=[spec],
        random_weights=random_weights, simulate_acceptance=simulate_acceptance, drafter=drafter, dtype=dtype,
        compile=compile_mode,
    )  # fmt: skip
    settings.method(method)  # an unknown name is reported as such, not as a wrong run name
    execute(settings.sweep(values, "the command line"), device, threads, out, fresh, as_json)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="A sweep file such as configs/demo.yaml.")],
    prompts: Annotated[str | None, typer.Option(help="In place of the file's.")] = None,
    num_prompts: NumPrompts = None,
    seed: Annotated[int | None, typer.Option(min=0, help="In place of the file's.")] = None,
    temperature: Annotated[float | None, typer.Option(help="In place of the file's.")] = None,
    target: Annotated[str | None, typer.Option(help="In place of the file's.")] = None,
    drafter: Drafter = None,
    dtype: Dtype = None,
    compile_mode: Compile = None,
    random_weights: RandomWeights = False,
    simulate_acceptance: Simulate = None,
    device: Device = "auto",
    threads: Threads = None,
    executor: Executor = "local",
    workers: Workers = None,
    ray_address: RayAddress = None,
    time_budget: TimeBudget = None,
    out: Out = Path("results"),
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Measure every method of a sweep file, interleaved prompt by prompt; continues where it stopped.

    Example: lanternbench sweep configs/tradeoff.yaml
    """
    config = settings.read(file)
    given = dict(
        prompts=prompts, seed=seed, temperature=temperature, target=target, drafter=drafter, dtype=dtype,
        compile=compile_mode,
    )  # fmt: skip
    changed: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    if random_weights:
        changed["random_weights"] = True
    if simulate_acceptance is not None:
        changed["simulate_acceptance"] = simulate_acceptance
    if num_prompts is not None:
        changed["num_prompts"] = num_prompts
    if changed:
        config = settings.sweep(config.model_dump(by_alias=True) | changed, str(file))
    execute(config, device, threads, out, fresh, as_json, executor, workers, ray_address, time_budget)


def execute(
    config: settings.Sweep,
    device: str,
    threads: int | None,
    out: Path,
    fresh: bool,
    as_json: bool,
    executor: str = "local",
    workers: int | None = None,
    ray_address: str | None = None,
    minutes: float | None = None,
) -> None:
    """Run a sweep with a progress bar on stderr and the table on stdout."""
    from lanternbench.experiment import runner as sweeps
    from lanternbench.experiment.executors import executor as make_executor
    from lanternbench.utils.device import choose

    made_by = make_executor(executor, workers, threads, ray_address)
    chosen = choose(device, threads) if executor == "local" else device  # of a cluster its workers know
    console = Console(stderr=True)
    counts = (0, 0)
    with display(config.name) as shown:

        def progress(done: int, of: int, what: str) -> None:
            nonlocal counts
            counts = done, of
            shown.show(done, of, what)

        path, summary = sweeps.run(
            config, out, fresh=fresh, device=chosen, executor=made_by, progress=progress, on_step=shown.step,
            budget_s=inf if minutes is None else 60 * minutes,
        )  # fmt: skip
    if as_json:
        print_json({"run": str(path), **vars(summary)})
        return
    print_table(summary.rows)
    print_notes(summary.told(), console)
    if counts[0] < counts[1]:
        stopped = f"--time-budget {minutes:g}: {counts[0]} of {counts[1]} images are made; the same command goes on"
        print_notes([stopped], console)
    print_notes([f"{path}  ·  next: {program()} report"], console)


def listed(text: str) -> list[str]:
    """The names in a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _parse(options: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs, values read as YAML scalars or lists."""
    import yaml

    from lanternbench.errors import UserError

    found = {}
    for text in options:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UserError(f"--set {text} is no NAME=VALUE: write for example --set total_nodes=30")
        if name in ("method", "preset"):
            raise UserError(f"--set {text}: a method is chosen by --method {value}")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"--set {text}: the value cannot be read: write a number, a word or a [list]") from None
    return found
