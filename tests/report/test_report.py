"""The report: tables, Pareto plots, one safe page, and the papers' numbers beside the measured
ones.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA, SHARED
from flat_rows import markdown_table, row_of, seal, write_summary
from PIL import Image
from rich.console import Console
from run_records import run_record

from lanternbench import experiment as results
from lanternbench import report
from lanternbench.cli.main import main
from lanternbench.errors import UserError
from lanternbench.measure import summary as measure
from lanternbench.measure.figures import Figures
from lanternbench.measure.summary import RANDOM_NOTE, read_summary
from lanternbench.methods.method import all_options
from lanternbench.report.columns import columns, metric_column, tex_escape
from lanternbench.report.images import image_uri, token_map
from lanternbench.report.latex import latex_table
from lanternbench.report.load import ReportRow, joined_rows, load_run, read_contents
from lanternbench.report.papers import NONE, differences, published_beside, published_rows
from lanternbench.report.tables import csv_text, frame, terminal_table
from lanternbench.report.tradeoff import pareto_frontier, quality_columns, speed_column, trade_off
from lanternbench.report.write import FORMATS

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)> ${plotly} \" | & \u0000"


def flat(label: str = "ar", method: str = "ar", speedup: float | None = 1.0, **changes) -> dict:
    """A row as runs of old keep it."""
    fields = {"label": label, "method": method, "options": {}, "target": "tiny", "dataset": "demo", "temperature": 1.0,
              "n": 2, "lossless": True, "latency_s": 0.5, "latency_s_lo": 0.4, "latency_s_hi": 0.6, "speedup": speedup,
              "speedup_lo": speedup, "speedup_hi": speedup, "step_compression": 1.5, "accept_len": 1.5,
              "tree_depth": None, "fidelity_loss": None, "clip-tiny": 0.3, "clip-tiny_lo": 0.29,
              "clip-tiny_hi": 0.31}  # fmt: skip
    return fields | changes


def row(
    *args, hardware: str = "–", run: str | None = None, place: int = 0, **changes
) -> ReportRow:
    facts = {"hardware": hardware, "run": run, "place": place}
    return ReportRow(**vars(row_of(flat(*args, **changes))), **facts)


FID = {"fid-tiny": 20.0, "fid-tiny_lo": None, "fid-tiny_hi": None, "fid-tiny_n": 2}
ROWS = [
    flat("cool-sd λ=2", "cool-sd", 2.0, options={"lam": 2.0}, fidelity_loss=0.4, lossless=False),
    flat(),
]


def sample(
    folder: Path,
    prompt: int,
    of: dict,
    caption: str = "a red disc",
    seed: int = 0,
    size: int = 64,
    **more,
) -> dict:
    name = f"images/{prompt}-{re.sub(r'[^a-z0-9-]', '', of['method'])}-{seed}.png"
    Image.new("RGB", (64, 64), "red").save(folder / name)
    return {"key": f"{prompt}|{of['label']}|{seed}", "prompt_id": str(prompt), "prompt": f"{caption} {prompt}", "label": of["label"],
            "method": of["method"], "seed": seed, "tokens": 4, "steps": 2, "accept_lengths": [3, 1],
            "tree_depths": [5, 2], "decode_s": 0.5, "timed": True, "image": name, "token_ids": [1, 2, 3, 4],
            "metrics": {"clip-tiny": 0.3}} | more  # fmt: skip


def make_run(folder: Path, rows: list[dict] | None = None, prompts: int = 2, caption: str = "a red disc",
             run_id: str = "r1", torn: str = "") -> Path:  # fmt: skip
    rows = ROWS if rows is None else rows
    (folder / "images").mkdir(parents=True)
    samples = [sample(folder, prompt, of, caption) for prompt in range(prompts) for of in rows]
    info = {"run_id": run_id, "created": "2025-01-01T00:00:00", "config": {"seed": 1},
            "environment": {"gpus": [{"name": "NVIDIA A100-SXM4-80GB"}], "cpu": "C"},
            "prompts": {"source": "demo", "count": prompts}, "target": {"name": "tiny", "grid": [2, 2]}}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples) + torn)
    write_summary(folder, rows, ["few prompts"])
    return folder


def page(folder: Path, **kwargs) -> str:
    (file,) = report([folder], formats=["html"], **kwargs).files
    return file.read_text()


class Tags(HTMLParser):
    """Tags, attributes and visible text as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


# --- the Pareto frontier ---


def test_the_frontier_keeps_exactly_what_no_point_beats():
    x, y = [1.0, 2.0, 3.0, 2.0, 2.5], [0.30, 0.29, 0.25, 0.31, 0.20]
    assert pareto_frontier(x, y, lower_is_better=False) == [3, 2]
    assert pareto_frontier(x, y, lower_is_better=True) == [4, 2]


def test_the_frontier_keeps_equal_points_and_drops_missing_ones():
    nan = float("nan")
    assert pareto_frontier([1, 1, nan, 0.5], [2, 2, 9, 2], lower_is_better=False) == [0, 1]
    assert pareto_frontier([], [], lower_is_better=True) == []


