"""Acceptance rules: one file each.  Importing the package registers them."""

from lanternbench.methods.acceptance import annealed, block, exact, gsd, lantern, top_k, typical, unchanged

__all__ = ["annealed", "block", "exact", "gsd", "lantern", "top_k", "typical", "unchanged"]
