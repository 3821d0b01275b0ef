"""The catalogue of targets: their rows, their files, which are present, and digests of them.
Imports no torch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, Field

from lanternbench.errors import UserError, unknown
from lanternbench.models import MODULES
from lanternbench.models.grids import Grid, coarse, grid_of
from lanternbench.models.places import WEIGHTS, Files, Source, folder_of, locate
from lanternbench.notes import Note
from lanternbench.registry import component, components
from lanternbench.settings import Guidance, Sampling
from lanternbench.utils.files import cache_dir

if TYPE_CHECKING:
    from lanternbench.models.family import Family

Z = 2.576  # of a two-sided 99 % interval
PREFIXES = ("hf",)  # of targets that describe themselves, as in hf:FOLDER
# models by the beginning of their names -> what is missing to run them
REFUSED = {
    "x-omni": "the code of its decoder's layers and their sizes were not to be read, and its images "
    "need FLUX.1-dev",
    "tar": "captions need its language model and the codebook of TA-Tok, and how AR-DTok reads "
    "their codes as its prefix was not to be read",
}
REFUSED["ar-dtok"] = REFUSED["tar"]
DIGESTED = (*WEIGHTS, ".json", ".model", ".yaml", ".tiktoken")
# bytes up to which a file is read whole; a larger one in BLOCKS + 1 blocks from end to end
WHOLE = 2**26
BLOCK = 2**16
BLOCKS = 256


class Expected(BaseModel, extra="forbid", frozen=True):
    """A published lower limit of how often the first drafted token is accepted on trees of kind
    ``tree``.

    Papers give the accepted length τ, from which f follows: τ − 1 = Σ P(i accepted) ≤ depth · f.
    """

    drafter: str
    tree: str
    temperature: float
    first_token_acceptance: float
    source: str


class Entry(Sampling):
    """A row of the catalogue.  ``files`` by role: ``model``, ``vq``, ``text``, and drafters by
    kind.
    """

    name: str
    family: str
    about: str
    licence: str = "Apache-2.0"
    gate: str = "unknown"  # what the hub asks for before a download
    gigabytes: float = 0.0  # of all files
    shape: dict[str, Any] = Field(default_factory=dict)
    grids: tuple[str, ...] = ()  # other images that it draws, as ROWSxCOLUMNS of tokens
    coarse_first: bool = False  # whether a coarse grid is drawn before the image's
    guidance: Guidance = 3.0
    files: dict[str, Source] = Field(default_factory=dict)
    expects: tuple[Expected, ...] = ()

    @property
    def all_grids(self) -> list[Grid]:
        """The grids in the order drawn; none if the files of the model say them."""
        grids = [grid_of(self.shape["grid"])] if "grid" in self.shape else []
        return [*map(coarse, grids), *grids] if self.coarse_first else grids

    @property
    def folder(self) -> Path:
        """The folder in which ``fetch`` puts its files, a folder per role."""
        return cache_dir() / "targets" / self.name

    def published(self, role: str) -> tuple[str, ...]:
        """Return the names of a role's published files, which may be patterns."""
        source = self.files.get(role)
        return source.files if source else ()

    def locate(self, place: Path) -> Files:
        """Return where its files lie, by ``places.locate``."""
        return locate(self.files, place, self.folder)

    def absent(self, place: Path) -> list[str]:
        """Return the roles without files."""
        found = self.locate(place).paths
        return [role for role in self.files or ("model",) if role not in found]


@cache
def family(name: str) -> Family:
    """Return the family of a name.  Raises UserError for one that is not registered."""
    return component("target", name)()


@cache
def catalogue() -> dict[str, Entry]:
    """Return every entry by name, family by family.

    Raises UserError if two families have a row of the same name.
    """
    entries: dict[str, Entry] = {}
    for kind in components("target"):
        folder = MODULES.get(kind, "").split(".")[0]
        rows = Path(__file__).parent / folder / "catalogue.yaml" if folder else family(kind).rows
        for name, row in yaml.safe_load(rows.read_text(encoding="utf-8")).items():
            if same := entries.get(name):
                raise UserError(
                    f"the families '{same.family}' and '{kind}' both have a target '{name}': "
                    "uninstall one"
                )
            entries[name] = Entry(name=name, family=kind, **row)
    return entries


def entry(name: str) -> Entry:
    """Return the entry of a name.  Raises UserError for one that the catalogue does not have."""
    if name in catalogue():
        return catalogue()[name]
    path = Path(name).expanduser()
    if path.is_dir():
        raise UserError(
            f"unknown target '{name}', a folder with no target.safetensors: name the target that "
            f"its files belong to, as in --target llamagen-xl-stage1={name}"
        )
    for start, missing_part in REFUSED.items():
        if re.match(rf"{start}(-|$)", name.lower()):
            raise UserError(f"'{name}' is no target yet ({missing_part}): name another one")
    if looks_like_path(name) and not path.exists():
        raise UserError(f"unknown target '{name}', a path that does not exist: correct it")
    raise unknown(
        f"unknown target '{name}', and no folder with a target.safetensors", name, catalogue()
    )


