"""Where files lie, and how they are written: a crash leaves the old file or the whole new one.

YAML from users: no key twice, nothing that expands beyond reason, nothing executed.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from lanternbench.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

OUT = "choose another folder with --out"  # ways to write elsewhere
TRACE = "choose another file with --trace"
WORK = "choose another folder with --work"
HOME = "set LANTERNBENCH_HOME"
FRESH = "give --fresh"
# flags that Windows lacks, and one that only Windows has
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
READ = os.O_RDONLY | _NO_WAIT | _BINARY
# through no link that someone planted, to no pipe
APPEND = os.O_RDWR | os.O_APPEND | _NO_LINK | _NO_WAIT | _BINARY
WEIGHTS = Path(__file__).parents[1] / "weights"  # of the embedded models
MAX_VALUES = 100_000  # values of a YAML document, its aliases expanded
MAX_DEPTH = 50
MAX_BYTES = 2**20  # of a YAML file


def cache_dir() -> Path:
    """Where downloaded files lie: $LANTERNBENCH_HOME, by default ~/.cache/lanternbench."""
    return Path(os.environ.get("LANTERNBENCH_HOME") or Path.home() / ".cache" / "lanternbench")


def shipped(kind: str, name: str) -> Path:
    """``configs`` or ``prompts``, as they come with the package, or with the checkout that it is
    installed from.
    """
    package = Path(__file__).resolve().parents[1]
    places = [package / f"{kind}_data" / name, package.parent / kind / name]
    return next((place for place in places if place.is_file()), places[0])


def open_file(path: Path) -> IO[bytes]:
    """A regular file, opened for reading.  Raises OSError, at once, for a pipe or a device that
    would not end.
    """
    fd = os.open(path, READ)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file")
    return open(fd, "rb")


@contextmanager
def writing(path: Path, elsewhere: str) -> Iterator[None]:
    """Turns a full disk or a missing permission into a UserError that names ``path`` and how to
    write elsewhere.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror or error}): free some space or {elsewhere}."
        ) from None


def check_writable(path: Path, elsewhere: str) -> None:
    """Make the folder of ``path`` and find out whether it can be written, before the work that it
    is for.
    """
    with writing(path, elsewhere):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


@contextmanager
def replacing(path: Path, elsewhere: str, shared: bool = False) -> Iterator[IO[bytes]]:
    """A file that appears only when whole; ``shared``: others may write it too.  Raises UserError
    as ``writing``.
    """
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


def lock(file: int, wait: bool = False) -> None:
    """Lock an open file until it is closed; on systems without ``flock``, do nothing.

    Raises BlockingIOError if another process has the lock, unless it may ``wait``.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def acquire(folder: Path, elsewhere: str) -> ExitStack:
    """Return the locks of a folder, held while its files are open: a killed process leaves none.

    The folder itself is locked too, because ``.lock`` may be deleted; some network file systems
    lock files alone.  On systems without ``flock`` nothing is locked.  Raises UserError, with the
    hint ``elsewhere``, if another process holds them.
    """
    if fcntl is None:
        return ExitStack()
    with ExitStack() as held:
        for place, flags in ((folder / ".lock", os.O_CREAT | APPEND), (folder, os.O_RDONLY)):
            with writing(place, elsewhere):
                fd = os.open(place, flags, 0o644)
            held.callback(os.close, fd)
            try:
                lock(fd)
            except BlockingIOError:
                raise UserError(
                    f"{folder} is in use by another process: wait for it to end, or {elsewhere}."
                ) from None
            except OSError as error:
                if place != folder:
                    raise UserError(
                        f"cannot lock {folder} ({error.strerror}): choose a local folder."
                    ) from None
        return held.pop_all()


def read_yaml(path: Path, what: str) -> Any:
    """The YAML document of a file; ``what``: such as "a sweep file".  Raises UserError with the
    line of an error.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(
                f"{path} is larger than {what} can be ({MAX_BYTES} bytes): give {what}"
            )
        return load_yaml(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark, begun = error.problem_mark or error.context_mark, error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        if mark and begun and begun.line != mark.line:
            place += f" (in what began on line {begun.line + 1})"
        raise UserError(
            f"{path}{place} is no valid YAML ({error.problem}): correct that line"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{path} cannot be read as YAML ({reason}): save it as UTF-8 text"
        ) from None


def load_yaml(text: str) -> Any:
    """The YAML document of a text.  Raises YAMLError for broken YAML, a key given twice, too many
    or deep values.
    """
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is None:
            return None
        _check(root, {}, 0)
        return yaml.SafeLoader("").construct_document(root)
    # a date or a number that Python does not have
    except (ValueError, OverflowError, RecursionError) as error:
        raise yaml.YAMLError(str(error).partition("\n")[0] or type(error).__name__) from None


def _check(node: Node, sizes: dict[int, int], depth: int) -> int:
    """Number of values under ``node``, its aliases expanded."""
    if depth > MAX_DEPTH:
        raise yaml.MarkedYAMLError(
            problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=node.start_mark
        )
    if id(node) in sizes:
        return sizes[id(node)]
    children: list[Node] = node.value if isinstance(node, SequenceNode) else []
    if isinstance(node, MappingNode):
        children, keys = [child for pair in node.value for child in pair], set()
        for key in (child for child in children[::2] if isinstance(child, ScalarNode)):
            if key.value in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key.value}' is given twice", problem_mark=key.start_mark
                )
            keys.add(key.value)
    size = 1 + sum(_check(child, sizes, depth + 1) for child in children)
    if size > MAX_VALUES:
        raise yaml.MarkedYAMLError(
            problem=f"more than {MAX_VALUES} values", problem_mark=node.start_mark
        )
    sizes[id(node)] = size
    return size
