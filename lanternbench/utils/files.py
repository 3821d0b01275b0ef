"""Where files lie, and how they are written: a crash leaves the old file or the whole new one."""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4

from lanternbench.errors import UserError

OUT = "choose another folder with --out"  # ways to write elsewhere
TRACE = "choose another file with --trace"
WORK = "choose another folder with --work"
HOME = "set LANTERNBENCH_HOME"
FRESH = "give --fresh"
APPEND = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK  # through no link that someone planted, to no pipe
WEIGHTS = Path(__file__).parents[1] / "weights"  # of the embedded models


def cache_dir() -> Path:
    """Where downloaded files lie: $LANTERNBENCH_HOME, by default ~/.cache/lanternbench."""
    return Path(os.environ.get("LANTERNBENCH_HOME") or Path.home() / ".cache" / "lanternbench")


def shipped(kind: str, name: str) -> Path:
    """``configs`` or ``prompts``, as they come with the package, or with the checkout that it is installed from."""
    package = Path(__file__).resolve().parents[1]
    places = [package / f"{kind}_data" / name, package.parent / kind / name]
    return next((place for place in places if place.is_file()), places[0])


def open_file(path: Path) -> IO[bytes]:
    """A regular file, opened for reading.  Raises OSError, at once, for a pipe or a device that would not end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file")
    return open(fd, "rb")


@contextmanager
def writing(path: Path, elsewhere: str) -> Iterator[None]:
    """Turns a full disk or a missing permission into a UserError that names ``path`` and how to write elsewhere."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path} ({reason}): free some space or {elsewhere}.") from None


def check_writable(path: Path, elsewhere: str) -> None:
    """Make the folder of ``path`` and find out whether it can be written, before the work that it is for."""
    with writing(path, elsewhere):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


@contextmanager
def replacing(path: Path, elsewhere: str, shared: bool = False) -> Iterator[IO[bytes]]:
    """A file that appears only when whole; ``shared``: others may write it too.  Raises UserError as ``writing``."""
    part = path.with_name(f"{path.name}.{uuid4().hex}.part" if shared else f"{path.name}.part")
    with writing(path, elsewhere):
        try:
            part.unlink(missing_ok=True)  # what a crash left, or a link that would be followed
            with open(part, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def acquire(folder: Path, elsewhere: str) -> ExitStack:
    """The locks of a folder: held while files are open, so a killed process leaves none behind.

    The folder itself is locked too, as ``.lock`` may be deleted; some network file systems lock files alone.  Raises
    UserError, with the hint ``elsewhere``, if another process holds them.
    """
    with ExitStack() as held:
        for place, flags in ((folder / ".lock", os.O_CREAT | APPEND), (folder, os.O_RDONLY)):
            with writing(place, elsewhere):
                fd = os.open(place, flags, 0o644)
            held.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{folder} is in use by another process: wait for it to end, or {elsewhere}.") from None
            except OSError as error:
                if place != folder:
                    text = f"cannot lock {folder} ({error.strerror}): choose a local folder."
                    raise UserError(text) from None
        return held.pop_all()
