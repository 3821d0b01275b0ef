"""Targets by family, the parts that they share, and drafters.  Importing it registers the families."""

# ruff: noqa: F401, I001  (the order in which ``targets`` lists them)
from lanternbench.models.tiny import checkpoint as _tiny
from lanternbench.models.llamagen import checkpoint as _llamagen
from lanternbench.models.chameleon import checkpoint as _chameleon
from lanternbench.models.janus import checkpoint as _janus
from lanternbench.models.emu3 import checkpoint as _emu3
from lanternbench.models.huggingface import checkpoint as _huggingface
