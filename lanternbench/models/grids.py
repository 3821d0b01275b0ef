"""Grids of image tokens, as rows and columns.  Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence

Grid = tuple[int, int]


def grid_of(value: int | str | Sequence[int]) -> Grid:
    """24, "24", "24x16" (rows × columns) or [24, 16] -> (rows, columns).  Raises ValueError for anything else."""
    parts = value.split("x") if isinstance(value, str) else [value] if isinstance(value, int) else list(value)
    rows, columns = (int(part) for part in (parts * 2 if len(parts) == 1 else parts))
    if min(rows, columns) < 1:
        raise ValueError(f"images of {rows}×{columns} tokens")
    return rows, columns


def written(grid: int | str | Sequence[int]) -> str:
    """As people read it: 24×16, rows first."""
    return "×".join(map(str, grid_of(grid)))