def test_the_frontier_agrees_with_its_definition_on_random_points():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, 40).astype(float), rng.integers(0, 6, 40).astype(float)
    beaten = [np.any((x >= a) & (y <= b) & ((x > a) | (y < b))) for a, b in zip(x, y)]
    assert sorted(pareto_frontier(list(x), list(y), True)) == [
        i for i in range(40) if not beaten[i]
    ]


def test_a_column_has_the_direction_that_its_metric_names_and_an_unknown_one_has_none_and_no_frontier():
    lower, higher = (
        ("fid", "fid-tiny", "cmmd"),
        ("clip", "image-reward", "hpsv2", "geneval", "recall-tiny"),
    )
    assert {metric_column(key).better for key in lower} == {"lower"}
    assert {metric_column(key).better for key in higher} == {"higher"}
    assert (metric_column("mine").better, metric_column("mine").title) == ("", "mine")
    assert trade_off([row(mine=0.3)], metric_column("mine")).frontiers == []


def test_scores_of_random_weights_keep_their_mark_and_stand_beside_no_paper(tmp_path):
    random = {
        f"fid-random{end}": value for end, value in (("", 3.0), ("_lo", None), ("_hi", None))
    }
    rows = [flat("cool-sd λ=2", "cool-sd", 2.0, options={"lam": 2.0}, **random), flat(**random)]
    assert metric_column("fid-random").better == "lower"
    folder = make_run(tmp_path / "r", rows)
    report([folder], published=True, formats=["md"])
    table = (folder / "report" / "table.md").read_text()
    assert "FID-random ↓" in next(
        line for line in table.splitlines() if line.startswith("| method")
    )
    assert RANDOM_NOTE.text in table
    assert (
        published_beside([row("sjd", "sjd", 1.7, **PAPER, **random)])["fid measured"].isna().all()
    )


def test_accuracy_of_the_drafter_and_perplexity_are_in_the_full_table_only():
    rows = [row(drafter_top1=0.25, drafter_top1_lo=0.2, drafter_top1_hi=0.3, perplexity=7.5)]
    full = markdown_table(rows, columns(rows))
    assert "25.0% \\[20.0%, 30.0%\\]" in full
    assert "perplexity" in full.splitlines()[0]
    for view in ("md", "tex", "terminal"):
        assert not {"drafter_top1", "perplexity"} & {column.key for column in columns(rows, view)}


def test_paired_tests_against_ar_are_in_the_full_table():
    rows = [row(**{"clip-tiny_p": None}), row("sjd", "sjd", 1.5, **{"clip-tiny_p": 0.0312})]
    head, _, _, ours = markdown_table(rows, columns(rows)).splitlines()
    at = [cell.strip() for cell in head.split("|")].index("p, CLIP-tiny")
    assert ours.split("|")[at].strip() == "0.031"
    assert not any(column.test for column in columns(rows, "terminal"))


# --- tables ---


def test_every_table_shows_value_and_interval_and_a_dash_for_what_is_missing():
    rows = [
        row(tree_depth=None),
        row("sjd", "sjd", 1.5, speedup_lo=1.4, speedup_hi=1.6, tree_depth=7),
    ]
    assert "1.50× \\[1.40, 1.60\\]" in markdown_table(rows)
    assert "| – |" in markdown_table(rows)
    assert "$1.50{\\scriptstyle\\,\\pm\\,0.10}$" in latex_table(rows)
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(terminal_table(rows))
    text = console.export_text()
    assert "1.50× [1.40, 1.60]" in text
    assert "–" in text
    assert "None" not in text + markdown_table(rows) + latex_table(rows)


def test_the_terminal_table_puts_ar_first_and_reads_no_markup_in_labels():
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(terminal_table([row("[red]x[/red]", "x", 2.0), row()]))
    text = console.export_text()
    assert text.index("\n ar ") < text.index("[red]x[/red]")


def test_the_rows_of_two_runs_stay_apart_in_the_terminal():
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(
        terminal_table(
            [row("x", "x", 2.0, run="second"), row(run="second"), row(run="first", place=1)]
        )
    )
    found = [
        line.split()[:2]
        for line in console.export_text().partition("τ: ")[0].splitlines()
        if line.strip()
    ]
    assert found[-3:] == [["second", "ar"], ["second", "x"], ["first", "ar"]]


def test_a_column_without_any_value_is_left_out():
    assert "peak_memory_mb" not in [c.key for c in columns([row(peak_memory_mb=None)])]
    assert "peak_memory_mb" in [c.key for c in columns([row(peak_memory_mb=5.0)])]


