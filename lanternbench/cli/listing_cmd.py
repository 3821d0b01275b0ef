"""``methods``, ``metrics``, ``targets``, ``prompts``, ``runs``: lists, and a page on one entry;
without torch.
"""

import inspect
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.console import Console
from rich.filesize import decimal
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
from lanternbench.registry import components
from lanternbench.settings import Caption, PromptSpec

if TYPE_CHECKING:
    from lanternbench.metrics.files import Weights
    from lanternbench.metrics.metric import Metric

METHOD_COLUMNS = "method proposal tree acceptance residual order lossless paper"
WIDEST = {"bounds": 13, "default": 15, "source": 16}  # columns of a method's page
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
PREVIEWED = 8  # prompts of a source
BETTER = {True: "higher", False: "lower", None: "neither"}
GIVEN = (*FILED, "model")  # kinds of drafter that --drafter takes
SHAPE = {"dim": "wide", "n_layer": "layers", "n_head": "heads", "hidden": "wide in the MLP"}


def methods(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Describe this method.")] = None,
    target: Annotated[
        str | None, Option(help="Show the defaults on this target, and their sources.")
    ] = None,
    as_json: options.AsRows = False,
) -> None:
    """List every method: its five components, whether it is lossless, and its paper.

    With a NAME: everything about that method.

    Example: lanternbench methods lantern++
    """
    if name is not None and as_json:
        rows = option_rows(named(name), preset(name), target)
        print_json(_method_row(name, preset(name)) | {"about": rows})
    elif name is not None:
        _method_page(name, target)
    elif target is not None:
        raise UserError(
            "--target is for the page of one method: name it, as in `lanternbench methods eagle-1`"
        )
    else:
        row_of = _method_row if as_json else _listed
        listed = [row_of(*item) for item in components("preset").items()]
        print_rows(listed, as_json, METHOD_COLUMNS)


def _listed(name: str, preset: Preset) -> dict[str, object]:
    """Return a row of the list, for which the components of most methods are not imported."""
    lossless = preset.lossless
    if lossless is None:
        lossless = named(name).lossless
    number = preset.paper.rpartition(" ")[2] or "–"  # in arXiv
    return {"method": name, **preset.choices._asdict(), "lossless": lossless, "paper": number}


def _method_row(name: str, preset: Preset) -> dict[str, object]:
    method = named(name)
    return _listed(name, preset) | {
        "lossless": method.lossless,
        "paper": preset.paper or "–",
        "options": {key: x for key, x in sorted(method.read.items()) if x is not None},
    }


def option_rows(method: Method, preset: Preset, target: str | None = None) -> list[dict[str, str]]:
    """Return a row for each option that a method reads: flag, symbol, default (on ``target``), the
    default's source, bounds and meaning.
    """
    of_target: Mapping[str, object] = {}
    if target:
        of_target = family(entry(target).family).options(entry(target))
        method = method.resolve(of_target)
    fields = fields_of(method.parts)
    rows = []
    for name, value in method.read.items():
        field = fields[name]
        key = flag(name)
        default, source = _default(name, value, field, preset, of_target)
        if target:
            published = defaults.default_of(method.preset, preset.choices, key, target)
            if published and published.equals(default):
                default = published.default.strip("`")
                source = published.source.replace("`", "")
        rows.append(
            {
                "option": f"--{key.replace('_', '-')}",
                "symbol": symbol(fields, name),
                "default": default,
                "source": source,
                "bounds": _bounds(field),
                "meaning": field.description or "",
            }
        )
    return rows


def _default(
    name: str, value: object, field: FieldInfo, preset: Preset, of_target: Mapping[str, object]
) -> tuple[str, str]:
    """Return an option's default value and what sets it; an option without a value is off."""
    text = f"{value[0]} to {value[1]}" if isinstance(value, tuple) else str(value)
    if name in preset.options or field.default is not None:
        source = "preset" if name in preset.options else "component"
        return ("–" if value is None else text), source
    if value:
        return text, "target" if of_target else "component"
    asks_target = "the target's" in (field.description or "")
    return "–", "target" if asks_target and not of_target else "–"


def _bounds(field: FieldInfo) -> str:
    """Return the limits of an option, or its choices."""
    limits = []
    for rule in field.metadata:
        for kind, sign in SIGNS.items():
            if hasattr(rule, kind):
                limits.append(f"{sign} {getattr(rule, kind)}")
    if not limits and get_origin(field.annotation) is Literal:
        limits = [str(choice) for choice in get_args(field.annotation)]
    return ", ".join(limits)


def _method_page(name: str, target: str | None) -> None:
    method = named(name)
    described = preset(name)
    choices = described.choices._asdict()
    console = Console(width=PAGE, highlight=False, markup=False)
    lossless = "lossless" if method.lossless else "not lossless"
    console.print(f"{name}: {lossless}; {described.paper or 'no paper'}")
    console.print(", ".join(f"{kind} {choice}" for kind, choice in choices.items()))
    if target:
        console.print(f"defaults on {target}; its own are on `lanternbench targets {target}`:")
    rows = option_rows(method, described, target)
    titles = ("option", "symbol", "default", "source" if target else "of the", "bounds", "meaning")
    example = ""
    cells = []
    for row in rows:
        if not example and row["default"] != "–" and row["option"] != "--variant":
            example = f" {row['option']} {row['default']}"
        is_name = row["symbol"] == row["option"][2:].replace("-", "_")
        cells.append((row | {"symbol": ""} if is_name else row).values())
    console.print(table_of(titles, cells, titles, titles[:1], WIDEST))
    console.print(f"Example: lanternbench run --method {name}{example}")


