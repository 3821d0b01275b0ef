"""The places of a target's published files, role by role, after ``fetch``, the hub's own tools,
clones of repositories and people.  Imports no torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import BaseModel

from lanternbench.errors import UserError
from lanternbench.models.drafters.kinds import FILED

UNFINISHED = ".incomplete"  # lies in a role's folder while it is being fetched
WEIGHTS = (".pt", ".pth", ".bin", ".safetensors", ".ckpt")
TOKENISERS = ("tokenizer.json", "text_tokenizer.json", "emu3.tiktoken")
ROLES = ("model", "vq", "text", "tokenizer", "diffusion", *FILED)
# roles that belong together: no published file completes those in a user's folder
GIVEN_WHOLE = ("model", *FILED)
# a folder of one role alone; one known to hold it; one of other roles, in which only a file of a
# telling name counts
Kind = Literal["own", "named", "shared"]
# names that do not tell what a file is: such a file next to others is the model's
GENERIC = ("model", "pytorch_model", "diffusion_pytorch_model", "consolidated")
# files that training scripts and their libraries write next to the weights
TRAINING_STATE = re.compile(
    r"(optimizer|optim|scheduler|scaler|sampler|random_states|rng_state|training_args)[._-].*"
    r"|.*optim_states\.pt"
)
SHARD = re.compile(r"(.*?)[-.](\d+)-of-(\d+)\.\w+")


class Source(BaseModel, extra="forbid", frozen=True):
    """Files of one repository on the Hugging Face hub; names may be patterns.

    ``folders``: other places of the same files, relative to the folder of a target, in clones and
    in the trees that the published code asks for.
    """

    repo: str
    files: tuple[str, ...]
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Files:
    """The files of a target: a file or a folder per role that has any."""

    place: Path
    paths: Mapping[str, Path]
    # why files of a role that were found cannot be used
    faults: Mapping[str, str]

    def get(self, role: str) -> Path:
        """Return the path of a role, or where ``fetch`` would put it."""
        return self.paths.get(role, self.place / role)


NO_FILES = Files(Path(), {}, {})


def locate(sources: Mapping[str, Source], place: Path, home: Path | None = None) -> Files:
    """Return where the files of a target lie.

    ``place``: a folder or a weights file of the user's, or ``home``, where ``fetch`` puts them.
    Roles that ``place`` lacks are looked for at ``home`` and in the cache of the Hugging Face hub,
    except for drafters and the model itself of a ``place`` of the user's.
    """
    root, file = _root(place)
    paths: dict[str, Path] = {}
    faults: dict[str, str] = {}
    for role in dict.fromkeys([*sources, *ROLES]):
        if role == "model" and file is not None:
            paths[role] = file
            continue
        folders = list(_folders(root, role, sources))
        if role in sources and (place == home or role not in GIVEN_WHOLE):
            folders += _elsewhere(role, sources, home)
        for folder, kind in folders:
            found, fault = _found_in(folder, role, sources, kind)
            if found is not None:
                paths[role] = found
                break
            if fault:
                faults.setdefault(role, fault)
    lacking = {role: fault for role, fault in faults.items() if role not in paths}
    return Files(root, paths, lacking)


def _root(place: Path) -> tuple[Path, Path | None]:
    """Return the folder to search, and the weights file that the user named."""
    if place.is_dir():
        return snapshot(place) or place, None
    if SHARD.fullmatch(place.name):
        return place.parent, None
    return place.parent, place if place.is_file() else None


def _folders(root: Path, role: str, sources: Mapping[str, Source]) -> Iterator[tuple[Path, Kind]]:
    """Yield the folders in which a role may lie, the surest first."""
    yield root / role, "own"
    if role == "tokenizer":
        yield root / "model", "shared"
    if role in sources:
        clones = [root / PurePosixPath(repo).name for repo in _repositories(role, sources)]
        yield clones[0], "own"
        for place in (root, *clones):
            for folder in sources[role].folders:
                yield place / folder, "shared" if folder == ".." else "named"
        for place in clones[1:]:
            yield place, "shared"
    # in the target's folder any other weights are the model's
    yield root, "named" if role == "model" else "shared"


def _elsewhere(
    role: str, sources: Mapping[str, Source], home: Path | None
) -> Iterator[tuple[Path, Kind]]:
    """Yield the folders of a role at ``home`` and in the cache of the hub."""
    if home is not None:
        yield home / role, "own"
    own = sources[role]
    for repo in _repositories(role, sources):
        root = cached(repo)
        if root is None:
            continue
        yield root, "own" if repo == own.repo else "shared"
        for folder in own.folders:
            if folder != "..":
                yield root / folder, "named"


def _repositories(role: str, sources: Mapping[str, Source]) -> list[str]:
    """Return the repositories of a target, that of the role first."""
    others = [source.repo for source in sources.values()]
    return list(dict.fromkeys([sources[role].repo, *others]))


def _found_in(
    folder: Path, role: str, sources: Mapping[str, Source], kind: Kind
) -> tuple[Path | None, str]:
    """Return the path of a role's files in a folder, and why those there cannot be used."""
    if not folder.is_dir():
        return None, ""
    if (folder / UNFINISHED).exists():
        return None, "its download is unfinished"
    if role == "tokenizer":
        return _tokeniser_in(folder, kind), ""
    if role == "diffusion":
        whole = (folder / "model_index.json").is_file() and (folder / "transformer").is_dir()
        return (folder, "") if whole else (None, "")
    published = _weights_of(folder, role, sources, kind)
    if not published:
        return None, ""
    present = [path for path in published if path.is_file()]
    if not present:
        return None, f"{published[0].name} is a link to a file that does not exist"
    if absent := absent_shards(present[0].parent):
        return None, f"{absent[0]} is absent"
    parent = present[0].parent
    is_among_others = kind == "shared" and role != "model"
    if len(present) == 1 and (is_among_others or len(weights_files(parent)) > 1):
        return present[0], ""
    return parent, ""