def test_a_robust_speedup_that_differs_from_the_wall_clock_s_is_in_every_table():
    quiet, disturbed = (
        row("x", "x", 2.0, robust_speedup=2.08),
        row("y", "y", 1.4, robust_speedup=2.0),
    )
    for view in ("full", "md", "tex", "terminal"):
        found = {c.key: c for c in columns([quiet, disturbed], view)}
        assert [found["robust_speedup"].value(x) for x in (quiet, disturbed)] == ["2.08×", "2.00×"]
    assert "robust_speedup" not in [c.key for c in columns([quiet], "terminal")]
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(terminal_table([row(), quiet, disturbed], 80))
    assert "robust\N{NO-BREAK SPACE}↑" in console.export_text()


def test_rows_of_batches_have_images_per_second_in_every_table():
    timed = row_of(flat(images_per_s=0.5))
    batched = row_of(flat(speedup=None, latency_s=None, images_per_s=4.0))
    for view in ("full", "tex", "terminal"):
        found = {c.key: c for c in columns([timed, batched], view)}
        assert [found["images_per_s"].value(row) for row in (timed, batched)] == ["0.500", "4.000"]
    assert "images_per_s" not in [c.key for c in columns([timed], "terminal")]


def test_nan_and_impossible_numbers_count_as_missing_and_words_are_a_sentence(tmp_path):
    column = metric_column("clip")
    assert {column.cell(row_of(flat(clip=v))) for v in (float("nan"), None, 1e300)} == {"–"}
    one = flat(clip=0.25, clip_lo=0.2, clip_hi=0.3)
    assert column.cell(row_of(one)) == "0.2500 [0.2000, 0.3000]"
    for number, wrong in enumerate(("0.3", True, [1], 10**400)):
        folder = make_run(tmp_path / str(number), [flat(clip=wrong)])
        with pytest.raises(
            UserError, match=r"summary\.json cannot be read \(rows\.0\.figures\.clip"
        ):
            read_summary(folder)


def test_latex_and_markdown_print_special_signs_as_text():
    assert (
        tex_escape("a_b & 50% $x$ \\input{y} λ")
        == r"a\_b \& 50\% \$x\$ \textbackslash{}input\{y\} $\lambda$"
    )
    symbols = {
        field.json_schema_extra["symbol"] for fields in all_options().values() for field in fields
    } - {None}
    assert [sign for sign in symbols if "?" in tex_escape(sign)] == []
    assert " \\\\\n{}[x" in latex_table([row(), row("[x", "x")])
    table = markdown_table([row("a|b\n<script>", "x")])
    assert "a\\|b &lt;script&gt;" in table
    assert len(table.splitlines()) == 3


def test_the_csv_keeps_full_precision_and_runs_no_formula():
    read = next(csv.DictReader(io.StringIO(csv_text(frame([row("=1+1", "x", 1.23456789012)])))))
    assert float(read["speedup"]) == 1.23456789012
    assert read["label"] == "'=1+1"
    assert read["tree_depth"] == ""


# --- the whole report ---


def test_a_report_writes_all_tables_plots_and_the_page(tmp_path):
    drafted = {"accept_histogram": [0, 2, 1, 1]}
    files = report(
        [make_run(tmp_path / "r1", [flat(fidelity_loss=0.0, **FID), ROWS[0] | FID | drafted])],
        published=True,
    ).files
    names = {file.name for file in files}
    pictures = (
        "speed",
        "pareto-fidelity_loss",
        "pareto-clip-tiny",
        "pareto-fid-tiny",
        "acceptance",
    )
    plots = {f"{name}.{kind}" for name in pictures for kind in ("png", "svg", "pdf")}
    tables = {"table.md", "table.csv", "table.tex", "pairs.md", "pairs.csv", "published.md",
              "table.json", "acceptance.md", "acceptance.csv"}  # fmt: skip
    assert names == plots | tables | {"report.html"}
    assert all(file.is_file() and file.stat().st_size > 50 for file in files)
    assert {file.parent for file in files} == {tmp_path / "r1" / "report"}


@pytest.mark.usefixtures("quick_pictures")
def test_runs_written_by_this_package_can_be_reported(tmp_path):
    target = {"name": "tiny", "grid": [2, 2], "evaluators": "tiny"}
    with results.RunFolder.open(
        tmp_path, run_record("r", {}, environment={"cpu": "C"}, target=target)
    ) as run:
        for prompt in ("1", "2"):
            for label, seconds in (("ar", 1.0), ("sjd", 0.5)):
                stored = results.Sample(key=f"{prompt}|{label}|0", prompt_id=prompt, prompt=f"x {prompt}", label=label,
                                        method=label, seed=0, tokens=4, steps=2, accept_lengths=[3, 1],
                                        tree_depths=[4, 4], decode_s=seconds, token_ids=[1, 2, 3, 4], timed=True,
                                        metrics={"clip-tiny": 0.3})  # fmt: skip
                run.append(stored, Image.new("RGB", (8, 8), "red"))
        run.finish(
            measure.summarise(Figures(results.read_samples(run.path)), results.read_run(run.path))
        )
    files = report([run.path], formats=["md", "html"]).files
    assert "2.00×" in (run.path / "report" / "table.md").read_text()
    assert files[-1].read_text().count('<img class="image"') == 4


