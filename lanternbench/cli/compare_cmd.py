"""``compare``: what changed between two runs; for continuous integration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from lanternbench.cli import options
from lanternbench.cli.output import number_table, print_json, print_notes, stdout
from lanternbench.errors import UserError

if TYPE_CHECKING:
    from lanternbench.analysis.change import Change

FIGURES = ["speedup", "latency_s", "accept_len", "fidelity_loss"]


class Condition(NamedTuple):
    """A change that fails: ``speedup<-5%`` relative, ``fidelity_loss>0.01`` absolute."""

    figure: str
    sign: str
    bound: float
    relative: bool

    def fails(self, change: Change) -> bool:
        """Is the estimate beyond the bound, and no change outside its 95 % interval?"""
        measured = change.relative if self.relative else change.difference
        if change.figure != self.figure or measured is None:
            return False
        value, lo, hi = measured
        return (value < self.bound and hi < 0) if self.sign == "<" else (value > self.bound and lo > 0)


def compare(
    old: Annotated[str, typer.Argument(help="Run id or folder.")],
    new: Annotated[str, typer.Argument(help="Run id or folder.")],
    fail_if: Annotated[
        list[str] | None, typer.Option("--fail-if", help="FIGURE<BOUND or FIGURE>BOUND, of the change; % for relative.")
    ] = None,
    results: options.Results = Path("results"),
    as_json: options.AsRows = False,
) -> None:
    """Compare the methods that two runs share, prompt by prompt; exit code 1 if a change fails.

    A change fails if the estimate is beyond the bound and its 95 % interval excludes no change at all.

    Example: lanternbench compare main-1a2b3c4d branch-5e6f7a8b --fail-if "speedup<-5%"
    """
    from lanternbench.analysis.change import changes
    from lanternbench.analysis.figures import Figures
    from lanternbench.experiment import find, iter_samples, read_run
    from lanternbench.report.load import Run, differing

    conditions = [_condition(text) for text in fail_if or []]
    places = [find(results, [name])[0] for name in (old, new)]
    if text := differing([Run(place, read_run(place), [], []) for place in places]):
        print_notes([text], Console(stderr=True))
    before, after = (Figures(iter_samples(place)) for place in places)
    names = list(dict.fromkeys([*FIGURES, *before.metrics, *(c.figure for c in conditions)]))
    found = changes(before, after, names)
    if not found:
        raise UserError(f"{old} and {new} share no method with two prompts or more: compare runs of the same sweep")
    if absent := [c.figure for c in conditions if c.figure not in {change.figure for change in found}]:
        known = ", ".join(dict.fromkeys(change.figure for change in found))
        raise UserError(f"--fail-if {absent[0]}: both runs have no such figure; choose one of {known}")
    failed = [any(condition.fails(change) for condition in conditions) for change in found]
    if as_json:
        print_json([{**change._asdict(), "failed": bad} for change, bad in zip(found, failed, strict=True)])
    else:
        _print(found, failed)
    if any(failed):
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


def _condition(text: str) -> Condition:

    found = re.fullmatch(r"\s*([\w:/.+-]+?)\s*([<>])\s*([-+]?\d*\.?\d+)\s*(%?)\s*", text)
    if not found:
        raise UserError(f'--fail-if {text} cannot be read: write for example --fail-if "speedup<-5%"')
    figure, sign, bound, percent = found.groups()
    return Condition(figure, sign, float(bound) / (100 if percent else 1), bool(percent))
