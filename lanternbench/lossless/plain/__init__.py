"""A second definition of every method, from the papers' formulas alone: floats and lists, no tensor, no engine code.

``world``: target, drafter, guidance and warping.  ``rules``: the components' own definitions of acceptance and residual
applied.  ``draft_trees``: EAGLE-2's tree, ADT-Tree's policy.  ``decoding``: the exact output distribution of a drafted
method.  ``windows``: that of the Jacobi family.  ``rows``: that of several rows at once.
"""

from __future__ import annotations

from lanternbench.lossless.plain import decoding, rows, windows
from lanternbench.lossless.plain.decoding import MethodSpec
from lanternbench.lossless.plain.rows import RowMethod
from lanternbench.lossless.plain.windows import WindowMethod
from lanternbench.lossless.plain.world import Prefix, World

Plain = MethodSpec | WindowMethod | RowMethod


def decode_by_steps(world: World, method: Plain) -> tuple[list[dict[Prefix, float]], float]:
    """P(image after 1, 2, … steps), the first token before them; and the expected fidelity loss."""
    if isinstance(method, RowMethod):
        return rows.decode_by_steps(world, method)
    if isinstance(method, WindowMethod):
        return windows.decode_by_steps(world, method)
    return decoding.decode_by_steps(world, method)
