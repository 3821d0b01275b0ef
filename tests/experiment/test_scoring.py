"""Scoring saved images: nothing is scored twice, nothing is lost, and what is missing is said and
never 0.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from conftest import mistake
from PIL import Image
from run_records import run_record

from lanternbench import experiment as results
from lanternbench import prompts, registry
from lanternbench.cli.main import main
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, Sample, sample_key, scoring
from lanternbench.experiment.config import Sweep
from lanternbench.experiment.worker import Job, Worker
from lanternbench.measure.figures import Figures
from lanternbench.measure.summary import RANDOM_NOTE, Row, Summary, read_summary, summarise
from lanternbench.metrics import Extra, ImageMetric, SetMetric, SetScore, Setup, files
from lanternbench.notes import Note

EXIF = Image.Exif()
EXIF[0x0112] = 6  # to be turned by a quarter
SHADES = {"dark": 10, "light": 200}


class Brightness(ImageMetric):
    """A per-image metric that counts how often it is asked; its state is that of the class."""

    captions = False
    asked: ClassVar[list[str]]
    reason: ClassVar[str | None] = None
    stop_after = 10**6

    def available(self) -> Note | None:
        return Note("missing", self.name, self.reason) if self.reason else None

    def prepare(self) -> None:
        pass

    def score(self, images, captions):
        if len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        self.asked += captions
        return [image.getpixel((0, 0))[0] / 1.0 for image in images]


class Count(SetMetric):
    """A metric of a whole set, with a second column."""

    more = (Extra("twice", "Twice"),)
    calls = 0

    def compute(self, images):
        type(self).calls += 1
        n = len(list(images))
        return SetScore(float(n), n, self.note("info", f"{n} are few"), {"twice": 2.0 * n})


@pytest.fixture
def brightness(monkeypatch) -> Iterator[type[Brightness]]:
    made = type("Fresh", (Brightness,), {"asked": []})
    monkeypatch.setattr(scoring, "BATCH", 2)
    with registry.temporary({"metric": {"brightness": made}}):
        yield made


@pytest.fixture
def count() -> Iterator[type[Count]]:
    made = type("Fresh", (Count,), {})
    with registry.temporary({"metric": {"count": made}}):
        yield made


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A finished run: three prompts by two methods, grey images."""
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "cache"))
    root = tmp_path / "results"
    target = {"name": "tiny", "evaluators": "tiny"}
    with RunFolder.open(
        root, run_record("r", {"seed": 0}, target=target, prompts={"source": "demo"})
    ) as folder:
        for label, shade in SHADES.items():
            for i in range(3):
                sample = Sample(
                    key=sample_key(str(i), label, 0), prompt_id=str(i), prompt=f"prompt {i}", label=label,
                    method="ar", seed=0, tokens=2, steps=2, accept_lengths=[1, 1], decode_s=1.0,
                    metrics={"image-reward": None},
                )  # fmt: skip
                folder.append(sample, Image.new("RGB", (8, 8), (shade + i,) * 3))
        summary = summarise(Figures(folder.samples), folder.run)
        more = [Note("missing", "image-reward", "gone"), Note("info", None, "a word of its own")]
        folder.finish(summary.model_copy(update={"notes": summary.notes + more}))
    return root / "r"


def values(run: Path, metric: str = "brightness") -> list[float | None]:
    return [sample.metrics.get(metric) for sample in results.read_samples(run)]


def row(summary: Summary, label: str = "dark") -> Row:
    return next(row for row in summary.rows if row.label == label)


def value(summary: Summary, name: str, label: str = "dark") -> float | None:
    return row(summary, label).value(name)


def texts(summary: Summary) -> list[str]:
    return [str(note) for note in summary.all_notes()]


ALL = [10.0, 11.0, 12.0, 200.0, 201.0, 202.0]

# --- runs ---


