"""``methods``, ``metrics``, ``targets``, ``prompts``, ``runs``: what there is, or a page on one;
without torch.
"""

import inspect
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_origin

from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.options import From
from lanternbench.cli.output import PAGE, print_json, print_notes, print_page, print_rows, table_of
from lanternbench.errors import UserError
from lanternbench.methods import defaults
from lanternbench.methods.method import Method, fields_of, flag, named, preset, symbol
from lanternbench.methods.presets import Preset
from lanternbench.models.drafters.kinds import FILED, KINDS
from lanternbench.models.entries import Entry, catalogue, entry, family, lacking, missing
from lanternbench.models.grids import size, written
from lanternbench.models.places import Files
from lanternbench.registry import components
from lanternbench.settings import PromptSpec

if TYPE_CHECKING:
    from lanternbench.metrics.metric import Metric

WIDEST = {"bounds": 13, "default": 15, "source": 16}  # columns of a method's page
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
BETTER = {True: "higher", False: "lower", None: "neither"}
GIVEN = (*FILED, "model")  # kinds of drafter that --drafter takes
SHAPE = {"dim": "wide", "n_layer": "layers", "n_head": "heads", "hidden": "wide in the MLP"}


def methods(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="A page on this method.")] = None,
    target: Annotated[
        str | None, Option(help="Show the defaults on this target, and their sources.")
    ] = None,
    as_json: options.AsRows = False,
) -> None:
    """List every method: its five choices, whether it is lossless, and its paper; or all of one
    method.

    Example: lanternbench methods lantern++
    """
    presets = components("preset")
    if name is not None and as_json:
        print_json(
            _method_row(name, preset(name))
            | {"about": option_rows(named(name), preset(name), target)}
        )
    elif name is not None:
        _method_page(name, preset(name), named(name), target)
    elif target is not None:
        raise UserError(
            "--target is for the page of one method: name it, as in `lanternbench methods eagle-1`"
        )
    elif as_json:
        print_json([_method_row(*item) for item in presets.items()])
    else:
        rows: list[dict[str, Any]] = []
        for title, listed in presets.items():
            lossless = named(title).lossless if listed.lossless is None else listed.lossless
            number = listed.paper.rpartition(" ")[2] or "–"  # in arXiv
            rows.append(
                {
                    "method": title,
                    **listed.choices._asdict(),
                    "lossless": lossless,
                    "paper": number,
                }
            )
        print_rows(rows, False, "method proposal tree acceptance residual order lossless paper")


def _method_row(name: str, preset: Preset) -> dict[str, Any]:
    row = {
        "method": name,
        **preset.choices._asdict(),
        "lossless": named(name).lossless,
        "paper": preset.paper or "–",
    }
    return row | {"options": {f: v for f, v in sorted(named(name).read.items()) if v is not None}}


def option_rows(method: Method, preset: Preset, target: str | None = None) -> list[dict[str, str]]:
    """Each option that a method reads: flag, symbol, default (on ``target``), the default's
    source, bounds, meaning.
    """
    of_target = family(entry(target).family).options(entry(target)) if target else {}
    fields, rows = fields_of(method.parts), []
    for name, value in (method.resolve(of_target) if target else method).read.items():
        rules = [
            (sign, getattr(rule, kind, None))
            for rule in fields[name].metadata
            for kind, sign in SIGNS.items()
        ]
        limits = ", ".join(f"{sign} {bound}" for sign, bound in rules if bound is not None)
        choices = (
            get_args(fields[name].annotation)
            if get_origin(fields[name].annotation) is Literal
            else ()
        )
        meaning = fields[name].description or ""
        open_ = fields[name].default is None and name not in preset.options
        text = f"{value[0]} to {value[1]}" if isinstance(value, tuple) else str(value)
        # an option without a value is off
        default = "–" if value is None or (open_ and not value) else text
        source = (
            "preset"
            if name in preset.options
            else "target"
            if open_ and of_target
            else "component"
        )
        if open_ and default == "–":
            source = "target" if "the target's" in meaning and not target else "–"
        stated = (
            defaults.default_of(method.preset, preset.choices, flag(name), target)
            if target
            else None
        )
        if stated and stated.equals(default):
            default, source = stated.default.strip("`"), stated.source.replace("`", "")
        row = {"option": f"--{flag(name).replace('_', '-')}", "symbol": symbol(fields, name)}
        row |= {"default": default, "source": source}
        rows.append(row | {"bounds": limits or ", ".join(map(str, choices)), "meaning": meaning})
    return rows


