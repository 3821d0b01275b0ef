"""For how long do the commands of the first hour say nothing, where no terminal shows a moving
bar?

    python -m benchmarks.silence [NAME ...]

Each runs as a script would run it, both streams in one pipe; a silence lasts from one line to the
next, from the start to the first and from the last to the end.  Without names all run, and
benchmarks/results/silence.md is written.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from lanternbench.experiment.environment import environment

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).with_name("results") / "silence.md"
COMMANDS = {
    # as `make demo`, without the installation
    "demo": f"sweep {ROOT / 'configs' / 'demo.yaml'} --time-budget 4",
    "report": "report",  # of that run
    "run": "run --method cool-sd --lambda 2",
    "tune": "tune --method eagle-1",
    "verify": "verify cool-sd",
    "train drafter": "train drafter --num-prompts 16 --steps 300",
}


class Silence(NamedTuple):
    """The longest silence of a command, and between which lines; how many lines there were in
    ``total`` seconds.
    """

    seconds: float
    after: str
    before: str
    lines: int
    total: float


def listen(command: str, folder: Path) -> Silence:
    """Run a command and hear what it says.  Raises RuntimeError where it fails."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    begun = perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "lanternbench", *command.split()], cwd=folder, env=variables,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    heard = [(begun, "start")]
    assert process.stdout is not None
    for line in process.stdout:
        heard.append((perf_counter(), line.strip()))
    if process.wait():
        raise RuntimeError(f"`{command}` ended with {process.returncode}: {heard[-1][1]}")
    heard.append((perf_counter(), "end"))
    seconds, after, before = max((b - a, last, next_) for (a, last), (b, next_) in pairwise(heard))
    return Silence(seconds, after, before, len(heard) - 2, heard[-1][0] - begun)


def cell(line: str) -> str:
    """A line for a table."""
    return (line if len(line) <= 60 else f"{line[:59]}…").replace("|", "\\|")


def report(silences: dict[str, Silence], loads: list[float]) -> str:
    machine = environment()
    lines = [
        "# The longest silence of a command without a terminal",
        "",
        f"`python -m benchmarks.silence`: {machine['cpu']}, {machine['cores']} cores; the load was "
        f"{loads[0]:.1f} before and {loads[1]:.1f} after.",
        "",
        "| command | longest silence, s | after | before | lines | whole command, s |",
        "|---|---:|---|---|---:|---:|",
    ]
    for name, one in silences.items():
        command = COMMANDS[name].replace(f"{ROOT}/", "")
        between = f"{one.seconds:.1f} | {cell(one.after)} | {cell(one.before)}"
        lines.append(f"| `{command}` | {between} | {one.lines} | {one.total:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMMANDS))
    names = options.parse_args().names or list(COMMANDS)
    if unknown := [name for name in names if name not in COMMANDS]:
        options.error(f"there is no {unknown[0]!r}: choose of {', '.join(COMMANDS)}")
    before, silences = os.getloadavg()[0], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in COMMANDS if name in names):
            silences[name] = listen(COMMANDS[name], Path(folder))
            print(f"{name}: {silences[name]}", file=sys.stderr, flush=True)
    text = report(silences, [before, os.getloadavg()[0]])
    if len(silences) == len(COMMANDS):
        RESULT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
