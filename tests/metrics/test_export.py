"""Images for official scorers: folders and files as GenEval's and DPG-Bench's own code reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import mistake
from PIL import Image
from run_records import run_record
from typer.testing import CliRunner

from lanternbench import prompts
from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, Sample, sample_key
from lanternbench.metrics.images import export_dpg, export_geneval
from lanternbench.prompts.sources import GenEvalLine

LINES = [
    {"tag": "single_object", "include": [{"class": c, "count": 1}], "prompt": f"a photo of a {c}"}
    for c in "abc"
]


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    """Four runs of other seeds, two methods each, over two of three prompts; images of a colour of
    their own.
    """
    monkeypatch.chdir(tmp_path)
    Path("geneval_metadata.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    for seed in range(4):
        with RunFolder.open(
            tmp_path / "results", run_record(f"seed{seed}", {"seed": seed})
        ) as folder:
            for i, line in enumerate(LINES[1:], 1):
                for label in ("ar", "cool-sd λ=2"):
                    sample = Sample(
                        key=sample_key(str(i), label, seed), prompt_id=str(i), prompt=line["prompt"], label=label,
                        method="ar", seed=seed, tokens=2, steps=2, accept_lengths=[1, 1], decode_s=1.0,
                    )  # fmt: skip
                    folder.append(sample, Image.new("RGB", (8, 8), (seed, i, len(label))))
    return tmp_path


def export(*args: str):
    done = CliRunner().invoke(app, ["score", *[f"seed{n}" for n in range(4)], "--export", *args])
    assert done.exit_code == 0, done.output
    return done.output


def test_geneval_folders_are_numbered_by_the_official_line_and_images_by_run(runs):
    said = export("geneval:geneval_metadata.jsonl", "out")
    assert "ar: 8 images in out/ar" in said
    labels = sorted(p.name for p in Path("out").iterdir())
    assert len(labels) == 2
    assert all(re.fullmatch(r"[\w.=-]+", label) for label in labels)
    ar = Path("out/ar")
    assert sorted(p.name for p in ar.iterdir()) == ["00001", "00002"]
    for i, line in enumerate(LINES[1:], 1):
        folder = ar / f"{i:05d}"
        assert json.loads((folder / "metadata.jsonl").read_text()) == line
        names = sorted(p.name for p in (folder / "samples").iterdir())
        assert names == [f"{n:04d}.png" for n in range(4)]
        assert all(re.match(r"\d+\.png", name) for name in names)
        for n, name in enumerate(names):
            assert Image.open(folder / "samples" / name).getpixel((0, 0)) == (n, i, len("ar"))


def test_a_dpg_file_holds_four_images_where_the_official_scorer_crops_them(runs):
    Path("dpg.jsonl").write_text(json.dumps({"id": "whoops7", "prompt": LINES[2]["prompt"]}))
    assert "--resolution 8" in export("dpg:dpg.jsonl", "out")
    (file,) = Path("out/ar").iterdir()
    assert file.name == "whoops7.png"
    image, side = Image.open(file), 8
    corners = [(0, 0), (side, 0), (0, side), (side, side)]  # of the official crops, in their order
    for n, (x, y) in enumerate(corners):
        part = np.asarray(image.crop((x, y, x + side, y + side)))
        assert (part == [n, 2, 2]).all()


def test_fewer_than_four_images_give_one_and_other_shapes_are_refused(tmp_path):
    for name, size in (("a", (8, 8)), ("b", (8, 8)), ("wide", (16, 8)), ("large", (9, 9))):
        Image.new("RGB", size, "red").save(tmp_path / f"{name}.png")
    a, b, wide, large = (tmp_path / f"{name}.png" for name in ("a", "b", "wide", "large"))
    assert export_dpg({"x": [a, b]}, {"x": "7"}, tmp_path / "one") == (1, 8)
    assert Image.open(tmp_path / "one" / "7.png").size == (8, 8)
    for other in (wide, large):
        with pytest.raises(UserError, match="square images of one size"):
            export_dpg({"x": [a], "y": [other]}, {"x": "7", "y": "8"}, tmp_path / "two")
    for nothing in (
        lambda: export_dpg({}, {"x": "7"}, tmp_path),
        lambda: export_geneval({}, list(map(GenEvalLine.model_validate, LINES)), tmp_path),
    ):
        with pytest.raises(UserError, match="no image has a prompt"):
            nothing()


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ("coco", "there is no layout coco"),
        ("geneval", "lanternbench fetch geneval"),
        ("dpg:none.jsonl", "no file"),
    ],
)
def test_a_mistake_is_one_sentence(runs, monkeypatch, capfd, layout, says):
    monkeypatch.setenv("LANTERNBENCH_HOME", str(runs / "home"))
    assert says in mistake(monkeypatch, capfd, "score", "seed0", "--export", layout, "out")


# the prompts themselves


def test_the_official_prompts_are_read_with_the_ids_of_their_scorers(shared):
    folder = shared / "prompts"
    geneval = prompts.load(f"geneval:{folder}/geneval_metadata.jsonl")
    assert (len(geneval), geneval.prompts[0][:3]) == (
        553,
        ("00000", "a photo of a bench", "single_object"),
    )
    assert len({p.category for p in geneval}) == 6
    assert prompts.load(f"geneval:{folder}").hash == geneval.hash
    dpg = prompts.load(f"dpg:{folder}/dpg_prompts.jsonl")
    assert (len(dpg), dpg.prompts[-1].id) == (1065, "whoops9")


def test_dpg_is_read_from_its_official_table_and_from_its_folder_of_texts(tmp_path):
    head = "item_id,text,keywords,proposition_id,dependency,category_broad,tuple,question_natural_language\n"
    rows = '1,"a cat, red",,1,0,entity,t,"Is there a cat?"\n1,"a cat, red",,2,1,color,t,Red?\n9,a dog,,1,0,e,t,Dog?\n'
    (tmp_path / "dpg_bench.csv").write_text(head + rows)
    table = prompts.load(f"dpg:{tmp_path}/dpg_bench.csv")
    assert [p[:2] for p in table] == [("1", "a cat, red"), ("9", "a dog")]
    (tmp_path / "texts").mkdir()
    for name, text in (("1", "a cat, red\n"), ("9", "a dog")):
        (tmp_path / "texts" / f"{name}.txt").write_text(text)
    assert prompts.load(f"dpg:{tmp_path}/texts").hash == table.hash


@pytest.mark.parametrize("name", ["geneval", "dpg"])
def test_another_file_is_refused(tmp_path, name):
    (tmp_path / "a.jsonl").write_text('{"title": "x"}')
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    for file in ("a.jsonl", "a.csv"):
        with pytest.raises(UserError) as error:
            prompts.load(f"{name}:{tmp_path}/{file}")
        assert len(str(error.value).splitlines()) == 1