def _method_page(name: str, preset: Preset, method: Method, target: str | None) -> None:
    console, rows = Console(width=PAGE, highlight=False), option_rows(method, preset, target)
    titles = ("option", "symbol", "default", "source" if target else "of the", "bounds", "meaning")
    for row in rows:
        row |= {"symbol": ""} if row["symbol"] == row["option"][2:].replace("-", "_") else {}
    console.print(
        Text(f"{name}: {'' if method.lossless else 'not '}lossless; {preset.paper or 'no paper'}")
    )
    console.print(
        Text(", ".join(f"{kind} {choice}" for kind, choice in preset.choices._asdict().items()))
    )
    if target:
        console.print(
            Text(f"defaults on {target}, whose own are on `lanternbench targets {target}`:")
        )
    console.print(table_of(titles, (row.values() for row in rows), titles, titles[:1], WIDEST))
    first = next(
        (row for row in rows if row["default"] != "–" and row["option"] != "--variant"), None
    )
    extra = f" {first['option']} {first['default']}" if first else ""
    console.print(Text(f"Example: lanternbench run --method {name}{extra}"))


def metrics(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="A page on this metric.")] = None,
    as_json: options.AsRows = False,
) -> None:
    """List every metric of images, and whether its files are here; or all of one metric.

    Example: lanternbench metrics pickscore
    """
    from lanternbench.metrics import metric_class

    if name is None:
        rows = [_metric_row(one, kind) for one, kind in components("metric").items()]
        print_rows(rows, as_json, "metric column better of here size")
    elif as_json:
        print_json(
            _metric_row(name, metric_class(name))
            | {"about": _metric_page(name, metric_class(name))}
        )
    else:
        print_page(
            f"{name}: {metric_class(name).title or name}", _metric_page(name, metric_class(name))
        )


def _metric_row(name: str, kind: "type[Metric]") -> dict[str, Any]:
    from lanternbench.metrics.metric import ImageMetric

    row = {"metric": name, "column": ", ".join(c.title for c in kind.columns(name))}
    row |= {
        "better": BETTER[kind.higher_is_better],
        "of": "an image" if issubclass(kind, ImageMetric) else "a set",
    }
    present = "yes" if all(w.find() for w in kind.weights) else "no"
    return row | {
        "here": "–" if ":" in name else present,
        "size": _size(sum(w.gigabytes for w in kind.weights), kind),
    }


def _size(gigabytes: float, kind: "type[Metric]") -> str:
    if kind.embedded:
        return "in the package"
    return (
        f"{gigabytes:.2g} GB"
        if gigabytes >= 0.001
        else f"{gigabytes * 1e3:.2g} MB"
        if gigabytes
        else "–"
    )


def _metric_page(name: str, kind: "type[Metric]") -> dict[str, str]:
    """The texts of a page, by title."""
    from lanternbench.metrics.metric import ImageMetric

    module = (inspect.getdoc(sys.modules[kind.__module__]) or "").partition("\n\n")[0]
    description = (kind.__doc__ or "").partition(" Raises ")[0]
    reads = "an image" if issubclass(kind, ImageMetric) else "a set of images"
    reads += " and its caption" if getattr(kind, "captions", False) else ""
    files = []
    for weights in kind.weights:
        state = "downloaded" if weights.find() else "not downloaded"
        files.append(f"{weights.title} ({_size(weights.gigabytes, kind)}, {state})")
    by_hand = [f"save {w.url} as {w.folder / w.file}" for w in kind.weights if w.url]
    fetch = "comes with the package" if kind.embedded else f"lanternbench fetch {name}"
    return {
        "measures": " ".join(f"{module} This one: {description}".replace("``", "`").split())
        if description
        else module,
        "value of": reads + (", against the real images of --reference" if kind.compares else ""),
        "better": BETTER[kind.higher_is_better],
        "columns": ", ".join(f"{c.title} ({c.key})" for c in kind.columns(name)),
        "backbone, files": "; ".join(files) or "as the name says",
        "get them": fetch if kind.weights or ":" in name else "it needs none",
        "by hand": "; ".join(by_hand) or "–",
        "computed": "where --metrics names it"
        if kind.extra
        else f"by default{' on tiny' if kind.embedded else ''}",
        "on tiny": f"{kind.stand_in} in its place" if kind.stand_in else "the same",
        "citation": kind.paper or "none",
        "example": f"lanternbench score --metrics {name}{' --reference FOLDER' if kind.compares else ''}",
    }


def targets(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="A page on this target.")] = None,
    as_json: options.AsRows = False,
) -> None:
    """List the targets, and which of them are here; or all of one target.

    Example: lanternbench targets anole-7b
    """
    if name is None:
        rows = [_target_row(row) for row in catalogue().values()]
        print_rows(rows, as_json, "target family here size grid licence about")
    elif as_json:
        print_json(_target_row(entry(name)) | {"page": _target_page(entry(name))})
    else:
        print_page(f"{name}: {entry(name).about}", _target_page(entry(name)))


