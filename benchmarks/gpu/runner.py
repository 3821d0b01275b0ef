"""Piece after piece, each in a process of its own: none can harm another's result, and none runs
for ever.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from benchmarks.gpu.result import DONE, FAILED, Result, read

LEAST_S = 15.0  # no piece is begun with less time left
GRACE_S = 5.0  # a piece that hangs says where, and ends by itself; after that it is killed


def is_done(folder: Path, piece: str, device: str, small: bool) -> bool:
    """Return whether the piece was measured whole on such a device."""
    found = read(folder, piece)
    return found is not None and (found.status, found.device, found.small) == (DONE, device, small)


def run_piece(
    blank: Result,
    command: list[str],
    limit_s: float,
    needs: Iterable[str] = (),
    env: dict[str, str] | None = None,
) -> Result:
    """Run the process that measures a piece and writes its result; return what is on disk then.

    ``blank``: what is written if the process writes nothing.  ``needs``: modules without which it
    is not started.
    """
    if blank.folder is None:
        raise ValueError("the result of a piece needs a folder")
    blank.folder.mkdir(parents=True, exist_ok=True)
    log = blank.folder / f"{blank.piece}.log"
    for old in (log, blank.folder / f"{blank.piece}.json"):
        old.unlink(missing_ok=True)
    lacks = [name for name in needs if find_spec(name) is None]
    if lacks:
        return _ended(blank, f"not started: this machine lacks {', '.join(lacks)}", 0.0)
    clock = monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=env
        )
        try:
            code = process.wait(limit_s + GRACE_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            code = None
    spent = monotonic() - clock
    found = read(blank.folder, blank.piece) or blank
    if code == 0 and found.status == DONE:
        log.unlink()
        return found
    if code == 0 and found.said:  # it measured what it could, and said what failed
        return found
    why = f"it took longer than {limit_s:.0f} s" if spent >= limit_s else _reason(code, log)
    return _ended(found, why, spent)


def _reason(code: int | None, log: Path) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"exit code {code}"


def _ended(result: Result, why: str, seconds: float) -> Result:
    result.status, result.said, result.seconds = FAILED, why, seconds
    result.save()
    return result


def run_all(
    pieces: Iterable[str],
    measure: Callable[[str, float], Result],
    done: Callable[[str], bool],
    minutes: float,
) -> Iterable[Result]:
    """Measure the pieces that are not done, in order, until the time is up."""
    end = monotonic() + 60 * minutes
    for piece in pieces:
        if done(piece):
            continue
        left = end - monotonic()
        if left < LEAST_S:
            return
        yield measure(piece, left)
