"""Downloads of single files: resumable, by one process at a time, renamed only when checked.

The SHA-256 is computed after the download and stored next to the file; later checks compare it.
"""

import errno
import hashlib
import http.client
import json
import os
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from lanternbench.errors import UserError
from lanternbench.utils.files import APPEND, HOME, lock, open_file, write_file

BLOCK = 1 << 20
Progress = Callable[[int, int | None], None]  # bytes so far, and in total if known


class Remote(NamedTuple):
    """A file on the web.

    ``sha256``: the digest, its first digits, or nothing.  ``member``: the wanted file of a zip
    archive.  ``gigabytes``: approximately; 0 if unknown or tiny.
    """

    title: str
    url: str
    path: Path
    sha256: str = ""
    member: str | None = None
    gigabytes: float = 0.0


def size_of(file: Remote) -> str:
    """Return the size of a file as text, from its server or else from our table."""
    request = urllib.request.Request(file.url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return f"{int(answer.headers['Content-Length']) / 1e9:.2g} GB"
    except (OSError, ValueError, TypeError, http.client.HTTPException):
        pass
    return f"about {file.gigabytes:g} GB" if file.gigabytes else "small"


def download(file: Remote, progress: Progress = lambda done, of: None) -> Path:
    """Download a file unless it exists, and store its digest.

    Raises UserError if that fails; the part that arrived is kept.
    """
    if file.path.is_file():
        return file.path
    part = file.path.with_name(file.path.name + ".part")
    with file_errors(file.url):
        part.parent.mkdir(parents=True, exist_ok=True)
        with _alone(part, file.path) as out:
            if out is None:
                return file.path
            _get(file, out, progress)
            arrived = _extracted(part, file) if file.member else part
            sha256 = digest(arrived)
            if not sha256.startswith(file.sha256):
                arrived.unlink()
                part.unlink(missing_ok=True)
                digests = f"SHA-256 {sha256[:12]}…, not {file.sha256[:12]}…"
                raise UserError(
                    f"{file.title} is not the published file ({digests}) and was removed: try"
                    " again, or get it by hand"
                )
            os.replace(arrived, file.path)
            remember(file.path, sha256)
    return file.path


@contextmanager
def _alone(part: Path, whole: Path) -> Iterator[IO[bytes] | None]:
    """Open ``part`` for appending and lock it; yield None if another process has completed
    ``whole``.
    """
    while True:
        with open(os.open(part, APPEND | os.O_CREAT, 0o644), "r+b") as out:
            lock(out.fileno(), wait=True)
            if not part.exists() or not os.path.samestat(os.fstat(out.fileno()), part.stat()):
                continue  # the process that held the lock has renamed or removed it
            try:
                yield None if whole.is_file() else out
            finally:
                if part.exists() and (whole.is_file() or not part.stat().st_size):
                    part.unlink()
            return


@contextmanager
def file_errors(source: str) -> Iterator[None]:
    """Turn errors of the network and the disk into UserErrors."""
    try:
        yield
    except PermissionError as error:
        raise UserError(
            f"cannot write {error.filename}: set LANTERNBENCH_HOME to a folder of yours"
        ) from None
    except urllib.error.HTTPError as error:
        why = str(error.reason).partition("\n")[0]
        raise UserError(f"{source} answers {error.code} ({why}): get the file by hand") from None
    except http.client.HTTPException:
        raise UserError(
            f"the connection to {source} broke: run the same command again, it continues"
        ) from None
    except OSError as error:  # URLError and timeouts are OSErrors too
        if error.errno == errno.ENOSPC:
            raise UserError(
                "the disk is full: make room and run the same command again, it continues"
            ) from None
        is_local = error.filename and not isinstance(error, urllib.error.URLError)
        if is_local:
            raise UserError(
                f"cannot write {error.filename} ({error.strerror}): {HOME} to another folder"
            ) from None
        raise UserError(
            f"no connection to {source}: run the same command again, it continues"
        ) from None


def _get(file: Remote, out: IO[bytes], progress: Progress) -> None:
    """Append the rest of the file to ``out``; a file that has no checksum starts over.

    Raises UserError for a web page in place of the file, and for a body without length or
    checksum.
    """
    has_checksum = bool(file.sha256 or file.member)  # an archive contains checksums
    request = urllib.request.Request(file.url)
    have = os.fstat(out.fileno()).st_size if has_checksum else 0
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # the file is complete
            return
        raise
    with answer:
        if answer.status != 206:
            have = 0
        _check_answer(answer, file, have)
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else None
        if total is None and not has_checksum:
            raise UserError(
                f"{file.url} gives no length, so the file cannot be checked: get it by hand"
            )
        out.truncate(have)
        while block := answer.read(BLOCK):
            out.write(block)
            have += len(block)
            progress(have, total)
        out.flush()
    if total is not None and have < total:
        raise OSError("the connection was closed early")


def _check_answer(answer: http.client.HTTPResponse, file: Remote, have: int) -> None:
    """Raise UserError for a web page in place of a file, and for a body that does not continue
    after the ``have`` bytes that exist.
    """
    is_page = answer.headers.get_content_type() == "text/html"
    if is_page and file.path.suffix not in (".html", ".htm"):
        raise UserError(
            f"{file.url} answers with a web page, perhaps a network's login: get the file by hand"
        )
    start = f"bytes {have}-"
    if answer.status == 206 and not answer.headers.get("Content-Range", start).startswith(start):
        raise UserError(f"{file.url} does not continue at byte {have}: get the file by hand")


def _extracted(archive: Path, file: Remote) -> Path:
    """Extract the wanted member of a downloaded zip archive next to it."""
    member = archive.with_name(f"{archive.name}.member")
    try:
        with zipfile.ZipFile(archive) as packed, packed.open(str(file.member)) as source:
            member.unlink(missing_ok=True)
            with open(member, "xb") as out:
                shutil.copyfileobj(source, out, BLOCK)
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error, RuntimeError):
        archive.unlink()
        member.unlink(missing_ok=True)
        raise UserError(
            f"{file.url} is not an archive with {file.member}: get the file by hand"
        ) from None
    return member


