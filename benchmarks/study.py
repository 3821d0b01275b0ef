"""All figures of the docs that come from sweeps, made anew from their run folders in one go.

    lanternbench sweep configs/methods.yaml                     # T = 1, timed
    lanternbench sweep configs/methods.yaml --temperature 0
    lanternbench sweep configs/methods.yaml -n 128 --batch 16   # more prompts, for what does not
      depend on the clock
    lanternbench sweep configs/methods.yaml -n 64 --batch 16 --temperature 0
    for name in orders fidelity windows annealing drafters; do lanternbench sweep
    configs/$name.yaml; done
    lanternbench sweep configs/blocks.yaml                      # after what its first lines name
    lanternbench sweep configs/blocks.yaml -n 128 --batch 16
    python -m benchmarks.study results            # into build/study, to look at first
    python -m benchmarks.study results --write    # over the tracked files

Of several finished runs with the same settings the newest counts; figures without a run stay as
they are and are named. Writes methods.md, orders.md, windows.md, blocks.md and power.md
of benchmarks/results, and their plots and the README's of docs/images.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from benchmarks import blocks, methods, orders, pictures, power, windows
from benchmarks.result_files import OUTPUT, ROOT
from lanternbench.experiment import read_run

SWEEPS = ("methods", "fidelity", "annealing", "drafters", "orders", "windows", "blocks")
PREVIEW = ROOT / "build" / "study"


def finished(folder: Path) -> list[tuple[str, Path]]:
    """(sweep, run) of the sweeps' finished runs in a folder, the oldest first."""
    runs = []
    for path in folder.iterdir():
        if (path / "summary.json").is_file():
            record = read_run(path)
            sweep = re.match(r"[a-z]*", record.run_id).group()
            if sweep in SWEEPS:
                runs.append((record.created, sweep, path))
    return [(sweep, path) for _, sweep, path in sorted(runs)]


def timed(run: Path) -> bool:
    """Return whether it has batch 1 and T = 1, as the runs of the README's plots."""
    config = read_run(run).config
    return config.batch == 1 and config.temperature == 1


def main(folder: Path, is_preview: bool) -> None:
    if is_preview:
        OUTPUT.preview(PREVIEW)
        print(f"figures and plots go to {PREVIEW}; --write replaces the tracked files")
    runs = finished(folder)
    newest = dict(runs)
    methods.report(
        [(sweep, run) for sweep, run in runs if sweep not in ("orders", "windows", "blocks")]
    )
    if "orders" in newest:
        orders.report(newest["orders"])
    if "windows" in newest:
        windows.report(newest["windows"])
    of_blocks = {timed(run): run for sweep, run in runs if sweep == "blocks"}
    if len(of_blocks) == 2:
        blocks.report(of_blocks[True], of_blocks[False])
    if of_methods := [run for sweep, run in runs if sweep == "methods" and timed(run)]:
        for make in (power.report, pictures.draw):
            make(of_methods[-1])
    for sweep in SWEEPS:
        if sweep not in newest:
            print(
                f"{folder} has no finished run of configs/{sweep}.yaml: its figures stay as they are",
                file=sys.stderr,
            )


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folder", type=Path, metavar="DIR", help="folder of run folders")
    options.add_argument("--write", action="store_true", help="replace the tracked files")
    chosen = options.parse_args()
    main(chosen.folder, is_preview=not chosen.write)
