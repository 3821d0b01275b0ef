"""A warning stands wherever the figures of its run do, whatever the format."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import pandas as pd
import pytest
from matplotlib.figure import Figure as Picture
from matplotlib.text import Text
from PIL import Image
from run_records import run_record
from typer.testing import CliRunner

from lanternbench import report
from lanternbench.cli import run_cmd
from lanternbench.cli.main import app
from lanternbench.measure.figures import Figures
from lanternbench.measure.run_record import IMPORTED, RunRecord
from lanternbench.measure.samples import Sample
from lanternbench.measure.summary import Summary, summarise
from lanternbench.notes import Fact
from lanternbench.report import style
from lanternbench.report.frames import run_frames
from lanternbench.utils.json_values import plain, versioned

PROMPTS = 6


class Case(NamedTuple):
    """How a run comes to have a fact, and words of its sentence."""

    words: str
    config: Mapping[str, object] = {}
    sample: Mapping[str, object] = {}  # changes of the samples of the method
    resumed: Sequence[Mapping[str, object]] = ()
    left_out: int = 0  # samples
    baseline: Mapping[str, object] = {}  # changes of the samples of ar
    environment: Mapping[str, object] = {}
    target: Mapping[str, object] = {}


CASES: dict[Fact, Case] = {
    "random weights": Case("Random weights", config={"random_weights": True}),
    "simulated acceptance": Case("are simulated to", config={"simulate_acceptance": 2.5}),
    "noisy timing": Case("Timing was noisy", sample={"load": 40.0}),
    "unfinished": Case("The run is not finished", left_out=1),
    "another environment": Case(
        "resumed in another environment", resumed=[{"at": "2026", "environment": {"cores": 3}}]
    ),
    "slow baseline": Case(
        "The baseline is slow, which flatters every speedup",
        baseline={"step_s": [0.2] * 3},
        environment={"memory_gb_per_s": 1000.0},
        target={"read_bytes": 10**9},
    ),
    "imported": Case(
        "was not measured by this run",
        sample={"method": IMPORTED, "timed": False, "decode_s": 0.0, "stated_s": 0.2},
    ),
    "outside the support": Case(
        "outside the target's support",
        sample={"stats": {"log_prob": -3.0, "outside_support": 0.25}, "fidelity_loss": None},
    ),
}


def sample(folder: Path, prompt: int, label: str, **changes) -> Sample:
    name = f"images/{prompt}-{label}.png"
    Image.new("RGB", (8, 8), "red").save(folder / name)
    length = 1 if label == "ar" else 2
    fields = {
        "key": f"{prompt}|{label}|0", "prompt_id": str(prompt), "prompt": f"a red disc {prompt}",
        "label": label, "method": label, "seed": 0, "tokens": 4, "steps": 4 // length,
        "accept_lengths": [length] * (4 // length), "decode_s": 0.5 / length + prompt / 100,
        "load": 0.1, "fidelity_loss": 0.2 if label == "gsd" else 0.0,
        "image": name, "row_loss": None if label == "ar" else [0.1, 0.2],
        "column_loss": None if label == "ar" else [0.1, 0.2], "metrics": {"clip-tiny": 0.3},
    }  # fmt: skip
    return Sample.model_validate({**fields, **changes})


def make_run(folder: Path, fact: Fact | None = None) -> tuple[Path, Summary]:
    """A run of ``ar``, ``sjd`` and ``gsd``, whose run or ``gsd`` has one fact to warn of."""
    case = CASES[fact] if fact else Case("")
    (folder / "images").mkdir(parents=True)
    samples = [sample(folder, i, "ar", **case.baseline) for i in range(PROMPTS)]
    samples += [sample(folder, i, "sjd") for i in range(PROMPTS)]
    samples += [sample(folder, i, "gsd", **case.sample) for i in range(PROMPTS - case.left_out)]
    record = run_record(
        folder.name,
        {"seed": 0, "temperature": 1.0, **case.config},
        environment={"cores": 2, "cpu": "C", "device": "cpu", **case.environment},
        prompts={"source": "demo", "count": PROMPTS, "hash": "0" * 8},
        target={"name": "tiny", "grid": [2, 2], "evaluators": "tiny", **case.target},
        methods=[
            {"label": "ar", "lossless": True},
            {"label": "sjd", "lossless": True},
            {"label": "gsd", "lossless": False},
        ],
        resumed=case.resumed,
    )
    return folder, write_run(folder, record, samples)


def write_run(folder: Path, record: RunRecord, samples: list[Sample]) -> Summary:
    summary = summarise(Figures(samples), record)
    (folder / "run.json").write_text(json.dumps(record.written()))
    (folder / "summary.json").write_text(json.dumps(versioned(summary)))
    lines = [json.dumps(plain(one)) + "\n" for one in samples]
    (folder / "samples.jsonl").write_text("".join(lines))
    return summary


@pytest.fixture(scope="module", params=CASES)
def written(request, tmp_path_factory):
    """The words of a warning, its run, and everything written of it: texts by file name."""
    place = tmp_path_factory.mktemp("warnings")
    folder, _ = make_run(place / "r", request.param)
    texts = {}
    savefig = Picture.savefig

    def note(figure, name):
        words = [text.get_text() for text in figure.findobj(Text)]
        texts[f"picture {name}"] = " ".join(words)
        return texts[f"picture {name}"]

    def noted(figure, file, **options):
        note(figure, Path(file.name).name)
        if options["format"] == "png":  # a coarse one, and no other: what is drawn is known
            savefig(figure, file, **options | {"dpi": 20})

    def on_page(plot, name):
        return f"<svg>{note(plot.figure, f'page-{name}')}</svg>"  # it keeps texts as such

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Picture, "savefig", noted)
        patch.setattr(style, "page_svg", on_page)
        files = report(
            [folder], out=place / "out", published=True, grid=True, grid_prompts=2
        ).files
    for file in files:
        if file.suffix in (".md", ".csv", ".tex", ".html", ".json"):
            texts[file.name] = html.unescape(file.read_text())
    return CASES[request.param].words, folder, texts


def test_every_fact_has_a_case():
    assert CASES.keys() | {"different runs"} == set(get_args(Fact))


def test_a_warning_stands_in_every_file_and_picture(written):
    words, _, texts = written
    kinds = {re.sub(r"\W.*", "", name) for name in texts}
    assert {"table", "pairs", "loss", "picture", "report"} <= kinds
    assert any("grid" in name for name in texts)
    lacking = [name for name, text in texts.items() if words not in " ".join(text.split())]
    assert lacking == []


def test_a_warning_stands_in_the_caption_and_in_the_row_that_it_concerns(written):
    words, folder, texts = written
    caption = next(line for line in texts["table.tex"].splitlines() if "caption{" in line)
    assert words in caption
    rows = json.loads(texts["table.json"])["rows"]
    table = run_frames(folder).summary
    for row, of_label in zip(rows, table.to_dict("records"), strict=True):
        concerned = row["label"] == "gsd" or not words.endswith(("this run", "support"))
        assert concerned == (words in " ".join(row["warnings"]))
        assert list(of_label["warnings"]) == row["warnings"]
    facts = [note["fact"] for note in json.loads(texts["table.json"])["notes"]]
    assert any(facts)


def test_a_warning_stands_above_the_table_of_a_terminal_and_in_its_json(written):
    words, folder, _ = written
    shown = CliRunner().invoke(app, ["report", str(folder), "--format", "md"]).stdout
    above, _, _ = shown.partition("method")
    assert words.lower() in above.lower()
    shown = CliRunner().invoke(app, ["report", str(folder), "--format", "md", "--json"]).stdout
    assert words in json.dumps(json.loads(shown), ensure_ascii=False)


def test_a_picture_from_python_has_the_warning(written):
    words, folder, _ = written
    figure = run_frames(folder).plot()
    assert words in " ".join(text.get_text() for text in figure.findobj(Text))


@pytest.mark.parametrize("fact", CASES)
def test_no_warning_of_a_run_hides_behind_a_count_of_notes(fact, tmp_path, capsys):
    folder, summary = make_run(tmp_path / "r", fact)
    run_cmd.finish(folder, summary, as_json=False)
    out, err = capsys.readouterr()
    assert CASES[fact].words.lower() in " ".join((out + err).split()).lower()
    assert "more" not in err.rpartition("next:")[2]
    for note in summary.notes:
        if note.kind != "info":
            assert note.text in out + err


def test_a_run_without_warnings_has_none(tmp_path):
    folder, summary = make_run(tmp_path / "r")
    assert [note for note in summary.notes if note.fact] == []
    report([folder], out=tmp_path / "out", formats=["tex", "csv"])
    assert "warnings" not in (tmp_path / "out" / "pairs.csv").read_text()
    assert pd.read_csv(tmp_path / "out" / "table.csv")["warnings"].isna().all()


def test_that_two_runs_differ_stands_in_every_file(tmp_path):
    runs = [make_run(tmp_path / "one")[0], make_run(tmp_path / "two")[0]]
    about = json.loads((runs[1] / "run.json").read_text())
    about["config"]["temperature"] = 0.5
    (runs[1] / "run.json").write_text(json.dumps(about))
    files = report(runs, out=tmp_path / "out", formats=["md", "csv", "tex", "html", "json"]).files
    for file in files:
        assert "The runs differ in temperature (1.0, 0.5)" in file.read_text(), file.name


def test_of_several_runs_a_warning_names_those_that_it_concerns(tmp_path):
    runs = [make_run(tmp_path / "quiet")[0], make_run(tmp_path / "noisy", "noisy timing")[0]]
    report(runs, out=tmp_path / "out", formats=["tex", "csv"])
    assert "noisy: Timing was noisy" in (tmp_path / "out" / "table.tex").read_text()
    table = pd.read_csv(tmp_path / "out" / "table.csv").set_index("run")["warnings"]
    assert table["quiet"].isna().all()
    assert table["noisy"].str.contains("Timing was noisy").all()
