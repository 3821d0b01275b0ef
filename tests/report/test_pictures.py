"""The pictures of a report as geometry: what they show, and that no label touches another."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from itertools import combinations, groupby
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from test_report import flat, make_run, row

from lanternbench.errors import UserError
from lanternbench.registry import components
from lanternbench.report.columns import columns, metric_column
from lanternbench.report.images import images_figure
from lanternbench.report.load import View, paper_name, read_names
from lanternbench.report.pareto import (
    box_of,
    overlap,
    place_labels,
    quality_columns,
    scatter,
    short_names,
    speed_column,
    trade_off,
)
from lanternbench.report.pictures import forest, panels, phases
from lanternbench.report.scene import (
    NARROW,
    WIDE,
    Line,
    Mark,
    Scene,
    Text,
    axis,
    family,
    scene_figure,
    text_width,
    wrap,
)
from lanternbench.report.tables import terminal_table
from lanternbench.report.write import latex_table, report, templates

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


def texts(scene: Scene, *roles: str) -> list[Text]:
    return [
        i
        for g in scene.groups
        for i in g.items
        if isinstance(i, Text) and (not roles or i.role in roles)
    ]


def boxes(scene: Scene) -> list[tuple]:
    """Where matplotlib really draws every text that is not turned, in pixels of the scene."""
    figure = scene_figure(scene)
    figure.draw_without_rendering()
    scale = figure.bbox.width / scene.width
    found = [
        (t.get_text(), t.get_window_extent()) for t in figure.axes[0].texts if not t.get_rotation()
    ]
    return [(text, (b.x0 / scale, b.y0 / scale, b.x1 / scale, b.y1 / scale)) for text, b in found]


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("draw", ["scatter", "forest", "panels"])
def test_21_methods_have_all_labels_and_none_touches_another_or_is_cut_off(width, draw):
    rows = rows_of(twenty_one())
    made = {"scatter": lambda: scatter(trade_off(rows, metric_column("fidelity_loss")), width),
            "forest": lambda: forest(rows, width), "panels": lambda: panels(rows, width)}[draw]()  # fmt: skip
    found = boxes(made)
    touching = [(a, b) for (a, one), (b, two) in combinations(found, 2) if overlap(one, two) > 1]
    assert touching == []
    assert all(
        x0 >= -1 and x1 <= made.width + 1 and y0 >= -1 and y1 <= made.height + 1
        for _, (x0, y0, x1, y1) in found
    )
    said = re.sub(r"\W", "", "".join(text.text for text in texts(made)))
    assert [label for label in LABELS if re.sub(r"\W", "", label) not in said] == []


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_no_label_covers_a_point_and_each_is_nearest_to_its_own(width):
    rows = rows_of(twenty_one())
    made = scatter(trade_off(rows, metric_column("fidelity_loss")), width)
    marks = [
        (i.x - 5, i.y - 5, i.x + 5, i.y + 5)
        for g in made.groups
        if g.hint
        for i in g.items
        if isinstance(i, Mark)
    ]
    labels = [t for g in made.groups if g.hint for t in g.items if isinstance(t, Text)]
    assert len(labels) == len(marks) == 21
    for text in labels:
        box = box_of(text)
        assert not any(overlap(box, mark) for mark in marks), text


def test_a_name_without_a_place_becomes_a_number_with_a_key():
    points = [(100.0 + 9 * (i % 4), 100.0 + 9 * (i // 4)) for i in range(16)]
    labels, key = place_labels(
        points, [f"a method of a long name {i}" for i in range(16)], [], (0, 0, 200, 200)
    )
    assert key
    assert all(number == i + 1 for i, (number, _) in enumerate(key))
    drawn = [box_of(text) for text, _ in labels]
    assert not any(overlap(a, b) for a, b in combinations(drawn, 2))
    assert {text.text for text, _ in labels} >= {str(number) for number, _ in key}


def knob_rows() -> list:
    return rows_of([
        flat(fidelity_loss=0.0), flat("eagle-1", "eagle-1", 1.4, fidelity_loss=0.0),
        *(flat(f"cool-sd λ={lam:g}", "cool-sd", 1 + lam / 4, options={"lam": lam, "nu": 0.7}, fidelity_loss=lam / 50,
               lossless=False) for lam in (2, 1.1, 4)),
        flat("gsd", "gsd", 1.9, fidelity_loss=0.2, lossless=False, options={"seed": 3}),
    ])  # fmt: skip


def test_a_method_at_several_settings_is_one_line_in_the_order_of_its_knob():
    data = trade_off(knob_rows(), metric_column("fidelity_loss"))
    assert [[data.rows[i].label for i in line] for line in data.knobs] == [
        ["cool-sd λ=1.1", "cool-sd λ=2", "cool-sd λ=4"]
    ]
    assert [name for name in short_names(data) if "λ" in name] == ["λ=2", "λ=1.1", "cool-sd λ=4"]
    drawn = [
        i
        for g in scatter(data, NARROW).groups
        for i in g.items
        if isinstance(i, Line) and i.role == "knob"
    ]
    assert [len(line.points) for line in drawn if len(line.points) > 2] == [3]


def test_the_scatter_is_of_trade_offs_alone():
    rows = [*knob_rows(), row("sjd", "sjd", 1.2, fidelity_loss=0.0)]
    data = trade_off(rows, metric_column("fidelity_loss"))
    assert {row.label for row in data.rows if row.lossless} == {
        "ar",
        "eagle-1",
    }  # of the lossless the fastest
    assert quality_columns([r for r in rows if r.lossless]) == []


def test_lossless_is_a_circle_and_relaxed_a_diamond_in_page_and_files():
    made = scatter(trade_off(knob_rows(), metric_column("fidelity_loss")), NARROW)
    shapes = {
        g.hint.partition(":")[0]: i.shape
        for g in made.groups
        if g.hint
        for i in g.items
        if isinstance(i, Mark)
    }
    assert shapes["ar"] == shapes["eagle-1"] == "circle"
    assert shapes["cool-sd λ=2"] == shapes["gsd"] == "diamond"
    assert {"lossless", "relaxed"} <= {t.text for t in texts(made, "legend")}
    drawn = [line.get_marker() for line in scene_figure(made).axes[0].lines]
    assert (drawn.count("o"), drawn.count("D")) == (3, 5)  # each with its sign in the legend
    page = str(templates().get_template("scene.html").module.svg(made, "narrow"))
    assert len(re.findall(r'class="mark full"', page)) == 8


def test_uniform_relaxation_is_no_cool_sd():
    assert family("uniform-rsd") == family("cool-sd") == "relaxed SD"


def test_one_wide_interval_does_not_stretch_the_axis():
    values, ends = [1.0, 1.4, 2.0], [(0.9, 1.1), (1.3, 1.5), (0.1, 9.0)]
    at = axis(values, ends, 0, 100)
    assert 0.5 < at.low < 0.9
    assert 2.0 < at.high < 2.6
    made = forest(rows_of([flat("a", "a", 1.4, speedup_lo=1.3, speedup_hi=1.5),
                           flat("b", "b", 2.0, speedup_lo=0.1, speedup_hi=9.0)]), WIDE)  # fmt: skip
    assert made is not None
    heads = [
        i
        for g in made.groups
        if g.hint.startswith("b")
        for i in g.items
        if isinstance(i, Line) and len(i.points) == 3
    ]
    assert len(heads) == 2  # its ends are arrow heads
    wide = axis(values, [(0.0, 4.0), (0.0, 4.0), (0.0, 4.0)], 0, 100)
    assert wide.low <= 0.0
    assert wide.high >= 4.0


def test_the_robust_speedup_is_drawn_where_the_clock_was_disturbed(tmp_path):
    quiet = rows_of([flat(robust_speedup=1.0), flat("sjd", "sjd", 2.0, robust_speedup=2.02)])
    assert speed_column(quiet).key == "speedup"
    fields = [flat(robust_speedup=1.0), flat("sjd", "sjd", 1.2, robust_speedup=2.0, robust_speedup_lo=1.9,
                                             robust_speedup_hi=2.1)]  # fmt: skip
    made = forest(rows_of(fields), NARROW)
    assert made is not None
    assert "2.00× [1.90, 2.10]" in [t.text for t in texts(made)]
    assert "robust speedup over AR" in made.title
    folder = make_run(tmp_path / "r", fields)
    report([folder], formats=["md"])
    assert "the pictures show the robust speedup" in (folder / "report" / "table.md").read_text()


def test_runs_are_told_apart_by_fill_and_number():
    rows = [row("sjd", "sjd", 1.5, run="first"), row("sjd", "sjd", 1.6, run="second")]
    made = forest(rows, NARROW)
    assert made is not None
    fills = {
        g.hint.partition(":")[0]: i.fill
        for g in made.groups
        if g.hint
        for i in g.items
        if isinstance(i, Mark)
    }
    assert fills == {"sjd (1)": "full", "sjd (2)": "hollow"}
    assert {"(1) first", "(2) second"} <= {t.text for t in texts(made, "legend")}


def test_the_forest_is_sorted_lossless_first_with_the_loss_beside_relaxed_methods():
    made = forest(rows_of(twenty_one(12)), WIDE)
    assert made is not None
    assert [t.text for t in texts(made, "heading")] == ["lossless", "relaxed"]
    marks = [
        (i.y, i.x, i.shape) for g in made.groups if g.hint for i in g.items if isinstance(i, Mark)
    ]
    for shape, count in (("circle", 12), ("diamond", 8)):
        x = [x for _, x, kind in sorted(marks) if kind == shape]
        assert x == sorted(x, reverse=True)
        assert len(x) == count
    assert max(y for y, _, kind in marks if kind == "circle") < min(
        y for y, _, kind in marks if kind == "diamond"
    )
    assert sum("fidelity loss" in g.hint for g in made.groups) == 8


def test_phases_are_bars_whose_lengths_are_milliseconds():
    times = [("ar", "ar", {"draft": 0.0, "verify": 10.0, "commit": 1.0, "other": 1.0}),
             ("eagle-1", "eagle-1", {"draft": 6.0, "verify": 12.0, "commit": 4.0, "other": 2.0})]  # fmt: skip
    made = phases(times, WIDE)
    assert made is not None
    bars = [[i for i in g.items if type(i).__name__ == "Bar"] for g in made.groups if g.hint]
    ratio = sum(b.width for b in bars[1]) / sum(b.width for b in bars[0])
    assert ratio == pytest.approx(2.0, abs=0.01)
    assert bars[1][1].width / bars[1][0].width == pytest.approx(2.0, abs=0.02)


def test_lines_break_at_blanks_and_inside_words_that_are_too_wide():
    for text in ("eagle-1 tree=chain shape=chain-5 acceptance=block", "x" * 80, "日本" * 20, ""):
        lines = wrap(text, 120)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert all(text_width(line) <= 120 for line in lines)
    assert wrap("eagle-3+block shape=chain-5", 60) == ["eagle-3+", "block", "shape=", "chain-5"]


# --- what a paper shows ---


def test_methods_columns_and_names_choose_what_tables_and_pictures_show(tmp_path):
    folder = make_run(tmp_path / "r", [flat(), *twenty_one(12)[1:]])
    (tmp_path / "names.yaml").write_text("cool-sd: Cool-SD (ours)\neagle-1: EAGLE\n")
    view = View(
        ("cool-sd", "eagle-1"), ("speedup", "fidelity_loss"), read_names(tmp_path / "names.yaml")
    )
    report([folder], view=view, formats=["md", "tex", "html"])
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
    (View(methods=("mine",)), "no run here has 'mine': choose of ar, "),
    (View(columns=("mine",)), "have no 'mine': choose of label, "),
])  # fmt: skip
def test_a_method_or_column_that_is_not_there_is_a_user_error(tmp_path, view, words):
    with pytest.raises(UserError, match=words):
        report([make_run(tmp_path / "r")], view=view)


@pytest.mark.parametrize("text", ["- a\n", "a: [b\n", "a: {b: c}\n"])
def test_a_file_of_names_of_another_form_is_a_user_error(tmp_path, text):
    (tmp_path / "names.yaml").write_text(text)
    with pytest.raises(UserError, match="--names"):
        read_names(tmp_path / "names.yaml")


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
    files = report([folder], formats=["md"], view=View(("ar", "sjd")), grid=2)
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


def test_the_page_says_its_recipe_once_and_what_to_read_before_quoting(tmp_path):
    folder = make_run(tmp_path / "r", torn='{"key": "to\n{"key": "x')
    (page,) = report([folder], published=True, formats=["html"])
    text = page.read_text()
    assert text.count('class="recipe"') == 1
    assert "<h3>Before you quote this</h3>" in text
    assert "Mind" not in text
