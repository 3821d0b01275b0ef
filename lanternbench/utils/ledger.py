"""Finished work in a folder, stored as soon as it is done and never computed twice.

A ``Ledger`` is the folder, which this process alone has open.  Work is stored as lines of an
append-only file (``Lines``), or as whole files, the *pieces*, whose digests are checked.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from lanternbench.errors import UserError, cause
from lanternbench.utils.files import (
    APPEND,
    FRESH,
    OUT,
    acquire,
    lock,
    make_folder,
    open_file,
    replacing,
    write_file,
    writing,
)
from lanternbench.utils.json_values import plain

DIGESTS = "digests.json"
Entry = TypeVar("Entry", bound=BaseModel)


class Line(NamedTuple, Generic[Entry]):
    """One line of a file: where it ends in bytes, and its entry, or why there is none."""

    number: int
    end: int
    entry: Entry | None
    why: str = ""


def scan(path: Path, kind: type[Entry]) -> Iterator[Line[Entry]]:
    """Yield every line of a file, one at a time, without a torn last one, which a crash leaves."""
    try:
        with open_file(path) as lines:
            end = 0
            for number, text in enumerate(lines, 1):
                end += len(text)
                if not text.strip():
                    continue
                is_torn = not text.endswith(b"\n")
                try:
                    line = Line(number, end, kind.model_validate_json(text))
                except ValidationError as error:
                    line = Line(number, end, None, cause(error))
                    is_json = error.errors()[0]["type"] != "json_invalid"
                    is_last = not lines.peek(1)  # type: ignore[attr-defined]
                    is_torn = is_torn or (is_last and not is_json)
                if not is_torn:
                    yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): make it readable.") from None


def without_repeats(
    lines: Iterable[Line[Entry]], key_of: Callable[[Entry], Hashable]
) -> Iterator[Line[Entry]]:
    """Yield the lines; one that has the key of an earlier line has a reason and no entry."""
    keys: set[Hashable] = set()
    for line in lines:
        if line.entry is not None:
            key = key_of(line.entry)
            if key in keys:
                line = line._replace(entry=None, why=f"{key!r} is there twice")
            keys.add(key)
        yield line


def read_lines(
    path: Path, kind: type[Entry], key_of: Callable[[Entry], Hashable]
) -> Iterator[tuple[int, Entry]]:
    """Yield where each line ends, and its entry.  Raises UserError for a damaged or repeated line."""
    for number, end, entry, why in without_repeats(scan(path, kind), key_of):
        if entry is None:
            raise UserError(
                f"{path} line {number} is damaged ({why}): delete that line to have it made again."
            )
        yield end, entry


def as_json(value: object) -> bytes:
    text = json.dumps(plain(value), ensure_ascii=False, indent=1)
    return text.encode("utf-8", "replace")


def digest_of(path: Path) -> str | None:
    """Return the SHA-256 (hex) of a file; None if there is none."""
    with suppress(OSError), open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return None


class Lines(Generic[Entry]):
    """An append-only file of JSON lines, one entry each, locked for this process."""

    def __init__(
        self,
        path: Path,
        kind: type[Entry],
        key_of: Callable[[Entry], Hashable],
        found: Callable[[Entry], object] = lambda entry: None,
        lenient: bool = False,
    ):
        """``found`` is called with each entry, those that are stored already and those that are
        added.  A torn last line is removed.

        ``lenient``: damaged lines are skipped and keys may be repeated; otherwise both raise
        UserError, as a file that is in use does.
        """
        self.path = path
        self.kind = kind
        self.key_of = key_of
        self.found = found
        self.lenient = lenient
        self.keys: set[Hashable] = set()
        self._fd = self._open()
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _open(self) -> int:
        with writing(self.path, OUT):
            fd = os.open(self.path, os.O_CREAT | APPEND, 0o644)
        try:
            lock(fd)
        except BlockingIOError:
            os.close(fd)
            raise UserError(
                f"{self.path} is in use by another process: wait for it to end."
            ) from None
        except OSError as error:  # two processes could write it at once
            os.close(fd)
            raise UserError(
                f"cannot lock {self.path} ({error.strerror}): choose a local folder."
            ) from None
        return fd

    def _load(self) -> None:
        end = 0
        for end, entry in self._stored():  # noqa: B007  the last one counts
            if entry is not None:
                self._take(entry)
        with writing(self.path, OUT):
            os.ftruncate(self._fd, end)

    def _take(self, entry: Entry) -> None:
        self.keys.add(self.key_of(entry))
        self.found(entry)

    def _stored(self) -> Iterator[tuple[int, Entry | None]]:
        if not self.lenient:
            yield from read_lines(self.path, self.kind, self.key_of)
            return
        for line in scan(self.path, self.kind):
            yield line.end, line.entry

    def close(self) -> None:
        os.close(self._fd)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in the order in which they were written, one at a time."""
        return (entry for _, entry in self._stored() if entry is not None)

    def check(self) -> None:
        """Raise UserError if the file was deleted or replaced."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                return
        raise UserError(
            f"{self.path} was deleted or replaced while it was written, and what it held is lost:"
            " start the same command again."
        )

    def append(self, entry: Entry) -> None:
        """Store an entry; see ``extend``."""
        self.extend([entry])

    def extend(self, entries: Sequence[Entry]) -> None:
        """Store entries in one write; they are on disk when this returns.

        Raises UserError if they cannot be written.
        """
        self.check()
        text = "".join(f"{entry.model_dump_json()}\n" for entry in entries)
        with writing(self.path, OUT):
            self._append_whole(text.encode())
        for entry in entries:
            self._take(entry)

    def _append_whole(self, lines: bytes) -> None:
        """Append in one write; what was written of it (disk full) is taken back."""
        size = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, lines) != len(lines):
                raise OSError(errno.ENOSPC, "No space left on device")
            os.fsync(self._fd)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, size)
            raise

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replace the file as a whole, atomically."""
        self.keys.clear()
        with replacing(self.path, OUT) as file:
            for entry in entries:
                file.write(entry.model_dump_json().encode() + b"\n")
                self._take(entry)
        self.close()
        self._fd = self._open()


