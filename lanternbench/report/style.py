"""How pictures look: colours of methods, sizes of text, files for papers, and SVG for the page.

Every picture is a matplotlib figure whose sizes are in points.  `save` writes PNG, SVG and PDF
files, and `page_svg` the same figure for the page, where CSS variables give the colours and a
method's marks are a group that can be focused.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar
from xml.etree import ElementTree

import matplotlib
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

from lanternbench.registry import components
from lanternbench.utils.files import OUT, replacing

P = ParamSpec("P")
T = TypeVar("T")
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
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.labelsize": SIZE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": SIZE,
    "ytick.labelsize": SIZE,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "pdf.fonttype": 42,  # editable text: venues reject Type 3 fonts
    "svg.hashsalt": "lanternbench",  # the same data gives the same file
}
# dates are left out of files, so that the same data gives the same bytes
METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
MARKERS = {"circle": ("o", 6.7), "diamond": ("D", 5.8), "small": ("o", 3.3)}
FILLS = ("full", "hollow", "half", "dot")  # of the first four runs
# role of a line -> its look
LINES: dict[str, dict[str, Any]] = {
    "reference": {"color": QUIET, "linewidth": 0.7, "linestyle": (0, (3, 3))},
    "frontier": {"color": QUIET, "linewidth": 0.8, "linestyle": (0, (5, 4))},
    "knob": {"linewidth": 1.5, "alpha": 0.8},
    "curve": {"linewidth": 1.2},
    "interval": {"linewidth": 0.8, "alpha": 0.65},
    "leader": {"color": LEADER, "linewidth": 0.5},
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Let a function draw in our style."""

    @wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> T:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return draw_in_style


def family(method: str) -> str:
    """Return the name of the method's family, "other" for a method that has no colour."""
    presets = components("preset")
    name = presets[method].family if method in presets else "other"
    return name if name in FAMILIES else "other"


def colour(method: str) -> str:
    """Return the colour of the method's family as #rrggbb."""
    return FAMILIES[family(method)]


class Plot(NamedTuple):
    """A figure, and what each method's marks say on the page: ``hints`` by the artists' gid."""

    figure: Figure
    title: str
    hints: Mapping[str, str]


# --- text ---


