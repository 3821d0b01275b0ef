"""The catalogue of targets: what each is, which files it needs, which are present, and its published drafters.

This module does not import torch.
"""

from __future__ import annotations

import difflib
from functools import cache
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ConfigDict

from lanternbench.errors import UserError
from lanternbench.models import MODULES
from lanternbench.models.grids import Grid, coarse, grid_of
from lanternbench.notes import Note
from lanternbench.registry import component, components
from lanternbench.utils.files import cache_dir

if TYPE_CHECKING:
    from lanternbench.models.family import Family

Z = 2.576  # of a two-sided 99 % interval
UNFINISHED = ".incomplete"  # lies in a role's folder while it is being fetched
PREFIXES = ("hf",)  # of targets that describe themselves, as in hf:FOLDER
_HERE = Path(__file__).parent


class Source(BaseModel):
    """Files of one repository on the Hugging Face hub; names may be patterns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repo: str
    files: tuple[str, ...]


class Expected(BaseModel):
    """What is published of a drafter: on trees of kind ``tree``, the first drafted token is accepted at least so often.

    Papers give mean tokens a step, which give the least f: τ − 1 = Σ P(i accepted) ≤ depth · f.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    drafter: str
    tree: str
    temperature: float
    first_token_acceptance: float
    source: str


class Entry(BaseModel):
    """A row of the catalogue.  ``files`` by role: ``model``, ``vq``, ``text``, and drafters by kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    family: str
    about: str
    licence: str = "Apache-2.0"
    gigabytes: float = 0.0  # of all files
    shape: dict[str, Any] = {}
    grids: tuple[str, ...] = ()  # other images that it draws, as ROWSxCOLUMNS of tokens
    coarse_first: bool = False  # is a coarse grid drawn before the image's?
    guidance: float = 3.0
    top_k: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    files: dict[str, Source] = {}
    expects: tuple[Expected, ...] = ()

    @property
    def all_grids(self) -> list[Grid]:
        """In the order drawn; none where the files of the model say it."""
        if "grid" not in self.shape:
            return []
        grid = grid_of(self.shape["grid"])
        return [coarse(grid), grid] if self.coarse_first else [grid]

    @property
    def sampling(self) -> tuple[float, int, float, float]:
        """Its defaults, as ``Target`` takes them."""
        return self.guidance, self.top_k, self.temperature, self.top_p

    @property
    def folder(self) -> Path:
        """Where ``fetch`` puts its files: a folder per role."""
        return cache_dir() / "targets" / self.name

    def absent(self, folder: Path) -> list[str]:
        """Roles that are incomplete in ``folder``; with drafters, though a target works without them."""
        return [role for role in self.files or ("model",) if not present(folder, role)]


def present(folder: Path, role: str) -> bool:
    """Whether a role's folder has weights and no unfinished download."""
    path = folder / role
    weights = [p for pattern in ("*.pt", "*.pth", "*.bin", "*.safetensors", "*.ckpt") for p in path.rglob(pattern)]
    return bool(weights) and not (path / UNFINISHED).exists()


@cache
def family(name: str) -> Family:
    """Raises UserError for a family that is not registered."""
    return component("target", name)()


@cache
def catalogue() -> dict[str, Entry]:
    """Every entry by name, family by family.  Raises UserError where two families have a row of the same name."""
    entries: dict[str, Entry] = {}
    for kind in components("target"):
        module = MODULES.get(kind)
        rows = _HERE / module.split(".")[0] / "catalogue.yaml" if module else family(kind).rows
        for name, row in yaml.safe_load(rows.read_text(encoding="utf-8")).items():
            if name in entries:
                raise UserError(
                    f"the target families '{entries[name].family}' and '{kind}' both have a target '{name}': uninstall "
                    "one of the plug-ins"
                )
            entries[name] = Entry(name=name, family=kind, **row)
    return entries


def entry(name: str) -> Entry:
    """Raises UserError for a name that the catalogue does not have."""
    if name not in catalogue():
        close = difflib.get_close_matches(name, catalogue(), 1)
        raise UserError(
            f"unknown target '{name}': it is neither in the catalogue ({', '.join(catalogue())}) nor a folder with a "
            f"target.safetensors{f'; did you mean {close[0]}?' if close else ''}"
        )
    return catalogue()[name]


def catalogue_name(name: str) -> str:
    """NAME of NAME=FOLDER and NAME:SIZES."""
    return name.partition("=")[0].partition(":")[0]


def check_target(name: str) -> None:
    """Raises UserError for what names no target of the catalogue, nor any file or folder."""
    title = catalogue_name(name)
    if title not in catalogue() and not Path(name).exists() and title not in PREFIXES:
        entry(name)


def missing(row: Entry) -> list[str]:
    """Roles whose files are missing or incomplete; drafters count, though a target works without them."""
    if row.family in MODULES:
        return row.absent(row.folder) if row.files else []  # a target without files comes with the package
    return family(row.family).missing(row, family(row.family).home(row))


def upper_limit(accepted: int, steps: int) -> float:
    """The upper end of Wilson's 99 % interval of a share (Wilson 1927, eq. 8)."""
    share, z = accepted / steps, Z * Z / steps
    return (share + z / 2 + sqrt(z * (share * (1 - share) + z / 4))) / (1 + z)


def expectation(row: Entry, drafter: str, tree: str, temperature: float) -> Expected | None:
    """The published figure of the row's drafter for this kind of tree and temperature; None if there is none."""
    wanted = (drafter, tree, temperature)
    return next((e for e in row.expects if (e.drafter, e.tree, e.temperature) == wanted), None)


def shortfall(row: Entry, drafter: str, tree: str, temperature: float, accepted: int, steps: int) -> Note | None:
    """A warning where first tokens were ``accepted`` in fewer of ``steps`` than chance explains; else None.

    A relaxed acceptance only accepts more, so what is published of an exact one binds it too.
    """
    known = expectation(row, drafter, tree, temperature)
    if known is None or not steps or upper_limit(accepted, steps) >= known.first_token_acceptance:
        return None
    return Note(
        "warning",
        "first_token_acceptance",
        f"the first drafted token was accepted in {accepted} of {steps} steps ({accepted / steps:.1%}), where the "
        f"published {drafter} drafter of {row.name} has at least {known.first_token_acceptance:.0%} ({known.source}): "
        "it may have been trained for another target, or be read otherwise than it was trained",
    )
