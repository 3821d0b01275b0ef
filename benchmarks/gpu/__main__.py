"""The command: ``python -m benchmarks.gpu [--rehearse] [--only PIECE …] [--fresh] [--minutes 9]``.

Exit code 0 if every piece that was asked for is measured and no promise of equality is broken, 1
if not, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.gpu.result import Result

ROOT = Path(__file__).resolve().parents[2]
# what `make gpu-packages` got for machines without internet
PACKAGES = ROOT / "build" / "gpu-packages"
# without these nothing can be measured
ENGINE = ("torch", "numpy", "pydantic", "yaml", "safetensors", "PIL")
LIMIT_S = 115.0
REHEARSAL_LIMIT_S = 600.0  # a rehearsal takes as long as its CPU needs
REHEARSAL = "a CPU, rehearsing"


def main() -> int:
    options = _options()
    sys.path.append(str(PACKAGES))  # last: what the machine has comes first
    lacks = [name for name in ENGINE if find_spec(name) is None]
    if lacks:
        return _refuse(
            f"this Python lacks {', '.join(lacks)}: install them, or run `make gpu-packages` where "
            "there is internet and bring the folder build/gpu-packages along"
        )
    from benchmarks.gpu.pieces import PIECES

    unknown = [name for name in options.only if name not in PIECES]
    if unknown:
        names = ", ".join(PIECES)
        return _refuse(f"there is no piece called {', '.join(unknown)}: choose from {names}")
    if options.report:
        from benchmarks.gpu import report

        print(report.write(options.out))
        return 0
    if options.piece:
        _measure(options)
        return 0
    if options.rehearse:
        return _all(options, REHEARSAL)
    import torch

    if not torch.cuda.is_available():
        return _refuse(
            "torch sees no GPU here; --rehearse builds every piece and runs it in small shapes"
        )
    return _all(options, torch.cuda.get_device_name())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    add = parser.add_argument
    add("--rehearse", action="store_true", help="small shapes on the CPU, to see that all runs")
    add("--only", nargs="+", default=[], metavar="PIECE", help="these pieces, measured anew")
    add("--fresh", action="store_true", help="measure all pieces anew")
    add("--minutes", type=float, help="begin no piece after so many (9; 60 in a rehearsal)")
    add("--limit", type=float, help=f"seconds a piece may take ({LIMIT_S:g}; more in a rehearsal)")
    add("--out", type=Path, help="folder of the pieces' JSON; the report lies next to it")
    add("--report", action="store_true", help="write the report from what is there, nothing else")
    add("--piece", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out is None:
        folder = "build/gpu-rehearsal" if options.rehearse else "benchmarks/results/gpu"
        options.out = ROOT / folder
    if options.minutes is None:
        options.minutes = 60.0 if options.rehearse else 9.0
    if options.limit is None:
        options.limit = REHEARSAL_LIMIT_S if options.rehearse else LIMIT_S
    return options


def _measure(options: argparse.Namespace) -> None:
    """Measure one piece, in a process of its own.  One that takes too long says where it was."""
    faulthandler.dump_traceback_later(options.limit, exit=True)
    began = monotonic()
    from benchmarks.gpu.machine import Machine, rehearsal
    from benchmarks.gpu.pieces import PIECES
    from benchmarks.gpu.result import Result

    machine = rehearsal() if options.rehearse else Machine()
    machine.start()
    device = REHEARSAL if options.rehearse else machine.name()
    result = Result(
        options.piece, device, machine.small, facts=machine.facts(), folder=options.out
    )
    piece = PIECES[options.piece]
    piece.measure(machine, result)
    result.end(piece.bars, monotonic() - began)


def _all(options: argparse.Namespace, device: str) -> int:
    """Measure the pieces that are not done; return the exit code."""
    from benchmarks.gpu import report
    from benchmarks.gpu.pieces import PIECES
    from benchmarks.gpu.result import DONE, Result, read
    from benchmarks.gpu.runner import is_done, run_all, run_piece

    names = options.only or list(PIECES)
    again = set(names) if options.fresh or options.only else set()

    def measure(name: str, left_s: float) -> Result:
        limit = min(options.limit, left_s)
        print(f"{name}: {PIECES[name].title} …", flush=True)
        blank = Result(name, device, options.rehearse, folder=options.out)
        return run_piece(blank, _command(options, name, limit), limit, PIECES[name].needs, _env())

    def done(name: str) -> bool:
        return name not in again and is_done(options.out, name, device, options.rehearse)

    for result in run_all(names, measure, done, options.minutes):
        _print(result)
        report.write(options.out)
    path = report.write(options.out)
    results = [found for name in names if (found := read(options.out, name)) is not None]
    whole = [result.piece for result in results if result.status == DONE]
    left = [name for name in names if name not in whole]
    print(f"{len(whole)} of {len(names)} pieces are measured: {path}")
    if left:
        print(f"not measured: {', '.join(left)}; the same command goes on with these")
    broken = [bar for result in results for bar in report.broken(result)]
    for bar in broken:
        print(f"broken: {bar}")
    return 1 if left or broken else 0


def _command(options: argparse.Namespace, name: str, limit: float) -> list[str]:
    """Return the command that measures one piece."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--piece", name]
    command += ["--limit", f"{limit:.3f}", "--out", str(options.out)]
    if options.rehearse:
        command.append("--rehearse")
    return command


def _env() -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _print(result: Result) -> None:
    from benchmarks.gpu.report import VERDICT

    reason = f": {result.said}" if result.said else ""
    print(f"  {result.status} in {result.seconds:.0f} s{reason}", flush=True)
    for bar in result.bars:
        print(f"  {VERDICT[bar['passed']]}: {bar['bar']}: {bar['value']}", flush=True)


def _refuse(why: str) -> int:
    print(f"make gpu: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