def looks_like_path(name: str) -> bool:
    """Return whether a name can only be meant as a file or folder."""
    return name.startswith(("~", ".")) or "/" in name


def catalogue_name(name: str) -> str:
    """Return NAME of NAME=FOLDER and NAME:SIZES."""
    return name.partition("=")[0].partition(":")[0]


def check_target(name: str) -> None:
    """Raise UserError for a name of no target of the catalogue, nor of any file or folder."""
    title = catalogue_name(name)
    if title not in PREFIXES and not Path(name).expanduser().exists():
        entry(title)


def missing(row: Entry) -> list[str]:
    """Return the roles whose files are missing or incomplete; drafters count, though a target
    works without them.
    """
    if row.family in MODULES:
        # a target without files comes with the package
        return row.absent(row.folder) if row.files else []
    return family(row.family).missing(row, family(row.family).home(row))


def lacking(row: Entry) -> str:
    """Return the roles that ``missing`` lists, each with the fault of the files there."""
    faults = row.locate(row.folder).faults
    texts = []
    for role in missing(row):
        texts.append(f"{role} ({faults[role]})" if role in faults else role)
    return ", ".join(texts)


def upper_limit(accepted: int, steps: int) -> float:
    """Return the upper end of Wilson's 99 % interval of a share (Wilson 1927, eq. 8)."""
    share = accepted / steps
    z = Z * Z / steps
    return (share + z / 2 + sqrt(z * (share * (1 - share) + z / 4))) / (1 + z)


def expectation(row: Entry, drafter: str, tree: str, temperature: float) -> Expected | None:
    """Return the published figure of the row's drafter for this kind of tree and temperature, None
    if there is none.
    """
    for known in row.expects:
        if (known.drafter, known.tree, known.temperature) == (drafter, tree, temperature):
            return known
    return None


def shortfall(
    row: Entry, drafter: str, tree: str, temperature: float, accepted: int, steps: int
) -> Note | None:
    """Return a warning if fewer first tokens were ``accepted`` than chance explains; relaxed rules
    only accept more.
    """
    known = expectation(row, drafter, tree, temperature)
    if known is None or not steps or upper_limit(accepted, steps) >= known.first_token_acceptance:
        return None
    return Note(
        "warning",
        "first_token_acceptance",
        f"the first drafted token was accepted in {accepted} of {steps} steps "
        f"({accepted / steps:.1%}), where the published {drafter} drafter of {row.name} has at "
        f"least {known.first_token_acceptance:.0%} ({known.source}): it may have been trained for "
        "another target, or be read otherwise than it was trained",
    )


def fingerprint(place: Path) -> str:
    """Return a digest of a file, or of the weights and settings in a folder and below."""
    return _digest(_digested(_tree(place)), folder_of(place))


def fingerprints(place: Path) -> dict[str, str]:
    """Return digests by part, so that no run mixes models of one name: of a file, by its stem; of
    a folder, of each file with weights and of each role's folder.

    Changed weights in a file over 64 MB may go unseen.
    """
    parts = {}
    for part in sorted(place.iterdir()) if place.is_dir() else [place]:
        if files := _digested(_tree(part)):
            name = part.stem if part.is_file() else part.name
            parts[name] = _digest(files, folder_of(place))
    return parts


def _tree(place: Path) -> list[Path]:
    """Return a file, or a folder with all that is below."""
    return [place, *sorted(place.rglob("*"))]


def _digested(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.suffix in DIGESTED and path.is_file()]


def role_fingerprints(files: Files) -> dict[str, str]:
    """Return a digest by role of a target's files, wherever they lie."""
    parts = {}
    for role, path in files.paths.items():
        own = files.place / role
        if path.is_relative_to(own):
            root = files.place
            listed = _tree(own)
        elif path.is_file():
            root = path.parent
            listed = [path, *sorted(root.glob("*.json"))]
        else:
            root = path
            listed = sorted(root.iterdir())
        if digested := _digested(listed):
            parts[role] = _digest(digested, root)
    return parts


def _digest(files: list[Path], root: Path) -> str:
    """16 hex digits over the files' names under ``root``, sizes and content."""
    digest = hashlib.sha256()
    for path in files:
        line = f"{path.relative_to(root)}\0{path.stat().st_size}\0{content_digest(path)}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def content_digest(path: Path) -> str:
    """Return a digest of a file's content, or of blocks of it if it is large."""
    stat = path.stat()
    return _content(path.resolve(), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1024)
def _content(path: Path, size: int, _changed: int) -> str:
    with open(path, "rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        for i in range(BLOCKS + 1):
            file.seek(i * (size - BLOCK) // BLOCKS)
            digest.update(file.read(BLOCK))
        return digest.hexdigest()
