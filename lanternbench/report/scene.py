"""Pictures as data: lines, marks, bars and texts in pixels, which the page and the files for
papers draw alike.

templates/scene.html draws them inside the page; `save` as PNG, SVG and PDF files.
"""

import statistics
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from lanternbench.utils.files import OUT, replacing

# pixels: beside the page's text; a phone, or one column of a two-column paper
WIDE, NARROW = 640, 360
QUIET = "#5f666e"
SIZE, LINE = 11.5, 14.5  # pixels of a text, and of a line of it
Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]
# one colour per family of methods: Okabe-Ito colours, distinct for colour-blind readers
_FAMILIES = {
    ("AR", "#7a7f87"): "ar",
    ("draft model", "#56b4e9"): "sd medusa dflash",
    ("EAGLE", "#0072b2"): "eagle-1 eagle-2 eagle-3",
    ("LANTERN", "#d55e00"): "lantern lantern++",
    ("Jacobi", "#e69f00"): "jacobi sjd scd sjd-pac sjd++ sjd-sv gsd",
    ("ADT-Tree", "#009e73"): "adt-tree",
    ("several rows", "#8c564b"): "zipar pjd",
    ("relaxed SD", "#cc79a7"): "uniform-rsd cool-sd",
}
FAMILIES = {method: family for family, methods in _FAMILIES.items() for method in methods.split()}
OTHER = ("other", "#8a8a00")
# of a step
PHASES = {"draft": "#e69f00", "verify": "#0072b2", "commit": "#009e73", "other": "#9aa0a6"}


def family(method: str) -> str:
    """The family's name, "other" for a user's method."""
    return FAMILIES.get(method, OTHER)[0]


def colour(method: str) -> str:
    """The family's colour as #rrggbb."""
    return FAMILIES.get(method, OTHER)[1]


class Line(NamedTuple):
    """A polyline; ``role`` is its meaning, which sets its style: see `LINES` and report.css."""

    points: tuple[Point, ...]
    role: str


class Mark(NamedTuple):
    """A point of a plot. ``shape``: circle or diamond; ``fill``: which run, see `FILLS`."""

    x: float
    y: float
    shape: str
    fill: str = "full"


class Bar(NamedTuple):
    """A filled rectangle from its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    role: str


class Text(NamedTuple):
    """A line of text on its baseline; ``turned``: upwards."""

    x: float
    y: float
    text: str
    role: str = "label"
    anchor: Anchor = "start"
    turned: bool = False


Item = Line | Mark | Bar | Text
FILLS = ("full", "hollow", "half", "dot")  # of the first four runs


class Group(NamedTuple):
    """One method's items in its colour, with ``hint``, its description on the page."""

    items: Sequence[Item]
    colour: str = ""
    hint: str = ""


class Scene(NamedTuple):
    """A picture of ``width`` × ``height`` pixels, y downwards."""

    title: str
    width: float
    height: float
    groups: Sequence[Group]


