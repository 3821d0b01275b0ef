"""Would a mistake be caught?  ``make mutants``: one mutant at a time, judged by ``lanternbench
  verify`` and tests.

A mutant is a small, plausible mistake in the package.  It is made in a scratch copy of the
repository, the command and the tests that should notice run there, and the table says which did.
Exit codes: 0 every mutant is caught, 1 one survives, 2 the table in ``table.py`` no longer fits
the source, or the unchanged copy fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("lanternbench", "tests", "prompts", "configs", "pyproject.toml")
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
LIMIT = 900  # seconds for one command
TABLES = """
import sys
from lanternbench.lossless import verify_all
def stop(row):
    if row.passed is False:
        sys.exit(f"FAIL │ {row.check}")
verify_all(sys.argv[1:], on_row=stop)
"""  # the checks of ``verify`` that need no target, which come first


class Ran(NamedTuple):
    """One command on one mutant."""

    noticed: bool
    what: str  # the first check or test that failed
    seconds: float


class Outcome(NamedTuple):
    mutant: Mutant
    verify: Ran | None
    tests: Ran | None

    @property
    def caught(self) -> bool:
        return any(ran is not None and ran.noticed for ran in (self.verify, self.tests))


def stale(root: Path = ROOT) -> list[str]:
    """What in the table no longer fits the source: texts that are not found exactly once, tests
    that are gone.
    """
    wrong = []
    for mutant in MUTANTS:
        for file, old, new in mutant.edits:
            path = root / file
            count = path.read_text().count(old) if path.is_file() else 0
            if count != 1 or old == new:
                wrong.append(f"{mutant.name}: its text is found {count} times in {file}")
        for test in mutant.tests:
            file, _, name = test.partition("::")
            path = root / file
            if not path.is_file() or f"def {name.partition('[')[0]}(" not in path.read_text():
                wrong.append(f"{mutant.name}: there is no test {test}")
    return wrong


@contextmanager
def scratch_copy() -> Iterator[Path]:
    """A copy of the repository, with the official data beside it where they are beside this one."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "repository"
        copy.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        shared = ROOT.parent / "shared"
        if shared.exists():
            (Path(folder) / "shared").symlink_to(shared.resolve())
        yield copy


@contextmanager
def applied(mutant: Mutant, copy: Path) -> Iterator[None]:
    """The mutant's edits in the copy, taken back at the end."""
    before = {file: (copy / file).read_text() for file, _, _ in mutant.edits}
    try:
        for file, old, new in mutant.edits:
            path = copy / file
            path.write_text(path.read_text().replace(old, new))
        yield
    finally:
        for file, text in before.items():
            (copy / file).write_text(text)


def run(arguments: list[str], copy: Path) -> Ran:
    """A command in the copy; a failing exit code is a mistake noticed, running too long is one
    too.
    """
    environment = os.environ | {
        "PYTHONPATH": str(copy),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment["COLUMNS"] = "200"
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        return Ran(
            done.returncode != 0,
            _first_failure(done.stdout or done.stderr),
            time.perf_counter() - start,
        )
    except subprocess.TimeoutExpired:
        return Ran(True, "ran too long", time.perf_counter() - start)


def _first_failure(output: str) -> str:
    """The check of ``verify`` that failed, the test that failed in pytest's summary, or the error."""
    if output.startswith("["):  # ``verify --json``
        return next((row["check"] for row in json.loads(output) if row["passed"] is False), "")
    lines = output.splitlines()
    for line in lines:
        if line.startswith("FAIL │ "):
            return line.removeprefix("FAIL │ ")
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split("::")[-1].partition(" - ")[0]
    return lines[-1].strip() if lines else ""


def verified(methods: list[str], copy: Path, quick: bool) -> Ran | None:
    """``lanternbench verify``: its checks on tables, and if they pass (and not ``quick``) the
    whole command.
    """
    if not methods:
        return None
    tables = run(["-c", TABLES, *methods], copy)
    if quick or tables.noticed:
        return tables
    return run(["-m", "lanternbench", "verify", "--json", *methods], copy)


def judge(mutant: Mutant, copy: Path, quick: bool) -> Outcome:
    with applied(mutant, copy):
        verify = verified([mutant.method] if mutant.method else [], copy, quick)
        tests = (
            run(["-m", "pytest", "-n", "0", "-x", "-q", *mutant.tests], copy)
            if mutant.tests
            else None
        )
    return Outcome(mutant, verify, tests)


def markdown(outcomes: list[Outcome]) -> str:
    """One row per mutant: what it breaks, and who noticed."""
    lines = ["| mistake | `verify` | tests |", "|---|---|---|"]
    for outcome in outcomes:
        verify, tests = (_cell(ran) for ran in (outcome.verify, outcome.tests))
        command = f"`{outcome.mutant.method}`: " if outcome.mutant.method else ""
        lines.append(f"| {outcome.mutant.breaks} | {command}{verify} | {tests} |")
    caught = sum(o.caught for o in outcomes)
    return "\n".join([*lines, "", f"{caught} of {len(outcomes)} are caught."])


def _cell(ran: Ran | None) -> str:
    if ran is None:
        return "–"
    return f"**{ran.what}**".replace("|", "\\|") if ran.noticed else "passes"


def write(text: str, page: Path) -> None:
    """The table between the page's markers."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def sound(mutants: list[Mutant], copy: Path, quick: bool) -> list[str]:
    """What fails without any mutant: then nothing could be concluded."""
    ran = [
        verified([method], copy, quick)
        for method in sorted({m.method for m in mutants if m.method})
    ]
    files = itertools.groupby(
        sorted({test for m in mutants for test in m.tests}), lambda test: test.partition("::")[0]
    )
    ran += [run(["-m", "pytest", "-n", "0", "-x", "-q", *tests], copy) for _, tests in files]
    return [r.what for r in ran if r is not None and r.noticed]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make mistakes on purpose and see who notices.")
    parser.add_argument("names", nargs="*", help="only these mutants (default: all)")
    parser.add_argument(
        "--write", type=Path, help="put the table into this page, between its markers"
    )
    parser.add_argument("--quick", action="store_true", help="of verify only the checks on tables")
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{m.name:28s} {m.breaks}" for m in MUTANTS))
        return 0
    chosen = [m for m in MUTANTS if not options.names or m.name in options.names]
    if wrong := stale() + [
        f"no mutant is called {n}" for n in options.names if n not in {m.name for m in MUTANTS}
    ]:
        print("\n".join(wrong), file=sys.stderr)
        return 2
    with scratch_copy() as copy:
        if broken := sound(chosen, copy, options.quick):
            print(f"without any mutant there fails already: {', '.join(broken)}", file=sys.stderr)
            return 2
        outcomes = []
        for mutant in chosen:
            outcomes.append(judge(mutant, copy, options.quick))
            print(
                f"{'caught  ' if outcomes[-1].caught else 'SURVIVES'} {mutant.name}",
                file=sys.stderr,
                flush=True,
            )
    print(markdown(outcomes))
    if options.write:
        write(markdown(outcomes), options.write)
    return 0 if all(o.caught for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
