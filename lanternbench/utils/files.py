"""Places of files, and writing them: a crash leaves the old file or the whole new one.

YAML from users has no repeated keys and no aliases, and executes nothing.
"""

import errno
import os
import re
import stat
import tempfile
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

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
WEIGHTS = Path(__file__).parents[1] / "weights"  # of the bundled models
MAX_BYTES = 2**20  # of a YAML file


def cache_dir() -> Path:
    """Return the folder of downloads: $LANTERNBENCH_HOME, by default ~/.cache/lanternbench."""
    return Path(os.environ.get("LANTERNBENCH_HOME") or Path.home() / ".cache" / "lanternbench")


def shipped(kind: str, name: str) -> Path:
    """Return a file of ``configs`` or ``prompts`` in the package, or in the checkout that it is
    installed from.
    """
    package = Path(__file__).resolve().parents[1]
    packaged = package / f"{kind}_data" / name
    if packaged.is_file():
        return packaged
    return package.parent / kind / name


def packaged_yaml(module: str, name: str) -> dict:
    """Return the content of a YAML file of the package that lies next to a module's file."""
    return yaml.safe_load(Path(module).with_name(name).read_text(encoding="utf-8"))


def open_file(path: Path) -> IO[bytes]:
    """Open a regular file for reading.  Raises OSError, at once, for a pipe or a device that might
    never end.
    """
    fd = os.open(path, READ)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return open(fd, "rb")


@contextmanager
def writing(path: Path, elsewhere: str) -> Iterator[None]:
    """Turn a full disk or a missing permission into a UserError that names ``path`` and how to
    write elsewhere.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror or error}): free some space or {elsewhere}."
        ) from None


def check_writable(path: Path, elsewhere: str) -> None:
    """Make the folder of ``path`` and check that it can be written, before the work begins."""
    with writing(path, elsewhere):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


@contextmanager
def replacing(path: Path, elsewhere: str, shared: bool = False) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` once it is complete.  Raises UserError as ``writing``.

    ``shared``: other processes may write it at the same time.
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


def write_file(path: Path, content: bytes | str, elsewhere: str, shared: bool = False) -> None:
    """Write a whole file, a text as UTF-8.  Raises UserError; ``shared``: see ``replacing``."""
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    with replacing(path, elsewhere, shared) as file:
        file.write(content)


def make_folder(folder: Path, elsewhere: str) -> None:
    """Make a folder and those above it.  Raises UserError as ``writing``."""
    with writing(folder, elsewhere):
        folder.mkdir(parents=True, exist_ok=True)


def lock(file: int, wait: bool = False) -> None:
    """Lock an open file until it is closed; on systems without ``flock``, do nothing.

    Raises BlockingIOError if another process has the lock, unless it may ``wait``.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def acquire(folder: Path, elsewhere: str, wait: bool = False) -> ExitStack:
    """Return the locks of a folder, held while its files are open: a killed process leaves none.

    The folder itself is locked too, because ``.lock`` may be deleted; some network file systems
    lock files alone.  On systems without ``flock`` nothing is locked.  Raises UserError, with the
    hint ``elsewhere``, if another process holds them, unless it may ``wait``.
    """
    if fcntl is None:
        return ExitStack()
    with ExitStack() as held:
        for place, flags in {folder / ".lock": os.O_CREAT | APPEND, folder: os.O_RDONLY}.items():
            with writing(place, elsewhere):
                fd = os.open(place, flags, 0o644)
            held.callback(os.close, fd)
            try:
                lock(fd, wait)
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


# 1:30 is 90 to YAML 1.1, and 010 is 8
_ODD_NUMBER = re.compile(r"[-+]?(?:.*:|0[0-9_])")


class _Loader(yaml.SafeLoader):
    """YAML without aliases, which may expand without bound, and without repeated keys."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases such as *name are not supported: write the value out",
                problem_mark=self.peek_event().start_mark,
            )
        return super().compose_node(parent, index)

    def construct_scalar(self, node: ScalarNode | MappingNode) -> str:
        is_number = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        if is_number and _ODD_NUMBER.match(node.value):
            problem = f"{node.value} would be read in base 60 or 8: put it in quotes, or write it"
            raise yaml.MarkedYAMLError(
                problem=f"{problem} without : and leading zeros", problem_mark=node.start_mark
            )
        return super().construct_scalar(node)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                continue
            if key.value in keys:
                problem = f"the key '{key.value}' is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, what: str) -> Any:
    """Return the YAML document of a file.

    ``what``: names the kind of file in messages, such as "a sweep file".  Raises UserError, with
    the line of a mistake.
    """
    try:
        with open_file(path) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UserError(
                f"{path} is larger than {what} can be ({MAX_BYTES} bytes): give {what}"
            )
        return load_yaml(content.decode())
    except yaml.MarkedYAMLError as error:
        raise UserError(
            f"{path}{_place(error)} is no valid YAML ({error.problem}): correct that line"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{path} cannot be read as YAML ({reason}): save it as UTF-8 text"
        ) from None


def _place(error: yaml.MarkedYAMLError) -> str:
    """Return where a mistake is, in words that follow the file's name."""
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return ""
    place = f" line {mark.line + 1}, column {mark.column + 1}"
    begun = error.context_mark
    if begun and begun.line != mark.line:
        place += f" (in what began on line {begun.line + 1})"
    return place


def load_yaml(text: str) -> Any:
    """Return the YAML document of a text.  Raises YAMLError if it is broken, repeats a key or has
    an alias.
    """
    try:
        return yaml.load(text, _Loader)
    # a date or a number that Python does not have, or lists nested too deep
    except (ValueError, OverflowError, RecursionError) as error:
        raise yaml.YAMLError(str(error).partition("\n")[0] or type(error).__name__) from None