def _target_row(row: Entry) -> dict[str, Any]:
    absent = lacking(row)
    if not absent:
        state = "yes"
    elif absent == ", ".join(row.files):
        state = "no"
    else:
        state = f"lacks {absent}"
    size = f"{row.gigabytes:g} GB" if row.files else "in the package"
    about = {"target": row.name, "family": row.family, "here": state, "size": size}
    return about | {
        "grid": " + ".join(map(written, row.all_grids)) or "–",
        "licence": row.licence,
        "about": row.about,
    }


def _target_page(target: Entry) -> dict[str, str]:
    """The texts of a page, by title."""
    grids = target.all_grids
    published = defaults.of_target(target.name)
    usual = {"guidance": f"{target.guidance:g}", "top_k": str(target.top_k or "off")}
    sources = {
        k: f"{v} ({published[k].source})" if k in published else v for k, v in usual.items()
    }
    found = target.locate(target.folder)
    absent = missing(target)
    here = {role: _where(target, found, role, absent) for role in target.files}
    files = [
        f"{role}: {s.repo}, {', '.join(s.files)} ({here[role]})"
        for role, s in target.files.items()
    ]
    get = f"lanternbench fetch {target.name}, {target.gigabytes:g} GB; with --dry-run it lists each file's size"
    drafters = [kind for kind in FILED if kind in target.files]
    if not target.files:
        drafters = [kind.name for kind in KINDS.values() if kind.is_bundled]
    works, more, never = _methods(drafters)
    rows = (row for row in defaults.table() if row.target and fnmatch(target.name, row.target))
    trees = [f"{row.method} {row.option} {row.default.strip('`')}" for row in rows]
    shape = ", ".join(
        f"{target.shape[key]} {unit}" for key, unit in SHAPE.items() if key in target.shape
    )
    return {
        "shape": shape or "in the files of the model",
        "tokens": f"{sum(map(size, grids)):,} an image, {_target_row(target)['grid']}"
        if grids
        else "as its files say",
        "other grids": ", ".join(f"--target {target.name}:grid={grid}" for grid in target.grids)
        or "none is published",
        "guidance (CFG)": sources["guidance"],
        "top-k": sources["top_k"],
        "licence": target.licence,
        "files": "; ".join(files) or "in the package",
        "get them": get if target.files else "they come with the package",
        "drafters": ", ".join(drafters)
        or "none is published: --drafter takes one, `train drafter` makes one",
        "its defaults": "; ".join(trees) or "those of `lanternbench methods NAME`",
        "methods": works,
        "with --drafter": more or "–",
        "not": never or "–",
        "example": f"lanternbench run --target {target.name} --method eagle-1{'' if drafters else ' --drafter FOLDER'}",
    }


def _where(target: Entry, found: Files, role: str, absent: list[str]) -> str:
    """Return where the files of a role lie, or why they cannot be used."""
    if role in absent:
        return found.faults.get(role, "not downloaded")
    path = found.paths.get(role, target.folder)
    return "downloaded" if path.is_relative_to(target.folder) else f"in {path}"


def _methods(drafters: list[str]) -> list[str]:
    """The methods that work without --drafter, those that need it, and those that cannot use one."""
    presets = {name: preset.choices.proposal for name, preset in components("preset").items()}
    ready = {name for name, kind in presets.items() if kind not in KINDS or kind in drafters}
    with_drafter = {name for name, kind in presets.items() if kind in GIVEN} - ready
    groups = ready, with_drafter, presets.keys() - ready - with_drafter
    return [", ".join(name for name in presets if name in group) for group in groups]


def prompts(
    seed: Annotated[int, From(PromptSpec)],
    spec: Annotated[
        str, Argument(help="demo, coco2017:FILE, parti:FILE, or a text file.")
    ] = "demo",
    num_prompts: Annotated[int, Option("--num-prompts", "-n", help="How many; 0 for all.")] = 8,
    caption: str = "first",
    as_json: options.AsRows = False,
) -> None:
    """Preview and validate a prompt source; prints the hash that identifies the selection.

    Example: lanternbench prompts demo -n 4
    """
    from lanternbench import prompts as sets

    selected = sets.load(spec, num_prompts or None, seed, cast(Any, caption))
    rows = [{"id": p.id, "category": p.category or "", "prompt": p.text} for p in selected]
    if as_json:
        print_json(selected.record() | {"prompts": rows})
    else:
        print_rows(rows, False, "id category prompt")
        print_notes(selected.notes)
        print(f"{len(selected)} prompts, selection {selected.hash[:16]}")


def runs(results: options.Results = Path("results"), as_json: options.AsRows = False) -> None:
    """List the runs in the results folder, newest first: are they finished, and was their clock
    disturbed?

    Example: lanternbench runs
    """
    from lanternbench.experiment.run_folder import listing

    rows = listing(results)
    for row in () if as_json else rows:
        row["date"] = row["date"][:10]
        row["finished"] = row["finished"] or f"{row['samples']} of {row['of']}"
    print_rows(rows, as_json, "name date target prompts methods finished disturbed")
