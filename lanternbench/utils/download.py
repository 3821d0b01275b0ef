"""One file from the web: continued where it stopped, checked by SHA-256, under its name only when whole."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lanternbench.errors import UserError
from lanternbench.utils.files import HOME

BLOCK = 1 << 20
Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where the server tells


class Remote(NamedTuple):
    """A file on the web.  ``sha256``: the digest, its first digits, or nothing; ``member``: of a zip archive."""

    title: str
    url: str
    path: Path
    sha256: str = ""
    member: str | None = None


def download(file: Remote, progress: Progress = lambda done, of: None) -> Path:
    """Fetch a file unless it is here.  Raises UserError when it cannot be had whole; what arrived is kept for later."""
    if file.path.is_file():
        return file.path
    part = file.path.with_name(file.path.name + ".part")
    with file_errors(file.url):
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            _get(file.url, part, progress)
        except urllib.error.HTTPError as error:
            raise UserError(f"{file.url} answers {error.code} ({error.reason}): get the file by hand") from None
        if file.member:
            _extract(part, file)
        found = digest(part)
        if not found.startswith(file.sha256):
            part.unlink()
            raise UserError(
                f"{file.title} is not the published file (SHA-256 {found[:12]}…, not {file.sha256[:12]}…) and was "
                "removed: try again, or get it by hand"
            )
        os.replace(part, file.path)
    return file.path


@contextmanager
def file_errors(source: str) -> Iterator[None]:
    """What can go wrong between ``source`` and the disk, as one sentence each."""
    try:
        yield
    except PermissionError as error:
        raise UserError(f"cannot write {error.filename}: set LANTERNBENCH_HOME to a folder of yours") from None
    except OSError as error:  # URLError and timeouts are OSErrors too
        if error.errno == errno.ENOSPC:
            raise UserError("the disk is full: make room and run the same command again, it continues") from None
        if error.filename and not isinstance(error, urllib.error.URLError):  # of a file here
            raise UserError(f"cannot write {error.filename} ({error.strerror}): {HOME} to another folder") from None
        raise UserError(f"no connection to {source}: run the same command again, it continues") from None


def _get(url: str, part: Path, progress: Progress) -> None:
    """Append to ``part`` what it lacks of ``url``; a server that cannot continue sends all of it again."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing beyond what is here
            return
        raise
    with answer:
        if answer.status != 206:
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as out:
            while block := answer.read(BLOCK):
                out.write(block)
                have += len(block)
                progress(have, total)
    if total is not None and have < total:
        raise OSError("the connection was closed early")


def _extract(archive: Path, file: Remote) -> None:
    """Replace a downloaded zip archive by its one member that is wanted."""
    try:
        with zipfile.ZipFile(archive) as packed, packed.open(str(file.member)) as source:
            member = archive.with_name(archive.name + ".member")
            with member.open("wb") as out:
                shutil.copyfileobj(source, out, BLOCK)
    except (zipfile.BadZipFile, KeyError):
        archive.unlink()
        raise UserError(f"{file.url} is not the archive with {file.member}: get the file by hand") from None
    os.replace(member, archive)


def digest(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
