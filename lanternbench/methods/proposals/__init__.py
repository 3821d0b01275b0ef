"""Proposals: one file each.  Importing the package registers them."""

from lanternbench.methods.proposals import eagle, jacobi, medusa, model, none, scd, sjd_pac

__all__ = ["eagle", "jacobi", "medusa", "model", "none", "scd", "sjd_pac"]