class Ledger(ExitStack):
    """A folder that this process alone has open."""

    def __init__(self, folder: Path, anew: str = FRESH, elsewhere: str = OUT, wait: bool = False):
        """``anew``: the way out if the folder is in use; ``elsewhere``: if it cannot be written.

        Raises UserError in both cases; ``wait``: waits until the folder is free instead.
        """
        super().__init__()
        self.folder = folder
        self.elsewhere = elsewhere
        make_folder(folder, elsewhere)
        self.enter_context(acquire(folder, anew, wait))

    def lines(
        self,
        name: str,
        kind: type[Entry],
        key_of: Callable[[Entry], Hashable],
        found: Callable[[Entry], object] = lambda entry: None,
        lenient: bool = False,
    ) -> Lines[Entry]:
        """Return an append-only file, which is closed with the folder; see ``Lines``."""
        lines = Lines(self.folder / name, kind, key_of, found, lenient)
        self.callback(lines.close)
        return lines

    def piece(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the content of a file, made if it is missing.  Raises UserError for one that was
        changed since.
        """
        digests = self.read_json(DIGESTS)
        content = self.read(name)
        if content is None or name not in digests:
            content = make()
            self.write(name, content)
            digest = hashlib.sha256(content).hexdigest()
            self.write_json(DIGESTS, digests | {name: digest})
        elif digests[name] != hashlib.sha256(content).hexdigest():
            raise self.damaged(name)
        return content

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            with open_file(self.folder / name) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError:
            raise self.damaged(name) from None

    def read_json(self, name: str) -> dict[str, Any]:
        """Return a stored JSON object, {} if there is none.  Raises UserError if it is damaged."""
        with suppress(ValueError, RecursionError):
            value = json.loads(self.read(name) or b"{}")
            if isinstance(value, dict):
                return value
        raise self.damaged(name)

    def write(self, name: str, content: bytes | str) -> None:
        write_file(self.folder / name, content, self.elsewhere)

    def write_json(self, name: str, value: object) -> None:
        self.write(name, as_json(value))

    def damaged(self, name: str) -> UserError:
        return UserError(
            f"{self.folder / name} is damaged: delete it, and the same command makes it again"
        )
