"""Commands that look: ``methods``, ``targets``, ``prompts``, ``doctor``, ``verify``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lanternbench.cli.output import print_json, print_notes, stdout
from lanternbench.cli.progress import display
from lanternbench.errors import UserError

WIDE = 120  # columns from which options have a place in the table
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print(rows: list[dict[str, Any]], as_json: bool, columns: dict[str, str]) -> None:
    if as_json:
        print_json(rows)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i, title in enumerate(columns.values()):
        table.add_column(title, overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in columns))
    stdout().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    return str(value).replace("[", "\\[")


def methods(as_json: AsJson = False) -> None:
    """List every method: its four choices, options, paper, and whether it is lossless.

    Example: lanternbench methods --json
    """
    from lanternbench.methods.method import named
    from lanternbench.registry import components

    rows: list[dict[str, Any]] = []
    for name, preset in components("preset").items():
        m = named(name)
        options = {f: v for f, v in sorted(m.read.items()) if v is not None}
        row = {"method": name, **m.choices._asdict(), "lossless": m.lossless}
        rows.append(row | {"options": options, "paper": preset.paper or "–"})
    names = ["method", "proposal", "tree", "acceptance", "residual", "lossless", "paper", "options"]
    room = as_json or stdout().width >= WIDE
    if not as_json:
        for row in rows:
            row["paper"] = row["paper"].rpartition(" ")[2]  # its number in arXiv
            row["options"].pop("variant")
    _print(rows, as_json, {n: n for n in names if room or n != "options"})
    if not room:
        Console(stderr=True).print("options: in a wider terminal, or by --json", style="dim")


def targets(as_json: AsJson = False) -> None:
    """List the targets, and which of them are here.

    Example: lanternbench targets
    """
    from lanternbench.models.catalogue import catalogue, missing

    rows = []
    for name, entry in catalogue().items():
        absent, size = missing(entry), f"{entry.gigabytes:g} GB" if entry.files else "in the package"
        state = "yes" if not absent else "no" if len(absent) == len(entry.files) else f"lacks {', '.join(absent)}"
        side = entry.shape.get("grid")
        row = {"target": name, "family": entry.family, "here": state, "size": size}
        row["grid"] = f"{side}×{side}" if side else "–"
        rows.append(row | {"licence": entry.licence, "about": entry.about})
    _print(rows, as_json, {c: c for c in ("target", "family", "here", "size", "grid", "licence", "about")})


def prompts(
    spec: Annotated[str, typer.Argument(help="demo, coco2017:FILE, parti:FILE, or a text file.")] = "demo",
    num_prompts: Annotated[int, typer.Option("--num-prompts", "-n", help="How many; 0 for all.")] = 8,
    seed: int = 0,
    caption: str = "first",
    as_json: AsJson = False,
) -> None:
    """Preview and validate a prompt source; prints the hash that identifies the selection.

    Example: lanternbench prompts demo -n 4
    """
    from typing import cast

    from lanternbench import prompts as sets

    chosen = sets.load(spec, num_prompts or None, seed, cast(Any, caption))
    rows = [{"id": p.id, "category": p.category or "", "prompt": p.text} for p in chosen]
    if as_json:
        print_json(chosen.record() | {"prompts": rows})
        return
    _print(rows, False, {"id": "id", "category": "category", "prompt": "prompt"})
    print_notes(chosen.notes, Console(stderr=True))
    print(f"{len(chosen)} prompts, selection {chosen.hash[:16]}")


def doctor(
    target: Annotated[str | None, typer.Option(help="Check this target and its drafters by a short decode.")] = None,
    drafter: Annotated[str | None, typer.Option(help="With --target: this drafter in place of its own.")] = None,
    prompts: Annotated[str, typer.Option(help="What a check decodes: demo, or a text file.")] = "demo",
    random_weights: Annotated[bool, typer.Option(help="Check with random weights.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="Check this GPU: bandwidth, CUDA graphs, batches.")] = False,
    device: str = "auto",
    as_json: AsJson = False,
) -> None:
    """Show this machine, what is missing, and how to get it; check this GPU, or that a drafter belongs to a target.

    Example: lanternbench doctor --target llamagen-xl-stage1 --drafter my-drafter/
    """
    if gpu:
        _gpu(device, as_json)
        return
    if target is not None:
        _pair(target, drafter, prompts, random_weights, device, as_json)
        return
    if drafter is not None:
        raise UserError("--drafter is checked against a target: give --target too")
    from lanternbench.experiment.environment import environment
    from lanternbench.metrics import names, scorers_for
    from lanternbench.models.catalogue import catalogue, missing

    rows = [{"item": k, "value": v} for k, v in environment().items()]
    for name, entry in catalogue().items():
        absent = f"missing; `lanternbench fetch {name}` gets it ({entry.gigabytes:g} GB)"
        rows.append({"item": f"target {name}", "value": absent if missing(entry) else "here"})
    for name in names():
        (scorer,) = scorers_for([name], "full")
        rows.append({"item": f"metric {name}", "value": why.text if (why := scorer.available()) else "here"})
    _print(rows, as_json, {"item": "item", "value": "value"})


def _gpu(device: str, as_json: bool) -> None:
    """Exit code 1 where a check fails."""
    from lanternbench.analysis.gpu_check import check_gpu
    from lanternbench.experiment.environment import environment
    from lanternbench.utils.device import choose

    with display("checking the GPU"):
        rows = check_gpu(choose(device), environment()["gpus"])
    _judged(rows, as_json)


def _pair(target: str, drafter: str | None, prompts: str, random_weights: bool, device: str, as_json: bool) -> None:
    """Exit code 1 where a check fails."""
    from lanternbench import prompts as sets
    from lanternbench.analysis.pair_check import check_pair
    from lanternbench.models.catalogue import catalogue, load_target, with_drafter
    from lanternbench.utils.device import choose

    device = choose(device)
    loaded = load_target(target, device, random_weights)
    kinds = list(loaded.drafters)
    if drafter is not None:
        loaded, kind = with_drafter(loaded, drafter, device, random_weights)
        kinds = [kind]
    if not kinds:
        raise UserError(f"target '{target}' has no drafter: give one with --drafter")
    captions = [p.text for p in sets.load(prompts, 2).prompts]
    row = None if random_weights else catalogue().get(target.partition("=")[0])
    with display("decoding"):
        rows = [found for kind in kinds for found in check_pair(loaded, kind, captions, row)]
    _judged(rows, as_json)


def _judged(rows: list[dict[str, Any]], as_json: bool) -> None:
    for found in rows:
        found["ok"] = {None: "–", True: "yes", False: "no"}[found["ok"]] if not as_json else found["ok"]
    _print(rows, as_json, {"item": "item", "value": "value", "ok": "ok"})
    if any(found["ok"] in (False, "no") for found in rows):
        raise typer.Exit(1)


def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[METHOD]...", help="Methods; all by default.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every method.")] = False,
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """Prove methods: exact enumeration on small tables, and statistics on the embedded model; exit 1 on failure.

    Example: lanternbench verify cool-sd
    """
    from lanternbench.lossless import Row, table, verify_all
    from lanternbench.methods.method import named
    from lanternbench.models.catalogue import load_target
    from lanternbench.registry import components

    chosen = list(components("preset")) if every or not names else list(names)
    for name in chosen:
        named(name)
    with display("verifying") as shown:

        def on_row(row: Row) -> None:
            shown.show(0, 0, f"verified {row.method}: {row.check}")

        rows = verify_all([*chosen], load_target("tiny"), seed, on_row=on_row)
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        Console().print(table(rows))
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)