def _tokeniser_in(folder: Path, kind: Kind) -> Path | None:
    for name in TOKENISERS:
        known = [folder / name]
        if kind == "own":
            known += sorted(folder.rglob(name))
        for path in known:
            if path.is_file():
                return path
    return None


def _weights_of(folder: Path, role: str, sources: Mapping[str, Source], kind: Kind) -> list[Path]:
    """Return a role's weights in a folder: those that the catalogue names, or else any."""
    patterns = sources[role].files if role in sources else ()
    published = [path for path in _matches(folder, patterns) if path.suffix in WEIGHTS]
    if kind == "shared":
        return [path for path in published if not path.name.startswith(GENERIC)]
    if published:
        return published
    direct = _other_weights(folder, role, sources)
    if direct or kind != "own":
        return direct
    for path in sorted(folder.rglob("*/")):
        is_hidden = "/." in f"/{path.relative_to(folder).as_posix()}"
        if path.is_dir() and not is_hidden and (deep := _other_weights(path, role, sources)):
            return deep
    return []


def _matches(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the files that patterns of a repository name, also without the repository's
    folders.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        for wanted in dict.fromkeys((pattern, PurePosixPath(pattern).name)):
            if wanted != "*":
                found.update(dict.fromkeys(sorted(folder.glob(wanted))))
    return list(found)


def _other_weights(folder: Path, role: str, sources: Mapping[str, Source]) -> list[Path]:
    """Return weights of unpublished names in a folder, without those that belong to other
    roles.
    """
    others: list[str] = []
    for other, source in sources.items():
        if other != role:
            others += [PurePosixPath(pattern).name for pattern in source.files]
    telling = [name for name in others if not name.startswith((*GENERIC, "*"))]
    found = weights_files(folder)
    for pattern in telling:
        found = [path for path in found if not fnmatch(path.name, pattern)]
    return found


def weights_files(folder: Path) -> list[Path]:
    """Return the weights in a folder, also links that lead nowhere, without optimisers' states."""
    found = []
    for path in sorted(folder.iterdir()):
        is_state = path.name.startswith(".") or TRAINING_STATE.fullmatch(path.name)
        if path.suffix in WEIGHTS and not is_state and not path.is_dir():
            found.append(path)
    return found


def shard_index(folder: Path) -> Path | None:
    """Return the index of a folder's shards; of several, one whose shards are all there."""
    indices = sorted(folder.glob("*.index.json"))
    for index in indices:
        if not _absent(folder, indexed_shards(index)):
            return index
    return indices[0] if indices else None


def _absent(folder: Path, names: list[str]) -> list[str]:
    return [name for name in names if not (folder / name).is_file()]


def absent_shards(folder: Path) -> list[str]:
    """Return the names of missing shards, by an index or by the names of the other shards."""
    if index := shard_index(folder):
        return _absent(folder, indexed_shards(index))
    for path in weights_files(folder):
        shard = SHARD.fullmatch(path.name)
        if shard and path.is_file():
            return _absent(folder, _series(shard))
    return []


def _series(shard: re.Match[str]) -> list[str]:
    """Return the names of all shards next to one; they are counted from 1, or from 0."""
    number = shard[2]
    start = 0 if int(number) == 0 else 1
    name = shard.string
    numbers = range(start, start + int(shard[3]))
    return [name.replace(f"{number}-of", f"{i:0{len(number)}}-of") for i in numbers]


def indexed_shards(index: Path) -> list[str]:
    """Return the file names of an index, never outside its folder.  Raises UserError."""
    try:
        files = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise UserError(f"{index} is no index of shards: fetch it again") from None
    return sorted({Path(str(name)).name for name in files})


def folder_of(path: Path) -> Path:
    """Return the folder of a file, or the folder itself."""
    return path.parent if path.is_file() else path


# ---- the cache of the Hugging Face hub ----


def hub_cache() -> Path:
    """Return the folder in which the hub's own tools keep files."""
    home = os.environ.get("HF_HOME")
    if not home:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = f"{cache}/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()


def cached(repo: str) -> Path | None:
    """Return the snapshot of a repository in the hub's cache."""
    return snapshot(hub_cache() / f"models--{repo.replace('/', '--')}")


def snapshot(folder: Path) -> Path | None:
    """Return the snapshot of a repository's folder in the hub's cache, of the main branch or the
    latest.
    """
    main = folder / "refs" / "main"
    snapshots = folder / "snapshots"
    if not snapshots.is_dir():
        return None
    if main.is_file():
        revision = snapshots / main.read_text(encoding="utf-8").strip()
        if revision.is_dir():
            return revision
    revisions = [path for path in snapshots.iterdir() if path.is_dir()]
    return max(revisions, key=lambda path: path.stat().st_mtime, default=None)


# ---- parts of messages on a folder without a target's files ----


def expected_tree(sources: Mapping[str, Source], place: Path) -> str:
    """Return the files of a target as ``fetch`` lays them out, a line each."""
    lines = []
    for role, source in sources.items():
        names = ", ".join(source.files)
        if len(source.files) > 1:
            names = f"{{{names}}}"
        lines.append(f"  {place / role}/{names}")
    return "\n".join(lines)


def contents(place: Path, count: int = 4) -> str:
    """Return the names of the first files and folders at ``place``."""
    if not place.is_dir():
        return place.name
    names = sorted(path.name for path in place.iterdir() if not path.name.startswith("."))
    if len(names) > count:
        names = [*names[:count], "…"]
    return ", ".join(names) or "nothing"
