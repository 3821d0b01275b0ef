"""The look of plots: colours of methods, sizes of text, files for papers, and SVG for the page.

Every plot is a matplotlib figure whose sizes are in points.  `save` writes PNG, SVG and PDF
files, and `page_svg` the same figure for the page, where CSS variables give the colours and a
method's marks are a group that can be focused.
"""

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D, ScaledTranslation, Transform
from PIL import Image

from lanternbench.registry import components
from lanternbench.utils.files import OUT, replacing

# points: next to the page's text, and one column of a two-column paper, or a phone
WIDE, NARROW = 430.0, 241.2
SIZE, LINE = 7.7, 9.7  # of text, and of a line of it
MARGIN = 4.0
INK, QUIET, GRID, CARD = "#1d2126", "#5f666e", "#e6e6e6", "#ffffff"
LEADER = "#9aa0a6"
# one colour per family of presets: Okabe-Ito colours, distinct for colour-blind readers
FAMILIES = {
    "AR": "#7a7f87",
    "draft model": "#56b4e9",
    "EAGLE": "#0072b2",
    "LANTERN": "#d55e00",
    "Jacobi": "#e69f00",
    "ADT-Tree": "#009e73",
    "several rows": "#8c564b",
    "relaxed SD": "#cc79a7",
    "other": "#8a8a00",
}
# of a step
PHASES = {"draft": "#e69f00", "verify": "#0072b2", "commit": "#009e73", "other": "#9aa0a6"}
# colours that the page has lighter or darker versions of, as variables of report.css
THEME = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    GRID: "var(--grid)",
    CARD: "var(--card)",
    "#0072b2": "var(--blue)",
    "#009e73": "var(--green)",
}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": SIZE,
    "text.color": INK,
    "text.parse_math": False,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.spines.bottom": False,
    "axes.labelcolor": QUIET,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "pdf.fonttype": 42,  # editable text: venues reject Type 3 fonts
    "svg.hashsalt": "lanternbench",  # the same data gives the same file
}
# dates are left out of files, so that the same data gives the same bytes
METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
MARKERS = {"circle": ("o", 6.7), "diamond": ("D", 5.8), "swatch": ("s", 5.4)}
Fill = Literal["full", "hollow", "left", "top"]  # the part of a point that is filled
FILLS: tuple[Fill, ...] = get_args(Fill)  # of the first four runs
# role of a line -> its look
LINES: dict[str, dict[str, Any]] = {
    "reference": {"color": QUIET, "linewidth": 0.7, "linestyle": (0, (3, 3))},
    "frontier": {"color": QUIET, "linewidth": 0.8, "linestyle": (0, (5, 4))},
    "knob": {"linewidth": 1.5, "alpha": 0.8},
    "curve": {"linewidth": 1.2},
    "interval": {"linewidth": 0.8, "alpha": 0.65},
    "leader": {"color": LEADER, "linewidth": 0.5},
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in our style; a character that the font lacks becomes a box without a warning."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def family(method: str) -> str:
    """Return the name of the method's family, "other" for a method that has no colour."""
    preset = components("preset").get(method)
    if preset is None or preset.family not in FAMILIES:
        return "other"
    return str(preset.family)


def colour(method: str) -> str:
    """Return the colour of the method's family as #rrggbb."""
    return FAMILIES[family(method)]


@dataclass
class Plot:
    """A figure, and what each method's marks say on the page: ``hints`` by the artists' gid."""

    figure: Figure
    title: str
    hints: dict[str, str] = field(default_factory=dict)

    def mark(self, artists: Iterable[Artist], hint: str) -> None:
        """Mark artists as parts of one point, which says ``hint``."""
        gid = f"point-{len(self.hints)}"
        self.hints[gid] = hint
        for artist in artists:
            artist.set_gid(gid)


# --- figures in points ---


def new_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width / 72, height / 72))


def figure_points(figure: Figure) -> tuple[float, float]:
    """Return the width and height of a figure in points."""
    width, height = figure.get_size_inches()
    return 72 * float(width), 72 * float(height)


def from_top(figure: Figure) -> Transform:
    """Return the transform of points from the top left corner, also of a figure that grows."""
    downwards = Affine2D().scale(1 / 72, -1 / 72) + figure.dpi_scale_trans
    return downwards + ScaledTranslation(0, 1, figure.transFigure)  # type: ignore[arg-type]


