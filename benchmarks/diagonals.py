"""Diagonals next to rows and relaxed acceptance, from a run of configs/diagonals.yaml.

    lanternbench sweep configs/diagonals.yaml
    python -m benchmarks.diagonals RUN

Writes benchmarks/results/diagonals.md.  A fidelity loss stands only where it bounds something.

The branch, benchmarks/flashar.safetensors, was trained on the toy target's own images of 256
captions that ``tools.train_tiny`` wrote, by

    lanternbench train drafter --recipe flashar --mask both --layers 2 --steps 1000 --lr 1e-3
      --prompts CAPTIONS --out BRANCH
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.result_files import Column, figure_table, setting, write
from lanternbench.measure.summary import read_summary

COLUMNS = (
    Column("step_compression", "tokens a forward pass", 2, True),
    Column("speedup", "speedup", 2, True),
    Column("fidelity_loss", "fidelity loss", 3, True),
    Column("log_prob", "log-probability a token", 3, True),
    Column("clip-tiny", "CLIP-tiny", 3, True),
)


def report(run: Path) -> None:
    table = figure_table(read_summary(run).rows, COLUMNS)
    write("diagonals.md", ["# Diagonals", "", setting(run), "", *table])


if __name__ == "__main__":
    report(Path(sys.argv[1]))
