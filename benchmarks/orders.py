"""Several rows at once beside relaxed acceptance, on one axis of fidelity loss.

    lanternbench sweep configs/orders.yaml
    lanternbench report RUN
    python -m benchmarks.orders results/RUN

Writes benchmarks/results/orders.md and docs/images/orders.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.methods import about
from lanternbench import load_run
from lanternbench.measure.summaries import read_summary
from lanternbench.notes import preliminary
from lanternbench.report.drawing import scene_figure
from lanternbench.report.pareto import quality_columns, scatter, trade_off
from lanternbench.report.scene import WIDE

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = {"robust_speedup": 2, "speedup": 2, "step_compression": 2, "fidelity_loss": 3, "clip-tiny": 3, "fid-tiny": 0}


def main(run: Path) -> None:
    summary, lines = read_summary(run), ["# Several rows at once", "", about(run), ""]
    if unfit := preliminary(summary.all_notes()):
        lines += [f"{unfit} Steps, losses and quality do not depend on the clock.", ""]
    lines += ["| method | " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for row in summary.rows:
        cells = []
        for name, digits in COLUMNS.items():
            value, low, high, *_ = row.figure(name)
            cell = "–" if value is None else f"{value:.{digits}f}"
            cells.append(cell if low is None or high is None else f"{cell} [{low:.{digits}f}, {high:.{digits}f}]")
        lines.append(f"| {row.label} | {' | '.join(cells)} |")
    (ROOT / "benchmarks/results/orders.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = load_run(run).run.rows
    loss = {column.key: column for column in quality_columns(rows)}["fidelity_loss"]
    scene_figure(scatter(trade_off(rows, loss), WIDE)).savefig(ROOT / "docs/images/orders.png", dpi=170)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
