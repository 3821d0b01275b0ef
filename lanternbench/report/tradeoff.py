"""The trade-off of speed and quality: the Pareto frontier, and a line per method along its knob."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.summary import Row
from lanternbench.report.columns import (
    COLUMN,
    Column,
    disturbed,
    metric_column,
    metric_keys,
)
from lanternbench.report.load import ReportRow


class TradeOff(NamedTuple):
    """The content of a trade-off plot; ``frontiers`` (one a setup) and ``knobs`` (one a method)
    are indices of ``rows``.
    """

    x: Column
    y: Column
    rows: list[ReportRow]
    points: list[tuple[float, float]]  # (speed, quality) of each row
    frontiers: list[list[int]]
    knobs: list[list[int]]


def pareto_frontier(x: Sequence[float], y: Sequence[float], lower_is_better: bool) -> list[int]:
    """Return the indices of the points that no other point beats, by growing x.

    More x is better.  A point is beaten by another that is at least as good on both axes and
    better on one (equal ones stay); points with NaN never count.
    """
    speed = np.asarray(x, np.float64)
    quality = np.asarray(y, np.float64)
    if lower_is_better:
        quality = -quality
    # [i, j]: whether point j is at least as good as point i, and better
    at_least = (speed >= speed[:, None]) & (quality >= quality[:, None])
    better = (speed > speed[:, None]) | (quality > quality[:, None])
    stays = np.isfinite(speed + quality) & ~(at_least & better).any(1)
    by_speed = np.lexsort((-quality, speed))
    return [int(index) for index in by_speed if stays[index]]


def speed_column(rows: Sequence[Row]) -> Column:
    """Return the speed that plots show: speedup, robust if timing was noisy, or tokens / steps
    if no row has a speedup.
    """
    timed = [row for row in rows if row.value("speedup") is not None]
    if not timed:
        return COLUMN["step_compression"]
    all_robust = all(row.value("robust_speedup") is not None for row in timed)
    if all_robust and any(map(disturbed, timed)):
        return COLUMN["robust_speedup"]
    return COLUMN["speedup"]


def quality_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the y axes worth a plot: fidelity loss and every metric that a method with a
    speed trades for it.
    """
    speed = speed_column(rows).key
    relaxed = [row for row in rows if row.lossless is not True and row.method != BASELINE]
    fast = [row for row in relaxed if row.value(speed) is not None]
    columns = [COLUMN["fidelity_loss"], *map(metric_column, metric_keys(rows))]
    return [column for column in columns if any(row.value(column.key) is not None for row in fast)]


def trade_off(rows: Sequence[ReportRow], quality: Column) -> TradeOff:
    """Return the relaxed rows with both figures and, of each run, the baseline and the fastest
    lossless row.
    """
    speed = speed_column(rows)
    rows = [row for row in rows if None not in (row.value(speed.key), row.value(quality.key))]
    lossless = [row for row in rows if row.lossless is True and row.method != BASELINE]
    lossless.sort(key=lambda row: row.value(speed.key) or 0.0)
    fastest = {row.place: row for row in lossless}
    rows = [row for row in rows if row not in lossless or row is fastest[row.place]]
    points = [(row.value(speed.key) or 0.0, row.value(quality.key) or 0.0) for row in rows]
    frontiers = frontiers_of(rows, points, quality) if quality.better else []
    return TradeOff(speed, quality, rows, points, frontiers, knobs(rows))


def frontiers_of(
    rows: Sequence[ReportRow], points: Sequence[tuple[float, float]], quality: Column
) -> list[list[int]]:
    """Return the frontier of each setup: what was measured otherwise beats nothing."""
    setups: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        setups[row.setup].append(index)
    frontiers = []
    for indices in setups.values():
        speeds, qualities = zip(*(points[i] for i in indices))
        best = pareto_frontier(speeds, qualities, quality.better == "lower")
        frontiers.append([indices[i] for i in best])
    return frontiers


def knobs(rows: Sequence[ReportRow]) -> list[list[int]]:
    """Return rows that are one method at several values of one number, in its order: indices, two
    or more each.
    """
    lines: list[list[int]] = []
    for key in dict.fromkeys(key for row in rows for key in row.options):
        on_a_line = {i for line in lines for i in line}
        for group in rows_along(rows, key):
            values = {rows[i].options[key] for i in group}
            if len(values) > 1 and on_a_line.isdisjoint(group):
                lines.append(sorted(group, key=lambda i: rows[i].options[key]))
    return lines


def rows_along(rows: Sequence[ReportRow], key: str) -> list[list[int]]:
    """Return the indices of rows with a number as option ``key`` that differ in it alone."""
    groups: dict[object, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if type(row.options.get(key)) in (int, float):
            others = sorted(str(option) for option in row.options.items() if option[0] != key)
            groups[row.place, row.method, str(others)].append(index)
    return list(groups.values())


def short_names(data: TradeOff) -> list[str]:
    """Return names for the plot: of points along an option, the last has the full name, the
    others only their value.
    """
    names = [row.name for row in data.rows]
    for line in data.knobs:
        words = [names[i].split() for i in line]
        common = set.intersection(*map(set, words))
        for index, own in zip(line[:-1], words):
            short = " ".join(word for word in own if word not in common)
            names[index] = short or names[index]
    return names
