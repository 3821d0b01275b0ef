"""A second definition of every method, from the papers' formulas alone: floats and lists, no tensor, no engine code.

``world``: target, drafter, guidance and warping.  ``branches``: every outcome of a program that draws.  ``rules``: a
method by its steps; the components' own definitions of acceptance and residual applied.  ``draft_trees``: EAGLE-2's,
ADT-Tree's policy.  ``decoding``: a step of a drafted method.  ``windows``: of the Jacobi family.  ``rows``: of several
rows at once.
"""

from lanternbench.lossless.plain.rules import decode_by_steps

__all__ = ["decode_by_steps"]
