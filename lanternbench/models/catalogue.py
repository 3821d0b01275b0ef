"""Targets by name: loading, with any drafter."""

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch

from lanternbench.errors import UserError, unknown
from lanternbench.models import footprint
from lanternbench.models.compiled import Inductor, of_mode
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.entries import (
    Entry,
    catalogue,
    entry,
    family,
    fingerprints,
    looks_like_path,
)
from lanternbench.models.family import Drafter, drafter_at
from lanternbench.models.footprint import ONE_IMAGE, Demand, Footprint
from lanternbench.models.grids import grid_of, written
from lanternbench.models.loading import dtype_for, dtype_named
from lanternbench.models.packing import packed
from lanternbench.models.places import WEIGHTS, contents, expected_tree
from lanternbench.models.target import Target
from lanternbench.registry import components, plugin_errors
from lanternbench.settings import ModelSpec
from lanternbench.utils.device import fit_threads, prepare_gpu
from lanternbench.utils.memory import memory_errors

_SIZE = r"(?:layers=[1-9]\d?|grid=[1-9]\d{0,2}(?:x[1-9]\d{0,2})?)"
_SIZED = re.compile(rf"(?P<name>[^=:]+):(?P<sizes>{_SIZE}(?:,{_SIZE})?)(?:=(?P<folder>.+))?")


def load_target(
    name: str, device: str = "cpu", random_weights: bool = False, dtype: str | None = None
) -> Target:
    """Return a target by catalogue name, NAME=FOLDER with its files, or a folder in the bundled
    target's format (``train tiny``).

    A folder of a catalogue name is ./NAME.  ``random_weights``: the architecture at full size,
    without any file; NAME:layers=N,grid=RxC has N layers and draws R rows of C tokens;
    NAME:grid=RxC reads weights too (``Entry.grids``).  ``dtype``: that of the weights, float32,
    bfloat16 or float16; by default float32 on a CPU and of the bundled target, else bfloat16, or
    float16 on a GPU without it.  Raises UserError for an unknown name or dtype and for weights
    that are missing or damaged.
    """
    target = load_unpacked(name, device, random_weights, dtype)
    fit_threads(target.model)
    return packed(target)


def load_unpacked(
    name: str, device: str = "cpu", random_weights: bool = False, dtype: str | None = None
) -> Target:
    """Return the target of ``load_target`` in layers that gradients pass through."""
    weights = None if dtype is None else dtype_named(dtype, device)
    if device.startswith("cuda"):
        prepare_gpu(device)
    row, folder = located(name, random_weights)
    with memory_errors(f"'{name}' was loaded on {device}"):
        loader = family(row.family)
        if folder is None:
            return loader.random_target(row, device, weights)
        with plugin_errors(loader):
            target = loader.load(row, folder, device, weights)
            return replace(target, weights=loader.fingerprints(row, folder))


def located(name: str, random_weights: bool) -> tuple[Entry, Path | None]:
    """Return the row of a target and the folder of its files, None for random weights.

    Raises UserError for an unknown name and for missing files.
    """
    if name not in catalogue():  # no folder shadows a name
        for kind in components("target"):
            itself = family(kind).reads(Path(name).expanduser())
            if itself is not None:
                return Entry(name=itself.name, family=kind, about=""), itself
    title, sizes, where = parts_of(name)
    row = entry(title)
    if sizes:
        row = resized(row, sizes, random_weights)
    if random_weights:
        return row, None
    loader = family(row.family)
    folder = existing(where, f"target '{title}'") if where else loader.home(row)
    needed = [role for role in loader.missing(row, folder) if role in loader.needs]
    if needed:
        raise UserError(_lacks(row, folder, needed, by_user=bool(where)))
    return row, folder


def check_memory(spec: ModelSpec, device: str, demand: Demand = ONE_IMAGE) -> None:
    """Raise UserError if the target, its drafters and its caches do not fit into free memory."""
    if device.startswith("cuda"):
        prepare_gpu(device)
    row, folder = located(spec.target, spec.random_weights)
    drafters = list(demand.drafters)
    if spec.drafter:
        drafters.append(spec.drafter)

    def need(dtype: torch.dtype) -> Footprint:
        of_target = footprint.of_target(row, folder, dtype, demand)
        extra = sum(_drafter_bytes(name, dtype) for name in drafters)
        return of_target._replace(weights=of_target.weights + extra)

    dtype = dtype_for(device) if spec.dtype is None else dtype_named(spec.dtype, device)
    what = " with ".join(f"'{name}'" for name in (spec.target, *drafters))
    footprint.refuse(what, need(dtype), need(torch.bfloat16), device, demand.batch)


def _drafter_bytes(spec: str, dtype: torch.dtype) -> int:
    """Return the bytes of a drafter's weights; 0 for one that is not found, which loading says."""
    title = spec.partition("=")[0]
    if title in catalogue():
        row = entry(title)
        return footprint.bytes_of([family(row.family).decoder(row, None, "meta", dtype)])
    path = Path(spec).expanduser()
    return footprint.bytes_of_drafter(path, dtype) if path.exists() else 0


def parts_of(name: str) -> tuple[str, str, str]:
    """Return the catalogue name, sizes and folder of NAME:SIZES=FOLDER, empty where absent."""
    sized = _SIZED.fullmatch(name)
    if sized:
        return sized["name"], sized["sizes"], sized["folder"] or ""
    title, _, where = name.partition("=")
    return title, "", where


