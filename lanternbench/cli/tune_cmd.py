"""``tune``: the tree, or the window, with the most tokens per second on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from lanternbench.cli import options
from lanternbench.cli.method_options import pairs
from lanternbench.cli.output import number_table, print_json, print_notes, stdout
from lanternbench.cli.program import program
from lanternbench.cli.progress import display
from lanternbench.utils.device import choose


def tune(
    method: Annotated[str, typer.Option("--method", "-m", help="A drafting method: see `lanternbench methods`.")],
    option: options.MethodOption = None,
    target: options.TargetName = "tiny",
    drafter: options.Drafter = None,
    dtype: options.Dtype = None,
    compile_mode: options.Compile = None,
    random_weights: options.RandomWeights = False,
    simulate_acceptance: options.Simulate = None,
    prompts: options.Prompts = "demo",
    num_prompts: Annotated[int, typer.Option("--num-prompts", "-n", min=1, help="Prompts that are measured.")] = 12,
    recorded: Annotated[int, typer.Option(min=1, help="Prompts whose drafts are recorded for the acceptance.")] = 4,
    few: Annotated[int, typer.Option(min=1, max=6, help="How many of the best expected sizes are measured.")] = 3,
    seed: options.Seed = 0,
    temperature: options.Temperature = None,
    guidance: Annotated[float | None, typer.Option(help="CFG scale (default: the target's).")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    out: options.Out = Path("results"),
    fresh: options.Fresh = False,
    as_json: options.AsJson = False,
    method_options: dict[str, Any] | None = None,
) -> None:
    """Find the sizes of a method's tree, or window, that suit this machine, and write them as a preset.

    Example: lanternbench tune --method eagle-1
    """
    from lanternbench.experiment.config import checked
    from lanternbench.tune import tuning as search
    from lanternbench.tune.plot import write_plot
    from lanternbench.tune.result import Tune

    values = dict(
        method=method, options=pairs(option or []) | (method_options or {}), target=target, drafter=drafter,
        dtype=dtype, compile=compile_mode, random_weights=random_weights, simulate_acceptance=simulate_acceptance,
        prompts=prompts, num_prompts=num_prompts, recorded=recorded, few=few, seed=seed, temperature=temperature,
        guidance=guidance,
    )  # fmt: skip
    config = checked(Tune, values)
    with display(f"tuning {method}") as shown:
        path, found = search.tune(config, out, fresh=fresh, device=choose(device, threads), progress=shown.show)
        plot, _ = write_plot(found, path.with_suffix(""))
    if as_json:
        print_json({"preset": str(path), "plot": str(plot), "verdict": found.verdict, "best": found.best,
                    "results": found.rows(), "cost": found.cost.model_dump()})  # fmt: skip
        return
    titles = ("sizes", "nodes", "τ expected", "τ", "tokens/s expected", "tokens/s", "× its own [95 %]", "fidelity loss")
    table = number_table(titles, ("sizes",), "fold", pad_edge=False)
    for r in found.results:
        e, ratio, loss = r.expected, r.robust_ratio, r.fidelity_loss
        interval = "" if ratio.lo is None else f" [{ratio.lo:.2f}, {ratio.hi:.2f}]"
        table.add_row(
            Text(f"{r.label}{' (its own)' if r.name == 'default' else ''}{' ←' if r.name == found.best else ''}"),
            str(e.shape.nodes) if e else "1",
            f"{e.tau:.2f}" if e else "–",
            f"{r.tau:.2f}",
            f"{e.tokens_per_s:.1f}" if e and found.disturbed is None else "–",
            f"{r.robust_tokens_per_s:.1f}",
            f"{ratio.value:.2f}{interval}",
            "–" if loss is None else f"{loss:.3f}",
        )
    stdout().print(table)
    if found.disturbed is not None:
        print_notes([found.disturbed], Console(stderr=True))
    print(f"{found.verdict}\n{path}  ·  plot: {plot}\nnext: {program()} run --method {path}")
