"""The contract of orders: in which order the tokens of an image are drawn."""

from __future__ import annotations

from lanternbench.component import Component
from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.plain import RowSpec, TreeSpec, WindowSpec


class Order(Component):
    """In which order the tokens of an image are drawn; by itself, raster order."""

    def apply(self, decoder: SpeculativeDecoder) -> SpeculativeDecoder:
        """``decoder``, which draws in raster order, made to draw in this one."""
        return decoder

    def plain(self, draft: TreeSpec | WindowSpec) -> TreeSpec | WindowSpec | RowSpec | None:
        """The plain definition of a proposal with this one ``draft``; None where it has none."""
        return draft
