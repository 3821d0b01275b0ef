"""Raster order: row by row, left to right, each token after all that precede it."""

from __future__ import annotations

from lanternbench.engine.order import Order
from lanternbench.registry import register


@register("order", "raster")
class Raster(Order):
    """row by row, each token after all before it"""
