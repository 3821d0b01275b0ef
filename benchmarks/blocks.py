"""A chain of five from one forward of a block drafter, beside five forwards of an EAGLE drafter.

``python -m benchmarks.study`` runs it.  Writes benchmarks/results/blocks.md from two runs of
configs/blocks.yaml: one of batch 1, timed, and one of more prompts, for what does not depend on
the clock.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.result_files import Column, figure_table, setting, write
from lanternbench.measure.summary import read_summary
from lanternbench.report.load import joined_rows, load_run
from lanternbench.report.tables import acceptance_table

TIMED = (
    Column("speedup", "speedup", 2, True),
    Column("accept_len", "τ", 2, True),
    Column("draft_fraction", "drafting, share of the time", 3),
    Column("overhead_fraction", "outside forwards", 3),
)
COUNTED = (
    Column("accept_len", "τ", 2, True),
    Column("first_token_acceptance", "first tokens accepted", 3, True),
    Column("fidelity_loss", "fidelity loss", 3, True),
)


def report(timed: Path, counted: Path) -> None:
    lines = ["# A block in one forward, or five forwards", ""]
    for run, columns in ((timed, TIMED), (counted, COUNTED)):
        lines += [setting(run), "", *figure_table(read_summary(run).rows, columns), ""]
    lines += [
        "Acceptance by position of the draft:",
        "",
        acceptance_table(joined_rows([load_run(counted)])),
    ]
    write("blocks.md", lines)
