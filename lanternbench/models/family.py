"""Families of targets: a folder each, with a loader and rows of the catalogue, registered as ``target`` components.

``Family`` is what the catalogue asks of any of them.  ``PublishedFamily`` fills most of it in for checkpoints that come
with a sub-folder per role: a subclass says how each part is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters import dflash
from lanternbench.models.drafters.dflash import DFlash
from lanternbench.models.entries import Entry, present
from lanternbench.models.loading import dtype_for, random_net
from lanternbench.models.target import Target
from lanternbench.models.token_prompts import hashed_ids
from lanternbench.models.vq import VQConfig, VQModel

EAGLES = {"eagle": False, "eagle-3": True}  # role of an EAGLE drafter -> does it read the target at three depths?


def drafters_in(folder: Path, model: ImageDecoder, device: str) -> dict[str, nn.Module]:
    """The drafters among the roles in ``folder``, EAGLE's by what they are.  Raises UserError."""
    nets: list[Any] = [model.eagle_drafter(folder / role, device) for role in EAGLES if present(folder, role)]
    if present(folder, DFlash.kind):
        nets.append(dflash.load(folder / DFlash.kind, model, device, model.dtype))
    return {net.kind: net for net in nets}


def random_drafters(model: ImageDecoder, device: str, dtype: torch.dtype) -> dict[str, nn.Module]:
    """One of each kind."""
    made: dict[str, Callable[[], nn.Module]] = {kind: partial(model.new_eagle, fused) for kind, fused in EAGLES.items()}
    made[DFlash.kind] = partial(DFlash.untrained, model)
    return {kind: random_net(make, device, dtype) for kind, make in made.items()}


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

    def options(self, row: Entry) -> dict[str, Any]:
        """The target's own defaults of methods' options (``Target.options``)."""
        return {}

    def home(self, row: Entry) -> Path:
        """Where the files of a row are, unless the user says otherwise."""
        return row.folder

    def located(self, path: Path) -> Path:
        """The folder that a user means by ``path``, which ``reads`` has recognised."""
        return path

    def missing(self, row: Entry, folder: Path) -> list[str]:
        """Roles that are not in ``folder`` whole; drafters count, though a target works without them."""
        return row.absent(folder)

    def reads(self, folder: Path) -> bool:
        """Is ``folder`` a target of this family that says itself what it is, and needs no row of the catalogue?"""
        return False


def decoder_shape(row: Entry) -> dict[str, Any]:
    """The row's shape without that of the image tokeniser, and without the dialect of its prompts."""
    return {k: v for k, v in row.shape.items() if k not in ("vq", "dialect")}


class PublishedFamily(Family):
    """Checkpoints with a sub-folder per role, or the same architecture with random weights.

    ``shape`` of a row: of the decoder, and under ``vq`` of the image tokeniser, where no file says it.
    """

    network: ClassVar[type[ImageDecoder]]
    configuration: ClassVar[type]  # of ``network``

    def config(self, row: Entry) -> Any:
        """The decoder's configuration as far as the row says it."""
        return self.configuration(**decoder_shape(row))

    def new_vq(self, row: Entry) -> Any:
        """An image tokeniser without trained weights: by default of LlamaGen's kind."""
        return VQModel(VQConfig(**row.shape.get("vq", {})))

    def vq(self, row: Entry, folder: Path, device: str) -> Any:
        """The image tokeniser from its files, in float32; None where no code here decodes images."""
        raise NotImplementedError

    def random_vq(self, row: Entry, device: str) -> Any:
        """The same with random weights."""
        return random_net(lambda: self.new_vq(row), device, torch.float32)

    def text(self, row: Entry, folder: Path, device: str, dtype: torch.dtype) -> Any:
        """``Target.text`` from its files."""
        raise NotImplementedError

    def random_text(self, row: Entry, device: str, dtype: torch.dtype) -> Any:
        """``Target.text`` without files: by default an id per word."""
        return partial(hashed_ids, size=self.config(row).prompt_ids)

    def fields(self, row: Entry, model: Any, text: Any) -> dict[str, Any]:
        """Further fields of the ``Target``; ``text`` None: there is no tokeniser, as weights are random."""
        raise NotImplementedError

    def load(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Target:
        dtype = dtype or dtype_for(device)
        text, vq = self.text(row, folder, device, dtype), self.vq(row, folder, device)  # small files fail first
        model = self.decoder(row, folder, device, dtype)
        fields = self.fields(row, model, text)
        drafters = drafters_in(folder, model, device)
        fields |= {"options": self.options(row), "drafters": drafters}
        return Target(row.name, model, vq, text, *row.sampling, **fields)

    def random_target(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Target:
        dtype = dtype or dtype_for(device)
        model, text = self.random_decoder(row, device, dtype), self.random_text(row, device, dtype)
        vq = self.random_vq(row, device)
        fields = self.fields(row, model, None)
        drafters = random_drafters(model, device, dtype)
        fields |= {"options": self.options(row), "drafters": drafters}
        return Target(row.name, model, vq, text, *row.sampling, **fields)

    def random_decoder(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> ImageDecoder:
        return random_net(lambda: self.network(self.config(row)), device, dtype or dtype_for(device))
