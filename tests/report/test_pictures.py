"""The pictures of a report: what they show, and that no label touches another."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import subprocess
from itertools import combinations, groupby
from pathlib import Path
from xml.etree import ElementTree

import pytest
from flat_rows import row_of
from matplotlib.lines import Line2D
from matplotlib.text import Text
from PIL import Image
from rich.console import Console
from test_report import ROWS, flat, make_run, row

from lanternbench import report
from lanternbench.errors import UserError
from lanternbench.registry import components
from lanternbench.report.columns import COLUMN, columns, metric_column
from lanternbench.report.images import images_figure
from lanternbench.report.labels import Box, overlap, place_labels
from lanternbench.report.latex import latex_table
from lanternbench.report.listing import forest, phases
from lanternbench.report.load import View, paper_name
from lanternbench.report.marks import axis_range
from lanternbench.report.plots import panels
from lanternbench.report.scatter import scatter
from lanternbench.report.style import (
    CARD,
    GRID,
    INK,
    NARROW,
    QUIET,
    SVG,
    WIDE,
    Plot,
    colour,
    family,
    figure_points,
    page_svg,
    text_width,
    wrap,
)
from lanternbench.report.tables import terminal_table
from lanternbench.report.tradeoff import quality_columns, short_names, speed_column, trade_off

LABELS = [
    "sd", "medusa", "eagle-1", "eagle-1 tree=chain shape=chain-5 acceptance=block", "eagle-3",
    "eagle-3 tree=chain shape=chain-5 acceptance=block", "eagle-2", "jacobi", "sjd", "scd", "scd coupling=gumbel",
    "sjd-pac", "gsd", "lantern", "lantern++", "adt-tree", "adt-tree acceptance=lantern δ=0.1", "uniform-rsd", "cool-sd",
    "cool-sd proposal=eagle-3",
]  # fmt: skip


def twenty_one(relaxed_from: int = 0) -> list[dict]:
    """ar and 20 methods, near each other, of which those from a number on are relaxed."""
    rows = [flat(fidelity_loss=0.0)]
    for i, label in enumerate(LABELS):
        speed, loss = (
            1.2 + 0.11 * (i * 7 % 10),
            0.02 + 0.011 * (i * 3 % 11) if i >= relaxed_from else 0.0,
        )
        more = {"fidelity_loss": loss, "fidelity_loss_lo": 0.8 * loss, "fidelity_loss_hi": 1.2 * loss,
                "accept_histogram": [0, 9, 5, 3, *[1] * (i % 13)], "lossless": i < relaxed_from}  # fmt: skip
        rows.append(
            flat(
                label,
                label.split()[0],
                speed,
                speedup_lo=speed - 0.15,
                speedup_hi=speed + 0.15,
                **more,
            )
        )
    return rows


def rows_of(fields: list[dict]) -> list:
    return [row(**each) for each in fields]


def texts(plot: Plot, weight: str = "") -> list[str]:
    """The texts of a figure, those of axes too."""
    found = plot.figure.findobj(Text)
    return [t.get_text() for t in found if t.get_text() and weight in ("", t.get_fontweight())]


def boxes(plot: Plot) -> list[tuple[str, Box]]:
    """Where matplotlib really draws every text that is not turned, in points."""
    plot.figure.draw_without_rendering()
    scale = plot.figure.dpi / 72
    found = []
    for text in plot.figure.findobj(Text):
        if text.get_text() and text.get_visible() and not text.get_rotation():
            extent = text.get_window_extent()
            found.append((text.get_text(), Box(*(x / scale for x in extent.extents))))
    return found


def marks(plot: Plot) -> dict[str, list[Line2D]]:
    """The points of each method by its hint."""
    (axes,) = plot.figure.axes
    return {
        hint: [line for line in axes.lines if line.get_gid() == gid and len(line.get_xdata()) == 1]
        for gid, hint in plot.hints.items()
    }


def symbol(line: Line2D) -> str:
    return {"o": "circle", "D": "diamond"}[line.get_marker()]


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("draw", ["scatter", "forest", "panels"])
def test_21_methods_have_all_labels_and_none_touches_another_or_is_cut_off(width, draw):
    rows = rows_of(twenty_one())
    plot = {
        "scatter": lambda: scatter(trade_off(rows, metric_column("fidelity_loss")), width),
        "forest": lambda: forest(rows, width),
        "panels": lambda: panels(rows, width),
    }[draw]()
    found = boxes(plot)
    assert len(found) > 20
    pairs = combinations(found, 2)
    assert [(a, b) for (a, one), (b, two) in pairs if overlap(one, two) > 1] == []
    page = Box(-1, -1, width + 1, figure_points(plot.figure)[1] + 1)
    assert [text for text, box in found if not page.holds(box)] == []
    drawn = re.sub(r"\W", "", "".join(texts(plot)))
    assert [label for label in LABELS if re.sub(r"\W", "", label) not in drawn] == []


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_no_label_covers_a_point(width):
    plot = scatter(trade_off(rows_of(twenty_one()), metric_column("fidelity_loss")), width)
    plot.figure.draw_without_rendering()
    scale = plot.figure.dpi / 72
    (axes,) = plot.figure.axes
    points = []
    for (line,) in marks(plot).values():
        x, y = axes.transData.transform((line.get_xdata()[0], line.get_ydata()[0])) / scale
        points.append(Box(x - 3.3, y - 3.3, x + 3.3, y + 3.3))
    labels = [text for text in axes.texts if text.get_text()]
    assert len(labels) == len(points) == 21
    for text in labels:
        box = Box(*(x / scale for x in text.get_window_extent().extents))
        assert not any(overlap(box, point) for point in points), text


def test_labels_stand_where_their_placing_says():
    plot = scatter(trade_off(knob_rows(), metric_column("fidelity_loss")), NARROW)
    plot.figure.draw_without_rendering()
    (axes,) = plot.figure.axes
    for text in axes.texts:
        if text.get_text() == "gsd":
            (line,) = next(lines for hint, lines in marks(plot).items() if hint.startswith("gsd"))
            point = axes.transData.transform((line.get_xdata()[0], line.get_ydata()[0]))
            extent = text.get_window_extent()
            nearest = (
                min(max(point[0], extent.x0), extent.x1),
                min(max(point[1], extent.y0), extent.y1),
            )
            assert math.dist(nearest, point) * 72 / plot.figure.dpi < 12


def test_a_name_without_a_place_becomes_a_number_with_a_key():
    points = [(100.0 + 6 * (i % 4), 100.0 + 6 * (i // 4)) for i in range(16)]
    names = [f"a method of a long name {i}" for i in range(16)]
    placed = place_labels(points, names, [], Box(0, 0, 150, 150))
    assert placed.numbered
    assert [number for number, _ in placed.numbered] == list(range(1, len(placed.numbered) + 1))
    drawn = [label.box for label in placed.labels]
    assert not any(overlap(a, b) for a, b in combinations(drawn, 2))
    numbers = {str(number) for number, _ in placed.numbered}
    assert {label.text for label in placed.labels} >= numbers


def knob_rows() -> list:
    cool_sd = [
        flat(
            f"cool-sd λ={lam:g}",
            "cool-sd",
            1 + lam / 4,
            options={"lam": lam, "nu": 0.7},
            fidelity_loss=lam / 50,
            lossless=False,
        )
        for lam in (2, 1.1, 4)
    ]
    gsd = flat("gsd", "gsd", 1.9, fidelity_loss=0.2, lossless=False, options={"seed": 3})
    eagle = flat("eagle-1", "eagle-1", 1.4, fidelity_loss=0.0)
    return rows_of([flat(fidelity_loss=0.0), eagle, *cool_sd, gsd])


def test_a_method_at_several_settings_is_one_line_in_the_order_of_its_knob():
    data = trade_off(knob_rows(), metric_column("fidelity_loss"))
    assert [[data.rows[i].label for i in line] for line in data.knobs] == [
        ["cool-sd λ=1.1", "cool-sd λ=2", "cool-sd λ=4"]
    ]
    assert [name for name in short_names(data) if "λ" in name] == ["λ=2", "λ=1.1", "cool-sd λ=4"]
    (axes,) = scatter(data, NARROW).figure.axes
    knobs = [line for line in axes.lines if line.get_color() == colour("cool-sd")]
    (along,) = [line for line in knobs if len(line.get_xdata()) == 3]
    assert list(along.get_xdata()) == sorted(along.get_xdata())


def test_the_scatter_is_of_trade_offs_alone():
    rows = [*knob_rows(), row("sjd", "sjd", 1.2, fidelity_loss=0.0)]
    data = trade_off(rows, metric_column("fidelity_loss"))
    # of the lossless ones the fastest
    assert {row.label for row in data.rows if row.lossless} == {"ar", "eagle-1"}
    assert quality_columns([r for r in rows if r.lossless]) == []


def test_lossless_is_a_circle_and_relaxed_a_diamond_in_page_and_files():
    plot = scatter(trade_off(knob_rows(), metric_column("fidelity_loss")), NARROW)
    shapes = {hint.partition(":")[0]: symbol(lines[0]) for hint, lines in marks(plot).items()}
    assert shapes["ar"] == shapes["eagle-1"] == "circle"
    assert shapes["cool-sd λ=2"] == shapes["gsd"] == "diamond"
    assert {"lossless", "relaxed"} <= set(texts(plot))


def test_the_page_s_picture_has_a_group_with_a_title_for_every_method_and_no_fixed_ink():
    plot = scatter(trade_off(knob_rows(), metric_column("fidelity_loss")), NARROW)
    svg = ElementTree.fromstring(page_svg(plot, "pareto"))
    groups = [element for element in svg.iter() if element.get("class") == "point"]
    assert len(groups) == len(plot.hints) == 6
    for group, hint in zip(groups, plot.hints.values(), strict=True):
        assert group.get("aria-label") == hint == group.find(f"{{{SVG}}}title").text
        assert group.get("tabindex") == "0"
        assert len(group) > 2  # its title, its point and its label
    ids = [element.get("id") for element in svg.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert all(name.startswith("pareto-") for name in ids)
    whole = ElementTree.tostring(svg, encoding="unicode")
    assert "var(--ink)" in whole
    assert not any(shade in whole for shade in (INK, QUIET, GRID))
    assert "DejaVu" not in whole
    for reference in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', whole):
        assert max(reference) in ids


def test_a_label_of_anyone_s_cannot_leave_the_picture():
    name = "<script>alert(1)</script> $x^2$ & 'q'"
    rows = rows_of([flat(), flat(name, "mine", 2.0, lossless=False)])
    plot = forest(rows, NARROW)
    assert plot is not None
    svg = page_svg(plot, "speed")
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
    assert re.sub(r"\W", "", name) in re.sub(r"\W", "", "".join(texts(plot)))


def test_uniform_relaxation_is_no_cool_sd():
    assert family("uniform-rsd") == family("cool-sd") == "relaxed SD"


def test_one_wide_interval_does_not_stretch_the_axis():
    speed = COLUMN["speedup"]
    ends = [(1.0, 0.9, 1.1), (1.4, 1.3, 1.5), (2.0, 0.1, 9.0)]
    rows = rows_of([flat("a", "a", x, speedup_lo=low, speedup_hi=high) for x, low, high in ends])
    low, high = axis_range(speed, rows)
    assert 0.5 < low < 0.9
    assert 2.0 < high < 2.6
    plot = forest(rows[1:], WIDE)
    assert plot is not None
    (axes,) = plot.figure.axes
    assert {"<", ">"} <= {line.get_marker() for line in axes.lines}  # its ends are arrow heads
    wide = rows_of([flat("a", "a", x, speedup_lo=0.0, speedup_hi=4.0) for x, *_ in ends])
    low, high = axis_range(speed, wide)
    assert low <= 0.0
    assert high >= 4.0


def test_the_robust_speedup_is_drawn_where_timing_was_noisy(tmp_path):
    quiet = rows_of([flat(robust_speedup=1.0), flat("sjd", "sjd", 2.0, robust_speedup=2.02)])
    assert speed_column(quiet).key == "speedup"
    robust = {"robust_speedup": 2.0, "robust_speedup_lo": 1.9, "robust_speedup_hi": 2.1}
    fields = [flat(robust_speedup=1.0), flat("sjd", "sjd", 1.2, **robust)]
    plot = forest(rows_of(fields), NARROW)
    assert plot is not None
    assert "2.00× [1.90, 2.10]" in texts(plot)
    assert "robust speedup over AR" in plot.title
    folder = make_run(tmp_path / "r", fields)
    report([folder], formats=["md"])
    assert "the plots show the robust speedup" in (folder / "report" / "table.md").read_text()


def test_runs_are_distinguished_by_fill_and_number():
    rows = [row("sjd", "sjd", 1.5, run="first"), row("sjd", "sjd", 1.6, run="second", place=1)]
    plot = forest(rows, NARROW)
    assert plot is not None
    faces = {
        hint.partition(":")[0]: lines[0].get_markerfacecolor()
        for hint, lines in marks(plot).items()
    }
    assert faces == {"sjd (1)": colour("sjd"), "sjd (2)": CARD}
    assert {"(1) first", "(2) second"} <= set(texts(plot))


def test_the_forest_is_sorted_lossless_first_with_the_loss_next_to_relaxed_methods():
    plot = forest(rows_of(twenty_one(12)), WIDE)
    assert plot is not None
    assert texts(plot, "bold") == ["lossless", "relaxed"]
    points = [line for lines in marks(plot).values() for line in lines]
    places = {"circle": [], "diamond": []}
    for line in points:
        places[symbol(line)].append((line.get_ydata()[0], line.get_xdata()[0]))
    for shape, count in (("circle", 12), ("diamond", 8)):
        speeds = [x for _, x in sorted(places[shape])]
        assert speeds == sorted(speeds, reverse=True)
        assert len(speeds) == count
    assert max(places["circle"])[0] < min(places["diamond"])[0]  # y is from the top
    assert sum("fidelity loss" in hint for hint in plot.hints.values()) == 8


def test_phases_are_bars_whose_lengths_are_milliseconds():
    times = [
        ("ar", {"draft": 0.0, "verify": 10.0, "commit": 1.0, "other": 1.0}),
        ("eagle-1", {"draft": 6.0, "verify": 12.0, "commit": 4.0, "other": 2.0}),
    ]
    plot = phases(times, WIDE)
    assert plot is not None
    (axes,) = plot.figure.axes
    for (_, parts), gid in zip(times, plot.hints, strict=True):
        bars = [bar for bar in axes.patches if bar.get_gid() == gid]
        assert [bar.get_width() for bar in bars] == list(parts.values())
        assert sum(bar.get_width() for bar in bars) == bars[-1].get_x() + bars[-1].get_width()


def test_lines_break_at_blanks_and_inside_words_that_are_too_wide():
    for text in ("eagle-1 tree=chain shape=chain-5 acceptance=block", "x" * 80, "日本" * 20, ""):
        lines = wrap(text, 80)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert all(text_width(line) <= 80 for line in lines)
    assert wrap("eagle-3+block shape=chain-5", 40) == ["eagle-3+", "block", "shape=", "chain-5"]


# --- what a paper shows ---


def test_methods_columns_and_names_choose_what_tables_and_pictures_show(tmp_path):
    folder = make_run(tmp_path / "r", [flat(), *twenty_one(12)[1:]])
    (tmp_path / "names.yaml").write_text("cool-sd: Cool-SD (ours)\neagle-1: EAGLE\n")
    report(
        [folder],
        methods=["cool-sd", "eagle-1"],
        columns=["speedup", "fidelity_loss"],
        names=tmp_path / "names.yaml",
        formats=["md", "tex", "html"],
    )
    lines = [
        line
        for line in (folder / "report" / "table.md").read_text().splitlines()
        if line.startswith("|")
    ]
    assert lines[0] == "| method | speedup ↑ | fidelity loss ↓ |"
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "Cool-SD (ours)", "Cool-SD (ours) (proposal=eagle-3)", "EAGLE",
        "EAGLE (tree=chain, shape=chain-5, acceptance=block)"]  # fmt: skip
    assert "Cool-SD (ours) (proposal=eagle-3)" in (folder / "report" / "report.html").read_text()
    tex = (folder / "report" / "table.tex").read_text()
    assert "Cool-SD (ours) & " in tex
    assert "lantern" not in tex


@pytest.mark.parametrize(("view", "words"), [
    ({"methods": ["mine"]}, "no run has 'mine': choose of ar, "),
    ({"columns": ["mine"]}, "have no 'mine': choose of label, "),
])  # fmt: skip
def test_a_method_or_column_that_is_not_there_is_a_user_error(tmp_path, view, words):
    with pytest.raises(UserError, match=words):
        report([make_run(tmp_path / "r")], **view)


def test_names_reach_pairs_and_categories_and_two_of_one_name_are_refused(tmp_path):
    rows = [flat(), flat("sjd", "sjd", 2.0), flat("gsd", "gsd", 3.0, lossless=False)]
    folder = make_run(tmp_path / "r", rows, prompts=3)
    lines = []
    for line in (folder / "samples.jsonl").read_text().splitlines():
        one = json.loads(line)
        lines.append(json.dumps(one | {"category": f"colour {int(one['prompt_id']) % 2}"}))
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n")
    names = {"ar": "Plain AR", "sjd": "Speculative Jacobi"}
    report([folder], out=tmp_path / "out", names=names, formats=["md", "csv"])
    for name in ("table.md", "pairs.md", "pairs.csv", "categories.md"):
        text = (tmp_path / "out" / name).read_text()
        assert "Speculative Jacobi" in text
        assert re.search(r"\b(sjd)\b|[|,] ?ar ?[|,]", text) is None, name
        assert "Plain AR" in text
    with pytest.raises(UserError, match="'sjd' and 'gsd' are both called 'Ours'"):
        report([folder], names={"sjd": "Ours", "gsd": "Ours"})
    with pytest.raises(UserError, match="'ar' and 'sjd' are both called 'sjd'"):
        report([folder], names={"ar": "sjd"})


def test_clip_means_the_bundled_clip_where_that_alone_was_measured(tmp_path):
    folder = make_run(tmp_path / "r")
    report([folder], columns=["clip", "tau"], formats=["md"])
    head = next(
        line
        for line in (folder / "report" / "table.md").read_text().splitlines()
        if line[:1] == "|"
    )
    assert head == "| method | CLIP-tiny ↑ | τ ↑ |"
    both = [row_of(one | {"clip": 0.25}) for one in ROWS]
    assert [c.key for c in View(columns=("clip",)).columns_for(both, "md")] == ["label", "clip"]


@pytest.mark.parametrize("text", ["- a\n", "a: b\na: c\n", "a: [b\n", "a: {b: c}\n"])
def test_a_file_of_names_of_another_form_is_a_user_error(tmp_path, text):
    (tmp_path / "names.yaml").write_text(text)
    with pytest.raises(UserError, match=r"names\.yaml"):
        report([make_run(tmp_path / "r")], names=tmp_path / "names.yaml")


def test_labels_are_written_as_in_papers():
    rows = [
        row("cool-sd λ=2 ν=0.7", "cool-sd"),
        row("lantern++", "lantern++"),
        row("mine λ=2", "mine"),
        row("x", "sjd"),
    ]
    assert [paper_name(r) for r in rows] == ["Cool-SD (λ=2, ν=0.7)", "LANTERN++", "mine λ=2", "x"]
    assert [name for name in components("preset") if paper_name(row(name, name)) == name] == []


def test_the_latex_table_is_as_wide_as_a_page_at_most_and_says_what_it_left_out():
    narrow = latex_table(
        rows_of(
            [
                flat(),
                flat("sjd", "sjd", 2.0, speedup_lo=1.9, speedup_hi=2.2, **{"clip-tiny": None}),
            ]
        )
    )
    assert r"\begin{table}[t]" in narrow
    assert "$2.00{\\scriptstyle\\,\\pm\\,0.20}$" in narrow
    many = {f"metric-{i}": 0.5 for i in range(12)}
    wide = latex_table(rows_of([flat(**many), *(each | many for each in twenty_one()[1:])]))
    assert r"\begin{table*}[t]" in wide
    (line,) = [line for line in wide.splitlines() if line.startswith("% too wide")]
    assert "metric-11" in line
    assert r"metric-11 " not in wide.replace(line, "")


def test_the_grid_holds_the_images_of_the_chosen_methods(tmp_path):
    folder = make_run(tmp_path / "r", twenty_one(12), prompts=3)
    files = report(
        [folder], formats=["md"], methods=["ar", "sjd"], grid=True, grid_prompts=2
    ).files
    assert {"grid.png", "grid.pdf"} <= {file.name for file in files}
    with Image.open(folder / "report" / "grid.png") as image:
        red = sum(pixel == (255, 0, 0) for pixel in image.convert("RGB").getdata()) / (
            image.width * image.height
        )
    # two prompts × two of at least three columns of red squares, the captions and the third column
    # white
    assert 0.4 < red < 0.65
    assert Path(folder / "report" / "grid.pdf").read_bytes().startswith(b"%PDF")


def test_images_are_shared_out_over_the_lines_of_the_grid():
    for count, lines in ((3, [3]), (8, [8]), (9, [5, 4]), (25, [7, 7, 7, 4])):
        figure = images_figure(["a\n1×"] * count, [[None] * count], ["a caption"])
        heights = [round(axes.get_position().y0, 4) for axes in figure.axes]
        assert [len(list(line)) for _, line in groupby(heights)] == lines


def test_the_table_and_the_pictures_fit_a_two_column_paper(tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip(
            "NO PDFLATEX: install texlive-latex-recommended to set the paper; nothing of it was checked"
        )
    folder = make_run(tmp_path / "r", twenty_one(12))
    report([folder])
    picture = folder / "report" / "pareto-fidelity_loss.pdf"
    text = "\\documentclass[twocolumn]{article}\n\\usepackage[margin=0.75in]{geometry}\n\\usepackage{booktabs,graphicx}\n"
    text += (
        "\\begin{document}x\n\\input{%s}\n\\par\\noindent\\includegraphics{%s}\n\\end{document}\n"
    )
    (tmp_path / "p.tex").write_text(text % (folder / "report" / "table.tex", picture))
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=batchmode", "p.tex"],
        cwd=tmp_path,
        timeout=120,
    )
    log = (tmp_path / "p.log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert "Overfull \\hbox" not in log


def test_the_terminal_table_names_what_it_leaves_out_and_says_what_columns_mean():
    rows = rows_of([flat(tree_depth=5.0), flat("sjd", "sjd", 2.0, tree_depth=5.0)])
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(terminal_table(rows, 60))
    text = " ".join(console.export_text().split())
    assert "step compr." not in text.partition("τ: ")[0]
    assert "not shown: lossless, latency (s), step compr., depth d̄" in text
    assert "τ: accepted length, tokens committed per step, bonus token included" in text


def test_the_markdown_table_is_the_one_that_a_reader_wants_first():
    many = dict.fromkeys(
        (
            "drafter_top1",
            "perplexity",
            "entropy",
            "step_p50_s",
            "tokens_per_s",
            "robust_latency_s",
        ),
        0.5,
    )
    rows = rows_of([flat(**many), flat("sjd", "sjd", 2.0, tree_depth=5.0, **many)])
    assert len(columns(rows, "md")) <= 10 < len(columns(rows))


@pytest.mark.usefixtures("quick_pictures")
def test_the_page_says_its_recipe_once_and_what_to_read_before_quoting(tmp_path):
    folder = make_run(tmp_path / "r", torn='{"key": "to\n{"key": "x')
    (page,) = report([folder], published=True, formats=["html"]).files
    text = page.read_text()
    assert text.count('class="recipe"') == 1
    assert "<h3>Before you quote this</h3>" in text
    assert "Mind" not in text