@cache
def text_width(text: str, size: float = SIZE) -> float:
    """Return the width of a line of text in points; browsers choose narrower fonts."""
    if not text:
        return 0.0
    font = FontProperties(family="DejaVu Sans", size=size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about signs that the font lacks
        width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return 1.02 * float(width)  # hinting makes letters wider


def wrap(text: str, width: float, size: float = SIZE) -> list[str]:
    """Break text into lines no wider than ``width`` points: at blanks, and in words that are
    wider than a line after a punctuation mark, or else anywhere.
    """
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".strip()
        if text_width(joined, size) <= width:
            lines[-1] = joined
            continue
        if not lines[-1]:
            lines.pop()
        lines.extend(pieces_of_word(word, width, size))
    return lines


def pieces_of_word(word: str, width: float, size: float) -> Iterator[str]:
    """Yield pieces of a word, each no wider than ``width`` points."""
    while text_width(word, size) > width and len(word) > 1:
        fitting = 1
        while text_width(word[: fitting + 1], size) <= width:
            fitting += 1
        after_mark = max(word.rfind(mark, 0, fitting) for mark in "+=-_/,") + 1
        end = after_mark or fitting
        yield word[:end]
        word = word[end:]
    yield word


def put_lines(figure: Figure, x: float, y: float, lines: Sequence[str], **look: Any) -> None:
    """Put lines of text on a figure; (x, y) is the first baseline in points from the top left."""
    width, height = figure_points(figure)
    for number, line in enumerate(lines):
        baseline = y + number * LINE
        figure.text(x / width, 1 - baseline / height, line, va="baseline", **look)


def figure_points(figure: Figure) -> tuple[float, float]:
    """Return the width and height of a figure in points."""
    width, height = figure.get_size_inches()
    return 72 * float(width), 72 * float(height)


# --- legends ---


class Sign(NamedTuple):
    """An entry of a legend: its text, and what is drawn before it in a colour, if anything.

    ``role``: a key of `MARKERS` or `LINES`, "swatch", or "" for text alone.
    """

    text: str
    role: str = ""
    colour: str = QUIET
    fill: str = "full"


def legend_rows(signs: Sequence[Sign], width: float) -> list[list[tuple[float, Sign, list[str]]]]:
    """Arrange a legend in rows: (x in points, sign, lines of its text) of every entry."""
    rows: list[list[tuple[float, Sign, list[str]]]] = [[]]
    x = MARGIN
    for sign in signs:
        indent = 11.0 if sign.role else 0.0
        lines = wrap(sign.text, width - 2 * MARGIN - indent)
        entry_width = indent + max(map(text_width, lines))
        if rows[-1] and x + entry_width > width - MARGIN:
            rows.append([])
            x = MARGIN
        rows[-1].append((x, sign, lines))
        x += entry_width + 10.0
    return rows


def legend_height(signs: Sequence[Sign], width: float) -> float:
    """Return the height of a legend in points."""
    lines = sum(max(len(lines) for *_, lines in row) for row in legend_rows(signs, width) if row)
    return lines * LINE + MARGIN


def draw_legend(figure: Figure, signs: Sequence[Sign]) -> None:
    """Draw a legend along the bottom of a figure."""
    width, height = figure_points(figure)
    y = height - legend_height(signs, width)
    for row in legend_rows(signs, width):
        for x, sign, lines in row:
            indent = 11.0 if sign.role else 0.0
            put_lines(figure, x + indent, y + LINE - 2.5, lines, color=QUIET)
            draw_sign(figure, sign, x + 4.0, height - y - LINE / 2)
        y += LINE * max((len(lines) for *_, lines in row), default=0)


def draw_sign(figure: Figure, sign: Sign, x: float, y: float) -> None:
    """Draw what stands before a legend's text, around a point in points from the bottom left."""
    inches = figure.dpi_scale_trans
    if sign.role in MARKERS:
        for artist in marker(x / 72, y / 72, sign.role, sign.colour, sign.fill):
            artist.set_transform(inches)
            figure.add_artist(artist)
    elif sign.role in LINES:
        look = {"color": sign.colour} | LINES[sign.role]
        ends = [(x - 4) / 72, (x + 5) / 72]
        figure.add_artist(Line2D(ends, [y / 72, y / 72], transform=inches, **look))
    elif sign.role:
        corner = ((x - 3.3) / 72, (y - 3.3) / 72)
        size = 6.6 / 72
        swatch = Rectangle(corner, size, size, color=sign.colour, linewidth=0, transform=inches)
        figure.add_artist(swatch)


def marker(x: float, y: float, shape: str, shade: str, fill: str = "full") -> list[Line2D]:
    """Return the artists of one point; ``fill`` says which run it is of."""
    sign, size = MARKERS[shape]
    point = Line2D([x], [y], linestyle="", marker=sign, markersize=size, color=shade, zorder=5)
    point.set_markeredgewidth(1.2)
    point.set_markerfacecolor(shade if fill in ("full", "half") else CARD)
    point.set_markerfacecoloralt(CARD)
    point.set_fillstyle("left" if fill == "half" else "full")
    artists = [point]
    if fill == "dot":
        artists.append(Line2D([x], [y], marker="o", markersize=2, color=shade, zorder=6))
    return artists


# --- files and page ---


def save(
    draw: Callable[[], Figure], stem: Path, kinds: Sequence[str], dpi: int = 300
) -> list[Path]:
    """Write a figure in our style as ``stem``.KIND; the same data gives the same bytes."""
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # a label with signs that the font lacks shows boxes
        warnings.simplefilter("ignore", UserWarning)
        figure = draw()
        for text in labels_of(figure):
            text.set_path_effects([withStroke(linewidth=1.4, foreground="white")])
        for path, kind in zip(files, kinds, strict=True):
            with replacing(path, OUT) as file:
                figure.savefig(file, format=kind, dpi=dpi, metadata=METADATA.get(kind, {}))
    return files


def labels_of(figure: Figure) -> list[Text]:
    """Return the texts that belong to a point of a plot."""
    return [text for axes in figure.axes for text in axes.texts if text.get_gid()]


def page_svg(plot: Plot, name: str) -> str:
    """Return a plot as an ``<svg>`` element for the page.

    ``name``: prefix of its ids, unique on the page.  All artists that share a gid become one group
    that can be focused, with its hint as ``<title>`` and ``aria-label``.
    """
    file = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plot.figure.savefig(file, format="svg", metadata=METADATA["svg"], transparent=True)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    svg = ElementTree.fromstring(file.getvalue())
    for metadata in svg.findall(f"{{{SVG}}}metadata"):
        svg.remove(metadata)
    for size in ("width", "height"):
        svg.attrib.pop(size)
    svg.set("role", "group")
    svg.set("aria-label", plot.title)
    for gid, hint in plot.hints.items():
        gather(svg, gid, hint)
    for element in svg.iter():
        restyle(element, name)
    return ElementTree.tostring(svg, encoding="unicode")


def gather(svg: ElementTree.Element, gid: str, hint: str) -> None:
    """Move all elements of one id into a group that says ``hint``."""
    found = [
        (parent, child) for parent in svg.iter() for child in parent if child.get("id") == gid
    ]
    if not found:
        return
    point = {"class": "point", "tabindex": "0", "role": "img", "aria-label": hint}
    group = ElementTree.SubElement(found[-1][0], f"{{{SVG}}}g", point)
    ElementTree.SubElement(group, f"{{{SVG}}}title").text = hint
    for parent, child in found:
        parent.remove(child)
        del child.attrib["id"]
        group.append(child)


def restyle(element: ElementTree.Element, name: str) -> None:
    """Make an element's ids unique on the page, and its colours those of the page's theme."""
    for key in ("id", f"{{{XLINK}}}href", "clip-path"):
        if key in element.attrib:
            element.set(key, re.sub(r"^(#|url\(#)?", rf"\g<0>{name}-", element.attrib[key]))
    style = element.get("style")
    if style is None:
        return
    style = re.sub(r"font-family: [^;]*;?|font: [\d.]+px [^;]*;?", f"font-size: {SIZE}px;", style)
    for shade, variable in THEME.items():
        style = style.replace(shade, variable)
    element.set("style", style)


def set_gid(artists: Sequence[Artist], gid: str) -> None:
    """Mark artists as parts of one point of a plot."""
    for artist in artists:
        artist.set_gid(gid)
