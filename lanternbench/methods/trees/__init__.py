"""Tree policies: one file each.  Importing the package registers them."""

from lanternbench.methods.trees import adaptive, dynamic, static

__all__ = ["adaptive", "dynamic", "static"]