@pytest.mark.slow
def test_summaries_reports_and_comparisons_do_not_import_torch(tmp_path):
    """They take a second instead of four, and half a gigabyte less."""
    make_run(tmp_path / "results" / "r1")
    code = (
        "import sys\n"
        "from contextlib import suppress\n"
        "from pathlib import Path\n"
        "from lanternbench.measure.summary import summarise\n"
        "from lanternbench.cli.main import main\n"
        "from lanternbench.experiment import RunFolder\n"
        "with RunFolder.existing(Path('results/r1')) as run:\n"
        "    run.finish(summarise(run.figures, run.run))\n"
        "for command in ('report r1', 'compare r1 r1'):\n"
        "    sys.argv = ['lanternbench', *command.split()]\n"
        "    with suppress(SystemExit):\n"
        "        main()\n"
        "assert 'lanternbench.measure.change' in sys.modules\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
    assert (tmp_path / "results" / "r1" / "report" / "report.html").is_file()


@pytest.mark.usefixtures("quick_pictures")
def test_a_withheld_speedup_is_a_dash_in_every_table_with_a_note(tmp_path):
    made = dict(seed=0, tokens=4, steps=2, accept_lengths=[3, 1], tree_depths=[4, 4])
    for threads, seconds in {1: {"ar": 1.0, "sjd": 0.5}, 2: {"eagle-1": 0.01}}.items():
        with results.RunFolder.open(
            tmp_path, run_record("r", {}, environment={"threads": threads})
        ) as run:
            for prompt, (label, each) in itertools.product("12", seconds.items()):
                key = f"{prompt}|{label}|0"
                run.append(
                    results.Sample(
                        key=key,
                        prompt_id=prompt,
                        prompt=f"x {prompt}",
                        label=label,
                        method=label,
                        decode_s=each,
                        **made,
                    )
                )
            run.finish(
                measure.summarise(
                    Figures(results.read_samples(run.path)), results.read_run(run.path)
                )
            )
    report([run.path], formats=[*FORMATS])
    folder = run.path / "report"
    rows = {r["label"]: r for r in csv.DictReader((folder / "table.csv").read_text().splitlines())}
    assert [float(rows[label]["speedup"] or "nan") for label in ("ar", "sjd")] == [1.0, 2.0]
    assert rows["eagle-1"]["speedup"] == ""
    [line] = [
        x for x in (folder / "table.md").read_text().splitlines() if x.startswith("| eagle-1")
    ]
    assert "–" in line
    assert "100.00×" not in "".join(
        (folder / name).read_text() for name in ("table.md", "table.tex", "report.html")
    )
    for name in ("table.md", "table.json", "report.html"):
        assert "pairs were timed under other settings (threads: 1" in (folder / name).read_text()


@pytest.mark.usefixtures("quick_pictures")
def test_several_runs_are_joined_with_a_run_column(tmp_path):
    rows = [flat(), flat("sjd", "sjd", 2.0)]
    runs = [make_run(tmp_path / name, rows, run_id=name) for name in ("a", "b")]
    files = report(runs, out=tmp_path / "out", formats=["md", "html"]).files
    table = (tmp_path / "out" / "table.md").read_text()
    assert "\n| run | method |" in table
    assert table.count("\n| a |") == table.count("\n| b |") == 2
    assert "<h3>a</h3>" in files[-1].read_text()


def test_runs_of_other_settings_are_told_apart_and_share_no_frontier(tmp_path):
    rows = [flat(fidelity_loss=0.1), flat("gsd", "gsd", 2.0, fidelity_loss=0.2, lossless=False)]
    runs = [make_run(tmp_path / name, rows, run_id=name) for name in ("a", "b", "c")]
    info = json.loads((runs[2] / "run.json").read_text())
    info["config"]["temperature"], info["environment"]["threads"] = 0, 3
    (runs[2] / "run.json").write_text(json.dumps(info))
    report(runs, out=tmp_path / "out", formats=["md"])
    table = (tmp_path / "out" / "table.md").read_text()
    assert (
        "The runs differ in temperature (target's default, 0.0); threads (–, 3): do not compare"
        in table
    )
    joined = joined_rows([load_run(folder) for folder in runs])
    assert [r.setup for r in joined] == [1, 1, 1, 1, 2, 2]
    frontiers = trade_off(joined, quality_columns(joined)[0]).frontiers
    assert [len(frontier) for frontier in frontiers] == [4, 2]
    assert set(frontiers[1]) == {4, 5}
    report(runs[:2], out=tmp_path / "alike", formats=["md"])
    assert "differ in" not in (tmp_path / "alike" / "table.md").read_text()


@pytest.mark.usefixtures("quick_pictures")
def test_a_run_without_ar_has_a_table_without_speedup_and_a_note(tmp_path):
    folder = make_run(tmp_path / "r", [flat("sjd", "sjd", None)])
    info = json.loads((folder / "run.json").read_text())
    info["methods"] = [{"label": "sjd", "lossless": True}]
    (folder / "run.json").write_text(json.dumps(info))
    with results.RunFolder.existing(folder) as run:
        run.finish(measure.summarise(run.figures, run.run))
    report([folder])
    table = (folder / "report" / "table.md").read_text()
    assert "speedup ↑" not in table
    assert "baseline in this run, so there is no speedup" in table
    assert speed_column(load_run(folder).rows).key == "step_compression"
    assert (folder / "report" / "speed.png").is_file()
    # nothing is traded for speed
    assert not (folder / "report" / "pareto-clip-tiny.png").is_file()


def test_a_hostile_metric_name_cannot_leave_the_report_folder(tmp_path):
    bad = {"clip-tiny": None, "../../x": 1.0, "../../x_lo": 1.0, "../../x_hi": 1.0}
    files = report([make_run(tmp_path / "r", [flat(**bad)])]).files
    assert {file.resolve().parent for file in files} == {(tmp_path / "r" / "report").resolve()}
    assert not list(tmp_path.glob("x*"))


def test_labels_with_dollars_and_backslashes_draw_as_text(tmp_path):
    text = r"$\foo{ \$ ☃ 日本"
    files = report(
        [
            make_run(
                tmp_path / "r",
                [flat(text, "x", **{"clip-tiny": None, text: 1.0, f"{text}_lo": 1.0})],
            )
        ]
    ).files
    assert any(file.suffix == ".pdf" for file in files)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "run.json").unlink(), "there is no run"),
        (lambda f: (f / "summary.json").unlink(), "did not finish"),
        (
            lambda f: [
                (f / "summary.json").write_text('{"rows": []}'),
                (f / "samples.jsonl").unlink(),
            ],
            "holds no samples",
        ),
        (lambda f: (f / "summary.json").write_text('{"rows": ['), "cannot be read"),
        (lambda f: (f / "run.json").write_text("[]"), "no JSON object"),
    ],
)
def test_a_run_that_cannot_be_reported_is_one_sentence_with_the_fix(tmp_path, spoil, words):
    folder = make_run(tmp_path / "r")
    spoil(folder)
    with pytest.raises(UserError, match=words):
        report([folder])


