"""Targets by name: what they are (``catalogue.yaml``), whether they are here, how they are loaded."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from pydantic import BaseModel, ConfigDict

from lanternbench.engine.cuda_graphs import of_mode
from lanternbench.errors import UserError
from lanternbench.models import published
from lanternbench.models.chameleon import checkpoint as published_chameleon
from lanternbench.models.chameleon.model import Chameleon
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.llamagen import checkpoint as published_llamagen
from lanternbench.models.llamagen.model import LlamaGen
from lanternbench.models.packed import packed
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.utils.device import fit_threads
from lanternbench.utils.files import cache_dir

_FAMILIES: dict[str, Any] = {"llamagen": published_llamagen, "chameleon": published_chameleon}


class Source(BaseModel):
    """Files of one repository on the Hugging Face hub; names may be patterns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repo: str
    files: tuple[str, ...]


class Entry(BaseModel):
    """A row of the catalogue.  ``files`` by role: ``model``, ``vq``, ``text``, and drafters by kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    family: Literal["tiny", "llamagen", "chameleon"]
    about: str
    licence: str = "Apache-2.0"
    gigabytes: float = 0.0  # of all files
    shape: dict[str, Any] = {}
    guidance: float = 3.0
    top_k: int = 0
    files: dict[str, Source] = {}

    @property
    def folder(self) -> Path:
        """Where ``fetch`` puts its files: a folder per role."""
        return cache_dir() / "targets" / self.name

    def missing(self, folder: Path | None = None) -> list[str]:
        """Roles that are not here whole; drafters count, though a target works without them."""
        if self.family == "tiny":
            return [] if (tiny.WEIGHTS / "target.safetensors").is_file() else ["model"]
        return [role for role in self.files if not published.present(folder or self.folder, role)]


@cache
def catalogue() -> dict[str, Entry]:
    """Every entry by name, in the order of the file."""
    rows = yaml.safe_load(Path(__file__).with_name("catalogue.yaml").read_text(encoding="utf-8"))
    return {name: Entry(name=name, **row) for name, row in rows.items()}


def entry(name: str) -> Entry:
    """Raises UserError for a name that the catalogue does not have."""
    if name not in catalogue():
        close = difflib.get_close_matches(name, catalogue(), 1)
        raise UserError(
            f"unknown target '{name}': it is neither in the catalogue ({', '.join(catalogue())}) nor a folder with a "
            f"target.safetensors{f'; did you mean {close[0]}?' if close else ''}"
        )
    return catalogue()[name]


def load_target(name: str, device: str = "cpu", random_weights: bool = False, dtype: str | None = None) -> Target:
    """A target by catalogue name, NAME=FOLDER with its files, or a folder in the embedded format (``train tiny``).

    ``random_weights``: the architecture at full size, without any file.  ``dtype``: of the weights, float32 or
    bfloat16 (default: float32 on a CPU and in the embedded format, else bfloat16).  Raises UserError for an unknown
    name or dtype and for weights that are missing or damaged.
    """
    target = load_plain(name, device, random_weights, dtype)
    fit_threads(target.model)
    return packed(target)


def load_plain(name: str, device: str = "cpu", random_weights: bool = False, dtype: str | None = None) -> Target:
    """As ``load_target``, in layers that gradients pass through."""
    weights = None if dtype is None else published.dtype_named(dtype)
    if device.startswith("cuda"):
        ready(device)
    if (Path(name) / "target.safetensors").is_file():
        return tiny.load(Path(name), device, weights)
    title, _, where = name.partition("=")
    row = entry(title)
    if row.family == "tiny":
        if random_weights:
            raise UserError("target 'tiny' comes with trained weights: leave out --random-weights")
        return tiny.load(_embedded(where), device, weights)
    family = _FAMILIES[row.family]
    if random_weights:
        return family.random_target(row.name, row.shape, row.guidance, row.top_k, device, dtype=weights)
    folder = Path(where) if where else row.folder
    needed = [role for role in row.missing(folder) if role in family.NEEDS]
    if needed:
        raise UserError(
            f"target '{title}' lacks its {' and '.join(needed)} in {folder}: `lanternbench fetch {title}` gets them "
            f"({row.gigabytes:g} GB), and --random-weights measures speed without them"
        )
    return family.load(row.name, row.shape, row.guidance, row.top_k, folder, device, weights)


def _embedded(where: str) -> Path:
    """The folder of ``tiny=FOLDER``, or the package's own."""
    if where and not (Path(where) / "target.safetensors").is_file():
        raise UserError(f"there is no target.safetensors in {where}: `lanternbench train tiny --out FOLDER` writes one")
    return Path(where) if where else tiny.WEIGHTS


