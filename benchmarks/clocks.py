"""Do robust speedups survive a busy machine?  One sweep on the machine as it is, and again beside
  a busy loop per CPU.

    python -m benchmarks.clocks --num-prompts 12

Prints both speedups of either run, how far apart they are, and whether the run noticed that its
clock was disturbed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lanternbench.measure.summary import Row, Summary, read_summary

METHODS = ("eagle-1", "eagle-2", "sjd", "cool-sd")
SPEEDUPS = {"wall": "speedup", "robust": "robust_speedup"}


def measured(folder: Path, prompts: int) -> Summary:
    """The methods beside ``ar``, interleaved, in a process of their own."""
    chosen = [word for name in METHODS for word in ("-m", name)]
    command = [
        sys.executable,
        "-m",
        "lanternbench",
        "run",
        *chosen,
        "-n",
        str(prompts),
        "--out",
        str(folder),
    ]
    subprocess.run([*command, "--metrics", ""], check=True, capture_output=True)
    (run,) = folder.iterdir()
    return read_summary(run)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that compute without end."""
    processes = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def cell(row: Row, key: str) -> str:
    value, lo, hi, *_ = row.figure(key)
    return f"{value:.2f} [{lo:.2f}, {hi:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-prompts", type=int, default=12)
    arguments = parser.parse_args()
    summaries: list[Summary] = []
    with tempfile.TemporaryDirectory() as folder:
        for loops in (0, os.cpu_count() or 1):
            with busy_loops(loops):
                summaries.append(measured(Path(folder) / str(loops), arguments.num_prompts))
    print("| method | speedup | alone | beside busy loops | difference |")
    print("|---|---|---|---|---:|")
    for row in summaries[0].rows:
        other = next(r for r in summaries[1].rows if r.label == row.label)
        for name, key in SPEEDUPS.items():
            change = other.value(key) / row.value(key) - 1
            print(
                f"| {row.label} | {name} | {cell(row, key)} | {cell(other, key)} | {change:+.1%} |"
            )
    for where, summary in zip(("alone", "beside busy loops"), summaries, strict=True):
        notes = [note.text for note in summary.all_notes() if note.fact == "noisy timing"]
        print(f"\n{where}: {notes[0] if notes else 'no note about the clock'}")


if __name__ == "__main__":
    main()