def test_no_run_and_an_unwritable_folder_are_user_errors(tmp_path):
    with pytest.raises(UserError, match="there is no run in"):
        report([], results=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="another folder"):
        report([make_run(tmp_path / "r")], out=tmp_path / "file" / "out")


def test_a_latex_table_of_several_runs_names_all_their_setups(tmp_path):
    folders = [make_run(tmp_path / "a"), make_run(tmp_path / "b")]
    info = json.loads((folders[1] / "run.json").read_text())
    (folders[1] / "run.json").write_text(json.dumps(info | {"target": {"name": "anole-7b"}}))
    report(folders, out=tmp_path / "out", formats=["tex"])
    caption = next(
        line
        for line in (tmp_path / "out" / "table.tex").read_text().splitlines()
        if "caption" in line
    )
    assert "on tiny (demo, 2 prompts" in caption
    assert "on anole-7b (demo, 2 prompts" in caption


OLD = DATA / "run_of_flat_figures"


def test_a_run_of_an_early_version_is_summed_up_anew(tmp_path):
    """Its summary has another form; figures of whole sets of images have to be scored again."""
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    kept = json.loads((folder / "summary.json").read_text())
    assert "speedup_lo" in kept["rows"][1]
    run = load_run(folder)
    assert any("which summary.json does not sum up" in note.text for note in run.notes)
    for row, fields in zip(run.rows, kept["rows"], strict=True):
        facts = (row.label, row.lossless, row.n, row.options)
        assert facts == tuple(fields[name] for name in ("label", "lossless", "n", "options"))
        for name in ("speedup", "latency_s", "accept_len", "fidelity_loss", "perplexity"):
            assert row.value(name) == pytest.approx(fields[name]), name
        assert row.value("clip-tiny") == pytest.approx(fields["clip-tiny"])
        assert row.value("fid-tiny") is None


# --- samples, images and maps ---


@pytest.mark.usefixtures("quick_pictures")
def test_a_torn_last_line_is_dropped_and_a_damaged_one_inside_is_counted(tmp_path):
    torn = read_contents(make_run(tmp_path / "a", torn='{"key": "to'), 16)
    assert (len(torn.cells), torn.damaged) == (4, [])
    inside = make_run(tmp_path / "b", torn='{"key": "to\n{"key": "x')
    assert (
        len(read_contents(inside, 16).cells),
        len(read_contents(inside, 16).damaged),
    ) == (
        4,
        1,
    )
    assert "1 damaged line(s) of samples.jsonl were left out" in page(inside)


@pytest.mark.usefixtures("quick_pictures")
def test_the_grid_shows_the_first_prompts_and_says_so(tmp_path):
    text = page(make_run(tmp_path / "r", prompts=40))
    assert text.count('<img class="image"') == 32 * 2
    assert "first 32 of 40 prompts" in text