@cache
def _sign_width(sign: str) -> float:
    """Pixels of a sign in a font of 100 pixels; one that the font lacks counts as 1 em."""
    # wider than what browsers choose
    font = FT2Font(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf")
    font.set_size(100, 72)
    return (
        font.load_char(ord(sign)).linearHoriAdvance / 65536
        if font.get_char_index(ord(sign))
        else 100.0
    )


def text_width(text: str, size: float = SIZE) -> float:
    """Pixels of a line of text."""
    return sum(map(_sign_width, text)) * size / 100


def wrap(text: str, width: float, size: float = SIZE) -> list[str]:
    """Lines no wider than ``width``, broken at blanks, and in a word that is wider after a sign,
    or else anywhere.
    """
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".strip()
        if text_width(joined, size) <= width:
            lines[-1] = joined
            continue
        lines = [*filter(None, lines), word]
        while text_width(lines[-1], size) > width and len(lines[-1]) > 1:
            line = lines.pop()
            fits = max(1, sum(text_width(line[:n], size) <= width for n in range(1, len(line))))
            fits = max(line.rfind(sign, 0, fits) + 1 for sign in "+=-_/,") or fits
            lines += [line[:fits], line[fits:]]
    return lines


def paragraph(
    lines: Sequence[str], x: float, y: float, role: str, anchor: Anchor = "start"
) -> list[Item]:
    """Lines of text below each other, the first one's baseline at ``y``."""
    return [Text(x, y + i * LINE, line, role, anchor) for i, line in enumerate(lines)]


class Axis(NamedTuple):
    """Values low … high on pixels begin … end; ``ticks`` as (pixel, text)."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        return round(
            self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin), 1
        )

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """About five round numbers."""
        numbers = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return [
            (self(number), f"{number:g}") for number in numbers if self.low <= number <= self.high
        ]


def axis(
    values: Sequence[float], ends: Sequence[tuple[float, float]], begin: float, end: float
) -> Axis:
    """An axis that holds all values, and their intervals as far as a few wide ones do not stretch
    it.

    An interval is cut where it goes further beyond all values than a third of their span or 1.5
    times the median half-width of the intervals, whichever is more.
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    halves = [(b - a) / 2 for a, b in ends if b > a]
    reach = max((high - low) / 3, 1.5 * statistics.median_low(halves) if halves else 0.0)
    first = max(min([low, *(a for a, _ in ends)]), low - reach)
    last = min(max([high, *(b for _, b in ends)]), high + reach)
    margin = 0.06 * ((last - first) or max(abs(high), 1.0))
    return Axis(first - margin, last + margin, begin, end)


class Sign(NamedTuple):
    """An entry of a legend: its text, and the shape or role of what is drawn before it, if
    anything, in a colour.
    """

    text: str
    role: str = ""
    colour: str = QUIET
    fill: str = "full"

    def items(self, x: float, y: float) -> list[Item]:
        """What is drawn around a point."""
        if self.role in ("circle", "diamond"):
            return [Mark(x, y, self.role, self.fill)]
        if self.role in LINES:
            return [Line(((x - 6, y), (x + 7, y)), self.role)]
        return [Bar(x - 5, y - 5, 10, 10, self.role)] if self.role else []


def with_legend(
    title: str, width: float, top: float, groups: Sequence[Group], entries: Sequence[Sign]
) -> Scene:
    """The picture of these groups, with a legend in lines from ``top`` on."""
    left, right = 6.0, width - 6.0
    below, x, y = list[Group](), left, top
    for entry in entries:
        lines, indent = wrap(entry.text, right - left - 16), 16 if entry.role else 0
        wide = indent + text_width(lines[0])
        if x > left and (x + wide > right or len(lines) > 1):
            x, y = left, y + LINE
        items = [
            *entry.items(x + 6, y + LINE / 2),
            *paragraph(lines, x + indent, y + LINE - 3.5, "legend"),
        ]
        below.append(Group(items, entry.colour if entry.role else ""))
        x, y = x + wide + 14, y + LINE * (len(lines) - 1)
    return Scene(title, width, y + LINE + 6, [*groups, *below])


def frame(x: Axis, y: Axis, x_title: str, y_title: str) -> list[Item]:
    """Grid, numbers and titles of two axes."""
    items: list[Item] = []
    for at, text in x.ticks:
        items += [
            Line(((at, y.begin), (at, y.end)), "grid"),
            Text(at, y.begin + 15, text, "tick", "middle"),
        ]
    for at, text in y.ticks:
        items += [
            Line(((x.begin, at), (x.end, at)), "grid"),
            Text(x.begin - 6, at + 4, text, "tick", "end"),
        ]
    items += paragraph(
        wrap(x_title, x.end - x.begin + 30), (x.begin + x.end) / 2, y.begin + 32, "title", "middle"
    )
    for i, line in enumerate(wrap(y_title, y.begin - y.end + 10)):
        items.append(Text(11 + i * LINE, (y.begin + y.end) / 2, line, "title", "middle", True))
    return items


# --- files ---

STYLE: Any = {
    "font.size": 8.5, "axes.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": "#444444", "axes.labelcolor": "#222222", "xtick.color": "#444444", "ytick.color": "#444444",
    "pdf.fonttype": 42,  # editable text: venues reject Type 3 fonts
    "svg.hashsalt": "lanternbench",  # the same data gives the same file
}  # fmt: skip
DATES: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # left out of files
# of one pixel: a narrow picture is as wide as a column of a two-column paper
POINT = 3.35 * 72 / 360
# role -> colour (None: the group's), width in pixels, dashes, opacity; report.css has the same
LINES: dict[str, tuple[str | None, float, Any, float]] = {
    "grid": ("#e6e6e6", 0.8, "-", 1.0),
    "reference": ("#5f666e", 1.0, (0, (3, 3)), 1.0),
    "frontier": ("#5f666e", 1.2, (0, (5, 4)), 1.0),
    "knob": (None, 2.2, "-", 0.8),
    "curve": (None, 1.8, "-", 1.0),
    "interval": (None, 1.2, "-", 0.65),
    "leader": ("#9aa0a6", 0.8, "-", 1.0),
}
TEXTS = {"tick": "#5f666e", "title": "#3c4248", "legend": "#3c4248"}  # the others are ink
INK = "#1d2126"


def scene_figure(scene: Scene) -> Figure:
    """The figure of a scene, a pixel of which is `POINT` points."""
    figure = Figure(figsize=(scene.width * POINT / 72, scene.height * POINT / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
    axes.axis("off")
    for order, group in enumerate(scene.groups, 2):
        for item in group.items:
            _draw(axes, item, group.colour or INK, order)
    return figure


def save(
    draw: Callable[[], Figure], stem: Path, kinds: Sequence[str], dpi: int = 300
) -> list[Path]:
    """The figure in our style as ``stem``.KIND; the same data gives the same bytes."""
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # a label with signs that the font lacks shows boxes
        warnings.simplefilter("ignore", UserWarning)
        figure = draw()
        for path, kind in zip(files, kinds):
            with replacing(path, OUT) as file:
                figure.savefig(file, format=kind, dpi=dpi, metadata=DATES.get(kind, {}))
    return files


def _draw(axes: Axes, item: Item, colour: str, order: int) -> None:
    if isinstance(item, Line):
        fixed, width, dashes, alpha = LINES[item.role]
        x, y = zip(*item.points)
        axes.plot(
            x,
            y,
            color=fixed or colour,
            linewidth=width * POINT,
            linestyle=dashes,
            alpha=alpha,
            zorder=order,
        )
    elif isinstance(item, Bar):
        look: dict[str, Any] = {
            "color": PHASES.get(item.role, colour),
            "alpha": 0.35 if item.role == "share" else 1.0,
        }
        axes.add_patch(
            Rectangle((item.x, item.y), item.width, item.height, linewidth=0, zorder=order, **look)
        )
    elif isinstance(item, Mark):
        marker, size = {"circle": ("o", 10.0), "diamond": ("D", 8.6), "small": ("o", 5.0)}[
            item.shape
        ]
        face, style = (
            colour if item.fill in ("full", "half") else "white",
            "left" if item.fill == "half" else "full",
        )
        axes.plot(item.x, item.y, marker, markersize=size * POINT, markerfacecolor=face, markerfacecoloralt="white",
                  markeredgecolor=colour, markeredgewidth=1.8 * POINT, fillstyle=style, zorder=order)  # type: ignore[arg-type]  # fmt: skip
        if item.fill == "dot":
            axes.plot(item.x, item.y, marker="o", markersize=3 * POINT, color=colour, zorder=order)
    else:
        axes.text(
            item.x, item.y, item.text, color=TEXTS.get(item.role, INK), fontsize=SIZE * POINT, parse_math=False,
            ha={"start": "left", "middle": "center", "end": "right"}[item.anchor], va="baseline",
            rotation=90 if item.turned else 0, rotation_mode="anchor",
            fontweight="bold" if item.role == "heading" else "normal", zorder=order,
            path_effects=[withStroke(linewidth=2, foreground="white")] if item.role == "label" else None,
            family="DejaVu Sans",
        )  # fmt: skip
