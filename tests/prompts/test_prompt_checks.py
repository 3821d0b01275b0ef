"""Prompt files that would be read wrongly are refused with the place, or read right and said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import SHARED
from prompt_files import texts, write
from typer.testing import CliRunner

from lanternbench import prompts
from lanternbench.cli.main import app
from lanternbench.errors import UserError

GENEVAL = SHARED / "prompts" / "geneval_metadata.jsonl"


# --- tables ---


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "prompt\na cat\na dog, a bird\n", "line 3 has 2 cells, and the header has 1"),
        (
            "a.csv",
            "id,prompt\n1,a cat\n2,a dog, a bird\n",
            "line 3 has 3 .* with a comma in quotes",
        ),
        ("a.csv", 'id,prompt,category\n1,"a\ncat",x\n2,a dog\n', "line 4 has 2 cells"),
        ("a.tsv", "id\tprompt\n1\ta cat\n\n2\n", "line 4 has 1 cells, .* end it with a tab"),
        ("a.csv", "id;prompt\n1;a cat; grey\n", "line 2 has 3 .* with a semicolon in quotes"),
        ("a.csv", "prompt,Prompt\na cat,a dog\n", "two columns called 'prompt'"),
        ("a.jsonl", '{"prompt": "a cat", "Prompt": "a dog"}\n', "two fields called 'prompt'"),
        ("a.csv", "x" * 200_000 + "\na cat\n", "line 1 is malformed"),
    ],
)
def test_a_table_whose_cells_do_not_fit_its_header_is_refused_with_its_line(
    tmp_path, name, content, message
):
    with pytest.raises(UserError, match=message) as error:
        prompts.load(write(tmp_path, name, content))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'id;prompt\n1;"a cat, grey"\n2;a dog\n'),
        ("a.csv", 'sep=;\r\nid;prompt\r\n1;"a cat, grey"\r\n2;a dog\r\n'),
        ("a.csv", "sep=|\nid|prompt\n1|a cat, grey\n2|a dog\n"),
        ("a.csv", "id\tprompt\n1\ta cat, grey\n2\ta dog\n"),
        ("a.tsv", "id;prompt\n1;a cat, grey\n2;a dog\n"),
        ("a.csv", 'prompt,,\n"a cat, grey",,\na dog,,\n'),
    ],
)
def test_tables_with_another_separator_are_read(tmp_path, name, content):
    assert texts(write(tmp_path, name, content)) == ["a cat, grey", "a dog"]


def test_a_line_that_names_the_separator_keeps_the_numbers_of_lines(tmp_path):
    spec = write(tmp_path, "a.csv", "sep=;\nprompt;note\na cat;x\na dog;y;z\n")
    with pytest.raises(UserError, match="line 4 has 3 cells"):
        prompts.load(spec)


def test_entries_without_a_caption_are_counted(tmp_path):
    table = prompts.load(write(tmp_path, "a.csv", "id,prompt\n1,a cat\n2,\n3, \n4,a dog\n,\n"))
    assert len(table) == 2
    assert table.notes == ("2 of 4 entries have no caption and are left out.",)
    listed = prompts.load(write(tmp_path, "a.json", '["a cat", "", {"prompt": null}]'))
    assert listed.notes == ("2 of 3 entries have no caption and are left out.",)
    assert prompts.load(write(tmp_path, "a.txt", "a cat\n\na dog\n")).notes == ()


@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_and_nul_bytes_are_refused(tmp_path, code):
    with pytest.raises(UserError, match=r"has a NUL byte in line 1.* save it as UTF-8"):
        prompts.load(write(tmp_path, "a.txt", "a cat\na dog\n".encode(code)))
    with pytest.raises(UserError, match="NUL byte in line 2"):
        prompts.load(write(tmp_path, "b.csv", "prompt\na\0cat\n"))


# --- JSON ---


@pytest.mark.parametrize(
    "value",
    [
        {"7": "a cat", "8": "a dog"},
        {"7": {"prompt": "a cat"}, "8": {"caption": "a dog"}},
        {"prompts": {"7": "a cat", "8": {"text": "a dog"}}},
    ],
)
def test_an_object_from_ids_to_prompts_is_read(tmp_path, value):
    loaded = prompts.load(write(tmp_path, "a.json", json.dumps(value)))
    assert [(p.id, p.text) for p in loaded] == [("7", "a cat"), ("8", "a dog")]


@pytest.mark.parametrize("value", [{"7": 5}, {"a": ["a cat"]}, {"prompt": "a cat"}])
def test_an_object_of_anything_else_is_refused(tmp_path, value):
    with pytest.raises(UserError, match="holds no list of prompts"):
        prompts.load(write(tmp_path, "a.json", json.dumps(value)))


# --- COCO ---


def coco(folder: Path, images: list, annotations: list) -> str:
    data = {
        "images": [{"id": image, "file_name": f"{image}.jpg"} for image in images],
        "annotations": [{"image_id": image, "caption": text} for image, text in annotations],
    }
    return write(folder, "captions.json", json.dumps(data))


def test_coco_ids_match_as_they_are_written_and_images_without_a_caption_are_counted(tmp_path):
    loaded = prompts.load(coco(tmp_path, [1, "2", 3], [("1", "a cat"), (2, "a dog"), (3, " ")]))
    assert [(p.id, p.text) for p in loaded] == [("1", "a cat"), ("2", "a dog")]
    assert loaded.notes == ("1 of 3 entries have no caption and are left out.",)


def test_two_coco_images_of_one_id_are_refused(tmp_path):
    with pytest.raises(UserError, match="two images of one id"):
        prompts.load(coco(tmp_path, [1, "1"], [(1, "a cat")]))


# --- notes ---


def test_repeated_captions_are_noted(tmp_path):
    loaded = prompts.load(write(tmp_path, "a.txt", "a cat\na dog\na cat\n"))
    assert loaded.notes[0].startswith("the 3 prompts have 2 different captions")
    assert prompts.load(write(tmp_path, "a.txt", "a cat\na dog\na cat\n"), 1).notes == ()


def test_the_captions_of_val2017_repeat_41_texts(shared):
    loaded = prompts.load(f"coco2017:{shared / 'coco'}/captions_val2017.json")
    assert any("5,000 prompts have 4,959 different captions" in note for note in loaded.notes)
    assert not any("official" in note for note in loaded.notes)


def test_a_rewritten_official_file_is_said_to_be_another(tmp_path, shared):
    official = prompts.load(f"geneval:{GENEVAL}")
    assert official.notes == ()
    lines = GENEVAL.read_text().splitlines()
    first = json.loads(lines[0]) | {"prompt": "a bench on a lawn"}
    spec = write(tmp_path, "mine.jsonl", "\n".join([json.dumps(first), *lines[1:]]))
    mine = prompts.load(f"geneval:{spec}")
    assert len(mine) == 553
    assert "mine.jsonl is not the official geneval_metadata.jsonl" in mine.notes[0]


# --- GenEval ---


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({}, "line 2 repeats the prompt 'a photo of a cat'"),
        ({"prompt": "b", "include": [{"class": "cat"}]}, "line 2 .*include.0.count is missing"),
        ({"prompt": "b", "tag": None}, "line 2 .*tag"),
        (
            {"prompt": "b", "include": [{"class": "cat", "count": 1, "position": ["above", 0]}]},
            "does not name an earlier object",
        ),
    ],
)
def test_metadata_that_cannot_be_judged_is_refused_with_its_line(tmp_path, second, message):
    line = {"tag": "single_object", "include": [{"class": "cat", "count": 1}]}
    line |= {"prompt": "a photo of a cat"}
    spec = write(tmp_path, "g.jsonl", f"{json.dumps(line)}\n{json.dumps(line | second)}\n")
    with pytest.raises(UserError, match=message):
        prompts.load(f"geneval:{spec}")


# --- the command ---


def preview(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["prompts", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_file_of_two_captions_is_previewed(tmp_path):
    spec = write(tmp_path, "two.txt", "a cat\na dog\n")
    assert "2 prompts" in preview(spec)
    long = write(tmp_path, "long.txt", "\n".join(f"caption {i}" for i in range(20)))
    assert "8 of 20 prompts" in preview(long)
    assert "20 prompts" in preview(long, "-n", "0")
