"""Images of a run side by side, prompts down and methods across: on the page with their maps, and for a paper."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from PIL import Image

from lanternbench.measure.samples import Sample
from lanternbench.report.columns import MISSING, metric_column
from lanternbench.report.drawing import INK
from lanternbench.report.load import Contents, Run
from lanternbench.report.maps import image_uri, legend, map_uri, open_image, token_map
from lanternbench.report.pareto import speed_column
from lanternbench.report.scene import wrap
from lanternbench.report.view import View
from lanternbench.utils.text import one_line

PROMPTS = 32
MOST = 3_000_000  # bytes for all images of a page
WIDTH = 6.9 * 72  # points: both columns of a two-column paper
CAPTION, GAP, SIZE, LINE = 70.0, 3.0, 7.0, 8.6  # points
ACROSS = 8  # images of a row in a paper; more continue below


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
    """The grid of one run, within about ``MOST`` bytes of images."""
    methods, cells = {label: method for label, (method, _) in contents.figures.methods.items()}, contents.cells
    known = [row.label for row in run.rows if row.label in methods]
    names = view.labels({label: methods[label] for label in (known if view.methods else [*known, *methods])})
    samples = [sample for sample in cells.values() if sample.label in names]
    depths = [n for sample in samples for n in sample.tree_depths]
    scales = {
        "accept": (1, max([2, *(n for sample in samples for n in sample.accept_lengths)])),
        "depth": (min([1, *depths]), max([2, *depths])),
    }
    each = MOST // max(len(cells), 1)
    captions = list(contents.captions.items())[:PROMPTS]
    lines = [
        (caption, [_cell(run, cells.get((prompt, label)), name, scales, each) for label, name in names.items()])
        for prompt, caption in captions
    ]
    notes = []
    if not captions:
        notes = ["samples.jsonl holds no samples: the image grid is left out."]
    elif len(contents.figures.prompts) > len(captions):
        notes = [f"The image grid shows the first {len(captions)} of {len(contents.figures.prompts)} prompts."]
    if captions and contents.more_seeds:
        notes.append("The image grid shows one seed per prompt; the tables use all seeds.")
    legends = {kind: legend(*bounds, kind) for kind, bounds in scales.items()} if run.grid else {}
    return Grid(list(names.values()), lines, legends, notes)


def _cell(run: Run, sample: Sample | None, name: str, scales: dict[str, tuple[int, int]], most: int) -> Cell | None:
    if sample is None:
        return None
    maps: dict[str, str] = {}
    for kind, values in (("accept", sample.accept_lengths), ("depth", sample.tree_depths)):
        if run.grid and values and sample.row_loss is None:  # rows drawn at once share their steps
            maps[kind] = map_uri(token_map(values, sample.accept_lengths, run.grid, run.before), *scales[kind], kind)
    return Cell(name, image_uri(run.image_path(sample), most), maps.get("accept"), maps.get("depth"), _facts(sample))


def _facts(sample: Sample) -> list[tuple[str, str]]:
    def mean(values: list[int]) -> str:  # without the first step, the prefill, which drafts nothing
        return f"{fmean(values[1:]):.2f}" if values[1:] else MISSING

    loss: Any = sample.fidelity_loss
    columns = {metric_column(key): value for key, value in sample.metrics.items()}
    return [
        ("τ", mean(sample.accept_lengths)),
        ("steps", str(sample.steps)),
        ("mean tree depth", mean(sample.tree_depths)),
        ("decode", f"{sample.decode_s:.3f} s" + ("" if sample.timed else " (not timed)")),
        ("fidelity loss", MISSING if loss is None else f"{loss:.4f}"),
        ("seed", str(sample.seed)),
        *((one_line(c.title, 32), MISSING if value is None else c.print(value)) for c, value in columns.items()),
    ]


def grid_figure(run: Run, contents: Contents, view: View, prompts: int) -> Figure:
    """The first ``prompts`` prompts of a run by its methods, each under its name and speedup."""
    captions = dict(list(contents.captions.items())[:prompts])
    rows = [row for row in run.rows if any((prompt, row.label) in contents.cells for prompt in captions)]
    speed = speed_column(run.rows)
    heads = [f"{one_line(view.name(row.label, row.method), 60)}\n{speed.value(row)}" for row in rows]
    samples = [[contents.cells.get((prompt, row.label)) for row in rows] for prompt in captions]
    images = [[open_image(run.image_path(sample) if sample else None) for sample in line] for line in samples]
    return images_figure(heads, images, list(captions.values()))


def images_figure(heads: Sequence[str], rows: Sequence[Sequence[Image.Image | None]], captions: list[str]) -> Figure:
    """Images [captions][heads] side by side, at most ``ACROSS``, each row beside its caption; None: missing."""
    side = (WIDTH - CAPTION) / max(min(len(heads), ACROSS), 3) - GAP
    titles = ["\n".join(line for part in head.split("\n") for line in wrap(part, side, SIZE)) for head in heads]
    texts = ["\n".join(wrap(one_line(text, 120), CAPTION - 6, SIZE)) for text in captions]
    heights = [max(side, LINE * (text.count("\n") + 1)) + GAP for text in texts]
    blocks = [range(first, min(first + ACROSS, len(heads))) for first in range(0, len(heads), ACROSS)]
    tops = [LINE * (max(titles[i].count("\n") for i in block) + 1) + 4 for block in blocks]
    height = sum(tops) + len(blocks) * (sum(heights) + 2 * GAP) + GAP
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    style: dict[str, Any] = {"fontsize": SIZE, "color": INK, "parse_math": False, "family": "DejaVu Sans"}
    y = height - GAP  # points from below, of what is drawn next
    for block, top in zip(blocks, tops):
        y -= top
        places = {i: CAPTION + (i - block.start) * (side + GAP) for i in block}
        for i, x in places.items():
            figure.text((x + side / 2) / WIDTH, (y + 4) / height, titles[i], ha="center", va="bottom", **style)
        for text, images, high in zip(texts, rows, heights):
            figure.text(2 / WIDTH, y / height, text, va="top", **style)
            for i, x in places.items():
                axes = figure.add_axes((x / WIDTH, (y - side) / height, side / WIDTH, side / height))
                axes.set(xticks=[], yticks=[], facecolor="#f3f4f2")
                axes.spines[:].set_visible(False)
                if (image := images[i]) is None:
                    axes.text(0.5, 0.5, "missing", fontsize=SIZE, ha="center", va="center")
                else:
                    axes.imshow(image, interpolation="none")
            y -= high
        y -= 2 * GAP
    return figure