@pytest.mark.usefixtures("quick_pictures")
def test_a_missing_image_shows_a_placeholder(tmp_path):
    folder = make_run(tmp_path / "r")
    (folder / "images" / "0-ar-0.png").unlink()
    (folder / "images" / "1-ar-0.png").write_text("no picture")
    assert page(folder).count(">image missing<") == 2


def test_an_image_path_that_leaves_the_run_is_not_read(tmp_path):
    run = load_run(make_run(tmp_path / "r"))
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    (run.folder / "images" / "link.png").symlink_to(tmp_path / "secret.png")
    stored = results.read_samples(run.folder)[0]
    assert run.image_path(stored) is not None
    for name in ("../secret.png", str(tmp_path / "secret.png"), "images/link.png", "", None):
        assert run.image_path(stored.model_copy(update={"image": name})) is None


def test_large_images_are_scaled_down_and_small_ones_kept(tmp_path):
    Image.new("RGB", (64, 64), "red").save(tmp_path / "s.png")
    Image.fromarray(
        np.random.default_rng(0).integers(0, 255, (1024, 512, 3), dtype=np.uint8)
    ).save(tmp_path / "l.png")
    assert str(image_uri(tmp_path / "s.png")).startswith("data:image/png;base64,")
    large = str(image_uri(tmp_path / "l.png"))
    assert large.startswith("data:image/webp;base64,")
    assert len(large) < 100_000


def test_every_token_of_a_map_carries_the_value_of_its_step():
    assert token_map([3, 1, 2], [3, 1, 2], (2, 3)).tolist() == [[3, 3, 3], [1, 2, 2]]
    assert token_map([5, 2, 9], [3, 1, 2], (2, 3)).tolist() == [[5, 5, 5], [2, 9, 9]]


def test_a_map_leaves_unknown_tokens_blank():
    short = token_map([2], [2], (2, 2))
    assert short[0].tolist() == [2, 2]
    assert np.isnan(short[1]).all()
    assert token_map([1, 9], [10**6, 5], (2, 2)).shape == (2, 2)


# --- the page ---


def test_the_page_needs_no_network(tmp_path):
    text = page(make_run(tmp_path / "r"))
    tags = Tags(re.sub(r"<script>.*?</script>", "<script></script>", text, flags=re.S))
    links = [attrs[name] for _, attrs in tags.found for name in ("src", "href") if attrs.get(name)]
    assert links
    assert all(link.startswith("data:image/") for link in links)
    assert not any(tag in ("link", "iframe", "object", "base") for tag, _ in tags.found)
    assert "default-src 'none'" in text
    assert len(text) < 100_000


def test_captions_labels_and_names_cannot_inject_anything(tmp_path):
    rows = [
        flat(),
        flat(
            EVIL,
            EVIL,
            2.0,
            lossless=False,
            fidelity_loss=0.1,
            options={EVIL: EVIL},
            target=EVIL,
            **{EVIL: 1.0, EVIL + "_lo": 1.0},
        ),
    ]
    folder = make_run(tmp_path / "r", rows, caption=EVIL, run_id=EVIL)
    write_summary(folder, rows, [EVIL])
    text = page(folder, published=True)
    plain = Tags(page(make_run(tmp_path / "plain", [flat()])))
    evil = Tags(text)
    assert sum(tag == "script" for tag, _ in evil.found) == sum(
        tag == "script" for tag, _ in plain.found
    )
    assert not any(name.startswith("on") for _, attrs in evil.found for name in attrs)
    assert not any(attrs.get("src") == "x" for _, attrs in evil.found)
    assert not any(
        name in ("href", "formaction", "action") for _, attrs in evil.found for name in attrs
    )
    choices = [tag for tag, _ in evil.found if tag == "option"]
    assert len(choices) == 4 + 4  # of pictures, and of how long the race takes


@pytest.mark.usefixtures("quick_pictures")
def test_the_page_shows_maps_with_a_legend_and_the_notes(tmp_path):
    text = page(make_run(tmp_path / "r"))
    assert text.count('alt="accepted-length map"') == text.count('alt="tree-depth map"') == 4
    assert "few prompts" in text
    assert "NVIDIA A100-SXM4-80GB" in text
    assert "tokens committed by the step" in text


# --- what comes from elsewhere ---

ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \u202e"