def test_scores_reach_samples_and_summary_with_their_interval(run, brightness):
    summary = scoring.score_run(run, ["brightness"])
    assert values(run) == ALL
    stored = read_summary(run)
    assert row(stored) == row(summary)
    assert value(stored, "brightness") == 11.0
    assert row(stored).figure("brightness").lo < 11 < row(stored).figure("brightness").hi
    assert "a word of its own" in texts(stored)


def test_what_is_scored_is_not_scored_again_unless_asked(run, brightness):
    scoring.score_run(run, ["brightness"])
    asked = len(brightness.asked)
    scoring.score_run(run, ["brightness"])
    assert len(brightness.asked) == asked == 6
    scoring.score_run(run, ["brightness"], again=True)
    assert len(brightness.asked) == 12


def test_an_interrupted_scoring_continues_where_it_stopped(run, brightness):
    brightness.stop_after = 4
    with pytest.raises(KeyboardInterrupt):
        scoring.score_run(run, ["brightness"])
    journal = run / "scores.jsonl"
    assert len(journal.read_text().splitlines()) == 4
    journal.write_bytes(journal.read_bytes() + b'{"key": "2|light|0", "metr')  # torn by a crash
    brightness.stop_after = 10**6
    scoring.score_run(run, ["brightness"])
    assert len(brightness.asked) == 6
    assert values(run) == ALL
    assert all(
        json.loads(line)["value"]
        for line in journal.read_text().splitlines()
        if line.endswith("}")
    )


def test_a_score_of_another_image_or_caption_is_not_taken(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (2, 2)).save(path)
    item = scoring.Item("a", path, "one")
    scorer, other = ImageMetric("m", Setup()), ImageMetric("other", Setup())
    with closing(scoring.Journal(tmp_path / "j.jsonl")) as journal:
        journal.add(scorer, [item], [0.5], seconds=0.0)
    journal = scoring.Journal(tmp_path / "j.jsonl")
    assert journal.scores(scorer, [item]) == {"a": 0.5}
    assert journal.scores(scorer, [item._replace(caption="two")]) == {}
    assert journal.scores(other, [item]) == {}
    Image.new("RGB", (300, 2)).save(path)
    assert journal.scores(scorer, [item]) == {}


@pytest.mark.parametrize(
    "line",
    ["5", "[]", '{"key": 1}', "nonsense", '{"key":"a","metric":"m","stamp":"","value":"x"}'],
)
def test_a_damaged_journal_line_counts_as_not_scored(tmp_path, line):
    (tmp_path / "j.jsonl").write_text(line + "\n")
    assert (
        scoring.Journal(tmp_path / "j.jsonl").scores(
            ImageMetric("m", Setup()), [scoring.Item("a", tmp_path, None)]
        )
        == {}
    )


def test_missing_weights_are_told_once_and_never_score_0(run, brightness):
    brightness.reason = "its weights are not here; get them: curl x"
    summary = scoring.score_run(run, ["brightness"])
    assert values(run) == [None] * 6
    assert value(summary, "brightness") is None
    assert texts(summary).count("brightness: its weights are not here; get them: curl x") == 1
    brightness.reason = None
    summary = scoring.score_run(run, ["brightness"])
    assert values(run) == ALL
    assert not any(note.metric == "brightness" for note in summary.notes)


def test_a_score_that_a_run_could_not_compute_is_added(run, brightness):
    with registry.temporary({"metric": {"image-reward": brightness}}):
        summary = scoring.score_run(run, ["image-reward"])
    assert values(run, "image-reward") == ALL
    assert "image-reward: gone" not in texts(summary)


def test_an_image_that_cannot_be_read_is_told_and_left_out(run, brightness):
    first = results.read_samples(run)[0]
    (run / str(first.image)).write_bytes(b"torn")
    summary = scoring.score_run(run, ["brightness"])
    assert values(run) == [None, *ALL[1:]]
    assert any(str(first.image) in note for note in texts(summary))
    assert value(summary, "brightness") == 11.5


