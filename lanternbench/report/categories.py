"""The results by category of prompt, where prompts have a few of them, as in PartiPrompts."""

from __future__ import annotations

from collections.abc import Iterable

from lanternbench.report.columns import columns
from lanternbench.report.load import Row, Run, iter_samples, measured
from lanternbench.report.tables import markdown

MOST = 40  # more categories are no overview


def category_table(run: Run) -> str:
    """A Markdown table by category and method; empty where prompts have fewer than two categories, or too many."""
    rows = category_rows(sample for sample in iter_samples(run.folder / "samples.jsonl") if sample)
    if not 2 <= len({row["category"] for row in rows}) <= MOST:
        return ""
    order = {row["label"]: i for i, row in enumerate(run.rows)}
    rows.sort(key=lambda row: (row["category"], order.get(row["label"], len(order))))
    shown = columns(rows)
    cells = [[row["category"], *(column.cell(row) for column in shown)] for row in rows]
    titles = ["Category", *(column.title + column.arrow for column in shown)]
    return markdown(titles, cells, [False, *(column.form not in ("text", "yes") for column in shown)])


def category_rows(samples: Iterable[Row]) -> list[Row]:
    """A row per category and label: n, speedup, τ, fidelity loss, and the mean of each metric; no intervals."""
    kept = [
        {"category": sample["category"]} | measured(sample)
        for sample in samples
        if isinstance(sample.get("category"), str) and sample["category"]
    ]
    base = {one["pair"]: one["seconds"] for one in kept if one["label"] == "ar"}
    groups: dict[tuple[str, str], list[Row]] = {}
    for one in kept:
        groups.setdefault((one["category"], one["label"]), []).append(one)
    return [{"category": category, "label": label} | _row(own, base) for (category, label), own in groups.items()]


def _row(own: list[Row], base: dict[tuple[str, str], float | None]) -> Row:
    pairs = [(base.get(one["pair"]), one["seconds"]) for one in own]
    timed = [(slow, fast) for slow, fast in pairs if slow and fast]
    row: Row = {
        "n": len(own),
        "speedup": sum(slow for slow, _ in timed) / sum(fast for _, fast in timed) if timed else None,
        "accept_len": _share(sum(one["tokens"] for one in own), sum(one["steps"] for one in own)),
        "fidelity_loss": _mean([one["fidelity_loss"] for one in own]),
    }
    for name in dict.fromkeys(name for one in own for name in one["metrics"]):
        # the empty bound is what marks a metric's column
        row |= {name: _mean([one["metrics"].get(name) for one in own]), f"{name}_lo": None}
    return row


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
