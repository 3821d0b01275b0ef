"""Verdicts of a run on a paper's figures: inside its interval, outside, or not comparable, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from lanternbench.measure.statistics import Estimate
from lanternbench.report.load import ReportRow
from lanternbench.report.papers import differences, published_figures
from lanternbench.report.tables import markdown
from lanternbench.reproduce.recipe import Plan, recipes
from lanternbench.utils.files import write_file

Outcome = Literal["inside", "outside", "not comparable"]
SPEEDS = ("speedup", "latency_s")
OF_SETS = ("fid", "inception-score")  # their values depend on the number of images
# what must be the same before any figure is compared, in the order in which it is named
DECISIVE = ("target", "stage", "dataset", "temperature", "acceptance", "params")
TITLES = ("method", "figure", "published", "here [95 %]", "verdict")
FILE = "reproduction.md"
PLACE = "choose another folder with --out"


class Verdict(NamedTuple):
    """A published figure, the measured one, and whether they agree."""

    label: str
    figure: str
    published: str
    measured: Estimate
    outcome: Outcome
    reason: str  # of an outcome that is not comparable

    @property
    def cells(self) -> list[str]:
        return [self.label, self.figure, self.published, written(self.measured), self.outcome]


def verdicts(plan: Plan, rows: Sequence[ReportRow]) -> list[Verdict]:
    """Return a verdict on every published figure of the rows that were measured."""
    measured = {row.label: row for row in rows}
    set_images = recipes()[plan.group.paper].set_images
    found: list[Verdict] = []
    for label, published in plan.published.items():
        if label not in measured:
            continue
        row = measured[label]
        differs = differences(row, published)
        for key, text in published_figures(published).items():
            figure = row.figure(key)
            reason = incomparable(key, row, differs, set_images)
            outcome: Outcome = "not comparable"
            if not reason:
                outcome = "inside" if is_inside(figure, text) else "outside"
            found.append(Verdict(label, key, text, figure, outcome, reason))
    return found


def incomparable(
    key: str, row: ReportRow, differs: Mapping[str, str], set_images: int | None
) -> str:
    """Return why a figure says nothing about the paper's; "" if it does."""
    measured = row.figure(key)
    if measured.value is None:
        return "not measured"
    for name in DECISIVE:
        if name in differs:
            return differs[name]
    if key in SPEEDS and "hardware" in differs:
        return differs["hardware"]
    if key in OF_SETS and set_images != row.n:
        count = "an unknown number" if set_images is None else str(set_images)
        return f"it is of {row.n} images, the paper's of {count}"
    if measured.lo is None or measured.hi is None:
        return "it has no interval"
    return ""


def reasons(found: Sequence[Verdict]) -> list[str]:
    """Return a line for each reason why figures are not comparable."""
    figures: dict[str, list[str]] = {}
    for verdict in found:
        if verdict.reason:
            named = figures.setdefault(verdict.reason, [])
            if verdict.figure not in named:
                named.append(verdict.figure)
    return [f"Not comparable: {', '.join(names)}: {why}." for why, names in figures.items()]


def is_inside(measured: Estimate, published: str) -> bool:
    """Return whether a published figure, as it may have been before rounding, is in the interval."""
    assert measured.lo is not None
    assert measured.hi is not None
    half = rounding(published)
    return measured.lo - half <= float(published) <= measured.hi + half


def rounding(published: str) -> float:
    """Return half a unit of a figure's last digit: "2.33" was rounded by at most 0.005."""
    decimals = len(published.partition(".")[2])
    return 0.5 * 10.0**-decimals


def written(estimate: Estimate) -> str:
    if estimate.value is None:
        return "–"
    if estimate.lo is None or estimate.hi is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} [{estimate.lo:.4g}, {estimate.hi:.4g}]"


def page(plan: Plan, found: Sequence[Verdict]) -> str:
    """Return the table of verdicts as Markdown, with the source of every setting."""
    group = plan.group
    lines = [f"# {group.paper}, table {group.table}: {group.title}", ""]
    lines.append(markdown(list(TITLES), [verdict.cells for verdict in found], [False] * 5))
    lines.append("")
    lines += [f"- {reason}" for reason in reasons(found)]
    lines += ["", "Settings, and where the paper's are written:", ""]
    lines += [f"- {setting}" for setting in plan.settings]
    if group.missing:
        lines += ["", f"Not implemented: {', '.join(group.missing)}."]
    return "\n".join(lines) + "\n"


def write(folder: Path, plan: Plan, found: Sequence[Verdict]) -> Path:
    """Write the page into a run folder.  Raises UserError."""
    path = folder / FILE
    write_file(path, page(plan, found), PLACE)
    return path