def add_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at a place in points from the top left corner."""
    figure_width, figure_height = figure_points(figure)
    bottom = figure_height - top - height
    return figure.add_axes(
        (
            left / figure_width,
            bottom / figure_height,
            width / figure_width,
            height / figure_height,
        )
    )


def grow(figure: Figure, more: float) -> float:
    """Make a figure taller at its bottom, and return its former height; all that is drawn keeps its
    size and place.
    """
    width, height = figure_points(figure)
    figure.set_size_inches(width / 72, (height + more) / 72)
    share = height / (height + more)
    layout = figure.get_layout_engine()
    if isinstance(layout, ConstrainedLayoutEngine):
        layout.set(rect=(0, 1 - share, 1, share))
    for axes in figure.axes:
        place = axes.get_position(original=True)
        axes.set_position(
            (place.x0, 1 - share * (1 - place.y0), place.width, share * place.height)
        )
    return height


def put_lines(figure: Figure, x: float, y: float, lines: Sequence[str], **look: Any) -> None:
    """Put lines of text on a figure; (x, y) is the first baseline in points from the top left."""
    for number, line in enumerate(lines):
        baseline = y + number * LINE
        figure.text(x, baseline, line, transform=from_top(figure), va="baseline", **look)


# --- text ---


@cache
def text_width(text: str) -> float:
    """Return the width of a line of text in points; browsers choose narrower fonts."""
    if not text:
        return 0.0
    font = FontProperties(family="DejaVu Sans", size=SIZE)
    with styled():
        width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return 1.02 * float(width)  # hinting makes letters wider


def wrap(text: str, width: float) -> list[str]:
    """Break text into lines no wider than ``width`` points: at blanks, and in words that are
    wider than a line after a punctuation mark, or else anywhere.
    """
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".strip()
        if text_width(joined) <= width:
            lines[-1] = joined
            continue
        if not lines[-1]:
            lines.pop()
        lines.extend(pieces_of_word(word, width))
    return lines


def pieces_of_word(word: str, width: float) -> Iterator[str]:
    """Yield pieces of a word, each no wider than ``width`` points."""
    while text_width(word) > width and len(word) > 1:
        fitting = 1
        while text_width(word[: fitting + 1]) <= width:
            fitting += 1
        after_mark = max(word.rfind(mark, 0, fitting) for mark in "+=-_/,") + 1
        end = after_mark or fitting
        yield word[:end]
        word = word[end:]
    yield word


# --- legends ---


class Sign(NamedTuple):
    """An entry of a legend: its text, and what is drawn before it in a colour, if anything.

    ``role``: a key of `MARKERS` or `LINES`, or "" for text alone.
    """

    text: str
    role: str = ""
    colour: str = QUIET
    fill: Fill = "full"


def add_legend(figure: Figure, signs: Sequence[Sign]) -> None:
    """Add a legend below a figure: entries from left to right, in as many rows as they need."""
    width, height = figure_points(figure)
    x = MARGIN
    y = height
    bottom = height
    for sign in signs:
        indent = 11.0 if sign.role else 0.0
        lines = wrap(sign.text, width - 2 * MARGIN - indent)
        entry_width = indent + max(map(text_width, lines))
        if x > MARGIN and x + entry_width > width - MARGIN:
            x = MARGIN
            y = bottom
        draw_sign(figure, sign, x + 4.0, y + LINE / 2)
        put_lines(figure, x + indent, y + LINE - 2.5, lines, color=QUIET)
        bottom = max(bottom, y + LINE * len(lines))
        x += entry_width + 10.0
    grow(figure, bottom + MARGIN - height)


@styled()
def add_warnings(figure: Figure, warnings: Sequence[str]) -> None:
    """Add sentences at the bottom of a figure, each on a new line."""
    width, _ = figure_points(figure)
    lines = [line for text in warnings for line in wrap(text, width - 2 * MARGIN)]
    if lines:
        top = grow(figure, LINE * len(lines) + MARGIN)
        put_lines(figure, MARGIN, top + LINE - 2.5, lines)


def draw_sign(figure: Figure, sign: Sign, x: float, y: float) -> None:
    """Draw what stands before a legend's text, around a point in points from the top left."""
    if sign.role in MARKERS:
        artist = marker(x, y, sign.role, sign.colour, sign.fill)
    elif sign.role in LINES:
        look = {"color": sign.colour} | LINES[sign.role]
        artist = Line2D([x - 4, x + 5], [y, y], **look)
    else:
        return
    artist.set_transform(from_top(figure))
    figure.add_artist(artist)