def metrics(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Describe this metric.")] = None,
    as_json: options.AsRows = False,
) -> None:
    """List every metric of images, and whether its files are downloaded.

    With a NAME: everything about that metric.

    Example: lanternbench metrics pickscore
    """
    from lanternbench.metrics import metric_class

    if name is None:
        rows = [_metric_row(one, kind) for one, kind in components("metric").items()]
        print_rows(rows, as_json, "metric column better of downloaded size")
        return
    kind = metric_class(name)
    page = _metric_page(name, kind)
    if as_json:
        print_json(_metric_row(name, kind) | {"about": page})
    else:
        print_page(f"{name}: {kind.title or name}", page)


def _metric_row(name: str, kind: "type[Metric]") -> dict[str, object]:
    from lanternbench.metrics.metric import ImageMetric

    present = "yes" if all(weights.find() for weights in kind.weights) else "no"
    return {
        "metric": name,
        "column": ", ".join(column.title for column in kind.columns(name)),
        "better": BETTER[kind.higher_is_better],
        "of": "an image" if issubclass(kind, ImageMetric) else "a set",
        "downloaded": "–" if ":" in name else present,
        "size": _size(kind, *kind.weights),
    }


def _size(kind: "type[Metric]", *weights: "Weights") -> str:
    if kind.embedded:
        return "in the package"
    gigabytes = sum(one.gigabytes for one in weights)
    return decimal(round(gigabytes * 1e9)) if gigabytes else "–"


def _metric_page(name: str, kind: "type[Metric]") -> dict[str, str]:
    """Return the texts of a page, by title."""
    from lanternbench.metrics.metric import ImageMetric

    measures = (inspect.getdoc(sys.modules[kind.__module__]) or "").partition("\n\n")[0]
    if kind.__doc__:
        description = kind.__doc__.partition(" Raises ")[0]
        measures = " ".join(f"{measures} This one: {description}".replace("``", "`").split())
    reads = "an image" if issubclass(kind, ImageMetric) else "a set of images"
    if getattr(kind, "captions", False):
        reads += " and its caption"
    if kind.compares:
        reads += ", compared with the real images of --reference"
    files = []
    for weights in kind.weights:
        state = "downloaded" if weights.find() else "not downloaded"
        files.append(f"{weights.title} ({_size(kind, weights)}, {state})")
    no_files = "none"
    fetch = "it needs none"
    if kind.embedded:
        fetch = "comes with the package"
    elif kind.weights or ":" in name:
        fetch = f"lanternbench fetch {name}"
        no_files = "named by the metric"
    by_hand = [f"save {w.url} as {w.folder / w.file}" for w in kind.weights if w.url]
    computed = "by default on tiny" if kind.embedded else "by default"
    reference = " --reference FOLDER" if kind.compares else ""
    return {
        "measures": measures,
        "value of": reads,
        "better": BETTER[kind.higher_is_better],
        "columns": ", ".join(f"{column.title} ({column.key})" for column in kind.columns(name)),
        "network, files": "; ".join(files) or no_files,
        "get them": fetch,
        "by hand": "; ".join(by_hand) or "–",
        "computed": "if --metrics names it" if kind.extra else computed,
        "on tiny": f"{kind.stand_in} in its place" if kind.stand_in else "the same",
        "citation": kind.paper or "none",
        "example": f"lanternbench score --metrics {name}{reference}",
    }


def targets(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Describe this target.")] = None,
    as_json: options.AsRows = False,
) -> None:
    """List the targets, and whether their files are downloaded.

    With a NAME: everything about that target.

    Example: lanternbench targets anole-7b
    """
    if name is None:
        rows = [_target_row(row) for row in catalogue().values()]
        print_rows(rows, as_json, "target family downloaded size grid licence about")
    elif as_json:
        print_json(_target_row(entry(name)) | {"page": _target_page(entry(name))})
    else:
        print_page(f"{name}: {entry(name).about}", _target_page(entry(name)))


def _target_row(row: Entry) -> dict[str, object]:
    absent = lacking(row)
    if not absent:
        state = "yes"
    elif absent == ", ".join(row.files):
        state = "no"
    else:
        state = f"lacks {absent}"
    return {
        "target": row.name,
        "family": row.family,
        "downloaded": state,
        "size": f"{row.gigabytes:g} GB" if row.files else "in the package",
        "grid": " + ".join(map(written, row.all_grids)) or "–",
        "licence": row.licence,
        "gate": row.gate,
        "about": row.about,
    }