def test_metrics_of_whole_sets_come_with_all_their_columns_and_are_kept(run, count, brightness):
    summary = scoring.score_run(run, ["count"])
    assert (value(summary, "count"), value(summary, "twice"), row(summary).figure("count").n) == (
        3.0,
        6.0,
        3,
    )
    assert "count: 3 are few" in texts(summary)
    later = scoring.score_run(run, ["brightness"])
    assert [value(later, name) for name in ("count", "twice", "brightness")] == [3.0, 6.0, 11.0]
    assert "count: 3 are few" in texts(later)
    scoring.score_run(run, ["count"])
    assert count.calls == 2  # one a label, once
    scoring.score_run(run, ["count"], again=True)
    assert count.calls == 4


def test_a_damaged_summary_is_made_anew(run, brightness):
    (run / "summary.json").write_text('{"rows": [5]')
    assert value(scoring.score_run(run, ["brightness"]), "brightness") == 11.0


def test_the_embedded_evaluators_score_a_run(run):
    summary = scoring.score_run(run)
    assert {"clip-tiny", "fid-tiny"} <= set(row(summary).figures)
    assert all(v is not None for v in values(run, "clip-tiny"))


def test_precision_and_recall_compare_with_a_folder(run, tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    for shade in (10, 11, 12, 13):
        Image.new("RGB", (64, 64), (shade,) * 3).save(real / f"{shade}.png")
    summary = scoring.score_run(run, ["precision-recall"], Setup(real))
    assert value(summary, "precision-tiny") > value(summary, "precision-tiny", "light")
    assert 0 <= value(summary, "recall-tiny") <= 1
    assert row(summary).figure("recall-tiny").n == 3
    missing = scoring.score_run(run, ["fid-inf"])
    assert value(missing, "fid-inf-tiny") is None
    assert any("needs at least 512 images" in note for note in texts(missing))
    assert value(missing, "precision-tiny") == value(summary, "precision-tiny")


def test_real_images_are_recorded_for_the_metrics_that_look_at_them_alone(run, tmp_path):
    real, other = tmp_path / "real", tmp_path / "other"
    for folder in (real, other):
        folder.mkdir()
        for shade in (10, 200):
            Image.new("RGB", (64, 64), (shade,) * 3).save(folder / f"{folder.name}{shade}.png")
    unread = scoring.score_run(run, ["fid"], Setup(real))
    assert unread.reference is None
    assert any(note.startswith("No metric here (fid-tiny) compares") for note in texts(unread))
    read = scoring.score_run(run, ["precision-recall", "fid"], Setup(real))
    assert read.reference.folder == "real"
    assert read.reference.metrics == ["precision-tiny", "recall-tiny"]
    assert not any("No metric here" in note for note in texts(read))
    assert scoring.score_run(run, ["fid"], Setup(other), again=True).reference == read.reference
    again = scoring.score_run(run, ["precision-recall"], Setup(other))
    assert again.reference.folder == "other"
    assert not any("against 2 real images in real" in note for note in texts(again))


# --- weights that change ---


@pytest.fixture
def weighed(brightness, count, tmp_path) -> Path:
    """The file that both metrics read."""
    path = tmp_path / "weights.pt"
    path.write_bytes(b"one")
    row = files.Weights("w", "Weights", path.name, "https://x", elsewhere=(str(path),))
    brightness.weights = count.weights = (row,)
    brightness.available = ImageMetric.available
    return path


def test_scores_by_other_weights_are_computed_again(run, weighed, brightness, count):
    names = ["brightness", "count"]
    scoring.score_run(run, names)
    scoring.score_run(run, names)
    assert (len(brightness.asked), count.calls) == (6, 2)
    time = weighed.stat().st_mtime_ns
    weighed.write_bytes(b"two")  # of equal size and time
    os.utime(weighed, ns=(time, time + 1))
    scoring.score_run(run, names)
    assert (len(brightness.asked), count.calls) == (12, 4)
    scoring.score_run(run, names)
    assert (len(brightness.asked), count.calls) == (12, 4)


def test_scores_of_a_plain_folder_by_other_weights_are_computed_again(
    photographs, weighed, brightness
):
    scoring.score_folder(photographs, None, ["brightness"])
    weighed.write_bytes(b"another")
    scoring.score_folder(photographs, None, ["brightness"])
    scoring.score_folder(photographs, None, ["brightness"])
    assert len(brightness.asked) == 6


def test_a_score_by_other_weights_is_no_score_where_the_image_is_lost(run, weighed, brightness):
    scoring.score_run(run, ["brightness"])
    weighed.write_bytes(b"another")
    (run / str(results.read_samples(run)[0].image)).unlink()
    scoring.score_run(run, ["brightness"])
    assert values(run) == [None, *ALL[1:]]


def test_scores_stay_where_the_weights_are_missing(run, weighed, brightness):
    scoring.score_run(run, ["brightness"])
    weighed.unlink()
    summary = scoring.score_run(run, ["brightness"])
    assert values(run) == ALL
    assert value(summary, "brightness") == 11.0


def test_a_run_is_not_continued_with_other_weights_of_its_metrics(
    weighed, brightness, small_images, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "cache"))
    options = ["--method", "sjd", "-n", "1", "--no-baseline", "--device", "cpu"]
    options += ["--metrics", "brightness"]
    command(monkeypatch, capfd, "run", *options)
    weighed.write_bytes(b"another")
    said = mistake(monkeypatch, capfd, "run", *options)
    assert "scored by other weights of brightness: `lanternbench score" in said
    command(monkeypatch, capfd, "score", "--metrics", "brightness")
    command(monkeypatch, capfd, "run", *options)


