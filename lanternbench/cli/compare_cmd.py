"""``compare``: what changed between two runs; for continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from lanternbench.cli import options
from lanternbench.cli.output import number_table, print_json, print_notes, stdout
from lanternbench.errors import UserError

if TYPE_CHECKING:
    from lanternbench.measure.change import Change

FIGURES = ["speedup", "latency_s", "accept_len", "fidelity_loss"]
ROBUST = ["robust_speedup", "robust_latency_s"]
CLOCKED = {"speedup", "latency_s", "tokens_per_s", "images_per_s", "end_to_end_s", "end_to_end_speedup"}


def compare(
    old: Annotated[str, typer.Argument(help="Run id or folder.")],
    new: Annotated[str, typer.Argument(help="Run id or folder.")],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if", help="FIGURE<BOUND or FIGURE>BOUND, of the change; % for relative. Figures: speedup, tau, …"
        ),
    ] = None,
    results: options.Results = Path("results"),
    as_json: options.AsRows = False,
) -> None:
    """Compare the methods that two runs share, prompt by prompt; exit code 1 if the gate of --fail-if fails.

    A change fails if the estimate is beyond the bound and its 95 % interval excludes no change at all.

    Example: lanternbench compare main-1a2b3c4d branch-5e6f7a8b --fail-if "speedup<-5%"
    """
    from lanternbench.experiment import find, iter_samples, read_run
    from lanternbench.measure.change import changes, condition, judge, not_compared
    from lanternbench.measure.figures import Figures
    from lanternbench.measure.run_notes import contention
    from lanternbench.report.load import Run, differing

    conditions = [condition(text) for text in fail_if or []]
    places = [find(results, [name])[0] for name in (old, new)]
    infos = [read_run(place) for place in places]
    before, after = (Figures(iter_samples(place)) for place in places)
    notes = [differing([Run(place, info, [], []) for place, info in zip(places, infos)])]
    disturbed = [contention(figures, info.get("environment") or {}) for figures, info in zip((before, after), infos)]
    notes += [f"{place.name}: {note.text}" for place, note in zip(places, disturbed) if note]
    print_notes([note for note in notes if note], Console(stderr=True))

    names = [*FIGURES, *(ROBUST if any(disturbed) else []), *before.metrics, *after.metrics]
    wanted = [c.figure for c in conditions]
    shown, left = changes(before, after, list(dict.fromkeys([*names, *wanted])))
    known = dict.fromkeys([*names, *ROBUST, *(c.figure for c in shown), *(u.figure for u in left)])
    measured = {name for name in known for run in (before, after) if run.column(name)[1].any()}
    if absent := [name for name in wanted if name not in measured]:
        choice = ", ".join("tau" if name == "accept_len" else name for name in known if name in measured)
        raise UserError(f"--fail-if {absent[0]}: neither run has such a figure; choose one of {choice}")
    verdict = judge(before, after, conditions) if conditions else None
    if verdict is None and not shown:
        raise UserError(f"{old} and {new} share no method with two prompts or more: compare runs of the same sweep")
    judged = {(change.label, change.figure): change for change in verdict.judged} if verdict else {}
    shown = [judged.get((change.label, change.figure), change) for change in shown]
    failed = [verdict is not None and change in verdict.failed for change in shown]
    if as_json:
        rows = [{**change._asdict(), "failed": bad} for change, bad in zip(shown, failed, strict=True)]
        gate = verdict and {"passed": verdict.passed, "judged": len(verdict.judged), "said": verdict.sentence()}
        print_json({"changes": rows, "unjudged": [one._asdict() for one in left], "gate": gate, "notes": notes})
    else:
        _print(shown, failed)
        said = verdict.sentence() if verdict else not_compared(left)
        if verdict and any(disturbed) and not {c.figure for c in verdict.judged}.isdisjoint(CLOCKED):
            said += "; a clock was disturbed: robust_speedup errs less"
        if said:
            print(said)
    if verdict and not verdict.passed:
        raise typer.Exit(1)


def _print(found: list[Change], failed: list[bool]) -> None:
    titles = ("method", "figure", "prompts", "old", "new", "change", "95 %", "")
    table = number_table(titles, ("method", "figure", ""))
    for change, bad in zip(found, failed, strict=True):
        form, measured = ("{:+.1%}", change.relative) if change.relative else ("{:+.3g}", change.difference)
        value, lo, hi = (form.format(x) for x in measured)
        numbers = (str(change.prompts), f"{change.old:.3f}", f"{change.new:.3f}", value, f"[{lo}, {hi}]")
        table.add_row(Text(change.label), Text(change.figure), *numbers, "FAILED" if bad else "")
    stdout().print(table)
