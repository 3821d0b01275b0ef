"""The command: ``python -m benchmarks.gpu [--rehearse] [--only PIECE …] [--fresh] [--minutes 9]``.

Exit code 0 when every piece that was asked for is measured, 1 when some are not, 2 where there is
no GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[2]
# what `make gpu-packages` got for machines without internet
PACKAGES = ROOT / "build" / "gpu-packages"
# without these nothing can be measured
ENGINE = ("torch", "numpy", "pydantic", "yaml", "safetensors", "PIL")
LIMIT_S = 115.0
REHEARSAL = "a CPU, rehearsing"


def main() -> int:
    given = _options()
    sys.path.append(str(PACKAGES))  # last: what the machine has comes first
    if lacks := [name for name in ENGINE if find_spec(name) is None]:
        return _refuse(
            f"this Python lacks {', '.join(lacks)}: install them, or run `make gpu-packages` where there is internet "
            "and bring the folder build/gpu-packages along"
        )
    from benchmarks.gpu.pieces import PIECES

    if unknown := [name for name in given.only if name not in PIECES]:
        return _refuse(
            f"there is no piece called {', '.join(unknown)}: choose from {', '.join(PIECES)}"
        )
    if given.report:
        from benchmarks.gpu import report

        print(report.write(given.out))
        return 0
    if given.piece:
        _measure(given)
        return 0
    if given.rehearse:
        return _all(given, REHEARSAL)
    import torch

    if not torch.cuda.is_available():
        return _refuse(
            "torch sees no GPU here; --rehearse runs every piece in small shapes on the CPU"
        )
    return _all(given, torch.cuda.get_device_name())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "--rehearse", action="store_true", help="small shapes on the CPU, to see that all runs"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PIECE", help="these pieces, measured anew"
    )
    parser.add_argument("--fresh", action="store_true", help="measure all pieces anew")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no piece after so many")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds a piece may take")
    parser.add_argument(
        "--out", type=Path, help="folder of the pieces' JSON; the report lies beside it"
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="write the report from what is there, and nothing else",
    )
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.out is None:
        given.out = ROOT / ("build/gpu-rehearsal" if given.rehearse else "benchmarks/results/gpu")
    return given


def _measure(given: argparse.Namespace) -> None:
    """In a process of its own: one piece.  One that takes too long says where it was, and ends."""
    faulthandler.dump_traceback_later(given.limit, exit=True)
    clock = monotonic()
    from benchmarks.gpu.machine import Machine, rehearsal
    from benchmarks.gpu.pieces import PIECES
    from benchmarks.gpu.result import DONE, Result

    machine = rehearsal() if given.rehearse else Machine()
    machine.start()
    device = REHEARSAL if given.rehearse else machine.name()
    result = Result(given.piece, device, machine.small, facts=machine.facts(), folder=given.out)
    PIECES[given.piece].measure(machine, result)
    result.status, result.seconds = DONE, monotonic() - clock
    result.save()


def _all(given: argparse.Namespace, device: str) -> int:
    from benchmarks.gpu import report
    from benchmarks.gpu.pieces import PIECES
    from benchmarks.gpu.result import DONE, Result, read
    from benchmarks.gpu.runner import is_done, run_all, run_piece

    names = given.only or list(PIECES)
    again = set(names) if given.fresh or given.only else set()
    options = ["--out", str(given.out), *(["--rehearse"] if given.rehearse else [])]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    def measure(name: str, left_s: float) -> Result:
        limit = min(given.limit, left_s)
        print(f"{name}: {PIECES[name].title} …", flush=True)
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu",
            "--piece",
            name,
            "--limit",
            f"{limit:.3f}",
            *options,
        ]
        blank = Result(name, device, given.rehearse, folder=given.out)
        return run_piece(
            blank, command, limit, PIECES[name].needs, os.environ | {"PYTHONPATH": paths}
        )

    def done(name: str) -> bool:
        return name not in again and is_done(given.out, name, device, given.rehearse)

    for result in run_all(names, measure, done, given.minutes):
        print(
            f"  {result.status} in {result.seconds:.0f} s{f': {result.said}' if result.said else ''}",
            flush=True,
        )
        for bar in result.bars:
            print(f"  {report.VERDICT[bar['passed']]}: {bar['bar']}: {bar['value']}", flush=True)
        report.write(given.out)
    path = report.write(given.out)
    left = [name for name in names if (r := read(given.out, name)) is None or r.status != DONE]
    print(f"{len(names) - len(left)} of {len(names)} pieces are measured: {path}")
    if left:
        print(f"not measured: {', '.join(left)}; the same command goes on with these")
    return 1 if left else 0


def _refuse(why: str) -> int:
    print(f"make gpu: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