def test_images_of_classes_are_scored_by_the_names_of_the_classes(run, brightness):
    info = json.loads((run / "run.json").read_text())
    info["target"] |= {"name": "llamagen-b-c2i", "labels": True}
    (run / "run.json").write_text(json.dumps(info))
    lines = (run / "samples.jsonl").read_text()
    (run / "samples.jsonl").write_text(lines.replace("prompt ", "37"))
    scoring.score_run(run, ["brightness"])
    names = [f"a photo of a {name}." for name in ("guenon", "patas monkey", "baboon")]
    assert brightness.asked == names * 2


def test_a_run_of_classes_scores_them_by_name_too(brightness):
    worker = Worker(Sweep(methods=["ar"], metrics=["brightness"]), "cpu")
    worker.target = replace(worker.target, labels=True)
    list(worker.work(Job("ar", [prompts.Prompt("0", "379")], 0)))
    assert brightness.asked == ["a photo of a howler monkey."]
    assert worker.facts().target.labels


# --- plain folders ---


@pytest.fixture
def photographs(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "photographs"
    folder.mkdir()
    for name, shade in (("a.png", 1), ("b.jpg", 100), ("c.png", 3)):
        Image.new("RGB", (8, 8), (shade,) * 3).save(folder / name)
    captions = "image\tcaption\nsome/where/a.png\tone\na.png\ttwo\nc.png\tthree\nz.png\tfour\n"
    (tmp_path / "captions.tsv").write_text(captions)
    return folder


def test_a_plain_folder_is_scored_once_and_not_written_into(photographs, brightness):
    before = sorted(p.name for p in photographs.iterdir())
    summary = scoring.score_folder(photographs, None, ["brightness"])
    assert (row(summary, "photographs").n, len(brightness.asked)) == (3, 3)
    assert scoring.score_folder(photographs, None, ["brightness"]) == summary
    assert len(brightness.asked) == 3
    assert sorted(p.name for p in photographs.iterdir()) == before


def test_captions_choose_the_images_of_a_folder(photographs, brightness):
    brightness.captions = True
    summary = scoring.score_folder(
        photographs, str(photographs.parent / "captions.tsv"), ["brightness"]
    )
    assert brightness.asked == ["one", "three"]
    assert value(summary, "brightness", "photographs") == 2.0
    assert "1 of 3 images have no caption" in texts(summary)[0]


def test_without_captions_a_metric_that_reads_them_is_missing(photographs, brightness):
    brightness.captions = True
    summary = scoring.score_folder(photographs, None, ["brightness"])
    assert value(summary, "brightness", "photographs") is None
    assert "--captions FILE" in texts(summary)[0]


def test_photographs_of_coco_are_scored_with_their_captions(
    shared, tmp_path, monkeypatch, brightness
):
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path))
    coco = shared / "coco"
    few = tmp_path / "few"
    few.mkdir()
    for path in sorted((coco / "val2017").glob("*.jpg"))[:3]:
        (few / path.name).symlink_to(path)
    summary = scoring.score_folder(
        few, f"coco2017:{coco}/captions_val2017.json", ["brightness", "clip-tiny"]
    )
    assert row(summary, "few").n == 3
    assert -1 < value(summary, "clip-tiny", "few") < 1