def ready(device: str) -> None:
    """Make a GPU the one that graphs, streams and events are made on.

    cuDNN's attention is left out: on Hopper it is torch's first choice, and it plans anew for every number of keys.
    """
    torch.cuda.set_device(device)
    torch.backends.cuda.enable_cudnn_sdp(False)


def with_drafter(target: Target, spec: str, device: str = "cpu", random_weights: bool = False) -> tuple[Target, str]:
    """``target`` with another drafter, of its dtype, in place of its own of that kind, and the kind.

    ``spec``: a catalogue name, or NAME=FOLDER, whose decoder drafts as an independent ``model``; or a file or folder
    with an ``eagle`` drafter in LANTERN's layout.  Raises UserError for an unknown name and for weights that are
    missing, damaged or made for another target.
    """
    title, _, where = spec.partition("=")
    if title not in catalogue() and Path(spec).exists():
        net = family_of(target).eagle_drafter(target.model, Path(spec), device)
        return packed(with_eagle(target, net)), "eagle"
    if title not in catalogue():
        raise UserError(
            f"unknown drafter '{spec}': it is neither a target of the catalogue ({', '.join(catalogue())}) nor a file "
            "or folder with an EAGLE drafter"
        )
    row = entry(title)
    if row.family == "tiny":
        net = tiny.load(_embedded(where), device, target.dtype).model
    elif random_weights:
        net = _FAMILIES[row.family].random_decoder(row.shape, device, target.dtype)
    else:
        folder = Path(where) if where else row.folder
        if not published.present(folder, "model"):
            raise UserError(f"drafter '{title}' lacks its model in {folder}: `lanternbench fetch {title}` gets it")
        net = _FAMILIES[row.family].decoder(row.shape, folder, device, target.dtype)
    return packed(replace(target, drafters=target.drafters | {"model": net})), "model"


def family_of(target: Target) -> Any:
    """The module that reads and writes the EAGLE drafters of ``target``."""
    return published_chameleon if isinstance(target.model, Chameleon) else published_llamagen


def with_eagle(target: Target, net: Eagle) -> Target:
    """``target`` with an EAGLE drafter of the user's, and with the prefix states that such a drafter reads."""
    published_pads = isinstance(target.model, LlamaGen) and target.evaluators == "full"
    pads = published_llamagen.EAGLE_PADS if published_pads else target.pad_rows
    return replace(target, drafters=target.drafters | {"eagle": net}, pad_rows=pads)


def load_with_drafter(
    name: str,
    drafter: str | None,
    device: str = "cpu",
    random_weights: bool = False,
    dtype: str | None = None,
    used: Collection[str] | None = None,
    compile_mode: str | None = None,
) -> Target:
    """``load_target``, and ``with_drafter`` where one is named.

    ``used``: kinds of drafters of the methods to come; raises UserError also for a drafter that is of none of them.
    ``compile_mode``: see ``graphs.of_mode``.
    """
    recorded = of_mode(compile_mode, device)
    target = replace(load_target(name, device, random_weights, dtype), graphs=recorded)
    if not drafter:
        return target
    target, kind = with_drafter(target, drafter, device, random_weights)
    if used is not None and kind not in used:
        raise UserError(
            f"'{drafter}' is a drafter of kind '{kind}', which no method of this run uses: choose one that does, see "
            "`lanternbench methods`"
        )
    return target
