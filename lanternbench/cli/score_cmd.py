"""``score``: quality metrics of images that are there already."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.output import print_cells, print_json, print_notes, print_table, record
from lanternbench.cli.progress import display
from lanternbench.errors import UserError
from lanternbench.utils.device import choose
from lanternbench.utils.text import one_line

if TYPE_CHECKING:
    from lanternbench.measure.summaries import Row


def score(
    runs: Annotated[
        list[str] | None, Argument(metavar="[RUN]...", help="Run ids or folders, or plain folders of images.")
    ] = None,
    metrics: Annotated[str | None, Option(help="Comma-separated; all that suit the target by default.")] = None,
    reference: Annotated[Path | None, Option(help="Folder of real images for FID, precision, recall.")] = None,
    captions: Annotated[
        str | None, Option(help="Captions of a plain folder: COCO's .json, or a .tsv/.csv with a column image.")
    ] = None,
    caption: Annotated[str, Option(help="Which caption of a COCO image: first, longest, random.")] = "first",
    random_weights: Annotated[
        bool, Option("--random-weights", help="Full-size networks without files: what it would take.")
    ] = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    again: Annotated[bool, Option("--again", help="Also score what is scored already.")] = False,
    export: Annotated[
        tuple[str, Path] | None,
        Option(metavar="LAYOUT DIR", help="Only copy images for an official scorer: geneval or dpg, and where."),
    ] = None,
    results: options.Results = Path("results"),
    as_json: Annotated[bool, Option("--json", help="Print the rows and notes as JSON.")] = False,
) -> None:
    """Score saved images; the latest run by default.  Stopped at any point, the same command continues.

    Example: lanternbench score --metrics image-reward,hpsv2
    """
    from lanternbench import experiment as store
    from lanternbench.experiment import scoring
    from lanternbench.metrics.setup import Setup

    if reference is not None and not reference.is_dir():
        raise UserError(f"there is no folder {reference}: give the folder of real images to --reference.")
    names = options.listed(metrics) if metrics is not None else None
    setup = Setup(reference, choose(device, threads), random_weights)
    plain = {name for name in runs or () if Path(name).is_dir() and not (results / name / "run.json").is_file()}
    places = [Path(name) if name in plain else store.find(results, [name])[0] for name in runs or ()]
    places = places or [store.latest(results)]
    if export is not None:
        _export(*export, places)
        return
    scored = []
    with display("scoring") as bars:
        for place in places:
            if (place / "run.json").is_file():
                if captions is not None:
                    raise UserError(f"{place} is a run and knows its captions: leave --captions out.")
                summary = scoring.score_run(place, names, setup, again=again, progress=bars.show)
            else:
                summary = scoring.score_folder(
                    place, captions, names, setup, again=again, caption=cast(Any, caption), progress=bars.show
                )
            scored.append((place, summary))
    if as_json:
        print_json([record(place, summary) for place, summary in scored])
        return
    for place, summary in scored:
        if summary.rows[0].method:
            print_table(summary.rows)
        else:
            _print_metrics(summary.rows[0])
        print_notes(summary.all_notes())
        print_notes([place], bullet="")


def _export(layout: str, folder: Path, places: list[Path]) -> None:
    """The images of all these runs, a folder for each method; those of one prompt in the order of the runs."""
    from lanternbench.experiment import read_samples
    from lanternbench.metrics.export import export

    images: dict[str, dict[str, list[Path]]] = {}
    for place in places:
        for sample in read_samples(place):
            if sample.image:
                images.setdefault(sample.label, {}).setdefault(sample.prompt, []).append(place / sample.image)
    if not images:
        raise UserError(f"{', '.join(map(str, places))} has no images to export: name runs that drew some.")
    for label, name in folder_names(images).items():
        print(f"{one_line(label)}: {export(layout, images[label], folder / name)}")


def folder_names(labels: Iterable[str]) -> dict[str, str]:
    """A folder's name for each label, without signs that shells or paths read; a number tells equal ones apart."""
    names: dict[str, str] = {}
    for label in labels:
        stem = re.sub(r"[^\w.=+-]+", "-", label).lstrip(".")[:60] or "method"
        choices = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        names[label] = next(name for name in choices if name not in names.values())
    return names


def _print_metrics(row: Row) -> None:
    """The row of a plain folder, a metric a line."""
    from lanternbench.report.columns import metric_column, metric_keys

    cells = (
        (c.title + c.arrow, c.value(row), c.bounds(row), str(row.figure(c.key).n or row.n))
        for c in map(metric_column, metric_keys([row]))
    )
    print_cells(("metric", one_line(row.label), "95 %", "images"), cells, ("metric",))
