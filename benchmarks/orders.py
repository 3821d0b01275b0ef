"""Several rows at once beside relaxed acceptance, on one axis of fidelity loss, from a run of
configs/orders.yaml.

``python -m benchmarks.study`` runs it.  Writes benchmarks/results/orders.md and
docs/images/orders.png.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.result_files import OUTPUT, Column, figure_table, setting, write
from lanternbench import load_run
from lanternbench.measure.summary import read_summary
from lanternbench.report.load import joined_rows
from lanternbench.report.scatter import scatter
from lanternbench.report.style import WIDE
from lanternbench.report.tradeoff import quality_columns, trade_off

COLUMNS = (
    Column("robust_speedup", "robust speedup", 2, True),
    Column("speedup", "speedup", 2, True),
    Column("step_compression", "step compression", 2, True),
    Column("fidelity_loss", "fidelity loss", 3, True),
    Column("clip-tiny", "CLIP-tiny", 3, True),
    Column("fid-tiny", "FID-tiny", 0),
)


def report(run: Path) -> None:
    write(
        "orders.md",
        [
            "# Several rows at once",
            "",
            setting(run),
            "",
            *figure_table(read_summary(run).rows, COLUMNS),
        ],
    )
    rows = joined_rows([load_run(run)])
    loss = next(column for column in quality_columns(rows) if column.key == "fidelity_loss")
    scatter(trade_off(rows, loss), WIDE).figure.savefig(OUTPUT.images / "orders.png", dpi=170)
