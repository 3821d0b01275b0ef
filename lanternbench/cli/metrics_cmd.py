"""``metrics``: every metric of images; ``metrics NAME``: a page on one.  Nothing here needs torch."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanternbench.cli import options
from lanternbench.cli.output import print_json, print_page, print_rows

if TYPE_CHECKING:
    from lanternbench.metrics.metric import Metric

BETTER = {True: "higher", False: "lower", None: "neither"}


def metrics(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A page on this metric.")] = None,
    as_json: options.AsRows = False,
) -> None:
    """List every metric of images, and whether its files are here; or all of one metric.

    Example: lanternbench metrics pickscore
    """
    from lanternbench.metrics.choice import metric_class
    from lanternbench.registry import components

    if name is None:
        print_rows(
            [_row(one, kind) for one, kind in components("metric").items()],
            as_json,
            "metric column better of here size",
        )
        return
    kind = metric_class(name)
    if as_json:
        print_json(_row(name, kind) | {"about": _about(name, kind)})
    else:
        print_page(f"{name}: {kind.title or name}", _about(name, kind))


def _row(name: str, kind: type[Metric]) -> dict[str, Any]:
    from lanternbench.metrics.metric import ImageMetric

    row = {"metric": name, "column": ", ".join(c.title for c in kind.columns(name))}
    row |= {"better": BETTER[kind.higher_is_better], "of": "an image" if issubclass(kind, ImageMetric) else "a set"}
    here = "yes" if all(w.find() for w in kind.weights) else "no"
    return row | {"here": "–" if ":" in name else here, "size": _size(sum(w.gigabytes for w in kind.weights), kind)}


def _size(gigabytes: float, kind: type[Metric]) -> str:
    if kind.embedded:
        return "in the package"
    return f"{gigabytes:.2g} GB" if gigabytes >= 0.001 else f"{gigabytes * 1e3:.2g} MB" if gigabytes else "–"


def _about(name: str, kind: type[Metric]) -> dict[str, str]:
    """What a page says, by title."""
    from lanternbench.metrics.metric import ImageMetric

    module = (inspect.getdoc(sys.modules[kind.__module__]) or "").partition("\n\n")[0]
    own = (kind.__doc__ or "").partition(" Raises ")[0]
    reads = "an image" if issubclass(kind, ImageMetric) else "a set of images"
    reads += " and its caption" if getattr(kind, "captions", False) else ""
    files = [f"{w.title} ({_size(w.gigabytes, kind)}, {'here' if w.find() else 'not here'})" for w in kind.weights]
    fetch = "comes with the package" if kind.embedded else f"lanternbench fetch {name}"
    real = " --reference FOLDER" if kind.compares else ""
    return {
        "measures": " ".join(f"{module} This one: {own}".replace("``", "`").split()) if own else module,
        "value of": reads + (", against the real images of --reference" if kind.compares else ""),
        "better": BETTER[kind.higher_is_better],
        "columns": ", ".join(f"{c.title} ({c.key})" for c in kind.columns(name)),
        "backbone, files": "; ".join(files) or "as the name says",
        "get them": fetch if kind.weights or ":" in name else "it needs none",
        "computed": "where --metrics names it" if kind.extra else f"by default{' on tiny' if kind.embedded else ''}",
        "on tiny": f"{kind.stand_in} in its place" if kind.stand_in else "the same",
        "citation": kind.paper or "none",
        "example": f"lanternbench score --metrics {name}{real}",
    }