class Known(NamedTuple):
    """A file's SHA-256 (hex), and its size and modification time when that was computed."""

    sha256: str
    size: int
    mtime_ns: int


def digest(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked(path: Path, published: str = "", *, again: bool = False) -> None:
    """Check a file by its ``published`` digest (or its start), else by the one of its download.

    ``again``: read the file even if it is unchanged.  Raises UserError if the digest differs.
    """
    known = remembered(path)
    if known and known == _entry(path, known.sha256) and not again:
        sha256 = known.sha256
    else:
        sha256 = digest(path)
    wanted = published or (known.sha256 if known else "")
    if not sha256.startswith(wanted):
        origin = "the published file" if published else "the file that was downloaded"
        raise UserError(
            f"{path} is not {origin} (SHA-256 {sha256[:12]}…, not {wanted[:12]}…): "
            "delete it, and `fetch` gets it again"
        )
    if os.access(path.parent, os.W_OK):  # a shared cache may be read-only
        remember(path, sha256)


def remember(path: Path, sha256: str) -> None:
    """Store the digest of a file next to it."""
    entry = _entry(path, sha256)
    if entry != remembered(path):
        write_file(_beside(path), json.dumps(entry), HOME, shared=True)


def remembered(path: Path) -> Known | None:
    """Return the stored digest of a file; None if it is missing or unreadable."""
    try:
        with open_file(_beside(path)) as file:
            known = Known(*json.loads(file.read(1000)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return known if isinstance(known.sha256, str) and len(known.sha256) == 64 else None


def _entry(path: Path, sha256: str) -> Known:
    return Known(sha256, path.stat().st_size, path.stat().st_mtime_ns)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")