def test_no_escape_sequence_reaches_a_terminal_or_a_file(tmp_path, monkeypatch, capfd):
    folder = make_run(tmp_path / "results" / "r", [flat(), flat(f"m{ESCAPES}", "sjd", 1.5)], caption=ESCAPES,
                      run_id=f"r{ESCAPES}")  # fmt: skip
    kept = json.loads((folder / "summary.json").read_text())
    seal(folder, kept | {"notes": [["info", None, ESCAPES]]})
    monkeypatch.chdir(tmp_path)
    for options in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["lanternbench", "report", *options])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code
        printed = capfd.readouterr()
        assert not re.search("[\x1b\x07\x9b]", printed.out + printed.err)
    for name in ("table.md", "table.tex", "pairs.md", "report.html"):
        text = (folder / "report" / name).read_text()
        assert not re.search("[\x1b\x07\x9b\u202e]", text), name
    assert not re.search("[\x1b\x07]", (folder / "report" / "table.json").read_text())


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t=", " ="])
def test_no_text_of_a_csv_is_a_formula_and_numbers_stay_numbers(sign):
    (read,) = csv.DictReader(
        io.StringIO(csv_text(frame([row(f"{sign}1+1|cmd", "x", 1.5, log_prob=-2.5)])))
    )
    assert read["label"] == f"'{sign}1+1|cmd"
    assert float(read["log_prob"]) == -2.5


def test_no_link_of_markdown_or_html_leads_anywhere(tmp_path):
    bad = "[x](javascript:alert(1)) <a href=javascript:alert(1)>x</a> ![i](http://x/y.png)"
    folder = make_run(tmp_path / "r", [flat(), flat(bad, "sjd", 1.5)], caption=bad, run_id=bad)
    report([folder], published=True, formats=["md", "html"])
    for name in ("table.md", "pairs.md"):
        text = (folder / "report" / name).read_text()
        assert not re.search(r"(?<!\\)\]\(", text), name
        assert "<a" not in text
    tags = Tags((folder / "report" / "report.html").read_text())
    assert not any(tag == "a" or "href" in attrs for tag, attrs in tags.found)


