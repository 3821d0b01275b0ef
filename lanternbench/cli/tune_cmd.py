"""``tune``: the tree, or the window, with the most tokens per second on this machine."""

from typing import Annotated, Any

from typer import Option

from lanternbench.cli import options
from lanternbench.cli.fields import MethodOptions, Takes
from lanternbench.cli.output import print_cells, print_json, print_notes, program
from lanternbench.cli.progress import display
from lanternbench.cli.run_cmd import MODEL, Execution
from lanternbench.utils.device import choose

SETTINGS = f"{MODEL} prompts num_prompts recorded few seed temperature guidance"


def tune(
    method: Annotated[str, Option("--method", "-m", help="A drafting method: see `lanternbench methods`.")],
    settings: Annotated[dict[str, Any], Takes(SETTINGS, "lanternbench.tune.result:Tune")],
    where: Annotated[Execution, Takes("device threads out fresh")],
    method_options: MethodOptions,
    as_json: options.AsJson = False,
) -> None:
    """Find the sizes of a method's tree, or window, that suit this machine, and write them as a preset.

    Example: lanternbench tune --method eagle-1
    """
    from lanternbench.experiment.config import checked
    from lanternbench.tune import tuning as search
    from lanternbench.tune.plot import write_plot
    from lanternbench.tune.result import Tune, with_interval

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
