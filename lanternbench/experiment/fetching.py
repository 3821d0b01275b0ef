"""Download published files: resumable, and checked against the hub's SHA-256."""

import fnmatch
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from lanternbench.errors import UserError
from lanternbench.metrics import names, scorers_for
from lanternbench.models.entries import Entry
from lanternbench.models.places import UNFINISHED, hub_cache
from lanternbench.registry import components
from lanternbench.utils.download import Remote, checked, digest, file_errors, remember
from lanternbench.utils.files import HOME, acquire, cache_dir


class File(BaseModel):
    """One file on the hub: size in bytes, and SHA-256 where the hub gives one (large files)."""

    model_config = ConfigDict(strict=True, frozen=True)

    role: str
    repo: str
    name: str
    size: int
    sha256: str | None

    def has_size(self, folder: Path) -> bool:
        """Return whether a file of this size is there."""
        path = folder / self.role / self.name
        return path.is_file() and path.stat().st_size == self.size

    def is_whole(self, folder: Path) -> bool:
        """Return whether it is there, after a download that came to its end."""
        return self.has_size(folder) and not (folder / self.role / UNFINISHED).exists()


def plain_files(name: str) -> list[Remote] | None:
    """Return the files of a metric, one of its weights or a prompt set: none for the package's,
    None for any other name.
    """
    source, remotes = components("prompts").get(name), list[Remote]()
    if source and (p := source.official):
        remotes = [
            Remote(name, p.url, cache_dir() / "prompts" / p.file, p.sha256, p.member, p.gigabytes)
        ]
    is_metric = name in names() or ":" in name
    metrics = scorers_for([name], "full") if is_metric else [*components("metric").values()]
    weights = dict.fromkeys(
        w for m in metrics for w in m.weights if w.url and (is_metric or w.name == name)
    )
    remotes += [
        Remote(w.title, w.url, cache_dir() / w.file, w.sha256, gigabytes=w.gigabytes)
        for w in weights
    ]
    remotes = list({remote.path: remote for remote in remotes}.values())
    return remotes if remotes or source or is_metric else None


def plan(entry: Entry) -> list[File]:
    """Return the files of a target, as the hub lists them.  Raises UserError without a network or for a
    lost repository.
    """
    files = []
    for role, source in entry.files.items():
        listed = _listed(role, source.repo)
        named = [file for file in listed if _is_named(file.name, source.files)]
        if not named:
            raise UserError(
                f"the repository {source.repo} no longer holds {', '.join(source.files)}: get it by hand"
            )
        for file in named:
            path = Path(file.name)
            if path.is_absolute() or ".." in path.parts:
                raise UserError(
                    f"the repository {source.repo} names a file outside itself ({path}): do not use it"
                )
        files += named
    return files


def _is_named(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _listed(role: str, repo: str) -> list[File]:
    """Return all files of a repository.  Raises UserError, also for an answer that lists no files."""
    from huggingface_hub import HfApi

    with hub_errors(repo), suppress(ValueError, TypeError, LookupError, AttributeError):
        siblings = HfApi().model_info(repo, files_metadata=True).siblings or []
        return [
            File(
                role=role,
                repo=repo,
                name=found.rfilename,
                size=found.size or 0,
                sha256=found.lfs.sha256 if found.lfs else None,
            )
            for found in siblings
        ]
    raise UserError(
        f"the hub's answer for {repo} is no list of files, perhaps a network's login page: try again later"
    )


def fetch(
    entry: Entry, files: list[File], log: Callable[[str], None] = print, verify: bool = False
) -> Path:
    """Download missing files into the target's folder; an interrupted download continues.

    ``verify``: also compare the digests of present files.  Raises UserError for a full disk, a
    missing permission, a lost network, another process that fetches the same, and a file that is
    not what the hub says.
    """
    folder = entry.folder
    files = _without_stored(entry, files, log)
    needed = sum(f.size for f in files if not f.has_size(folder))
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if needed > (free := shutil.disk_usage(existing).free):
        raise UserError(
            f"{needed / 1e9:.1f} GB are needed in {folder} but {free / 1e9:.1f} GB are free: make room,"
            f" or {HOME} to a folder on another disk"
        )
    with ExitStack() as locks:
        if not all(f.is_whole(folder) for f in files):
            with file_errors(str(folder)):
                folder.mkdir(parents=True, exist_ok=True)
            locks.enter_context(acquire(folder, f"{HOME} to another folder"))
        for file in files:
            if file.is_whole(folder):
                checked(folder / file.role / file.name, file.sha256 or "", again=verify)
                log(f"{file.role}: {file.name} {'is undamaged' if verify else 'exists'}")
                continue
            _fetch_one(folder, file)
            if all(f.has_size(folder) for f in files if f.role == file.role):
                (folder / file.role / UNFINISHED).unlink(missing_ok=True)
            log(f"{file.role}: {file.name}, {file.size / 1e9:.2f} GB")
    return folder


def _without_stored(entry: Entry, files: list[File], log: Callable[[str], None]) -> list[File]:
    """Return the files without those of roles that lie whole in the cache of the hub's tools."""
    stored = {}
    for role, path in entry.locate(entry.folder).paths.items():
        if role in entry.files and path.is_relative_to(hub_cache()):
            stored[role] = path
            log(f"{role}: in the hub's cache, {path}")
    return [file for file in files if file.role not in stored]


def _fetch_one(folder: Path, file: File) -> None:
    from huggingface_hub import hf_hub_download

    place = folder / file.role
    with hub_errors(file.repo):
        place.mkdir(parents=True, exist_ok=True)
        (place / UNFINISHED).touch()
        hf_hub_download(file.repo, file.name, local_dir=place)
    sha256 = digest(place / file.name) if file.has_size(folder) else None
    if sha256 is None or (file.sha256 and sha256 != file.sha256):
        (place / file.name).unlink(missing_ok=True)
        raise UserError(f"{file.name} arrived damaged and was removed: run the same command again")
    remember(place / file.name, sha256)


@contextmanager
def hub_errors(repo: str) -> Iterator[None]:
    """Turn errors of the hub and the disk into one sentence each."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    with file_errors(f"the hub for {repo}"):
        try:
            yield
        except GatedRepoError:
            raise UserError(
                f"{repo} asks to accept its licence: do so on its page, then `hf auth login`"
            ) from None
        except RepositoryNotFoundError:
            raise UserError(
                f"the hub has no repository {repo}, or it is private: `hf auth login` if you may read it, or get the "
                "files by hand"
            ) from None
        except OfflineModeIsEnabled:
            raise UserError(
                f"{repo} cannot be fetched while HF_HUB_OFFLINE is set: unset it"
            ) from None
        except HfHubHTTPError as error:
            if error.response is not None and error.response.status_code == 401:
                raise UserError(
                    f"the hub does not accept your token for {repo}: `hf auth login` stores a new one, or unset HF_TOKEN"
                ) from None
            raise UserError(
                f"the hub refused {repo} ({str(error).splitlines()[0]}): try again later"
            ) from None
        except Exception as error:
            if "httpx" in type(error).__module__ or "httpcore" in type(error).__module__:
                # the same sentence for every lost network
                raise ConnectionError(str(error)) from None
            raise