def _target_page(target: Entry) -> dict[str, str]:
    """Return the texts of a page, by title."""
    name = target.name
    grids = target.all_grids
    tokens = "as its files say"
    if grids:
        tokens = f"{sum(map(size, grids)):,} an image, {_target_row(target)['grid']}"
    shape = [f"{target.shape[key]} {unit}" for key, unit in SHAPE.items() if key in target.shape]
    other_grids = [f"--target {name}:grid={grid}" for grid in target.grids]
    fetch = f"lanternbench fetch {name}, {target.gigabytes:g} GB; --dry-run lists each file"
    drafters = _drafters(target)
    no_drafter = "none is published: --drafter takes one, `train drafter` makes one"
    works, with_option, never = _methods(drafters)
    example = f"lanternbench run --target {name} --method eagle-1"
    return {
        "shape": ", ".join(shape) or "in the files of the model",
        "tokens": tokens,
        "other grids": ", ".join(other_grids) or "none is published",
        "guidance (CFG)": _sourced(name, "guidance", f"{target.guidance:g}"),
        "top-k": _sourced(name, "top_k", str(target.top_k or "off")),
        "licence": target.licence,
        "gate": target.gate,
        "files": "; ".join(_files(target)) or "in the package",
        "get them": fetch if target.files else "they come with the package",
        "drafters": ", ".join(drafters) or no_drafter,
        "its defaults": "; ".join(_own_defaults(name)) or "those of `lanternbench methods NAME`",
        "methods": works,
        "with --drafter": with_option or "–",
        "not": never or "–",
        "example": example if drafters else f"{example} --drafter FOLDER",
    }


def _drafters(target: Entry) -> list[str]:
    """Return the kinds of drafter that are published for a target, or come with the package."""
    if target.files:
        return [kind for kind in FILED if kind in target.files]
    return [kind.name for kind in KINDS.values() if kind.is_bundled]


def _sourced(target: str, option: str, value: str) -> str:
    """Return a target's value of an option, with its source."""
    published = defaults.of_target(target).get(option)
    return f"{value} ({published.source})" if published else value


def _own_defaults(target: str) -> list[str]:
    """Return the options of methods that have another default on this target."""
    return [
        f"{row.method} {row.option} {row.default.strip('`')}"
        for row in defaults.table()
        if row.target and fnmatch(target, row.target)
    ]


def _files(target: Entry) -> list[str]:
    """Return where the files of each role are published, and where they lie."""
    found = target.locate(target.folder)
    absent = missing(target)
    texts = []
    for role, source in target.files.items():
        path = found.paths.get(role, target.folder)
        if role in absent:
            state = found.faults.get(role, "not downloaded")
        elif path.is_relative_to(target.folder):
            state = "downloaded"
        else:
            state = f"in {path}"
        texts.append(f"{role}: {source.repo}, {', '.join(source.files)} ({state})")
    return texts


def _methods(drafters: list[str]) -> tuple[str, str, str]:
    """Return the methods that work without --drafter, those that need it, and those that cannot
    use one.
    """
    ready: list[str] = []
    with_drafter: list[str] = []
    never: list[str] = []
    for name, listed in components("preset").items():
        kind = listed.choices.proposal
        if kind not in KINDS or kind in drafters:
            ready.append(name)
        elif kind in GIVEN:
            with_drafter.append(name)
        else:
            never.append(name)
    return ", ".join(ready), ", ".join(with_drafter), ", ".join(never)


def prompts(
    seed: Annotated[int, From(PromptSpec)],
    caption: Annotated[Caption, From(PromptSpec)],
    spec: Annotated[
        str, Argument(help="demo, coco2017:FILE, parti:FILE, or a text file.")
    ] = "demo",
    num_prompts: Annotated[
        int | None, Option("--num-prompts", "-n", help="How many; 0 for all (default: up to 8).")
    ] = None,
    as_json: options.AsRows = False,
) -> None:
    """Show the prompts of a source, check it, and print the hash that identifies the selection.

    Example: lanternbench prompts demo -n 4
    """
    from lanternbench import prompts as sets

    every = sets.load(spec, None, seed, caption)
    count = min(PREVIEWED, len(every)) if num_prompts is None else num_prompts
    selected = sets.load(spec, count or None, seed, caption)
    rows = [{"id": p.id, "category": p.category or "", "prompt": p.text} for p in selected]
    if as_json:
        print_json(selected.record() | {"prompts": rows})
    else:
        print_rows(rows, False, "id category prompt")
        print_notes(selected.notes)
        of = f"of {len(every)} " if len(selected) < len(every) else ""
        print(f"{len(selected)} {of}prompts, selection {selected.hash[:16]}")


def runs(results: options.Results = Path("results"), as_json: options.AsRows = False) -> None:
    """List the runs in the results folder, newest first.

    Unfinished runs are marked, and so are those whose timing was noisy.

    Example: lanternbench runs
    """
    from lanternbench.experiment.run_folder import listing

    found = listing(results)
    if as_json:
        print_json(found)
        return
    rows = []
    for run in found:
        finished = run.finished or f"{run.samples} of {run.of}"
        rows.append(run._asdict() | {"date": run.date[:10], "finished": finished})
    print_rows(rows, False, "name date target prompts methods finished disturbed")
