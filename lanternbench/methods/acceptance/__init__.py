"""Acceptance rules: one file each.  Importing the package registers them."""

from lanternbench.methods.acceptance import annealed, exact, lantern, typical, unchanged

__all__ = ["annealed", "exact", "lantern", "typical", "unchanged"]