def existing(path: str, what: str) -> Path:
    """Return a path of the user's, ``~`` expanded.  Raises UserError if it does not exist."""
    place = Path(path).expanduser()
    if not place.exists():
        reason = "is a link that leads nowhere" if place.is_symlink() else "does not exist"
        raise UserError(f"{place}, given for {what}, {reason}: correct the path")
    if place.is_file() and place.suffix not in WEIGHTS:
        raise UserError(
            f"{place}, given for {what}, is no file of weights: "
            f"give a folder, or a {', '.join(WEIGHTS)} file"
        )
    return place


def _lacks(row: Entry, place: Path, roles: list[str], by_user: bool) -> str:
    """Return the sentence on missing files of a target, with the expected tree for a folder of the
    user's.
    """
    found = row.locate(place)
    faults = [f"{role}: {found.faults[role]}" for role in roles if role in found.faults]
    details = f" ({'; '.join(faults)})" if faults else ""
    lacks = f"target '{row.name}' lacks its {' and '.join(roles)} in {place}{details}"
    fetch = f"`lanternbench fetch {row.name}` gets them ({row.gigabytes:g} GB)"
    if not by_user or not row.files:
        return f"{lacks}: {fetch}, and --random-weights measures speed without them"
    tree = expected_tree(row.files, found.place)
    return (
        f"{lacks}, which holds {contents(place)}: {fetch}; expected are\n{tree}\n"
        "or the repositories' files as they are"
    )


def resized(row: Entry, sizes: str, random_weights: bool) -> Entry:
    """Return a row with ``layers=N``, ``grid=RxC`` or both.

    Raises UserError for sizes without weights.
    """
    chosen = dict(part.split("=") for part in sizes.split(","))
    grids = [written(grid) for grid in row.grids]
    is_published = "layers" not in chosen and written(chosen["grid"]) in grids
    if not random_weights and not is_published:
        offered = f", or name one of its grids: {', '.join(row.grids)}" if row.grids else ""
        raise UserError(
            f"'{row.name}:{sizes}' has sizes without weights: add --random-weights{offered}"
        )
    shape = dict(row.shape)
    if "layers" in chosen:
        shape["n_layer"] = int(chosen["layers"])
    if "grid" in chosen:
        shape["grid"] = grid_of(chosen["grid"])
    return row.model_copy(update={"shape": shape, "about": f"{row.about}, {sizes}"})


def with_drafter(
    target: Target, spec: str, device: str = "cpu", random_weights: bool = False
) -> tuple[Target, str]:
    """Return ``target`` with this drafter, in its dtype, in place of any other of that kind; and
    the kind.

    ``spec``: a catalogue name, or NAME=FOLDER, whose decoder drafts as an independent ``model``;
    or a file or folder with an ``eagle`` or ``eagle-3`` drafter in LANTERN's layout, or a
    ``dflash`` drafter of ours, or FlashAR's branch.  Raises UserError for an unknown name and for weights that are
    missing, damaged or made for another target.
    """
    title, _, where = spec.partition("=")
    if title in catalogue():
        row = entry(title)
        folder = None if random_weights else _drafter_folder(row, where)
        decoder = family(row.family).decoder(row, folder, device, target.dtype)
        kind = "model"
        target = replace(target, drafters=target.drafters | {kind: decoder})
    elif looks_like_path(spec) or Path(spec).exists():
        folder = existing(spec, "the drafter")
        net = drafter_at(folder, target.model, device)
        kind = net.kind
        target = with_net(target, net)
    else:
        what = f"unknown drafter '{spec}', and no file or folder with an EAGLE, DFlash or FlashAR drafter"
        raise unknown(what, title, catalogue())
    found = {} if folder is None else fingerprints(folder)
    digests = {f"drafter.{part}": digest for part, digest in found.items()}
    return in_fast_layout(replace(target, weights=target.weights | digests)), kind


def in_fast_layout(target: Target) -> Target:
    """Pack the layers of ``target`` in place, unless they are compiled: a compiler knows no packed
    layers.
    """
    return target if isinstance(target.graphs, Inductor) else packed(target)


def _drafter_folder(row: Entry, where: str) -> Path:
    """Return the folder of an independent model that drafts.  Raises UserError without one."""
    loader = family(row.family)
    folder = existing(where, f"drafter '{row.name}'") if where else loader.home(row)
    if "model" in loader.missing(row, folder):
        raise UserError(
            f"drafter '{row.name}' lacks its model in {folder}: "
            f"`lanternbench fetch {row.name}` gets it"
        )
    return folder


def with_net(target: Target, net: Drafter) -> Target:
    """Return ``target`` with a drafter of the user's, and for an EAGLE drafter with the prefix
    states that it reads.
    """
    pads = target.eagle_pads if isinstance(net, Eagle) else target.pad_rows
    return replace(target, drafters=target.drafters | {net.kind: net}, pad_rows=pads)


def load_with_drafter(
    spec: ModelSpec,
    device: str = "cpu",
    used: Collection[str] | None = None,
    demand: Demand = ONE_IMAGE,
) -> Target:
    """Return the target of a specification with its drafter, if one is named.

    ``used``: the kinds of drafters of the methods to come.  Raises UserError also for a drafter of
    another kind, and before anything is loaded if it will not fit into memory.
    """
    graphs = of_mode(spec.compile, device)
    check_memory(spec, device, demand)
    target = load_unpacked(spec.target, device, spec.random_weights, spec.dtype)
    fit_threads(target.model)
    target = in_fast_layout(replace(target, graphs=graphs))
    if not spec.drafter:
        return target
    target, kind = with_drafter(target, spec.drafter, device, spec.random_weights)
    if used is not None and kind not in used:
        raise UserError(
            f"'{spec.drafter}' is a drafter of kind '{kind}', which no method of this run uses:"
            f" choose one that does, see `lanternbench methods`, or give --proposal {kind}"
        )
    return target
