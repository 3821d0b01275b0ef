"""Grids of image tokens, as rows and columns.  This module does not import torch."""

import math
from collections.abc import Sequence

Grid = tuple[int, int]
COARSE = 16  # the side of a square image's coarse grid


def grid_of(value: int | str | Sequence[int]) -> Grid:
    """24, "24", "24x16" (rows × columns) or [24, 16] -> (rows, columns).  Raises ValueError for
    anything else.
    """
    parts = (
        value.split("x")
        if isinstance(value, str)
        else [value]
        if isinstance(value, int)
        else list(value)
    )
    rows, columns = (int(part) for part in (parts * 2 if len(parts) == 1 else parts))
    if min(rows, columns) < 1:
        raise ValueError(f"images of {rows}×{columns} tokens")
    return rows, columns


def size(grid: Grid) -> int:
    """Its tokens."""
    return grid[0] * grid[1]


def coarse(grid: Grid) -> Grid:
    """The grid that GLM-Image draws before ``grid``: about 16 × 16 tokens of the same proportions."""
    ratio = grid[0] / grid[1]
    return max(1, int(COARSE * math.sqrt(ratio))), max(1, int(COARSE * math.sqrt(1 / ratio)))


def place(grids: Sequence[Grid], token: int) -> tuple[int, int]:
    """Of a token, counted through grids that are drawn in this order: the first token of its grid,
    and its columns.
    """
    first = 0
    for grid in grids[:-1]:
        if token < first + size(grid):
            return first, grid[1]
        first += size(grid)
    return first, grids[-1][1]


def neighbours(grids: Sequence[Grid], count: int) -> tuple[list[int], list[int]]:
    """Of the first ``count`` tokens, drafts past the end below it: row number, and token above, -1
    in a first row.
    """
    row, above, last = [], [], 0
    for token in range(count):
        first, columns = place(grids, token)
        if token and (token - first) % columns == 0:
            last += 1
        row.append(last)
        above.append(token - columns if token - first >= columns else -1)
    return row, above


def written(grid: int | str | Sequence[int]) -> str:
    """As people read it: 24×16, rows first."""
    return "×".join(map(str, grid_of(grid)))
