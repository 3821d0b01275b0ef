"""Families of targets: a folder each, with a loader and rows of the catalogue, registered as ``target`` components."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.loading import present, random_net
from lanternbench.models.target import Target
from lanternbench.utils.files import cache_dir


class Source(BaseModel):
    """Files of one repository on the Hugging Face hub; names may be patterns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repo: str
    files: tuple[str, ...]


class Expected(BaseModel):
    """What is published of a drafter: on trees of kind ``tree``, the first drafted token is accepted at least so often.

    Papers give mean tokens a step, from which ``expected.at_least`` derives it.
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
    guidance: float = 3.0
    top_k: int = 0
    files: dict[str, Source] = {}
    expects: tuple[Expected, ...] = ()

    @property
    def folder(self) -> Path:
        """Where ``fetch`` puts its files: a folder per role."""
        return cache_dir() / "targets" / self.name


EAGLES = {"eagle": False, "eagle-3": True}  # role of an EAGLE drafter -> does it read the target at three depths?


def eagles_in(folder: Path, model: ImageDecoder, device: str) -> dict[str, nn.Module]:
    """The EAGLE drafters among the roles in ``folder``, by what they are.  Raises UserError."""
    nets = [model.eagle_drafter(folder / role, device) for role in EAGLES if present(folder, role)]
    return {net.kind: net for net in nets}


def random_eagles(model: ImageDecoder, device: str, dtype: torch.dtype) -> dict[str, nn.Module]:
    """One of each kind."""
    return {kind: random_net(lambda: model.new_eagle(fused), device, dtype) for kind, fused in EAGLES.items()}  # noqa: B023


class Family:
    """How the targets of one kind are loaded.  Methods raise UserError for what is missing, damaged or of another size.

    ``rows``: a YAML file of catalogue rows by name, without ``family``.  ``needs``: roles without which nothing can be
    decoded.
    """

    rows: ClassVar[Path]
    needs: ClassVar[tuple[str, ...]] = ("model",)

    def load(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Target:
        """A target from the files in ``folder``; ``dtype``: of decoder and drafters."""
        raise NotImplementedError

    def random_target(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Target:
        """The same architecture with random weights and EAGLE drafters: its images are noise, its speed is real."""
        raise NotImplementedError

    def decoder(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> ImageDecoder:
        """The decoder alone, to draft for another target."""
        raise NotImplementedError

    def random_decoder(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> ImageDecoder:
        """The same with random weights."""
        raise NotImplementedError

    def home(self, row: Entry) -> Path:
        """Where the files of a row are, unless the user says otherwise."""
        return row.folder

    def missing(self, row: Entry, folder: Path) -> list[str]:
        """Roles that are not in ``folder`` whole; drafters count, though a target works without them."""
        return [role for role in row.files or ("model",) if not present(folder, role)]

    def reads(self, folder: Path) -> bool:
        """Is ``folder`` a target of this family that says itself what it is, and needs no row of the catalogue?"""
        return False
