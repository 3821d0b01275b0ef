"""Ctrl-C at any moment, while modules are imported and while Python shuts down too: one sentence
and exit code 130.
"""

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

CODE = 130  # 128 + SIGINT, as shells report it
SENTENCE = "lanternbench: interrupted; the same command continues where it stopped"
SHOW_CURSOR = "\x1b[?25h"

pressed = False  # was Ctrl-C?
_command_runs = False  # whether the interrupted code cleans up
_printed = False


def install() -> None:
    """Install the handler of Ctrl-C; call it before slow imports."""
    signal.signal(signal.SIGINT, _handle)
    sys.unraisablehook = _unraisable


@contextmanager
def running() -> Iterator[None]:
    """While a command runs, Ctrl-C raises KeyboardInterrupt in it, so that open files are closed."""
    global _command_runs
    _command_runs = True
    try:
        yield
    finally:
        _command_runs = False


def say() -> None:
    """Print the sentence, once."""
    global _printed
    if not _printed:
        _printed = True
        os.write(2, f"{SHOW_CURSOR if os.isatty(2) else ''}{SENTENCE}\n".encode())


def finish(code: int) -> NoReturn:
    """End this process as Python does, but handle Ctrl-C to the end, whereas Python restores its
    default handler.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _handle(_number: int, frame: FrameType | None) -> None:
    global pressed
    repeated, pressed = pressed, True
    if repeated or not _command_runs or _imports(frame):
        _leave()
    raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Is a module being imported?  Modules, torch's among them, may swallow an exception or turn
    it into another.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _unraisable(error: Any) -> None:
    """Ctrl-C in a finaliser or a callback, where Python would print its traceback and continue."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        _leave()
    sys.__unraisablehook__(error)


def _leave() -> None:
    """Exit at once: the files on disk can be resumed, as after a crash."""
    say()
    os._exit(CODE)
