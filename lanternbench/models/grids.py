"""Grids of image tokens, as rows and columns.  This module does not import torch."""

import math
import re
from collections.abc import Sequence

Grid = tuple[int, int]
COARSE = 16  # the side of a square image's coarse grid


def grid_of(value: int | str | Sequence[int]) -> Grid:
    """24, "24", "24x16" (rows × columns) or [24, 16] -> (rows, columns).

    Raises ValueError for anything else.
    """
    if isinstance(value, int):
        value = [value]
    sides = value.split("x") if isinstance(value, str) else list(value)
    if len(sides) == 1:
        sides *= 2
    if any(isinstance(side, str) and not re.fullmatch("[1-9][0-9]*", side) for side in sides):
        raise ValueError(f"'{value}' is no size: write it as 24 or 24x16, without leading zeros")
    rows, columns = map(int, sides)
    if min(rows, columns) < 1:
        raise ValueError(f"images of {rows}×{columns} tokens")
    return rows, columns


def size(grid: Grid) -> int:
    """Return how many tokens a grid has."""
    return grid[0] * grid[1]


def coarse(grid: Grid) -> Grid:
    """Return the grid that GLM-Image draws before ``grid``: about 16 × 16 tokens, of the same
    proportions.
    """
    ratio = grid[0] / grid[1]
    return max(1, int(COARSE * math.sqrt(ratio))), max(1, int(COARSE * math.sqrt(1 / ratio)))


def place(grids: Sequence[Grid], token: int) -> tuple[int, int]:
    """Return the first token of the grid that holds a token, and that grid's columns.

    Tokens are counted through grids in the order in which they are drawn.
    """
    first = 0
    for grid in grids[:-1]:
        if token < first + size(grid):
            return first, grid[1]
        first += size(grid)
    return first, grids[-1][1]


def neighbours(grids: Sequence[Grid], count: int) -> tuple[list[int], list[int]]:
    """Return, of each of the first ``count`` tokens, the number of its row and the token above it,
    -1 in a first row.

    Drafts past the end count as tokens below it.
    """
    rows = []
    above = []
    row = 0
    for token in range(count):
        first, columns = place(grids, token)
        if token and (token - first) % columns == 0:
            row += 1
        rows.append(row)
        above.append(token - columns if token - first >= columns else -1)
    return rows, above


def written(grid: int | str | Sequence[int]) -> str:
    """Return a grid as people read it: 24×16, rows first."""
    return "×".join(map(str, grid_of(grid)))
