"""The table of ``docs/which-decoder.md``: the fastest method of each kind in the study, and what
predictions and papers say.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MOST_LOSS = 0.1  # of a relaxed method


def decoders() -> Iterator[tuple[str, ...]]:
    """The fastest method of each kind in the study, at each batch size, and in the papers."""
    study = lines_of(RESULTS / "methods.md", "## T = 1\n")
    losses = {line["method"]: line["fidelity loss"] for line in study}
    measured = {line["method"]: line["speedup [95 %]"].replace(" ", "× ", 1) for line in study}
    predicted = lines_of(RESULTS / "predicted-methods.md", "## Predicted")
    yield (
        "you have",
        "one CPU thread, batch 1, measured",
        "H100, batch 1, predicted",
        "H100, batch 16, predicted",
        "in papers, on GPUs, batch 1",
    )
    for drafter, kind in itertools.product(("no drafter", "a drafter"), ("exact", "relaxed")):
        of_kind = []
        for label, loss in losses.items():
            if (drafter_of(label), kind_of(label, loss)) == (drafter, kind):
                of_kind.append(label)
        label = fastest_of(of_kind, measured)
        loss = f", loss {losses[label]}" if kind == "relaxed" else ""
        cells = [f"`{label}` {measured[label]}{loss}"]
        papers = {reported(preset_of(label)): None}
        for batch in ("1", "16"):
            speedups = predicted_speedups(predicted, batch, drafter, kind)
            label = fastest_of(list(speedups), speedups)
            cells.append(f"`{label}` {speedups[label]}")
            papers[reported(preset_of(label))] = None
        papers.pop("", None)
        yield f"{drafter}, {kind}", *cells, "; ".join(papers) or "not reported"


def predicted_speedups(
    lines: Sequence[Mapping[str, str]], batch: str, drafter: str, kind: str
) -> dict[str, str]:
    """The predicted speedups of a kind of methods by label, of each the slowest row: papers
    measured it more than once.
    """
    from lanternbench.methods.method import named

    found: dict[str, str] = {}
    for line in lines:
        label = line["method"]
        preset = preset_of(label)
        line_kind = "exact" if line["lossless"] else "relaxed"
        is_flattered = batch != "1" and "flatters batches" in line["warning"]
        if preset == "ar" or line["batch"] != batch or not line["speedup"] or is_flattered:
            continue
        if (drafter_of(label), line_kind) == (drafter, kind) and named(preset).bounded:
            found[label] = line["speedup"]  # lines are sorted, the fastest first
    return found


def lines_of(path: Path, heading: str) -> list[dict[str, str]]:
    """The lines of the first table below a heading, by column."""
    below = path.read_text(encoding="utf-8").partition(heading)[2]
    table = re.search(r"(?:^\|.*\n)+", below, re.M)
    if table is None:
        raise SystemExit(f"{path} has no table below {heading.strip()!r}")
    head, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()
    ]
    return [dict(zip(head, line, strict=True)) for line in lines]


def preset_of(label: str) -> str:
    """The named method that a label begins with."""
    from lanternbench.registry import components

    names = [
        name for name in components("preset") if re.match(rf"{re.escape(name)}( |\+|$)", label)
    ]
    return max(names, key=len)


def kind_of(label: str, loss: str) -> str:
    """Of a method and its fidelity loss: exact, relaxed within ``MOST_LOSS``, or nothing of both."""
    if preset_of(label) == "ar" or loss == "–":
        return ""
    if float(loss) == 0.0:
        return "exact"
    return "relaxed" if float(loss) <= MOST_LOSS else ""


def drafter_of(label: str) -> str:
    from lanternbench.methods.method import named

    kind = named(preset_of(label)).proposal.drafter_kind
    return "no drafter" if kind is None else "a drafter"


def fastest_of(labels: Sequence[str], speedups: Mapping[str, str]) -> str:
    present = [label for label in labels if label in speedups]
    return max(present, key=lambda label: float(speedups[label].partition("×")[0]))


def reported(name: str) -> str:
    """The range of a method's speedups in papers at temperature 1."""
    speedups: list[float] = []
    papers: set[str] = set()
    with (ROOT / "lanternbench/report/papers.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["method"] == name and row["temperature"] == "1" and row["speedup"]:
                speedups.append(float(row["speedup"]))
                papers.add(row["source"])
    if not speedups:
        return ""
    span = " to ".join(f"{value:.2f}×" for value in sorted({min(speedups), max(speedups)}))
    return f"`{name}` {span} ({len(papers)} paper{'s' if len(papers) > 1 else ''})"
