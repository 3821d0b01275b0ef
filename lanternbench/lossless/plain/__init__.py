"""A second definition of every method, from the papers' formulas alone: floats and lists, no tensor, no engine code.

``world``: target, drafter, guidance and warping.  ``rules``: the components' own definitions of acceptance and residual
applied.  ``draft_trees``: EAGLE-2's tree, ADT-Tree's policy.  ``decoding``: the exact output distribution of a drafted
method.  ``windows``: that of the Jacobi family.
"""

from __future__ import annotations

from lanternbench.lossless.plain import decoding, windows
from lanternbench.lossless.plain.decoding import MethodSpec, in_all
from lanternbench.lossless.plain.windows import WindowMethod
from lanternbench.lossless.plain.world import Prefix, World


def output_distribution(world: World, method: MethodSpec | WindowMethod) -> dict[Prefix, float]:
    """P(image) of every image the method can make on this world, by recursion over all that can be drawn."""
    return in_all(decode_by_steps(world, method)[0])


def decode_by_steps(world: World, method: MethodSpec | WindowMethod) -> tuple[list[dict[Prefix, float]], float]:
    """P(image after 1, 2, … steps), the first token before them; and the expected fidelity loss."""
    if isinstance(method, WindowMethod):
        return windows.decode_by_steps(world, method)
    return decoding.decode_by_steps(world, method)
