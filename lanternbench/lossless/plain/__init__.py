"""A second definition of every method, from the papers' formulas alone: floats and lists, no tensor, no engine code.

``world``: target, drafter, guidance and warping.  ``rules``: acceptance rules, residuals, block verification.
``draft_trees``: chains, static and dynamic trees, ADT-Tree's policy.  ``decoding``: the exact output distribution of a
drafted method.  ``windows``: that of the Jacobi family.  ``rows``: that of several rows at once.  The engine is held against it by the tests.
"""

from __future__ import annotations

from lanternbench.lossless.plain import decoding, rows, windows
from lanternbench.lossless.plain.decoding import MethodSpec, in_all
from lanternbench.lossless.plain.rows import RowSpec
from lanternbench.lossless.plain.windows import WindowSpec
from lanternbench.lossless.plain.world import Prefix, World


def output_distribution(world: World, spec: MethodSpec | WindowSpec | RowSpec) -> dict[Prefix, float]:
    """P(image) of every image the method can make on this world, by recursion over all that can be drawn."""
    return in_all(decode_by_steps(world, spec)[0])


def decode_by_steps(world: World, spec: MethodSpec | WindowSpec | RowSpec) -> tuple[list[dict[Prefix, float]], float]:
    """P(image after 1, 2, … steps), the first token before them; and the expected fidelity loss."""
    if isinstance(spec, WindowSpec):
        return windows.decode_by_steps(world, spec)
    if isinstance(spec, RowSpec):
        return rows.decode_by_steps(world, spec)
    return decoding.decode_by_steps(world, spec)
