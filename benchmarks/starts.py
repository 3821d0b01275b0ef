"""How long does each command take to say something?  Commands in turns, so that a busy moment hits
  all alike.

    python -m benchmarks.starts [CHECKOUT ...] [--runs 20]

A command that computes is started with --help and with a method that does not exist, the others do
all of their work. With checkouts, of which the first is the older, each has a column.  Writes
benchmarks/results/starts.md.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from lanternbench.cli.main import COMMANDS
from lanternbench.experiment.environment import environment

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).with_name("results") / "starts.md"
# a run to list and to compare with itself
STORED = ROOT / "tests" / "data" / "run_of_flat_figures"
WHOLE = ["--help", "methods", "methods eagle-1", "metrics", "metrics fid", "targets", "targets tiny", "prompts demo",
         "runs", "compare one two"]  # fmt: skip
WRONG = ["run -m egle-1", "tune -m egle-1", "verify egle-1", "report nowhere", "score nowhere"]


def commands() -> list[str]:
    """What is started: the commands that compute nothing, mistakes, and the help of all others."""
    known = {*WHOLE, *WRONG}
    names = [c.__name__.rstrip("_") for c in COMMANDS]  # `import_`
    helped = [name for name in names if name not in known] + ["train drafter"]
    return [*WHOLE, *WRONG, *(f"{name} --help" for name in helped)]


def seconds(command: str, checkout: Path, folder: Path) -> float:
    """Of one start, from a folder with two runs in ``results``; raises for an exit code that is no
    answer.
    """
    variables = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    begun = perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "lanternbench", *command.split()],
        cwd=folder,
        env=variables,
        capture_output=True,
    )
    spent = perf_counter() - begun
    if done.returncode != (2 if command in WRONG else 0):
        raise RuntimeError(
            f"`{command}` of {checkout} ended with {done.returncode}: {done.stderr.decode()[-400:]}"
        )
    return spent


def measured(checkouts: list[Path], runs: int) -> dict[tuple[str, Path], list[float]]:
    """Seconds of every command in every checkout, after a start of each that warms the file cache."""
    starts: dict[tuple[str, Path], list[float]] = {
        (c, checkout): [] for c in commands() for checkout in checkouts
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one", "two"):
            shutil.copytree(STORED, Path(folder) / "results" / name)
        for turn in range(runs + 1):
            for pair in random.Random(turn).sample(list(starts), len(starts)):
                spent = seconds(*pair, Path(folder))
                starts[pair] += [spent] if turn else []
            print(
                f"{turn} of {runs} runs, load {os.getloadavg()[0]:.1f}",
                file=sys.stderr,
                flush=True,
            )
    return starts


def commit(checkout: Path) -> str:
    done = subprocess.run(
        ["git", "-C", checkout, "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return done.stdout.strip() or checkout.name


def report(
    starts: dict[tuple[str, Path], list[float]],
    checkouts: list[Path],
    runs: int,
    loads: list[float],
) -> str:
    machine = environment()
    lines = [
        "# Seconds until a command has answered",
        "",
        f"`python -m benchmarks.starts --runs {runs}`: {machine['cpu']}, {machine['cores']} cores, Python "
        f"{machine['python']}; the load was {loads[0]:.1f} before and {loads[1]:.1f} after. Median, and in "
        "brackets the fastest and the slowest start.",
        "",
        f"| command | {' | '.join(commit(checkout) for checkout in checkouts)} |",
        f"|---|{'---:|' * len(checkouts)}",
    ]
    for command in commands():
        times = [starts[command, checkout] for checkout in checkouts]
        cells = [f"{median(s):.2f} [{min(s):.2f}, {max(s):.2f}]" for s in times]
        lines.append(f"| `{command}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("checkouts", nargs="*", type=Path, default=[ROOT])
    options.add_argument("--runs", type=int, default=20)
    arguments = options.parse_args()
    checkouts = [checkout.resolve() for checkout in arguments.checkouts]
    before = os.getloadavg()[0]
    starts = measured(checkouts, arguments.runs)
    RESULT.write_text(
        text := report(starts, checkouts, arguments.runs, [before, os.getloadavg()[0]]),
        encoding="utf-8",
    )
    print(text)


if __name__ == "__main__":
    main()