ODD = {
    "grey.png": (Image.new("L", (40, 30), 90), {}, "🦊🏽‍🚀 in space"),
    "cmyk.jpg": (Image.new("CMYK", (40, 30), (0, 255, 255, 0)), {}, "قطة على العشب"),
    "palette.png": (Image.new("RGB", (40, 30), (9, 200, 30)).quantize(4), {}, "word " * 1000),
    "deep.png": (
        Image.fromarray(np.full((30, 40), 30000, np.uint16)),
        {},
        "<script>alert('x')</script> &amp; <b>a fox</b>",
    ),
    "turned.jpg": (
        Image.new("RGB", (40, 30), "blue"),
        {"exif": EXIF},
        "\u202eright to left\u202c",
    ),
    "pixel.png": (Image.new("RGB", (1, 1), "red"), {}, "a red pixel"),
}


@pytest.fixture
def odd(tmp_path, monkeypatch) -> Path:
    """Images of every kind and a torn one, with odd captions under ids that repeat."""
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "cache"))
    folder, lines = tmp_path / "odd", []
    folder.mkdir()
    for name, (image, options, caption) in ODD.items():
        image.save(folder / name, **options)
        lines.append({"id": "same", "image": name, "caption": caption, "category": ""})
    (folder / "torn.png").write_bytes((folder / "deep.png").read_bytes()[:40])
    lines.append({"id": "same", "image": "torn.png", "caption": "torn"})
    (tmp_path / "odd.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def test_odd_images_and_captions_are_scored_and_a_torn_one_costs_itself_alone(odd, brightness):
    brightness.captions = True
    names, captions = ["brightness", "clip-tiny", "fid-tiny"], str(odd.parent / "odd.jsonl")
    found = row(scoring.score_folder(odd, captions, names), "odd")
    assert found.n == len(ODD) + 1
    assert -1 < found.value("clip-tiny") < 1
    assert found.value("fid-tiny") > 0
    assert found.figure("fid-tiny").n == len(ODD)
    assert sorted(brightness.asked) == sorted(caption.strip() for _, _, caption in ODD.values())
    notes = texts(scoring.score_folder(odd, captions, names))
    assert len([note for note in notes if "torn.png" in note]) == len(names)
    assert len(brightness.asked) == len(ODD)
    Image.new("RGB", (4, 4)).save(odd / "torn.png")
    assert (
        row(scoring.score_folder(odd, captions, names), "odd").figure("fid-tiny").n == len(ODD) + 1
    )
    assert brightness.asked[len(ODD) :] == ["torn"]


def test_what_a_metric_took_is_recorded_and_kept(run, count, brightness):
    summary = scoring.score_run(run, ["brightness", "count"])
    assert summary.costs["brightness"].images == summary.costs["count"].images == 6
    assert all(cost.seconds > 0 for cost in summary.costs.values())
    (note,) = [note for note in texts(summary) if "per 1,000 images" in note]
    assert "brightness" in note
    assert "count" in note
    again = scoring.score_run(run, ["brightness"])
    assert again.costs == summary.costs
    assert texts(again).count(note) == 1


def test_a_run_repeated_without_its_images_keeps_what_whole_sets_scored(
    small_images, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    options = [
        "--method",
        "sjd",
        "-n",
        "2",
        "--no-baseline",
        "--device",
        "cpu",
        "--metrics",
        "fid",
    ]
    command(monkeypatch, capfd, "run", *options)
    (folder,) = (tmp_path / "results").iterdir()
    before = read_summary(folder).rows[0].value("fid-tiny")
    next((folder / "images").iterdir()).unlink()
    command(monkeypatch, capfd, "run", *options)
    assert read_summary(folder).rows[0].value("fid-tiny") == before > 0


# --- the command ---


def test_an_unknown_kind_of_caption_is_refused_with_the_kinds(
    photographs, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    args = ["score", "photographs", "--captions", "captions.tsv", "--caption", "shortest"]
    said = mistake(monkeypatch, capfd, *args)
    assert all(word in said for word in ("'shortest'", "'first'", "'longest'"))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nowhere"], "no run 'nowhere'"),
        (["empty"], "holds no images"),
        (["photographs", "--captions", "wrong.tsv"], "names none of the 3 images"),
        (["photographs", "--captions", "missing.tsv"], "missing.tsv"),
        (["photographs", "--metrics", "beauty"], "no metric called 'beauty'"),
        (["r", "--reference", "nowhere"], "no folder nowhere"),
        (["r", "--captions", "captions.tsv"], "knows its captions"),
        (["stripped"], "no images left"),
        (["r", "--device", "quantum"], "unknown device 'quantum'"),
        (["r", "--random-weights", "--metrics", "clip-tiny"], "leave out --random-weights"),
        (["photographs", "--metrics", "clip:ViT-L-14/nobody"], "clip:MODEL/TAG"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(
    run, photographs, tmp_path, monkeypatch, capfd, args, says
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "wrong.tsv").write_text("image\tcaption\nz.png\tfour\n")
    with RunFolder.open(tmp_path / "results", run_record("stripped", {})) as folder:
        folder.append(results.read_samples(run)[0])
    monkeypatch.chdir(tmp_path)
    assert says in mistake(monkeypatch, capfd, "score", *args)


def test_a_run_in_use_is_not_scored(run):
    with RunFolder.existing(run), pytest.raises(UserError, match="in use"):
        scoring.score_run(run, ["clip"])


def test_the_command_scores_the_latest_run_and_prints_json(
    run, tmp_path, monkeypatch, capsys, brightness
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["lanternbench", "score", "--metrics", "brightness", "--json"]
    )
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    (found,) = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["figures"]["brightness"]["value"] == 11.0


def command(monkeypatch, capfd, *args: str) -> str:
    """What a command that succeeds prints, on both streams."""
    monkeypatch.setattr(sys, "argv", ["lanternbench", *args])
    with pytest.raises(SystemExit) as exit_:
        main()
    said = capfd.readouterr()
    assert not exit_.value.code, said.err
    return said.out + said.err


def test_the_table_of_a_plain_folder_has_every_metric(photographs, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    names = [
        "--metrics",
        "clip-tiny,fid-tiny,precision-recall-tiny",
        "--reference",
        "photographs",
        "--captions",
    ]
    said = command(monkeypatch, capfd, "score", "photographs", *names, "captions.tsv")
    lines = {
        line.split()[0]: line.split() for line in said.splitlines() if "↑" in line or "↓" in line
    }
    assert {"CLIP-tiny", "FID-tiny", "Precision-tiny", "Recall-tiny"} <= set(lines)
    assert lines["CLIP-tiny"][-1] == lines["FID-tiny"][-1] == "2"
    assert "per 1,000 images" in said


@pytest.mark.parametrize(
    ("metrics", "cause"),
    [("image-reward", "ImageReward.pt"), ("", "no metric was named")],
)
def test_a_command_that_scores_nothing_fails_also_where_other_metrics_have_scores(
    run, brightness, no_caches, metrics, cause, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(files, "WEIGHTS", tmp_path)
    said = mistake(monkeypatch, capfd, "score", str(run), "--metrics", metrics)
    assert "nothing was scored (" in said
    assert cause in said


TOWER = {"layers": 1, "width": 16}
SMALL_CLIP = {
    "embed_dim": 8,
    "vision_cfg": TOWER | {"patch_size": 32, "head_width": 8, "image_size": 224},
    "text_cfg": TOWER | {"context_length": 77, "vocab_size": 49408, "heads": 2},
}


def test_random_weights_score_a_run_and_no_reader_can_mistake_it(
    run, quick_pictures, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("open_clip.get_model_config", lambda name: SMALL_CLIP)
    options = ["--metrics", "clip", "--random-weights", "--device", "cpu", "--threads", "1"]
    said = command(monkeypatch, capfd, "score", "r", *options)
    assert RANDOM_NOTE.text in said
    assert all(-1 < value < 1 for value in values(run, "clip-random"))
    assert values(run, "clip") == [None] * 6
    command(monkeypatch, capfd, "report", "r")
    for name in ("table.md", "report.html"):
        text = (run / "report" / name).read_text()
        assert "CLIP-random" in text
        assert "their values noise" in text


def test_with_all_weights_absent_a_run_works_and_the_report_names_each_metric_and_its_command(
    small_images, quick_pictures, no_caches, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "WEIGHTS", tmp_path)
    names = [
        "clip",
        "fid",
        "image-reward",
        "hpsv2",
        "aesthetic",
        "inception-score",
        "clip:ViT-L-14/openai",
    ]
    options = [
        "--method",
        "sjd",
        "-n",
        "1",
        "--no-baseline",
        "--device",
        "cpu",
        "--metrics",
        ",".join(names),
    ]
    said = command(monkeypatch, capfd, "run", *options)
    (folder,) = (tmp_path / "results").iterdir()
    (sample,) = results.read_samples(folder)
    assert (folder / str(sample.image)).is_file()
    assert set(sample.metrics.values()) == {None}
    command(monkeypatch, capfd, "report")
    table = (folder / "report" / "table.md").read_text()
    for text in (said, table):
        assert "lanternbench train tiny" in text
        for name in (
            "image-reward bert-vocabulary",
            "hpsv2",
            "aesthetic clip-l14",
            "inception",
            "clip:ViT-L-14/openai",
        ):
            assert f"lanternbench fetch {name}" in text


def test_a_finished_run_repeated_keeps_what_was_scored_afterwards(
    small_images, no_caches, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    options = ["--method", "sjd", "-n", "2", "--no-baseline", "--device", "cpu"]
    # the last lacks its folder of real images
    options += ["--metrics", "clip,fid,precision-recall"]
    command(monkeypatch, capfd, "run", *options)
    (folder,) = (tmp_path / "results").iterdir()
    command(
        monkeypatch,
        capfd,
        "score",
        "--metrics",
        "precision-recall",
        "--reference",
        str(folder / "images"),
    )
    scored = read_summary(folder)
    assert scored.rows[0].value("precision-tiny") == 1.0
    assert {"clip-tiny", "fid-tiny", "precision-tiny"} <= set(scored.costs)
    said = command(monkeypatch, capfd, "run", *options)
    assert "no folder of them was given" not in said
    again = read_summary(folder)
    assert again.rows[0].value("precision-tiny") == 1.0
    assert again.costs.keys() == scored.costs.keys()
    assert again.reference == scored.reference
    assert any("precision and recall over 2 images" in note for note in texts(again))
    assert scored.reference.images == 2
    assert any("Real images: 2 in images" in note for note in texts(again))