def marker(x: float, y: float, shape: str, shade: str, fill: Fill = "full") -> Line2D:
    """Return one point; ``fill`` says which run it is of."""
    symbol, size = MARKERS[shape]
    return Line2D(
        [x],
        [y],
        linestyle="",
        marker=symbol,
        markersize=size,
        color=shade,
        markeredgewidth=1.2,
        markerfacecolor=CARD if fill == "hollow" else shade,
        markerfacecoloralt=CARD,
        fillstyle="full" if fill == "hollow" else fill,
        zorder=5,
    )


# --- files and page ---


def save(
    figure: Figure,
    stem: Path,
    kinds: Sequence[str],
    dpi: int = 300,
    warnings: Sequence[str] = (),
) -> list[Path]:
    """Write a figure as ``stem``.KIND, with ``warnings`` at its bottom; the same data gives the
    same bytes.
    """
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    with styled():
        add_warnings(figure, warnings)
        texts = [text for axes in figure.axes for text in axes.texts]
        for text in texts:
            if text.get_gid():  # it belongs to a point and may lie on a line
                text.set_path_effects([withStroke(linewidth=1.4, foreground="white")])
        for path, kind in zip(files, kinds, strict=True):
            with replacing(path, OUT, shared=True) as file:
                figure.savefig(file, format=kind, dpi=dpi, metadata=METADATA.get(kind))
    return files


def image_of(figure: Figure, dpi: float) -> Image.Image:
    """Return a figure, drawn at a resolution, as an RGB image."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def page_svg(plot: Plot, name: str) -> str:
    """Return a plot as an ``<svg>`` element for the page.

    ``name``: prefix of its ids, unique on the page.  All artists that share a gid become one group
    that can be focused, with its hint as ``<title>`` and ``aria-label``.
    """
    file = io.StringIO()
    with styled(), matplotlib.rc_context({"svg.fonttype": "none"}):
        plot.figure.savefig(file, format="svg", metadata=METADATA["svg"], transparent=True)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    svg = ElementTree.fromstring(file.getvalue())
    for metadata in svg.findall(f"{{{SVG}}}metadata"):
        svg.remove(metadata)
    del svg.attrib["width"]
    del svg.attrib["height"]
    svg.set("role", "group")
    svg.set("aria-label", plot.title)
    for gid, hint in plot.hints.items():
        gather(svg, gid, hint)
    for element in svg.iter():
        restyle(element, name)
    return ElementTree.tostring(svg, encoding="unicode")


def gather(svg: ElementTree.Element, gid: str, hint: str) -> None:
    """Move all elements of one id into a group that says ``hint``."""
    point = {"class": "point", "tabindex": "0", "role": "img", "aria-label": hint}
    group = ElementTree.Element(f"{{{SVG}}}g", point)
    ElementTree.SubElement(group, f"{{{SVG}}}title").text = hint
    parents = svg.findall(f".//*[@id='{gid}']/..")
    for parent in parents:
        for child in parent.findall(f"*[@id='{gid}']"):
            parent.remove(child)
            del child.attrib["id"]
            group.append(child)
    parents[-1].append(group)


def restyle(element: ElementTree.Element, name: str) -> None:
    """Make an element's ids unique on the page, and its colours those of the page's theme."""
    for key in ("id", f"{{{XLINK}}}href", "clip-path"):
        if key in element.attrib:
            element.set(key, re.sub(r"^(#|url\(#)?", rf"\g<0>{name}-", element.attrib[key]))
    style = element.get("style", "")
    style = re.sub(r"font-family: [^;]*;?|font: [\d.]+px [^;]*;?", f"font-size: {SIZE}px;", style)
    for shade, variable in THEME.items():
        style = style.replace(shade, variable)
    if style:
        element.set("style", style)