def test_the_latex_table_compiles_with_booktabs_alone(tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip(
            "NO PDFLATEX: install texlive-latex-recommended to compile the table; it was not compiled"
        )
    bad = "50% & $x$ \\input{y} #1 _a_ ^b ~c <d> | λ δ ω τ β ∞ é ☃ 日本 \x1b[31m [z"
    rows = [
        row(),
        row(bad, "x", 1.5, tree_depth=7),
        row("[x", "x"),
        row("*y", "x", **{"fid-tiny": 20.0}),
    ]
    table = latex_table(rows, f"target {bad}; recipe")
    text = (
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
        + table
        + "\\end{document}\n"
    )
    (tmp_path / "t.tex").write_text(text)
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=batchmode", "t.tex"],
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, (tmp_path / "t.log").read_text()[-2000:]


@pytest.mark.parametrize(("name", "files"), [
    ("md", {"table.md", "pairs.md"}), ("csv", {"table.csv", "pairs.csv"}), ("tex", {"table.tex"}),
    ("json", {"table.json"}), ("html", {"report.html"}),
])  # fmt: skip
def test_a_single_format_is_written_alone(tmp_path, name, files):
    found = report([make_run(tmp_path / "r")], formats=[name]).files
    assert {file.name for file in found} == files
    assert {file.name for file in (tmp_path / "r" / "report").iterdir()} == files


def test_the_json_of_a_report_holds_figures_notes_answer_and_pairs(tmp_path):
    (file,) = report([make_run(tmp_path / "r")], formats=["json"]).files
    found = json.loads(file.read_text())
    assert found["rows"][1]["figures"]["speedup"] == {
        "value": 2.0,
        "lo": 2.0,
        "hi": 2.0,
        "n": None,
        "p": None,
    }
    assert found["answers"]["r1"][0].startswith("No lossless method")
    assert {pair["figure"] for pair in found["pairs"]} == {"speed", "clip-tiny"}
    with pytest.raises(UserError, match="no report format 'pdf'"):
        report([tmp_path / "r"], formats=["pdf"])


@pytest.mark.usefixtures("quick_pictures")
def test_every_table_has_its_recipe(tmp_path):
    folder = make_run(tmp_path / "r")
    info = json.loads((folder / "run.json").read_text())
    info["config"] |= {
        "guidance": 7.5,
        "temperature": 0.9,
        "top_k": 1000,
        "top_p": 0.95,
        "device": "cpu",
    }
    info["environment"] |= {"threads": 3}
    info["target"] |= {"prompt_template": "draw {caption}"}
    (folder / "run.json").write_text(json.dumps(info))
    report([folder], published=True, formats=["md", "tex", "html"])
    for name, tables in (("table.md", 1), ("table.tex", 1), ("report.html", 1)):
        text = (folder / "report" / name).read_text()
        plain = re.sub(r"<[^>]+>", " ", text).replace("\\", "")
        assert (
            text.count('class="recipe"' if name.endswith("html") else "guidance 7.5") == tables
        ), name
        for words in (
            "temperature 0.9",
            "top-k 1000",
            "top-p 0.95",
            "seed 1",
            "threads 3",
            "images 4",
            "draw {caption}",
        ):
            assert words in re.sub(r"\s+", " ", plain), (name, words)


# --- beside the papers ---


def test_the_sizes_that_a_paper_s_first_tree_starts_from_are_read_as_the_options_of_that_name():
    paper = next(row for row in published_rows() if row["params"] == "depth0=1 width0=25")
    same = row("a", "adt-tree", options={"depth": 1, "draft_top_k": 25})
    assert "params" not in differences(same, paper)


def test_the_carried_figures_are_the_published_ones():
    """Row by row; CLIP scores in one unit, options by the names that they have here."""
    folder = SHARED / "published"
    assert len(published_rows()) > 130
    if not folder.is_dir():
        pytest.skip(
            "no ../shared beside the checkout: the published figures cannot be compared with their source"
        )
    names = ("results.csv", "results-2026.csv", "results-2026b.csv")
    source = [
        row
        for name in names
        for row in csv.DictReader((folder / name).read_text(encoding="utf-8").splitlines())
    ]
    assert len(source) == len(published_rows())
    for theirs, ours in zip(source, published_rows(), strict=True):
        for key, value in theirs.items():
            if key == "clip" and value and float(value) > 1:
                assert float(ours[key]) == pytest.approx(float(value) / 100)
            elif key == "note":
                assert value in ours[key]
            elif key == "params":
                assert [p.split("=")[1] for p in ours[key].split()] == [
                    p.split("=")[1] for p in value.split()
                ]
            else:
                assert ours[key].removesuffix("B") == value.removesuffix("B"), (theirs, key)


def test_one_sjd_on_one_target_stands_beside_every_paper_that_measured_it():
    """Rows that a paper quotes of another, or that were read from a secondary source, say so."""
    setup = {
        "target": "lumina-mgpt-7b-768",
        "dataset": "parti",
        "temperature": 1.0,
        "hardware": "NVIDIA A100-SXM4-80GB",
    }
    beside = published_beside([row("sjd", "sjd", 1.9, **setup)])
    assert beside["speedup paper"].tolist()[0] == 2.2
    assert "second-hand" in beside["paper setup"][0]
    elsewhere = published_beside([row("sjd", "sjd", 1.9, **setup | {"dataset": "dpg"})])
    assert {1.58} == set(elsewhere["speedup paper"])
    assert beside["differs in"][0] == "nothing"


PAPER = {
    "target": "anole-7b",
    "dataset": "coco2017",
    "temperature": 1.0,
    "hardware": "NVIDIA A100-SXM4-80GB",
}


def test_an_equal_setup_stands_beside_its_paper_and_differs_in_nothing():
    beside = published_beside([row("sjd", "sjd", 1.7, options={"init": "random"}, **PAPER)])
    assert len(beside) == 1
    line = beside.iloc[0]
    assert (line["speedup measured"], line["speedup paper"], line["differs in"]) == (
        1.7,
        1.81,
        "nothing",
    )


def test_differences_of_setup_are_named():
    paper = next(
        p for p in published_rows() if p["method"] == "cool-sd" and p["params"] == "lambda=2"
    )
    found = differences(
        row("c", "cool-sd", options={"lam": 1.1, "nu": 0.9}, hardware="H200"), paper
    )
    assert set(found) == {"target", "dataset", "params", "hardware"}
    assert found["params"] == "parameters (lambda=1.1; paper 2, nu=0.9; paper does not say)"
    same = {
        "target": "llamagen-xl-stage2",
        "dataset": "coco2017-val",
        "hardware": "NVIDIA A100-PCIE-40GB",
    }
    assert set(differences(row("c", "cool-sd", options={"lam": 2.0}, **same), paper)) == {"stage"}


def test_no_paper_s_figure_of_another_target_stands_beside_a_measured_one(tmp_path):
    rows = [row(), row("cool-sd λ=2", "cool-sd", 2.0, options={"lam": 2.0}, hardware="C")]
    assert published_beside(rows).empty
    report([make_run(tmp_path / "r")], published=True, formats=["md"])
    assert (tmp_path / "r" / "report" / "published.md").read_text() == f"{NONE}\n"


def test_adt_tree_with_lantern_is_another_method_than_adt_tree():
    def setups(options):
        return set(
            published_beside([row("a", "adt-tree", 2.0, options=options, **PAPER)])["paper setup"]
        )

    assert not any("lantern" in setup for setup in setups({}))
    assert all("lantern" in setup for setup in setups({"acceptance": "lantern"}))


def test_unset_options_are_compared_by_what_they_are():
    def said(method, **options):
        beside = published_beside([row("a", method, 2.0, options=options, **PAPER)])
        return set(beside["differs in"])

    assert not any("init" in text for text in said("sjd"))
    assert not any("k " in text or "k=" in text for text in said("lantern", delta=0.05))
    assert published_beside(
        [row("a", "eagle-2", 2.0, options={"acceptance": "lantern"}, **PAPER)]
    ).empty


@pytest.mark.usefixtures("quick_pictures")
def test_a_method_that_no_paper_has_gives_an_empty_table(tmp_path):
    assert published_beside([row("mine", "mine", 1.5)]).empty
    assert "No paper reports" in page(
        make_run(tmp_path / "r", [flat("mine", "mine", 1.5)]), published=True
    )
