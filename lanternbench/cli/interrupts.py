"""Ctrl-C at any moment, also during imports and shutdown: one sentence and exit code 130."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

CODE = 130  # 128 + SIGINT, as shells report it
SENTENCE = "lanternbench: interrupted; the same command continues where it stopped"
SHOW_CURSOR = "\x1b[?25h"

pressed = False  # Ctrl-C, at least once
_command_runs = False  # and cleans up after KeyboardInterrupt
_printed = False


def install() -> None:
    """Install the handler of Ctrl-C; call it before slow imports."""
    signal.signal(signal.SIGINT, _handle)
    sys.unraisablehook = _unraisable


@contextmanager
def running() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt in a command, which then closes its files."""
    global _command_runs
    _command_runs = True
    try:
        yield
    finally:
        _command_runs = False


def say() -> None:
    """Print the sentence, once."""
    global _printed
    if _printed:
        return
    _printed = True
    cursor = SHOW_CURSOR if os.isatty(2) else ""
    os.write(2, f"{cursor}{SENTENCE}\n".encode())


def finish(code: int) -> NoReturn:
    """End this process as Python does, but keep our handler, which Python would remove first."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # None if the shell closed it
            stream.flush()
    os._exit(code)


def _handle(_number: int, frame: FrameType | None) -> None:
    global pressed
    is_repeated = pressed
    pressed = True
    if is_repeated or not _command_runs or _imports(frame):
        _leave()
    raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Return whether a module is being imported; some, such as torch's, swallow exceptions."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _unraisable(error: UnraisableHookArgs) -> None:
    """Handle Ctrl-C in a finaliser, for which Python would print a traceback and continue."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        _leave()
    sys.__unraisablehook__(error)


def _leave() -> None:
    """Exit at once: the files on disk can be resumed, as after a crash."""
    say()
    os._exit(CODE)
