"""``targets``: every target, and whether it is here; ``targets NAME``: a page on one.  Nothing here needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanternbench.cli import options
from lanternbench.cli.output import print_json, print_page, print_rows
from lanternbench.models.grids import size, written

if TYPE_CHECKING:
    from lanternbench.models.entries import Entry

DRAFTERS = ("eagle", "eagle-3", "dflash", "model", "medusa")  # proposals that need one, called alike
GIVEN = DRAFTERS[:4]  # which --drafter takes
EMBEDDED = ("eagle", "eagle-3", "model", "medusa")  # that come with the embedded target
SHAPE = {"dim": "wide", "n_layer": "layers", "n_head": "heads", "hidden": "wide in the MLP"}


def targets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A page on this target.")] = None,
    as_json: options.AsRows = False,
) -> None:
    """List the targets, and which of them are here; or all of one target.

    Example: lanternbench targets anole-7b
    """
    from lanternbench.models.entries import catalogue, entry

    if name is None:
        rows = [_row(row) for row in catalogue().values()]
        print_rows(rows, as_json, "target family here size grid licence about")
    elif as_json:
        print_json(_row(entry(name)) | {"page": _about(entry(name))})
    else:
        print_page(f"{name}: {entry(name).about}", _about(entry(name)))


def _row(entry: Entry) -> dict[str, Any]:
    from lanternbench.models.entries import missing

    absent, size = missing(entry), f"{entry.gigabytes:g} GB" if entry.files else "in the package"
    state = "yes" if not absent else "no" if len(absent) == len(entry.files) else f"lacks {', '.join(absent)}"
    row = {"target": entry.name, "family": entry.family, "here": state, "size": size}
    row["grid"] = " + ".join(map(written, entry.all_grids)) or "–"
    return row | {"licence": entry.licence, "about": entry.about}


def _about(entry: Entry) -> dict[str, str]:
    """What a page says, by title."""
    from lanternbench.methods.defaults import of_target, table
    from lanternbench.models.entries import missing

    grids, absent, said = entry.all_grids, missing(entry), of_target(entry.name)
    usual = {"guidance": f"{entry.guidance:g}", "top_k": str(entry.top_k or "off")}
    sources = {k: f"{v} ({said[k].source})" if k in said else v for k, v in usual.items()}
    files = [
        f"{role}: {source.repo}, {', '.join(source.files)} ({'not here' if role in absent else 'here'})"
        for role, source in entry.files.items()
    ]
    get = f"lanternbench fetch {entry.name}, {entry.gigabytes:g} GB; with --dry-run it lists each file's size"
    drafters = [kind for kind in DRAFTERS if kind in entry.files and kind != "model"] if entry.files else list(EMBEDDED)
    works, more, never = _methods(drafters)
    trees = [f"{row.method} {row.option} {row.default.strip('`')}" for row in table() if _on(row.target, entry.name)]
    shape = ", ".join(f"{entry.shape[key]} {words}" for key, words in SHAPE.items() if key in entry.shape)
    return {
        "shape": shape or "in the files of the model",
        "tokens": f"{sum(map(size, grids)):,} an image, {_row(entry)['grid']}" if grids else "as its files say",
        "other grids": ", ".join(f"--target {entry.name}:grid={grid}" for grid in entry.grids) or "none is published",
        "guidance (CFG)": sources["guidance"],
        "top-k": sources["top_k"],
        "licence": entry.licence,
        "files": "; ".join(files) or "in the package",
        "get them": get if entry.files else "they come with the package",
        "drafters": ", ".join(drafters) or "none is published: --drafter takes one, `train drafter` makes one",
        "its defaults": "; ".join(trees) or "those of `lanternbench methods NAME`",
        "methods": works,
        "with --drafter": more or "–",
        "not": never or "–",
        "example": f"lanternbench run --target {entry.name} --method eagle-1{'' if drafters else ' --drafter FOLDER'}",
    }


def _on(pattern: str, name: str) -> bool:
    from fnmatch import fnmatch

    return bool(pattern) and fnmatch(name, pattern)


def _methods(drafters: list[str]) -> list[str]:
    """The methods that work as it is, those that need a drafter of the user's, and those that cannot get one."""
    from lanternbench.registry import components

    presets = {name: preset.choices.proposal for name, preset in components("preset").items()}
    ready = {name for name, kind in presets.items() if kind not in DRAFTERS or kind in drafters}
    given = {name for name, kind in presets.items() if kind in GIVEN} - ready
    groups = ready, given, presets.keys() - ready - given
    return [", ".join(name for name in presets if name in group) for group in groups]
