"""The image grid of the page: prompts × methods, each image with its accepted-length and tree-depth map."""

from __future__ import annotations

from typing import Any, NamedTuple

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.samples import Sample
from lanternbench.report.columns import MISSING, metric_column
from lanternbench.report.load import Contents, Run, image_path
from lanternbench.report.maps import image_uri, legend, map_uri, token_map
from lanternbench.report.view import View
from lanternbench.utils.text import one_line

PROMPTS = 32
ROOM = 3_000_000  # bytes for all images of a page


class Cell(NamedTuple):
    """One image with its maps, as data URIs (None: missing), and what is known of it."""

    label: str
    image: str | None
    accept: str | None
    depth: str | None
    facts: list[tuple[str, str]]


class Grid(NamedTuple):
    """Prompts × labels: ``lines`` of (caption, cells), where a cell is None if it was not run; a legend per map."""

    labels: list[str]
    lines: list[tuple[str, list[Cell | None]]]
    legends: dict[str, list[tuple[int, str]]]
    notes: list[str]


def image_grid(run: Run, contents: Contents, view: View) -> Grid:
    """The grid of one run, within about ``ROOM`` bytes of images."""
    picked = contents.picked
    methods = {label: method for label, (method, _) in contents.figures.methods.items()}
    labels = [row.label for row in run.rows if row.label in methods]
    labels += [label for label in methods if label not in labels and not view.methods]
    names = {label: label if label == BASELINE else view.name(label, methods[label]) for label in labels}
    samples = [sample for sample in picked.cells.values() if sample.label in labels]
    scales = {
        "accept": (1, max([2, *(n for s in samples for n in s.accept_lengths)])),
        "depth": (min([1, *(n for s in samples for n in s.tree_depths)]),
                  max([2, *(n for s in samples for n in s.tree_depths)])),
    }  # fmt: skip
    each = ROOM // max(len(picked.cells), 1)
    lines = [
        (
            caption,
            [_cell(run, picked.cells.get((prompt_id, label)), name, scales, each) for label, name in names.items()],
        )
        for prompt_id, caption in list(picked.captions.items())[:PROMPTS]
    ]
    legends = {kind: legend(*bounds, kind) for kind, bounds in scales.items()} if run.grid else {}
    return Grid(list(names.values()), lines, legends, _notes(contents))


def _notes(contents: Contents) -> list[str]:
    """What the grid does not show."""
    picked = contents.picked
    if not picked.captions:
        return ["samples.jsonl holds no samples: the image grid is left out."]
    notes = []
    shown = min(len(picked.captions), PROMPTS)
    if picked.prompts_total > shown:
        notes.append(f"The image grid shows the first {shown} of {picked.prompts_total} prompts.")
    if picked.more_seeds:
        notes.append("The image grid shows one seed per prompt; the tables use all seeds.")
    return notes


def _cell(run: Run, sample: Sample | None, name: str, scales: dict[str, tuple[int, int]], room: int) -> Cell | None:
    if sample is None:
        return None
    path = image_path(run, sample)
    maps: dict[str, str] = {}
    for kind, values in (("accept", sample.accept_lengths), ("depth", sample.tree_depths)):
        if run.grid and values and sample.row_loss is None:  # several rows at once have no step of their own
            maps[kind] = map_uri(token_map(values, sample.accept_lengths, run.grid, run.before), *scales[kind], kind)
    return Cell(name, image_uri(path, room) if path else None, maps.get("accept"), maps.get("depth"), _facts(sample))


def _facts(sample: Sample) -> list[tuple[str, str]]:
    lengths, depths = sample.accept_lengths[1:], sample.tree_depths[1:]  # the prefill, the first step, drafts nothing
    loss: Any = sample.fidelity_loss
    facts = [
        ("τ", f"{sum(lengths) / len(lengths):.2f}" if lengths else MISSING),
        ("steps", str(sample.steps)),
        ("mean tree depth", f"{sum(depths) / len(depths):.2f}" if depths else MISSING),
        ("decode", f"{sample.decode_s:.3f} s" + ("" if sample.timed else " (not timed)")),
        ("fidelity loss", MISSING if loss is None else f"{loss:.4f}"),
        ("seed", str(sample.seed)),
    ]
    for key, value in sample.metrics.items():
        column = metric_column(key)
        facts.append((one_line(column.title, 32), MISSING if value is None else column.print(value)))
    return facts
