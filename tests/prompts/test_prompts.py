"""Prompts: official files are read as they are, selections are reproducible, bad files get one
sentence.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import SHARED
from prompt_files import texts, write

from lanternbench import prompts
from lanternbench.errors import UserError
from tools.train_tiny.scenes import COLOURS, PLACES, RADII, SHAPES, TEXTURES

COCO = SHARED / "coco" / "captions_val2017.json"
PARTI = SHARED / "prompts" / "PartiPrompts.tsv"


def official(path: Path) -> Path:
    if not path.is_file():
        pytest.skip(f"NOT CHECKED: the official file {path.name} is not in {SHARED}")
    return path


def coco_file(folder: Path, **changes) -> str:
    data = {
        "images": [
            {"id": 9, "file_name": "../../9.jpg"},
            {"id": 3, "file_name": "3.jpg"},
            {"id": 5, "file_name": "5.jpg"},
        ],
        "annotations": [
            {"image_id": 3, "id": 1, "caption": "a cat"},
            {"image_id": 9, "id": 2, "caption": " a dog \n"},
            {"image_id": 9, "id": 3, "caption": "a very big dog"},
        ],
    }
    return write(folder, "captions.json", json.dumps(data | changes))


# --- the demo prompts ---


def test_demo_prompts_speak_the_language_of_the_embedded_model():
    demo = prompts.load("demo")
    assert len(demo) == 128
    assert len(set(texts("demo"))) == 128
    two_shapes = 0
    for text in texts("demo"):
        what, _, ground = text.rpartition(" on a ")
        texture, background, word = ground.split()
        assert (texture in TEXTURES, background in COLOURS, word) == (True, True, "background")
        items = what.split(" and ")
        two_shapes += len(items) == 2
        for item in items:
            article, size, colour, shape, *place = item.split()
            assert article == "a"
            assert size in RADII
            assert shape in SHAPES
            assert " ".join(place) in PLACES
            assert colour in set(COLOURS) - {background}
    assert 32 <= two_shapes <= 52


def test_the_first_demo_prompts_cover_every_word():
    first = " ".join(texts("demo", count=16))
    assert texts("demo", count=16) == texts("demo")[:16]
    for word in (*TEXTURES, *COLOURS, *SHAPES, *RADII, *PLACES):
        assert word in first


# --- the official files ---


def test_coco_gives_one_caption_for_each_of_its_5000_images():
    spec = f"coco2017:{official(COCO)}"
    every = prompts.load(spec)
    assert len(every) == len({prompt.id for prompt in every}) == 5000
    assert every.dataset == "coco2017"
    assert all(prompt.text and prompt.image == f"{int(prompt.id):012d}.jpg" for prompt in every)
    longest = {prompt.id: prompt.text for prompt in prompts.load(spec, caption="longest")}
    assert all(len(longest[prompt.id]) >= len(prompt.text) for prompt in every)


def test_parti_keeps_category_and_challenge_of_its_1632_prompts():
    every = prompts.load(f"parti:{official(PARTI)}")
    assert len(every) == 1632
    assert every.prompts[0][1:4] == ("bond", "Abstract", "Basic")
    assert all(prompt.category and prompt.challenge for prompt in every)
    assert any('"Toaday"' in prompt.text for prompt in every)  # quotes are part of a prompt


def test_a_prompt_with_an_empty_category_has_none(tmp_path):
    path = write(
        tmp_path, "P.tsv", "Prompt\tCategory\tChallenge\na cat\t\t\na dog\tAnimals\tBasic\n"
    )
    assert [(p.category, p.challenge) for p in prompts.load(f"parti:{path}")] == [
        (None, None),
        ("Animals", "Basic"),
    ]


def test_an_official_set_without_its_file_says_how_to_give_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"--prompts coco2017:PATH/captions_val2017\.json"):
        prompts.load("coco2017")
    (tmp_path / "prompts").mkdir()
    write(
        tmp_path / "prompts",
        "PartiPrompts.tsv",
        "Prompt\tCategory\tChallenge\tNote\nbond\tAbstract\tBasic\t\n",
    )
    assert prompts.load("parti").prompts == (prompts.Prompt("2", "bond", "Abstract", "Basic"),)


def test_imagenet_gives_its_thousand_class_numbers_with_their_names():
    every = prompts.load("imagenet")
    assert [prompt.text for prompt in every] == [str(n) for n in range(1000)]
    assert (every.prompts[1].category, every.source) == ("goldfish", "imagenet")
    chosen = prompts.load("imagenet", count=10, seed=1)
    assert len({prompt.id for prompt in chosen}) == 10


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("imagenet.txt", "a cat\na dog"),
        ("demo.csv", "id,prompt\n7,a cat\n8,a dog\n"),
        ("demo.txt", "a cat\na dog"),
        ("coco2017.txt", "a cat\na dog"),
        ("coco2014.json", '["a cat", "a dog"]'),
        ("parti.csv", 'category,prompt\nx,"a cat"\ny,a dog\n'),
    ],
)
def test_a_file_named_like_a_built_in_set_is_read_by_its_ending(
    tmp_path, monkeypatch, name, content
):
    path = write(tmp_path, name, content)
    assert texts(path) == ["a cat", "a dog"]
    monkeypatch.chdir(tmp_path)
    loaded = prompts.load(name)
    assert (loaded.source, loaded.dataset) == (name, name)


def test_a_count_of_a_file_named_demo_is_a_seeded_choice(tmp_path):
    path = write(tmp_path, "demo.txt", "\n".join(f"prompt {i}" for i in range(50)))
    assert texts(path, count=5, seed=1) != texts(path, count=5, seed=2)


def test_a_source_without_a_file_takes_none():
    with pytest.raises(UserError, match="write --prompts demo"):
        prompts.load("demo:mine.txt")


@pytest.mark.parametrize("spec", ["{}", "coco2017:{}", "parti:{}"])
def test_a_pipe_is_refused_and_does_not_hang(tmp_path, spec):
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="is a pipe or device, not a file of prompts"):
        prompts.load(spec.format(pipe))


def test_a_device_and_a_folder_are_refused(tmp_path):
    link = tmp_path / "zero.csv"
    link.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="pipe or device"):
        prompts.load(str(link))
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        prompts.load(str(tmp_path / "folder.txt"))


def test_a_quoted_cell_may_hold_a_line_break_but_no_rows(tmp_path):
    two_lines = write(tmp_path, "a.csv", 'id,prompt,category\n1,"a cat\non a mat",x\n2,a dog,y\n')
    assert texts(two_lines) == ["a cat on a mat", "a dog"]
    swallowing = [
        'id,prompt\n1,"a cat\n2,a dog\n3,a bird"\n4,a fish\n',
        'prompt\na horse\n"a cat\na dog\na bird"\na fish\n',
        'prompt,category\n"a cat,x\na dog,y\na bird"\n',
    ]
    for content in swallowing:
        with pytest.raises(
            UserError, match=r"line [23] is malformed \(a quote that opens there"
        ) as error:
            prompts.load(write(tmp_path, "b.csv", content))
        assert len(str(error.value).splitlines()) == 1


# --- selection ---


def test_a_selection_is_seeded_keeps_file_order_and_grows_with_the_count(tmp_path):
    spec = write(tmp_path, "list.txt", "\n".join(f"prompt {i}" for i in range(500)))
    order = {text: i for i, text in enumerate(texts(spec))}
    assert len(order) == 500
    ten, again, more, other = (
        texts(spec, count=n, seed=s) for n, s in ((10, 1), (10, 1), (50, 1), (10, 2))
    )
    assert ten == again != other
    assert set(ten) < set(more)
    assert [order[text] for text in more] == sorted(order[text] for text in more)
    # fixed for ever: a seed in a paper must mean the same prompts next year
    assert [prompt.id for prompt in prompts.load(spec, count=3, seed=7)] == ["107", "253", "427"]


def test_every_prompt_is_selected_equally_often(tmp_path):
    spec = write(tmp_path, "list.txt", "\n".join(f"prompt {i}" for i in range(20)))
    counts = dict.fromkeys(texts(spec), 0)
    for seed in range(400):
        for text in texts(spec, count=5, seed=seed):
            counts[text] += 1
    # 100 expected, standard deviation 8.7: five of them on either side
    assert all(56 < count < 144 for count in counts.values())


def test_the_hash_names_the_selection(tmp_path):
    one = prompts.load(write(tmp_path, "a.txt", "x\ny"))
    assert one.hash == prompts.load(write(tmp_path, "b.txt", "x\r\ny\r\n")).hash
    assert one.hash != prompts.load(write(tmp_path, "c.txt", "y\nx")).hash
    assert one.record()["hash"] == one.hash
    assert str(tmp_path) not in json.dumps(one.record())


@pytest.mark.parametrize("count", [0, -1, 3])
def test_a_count_that_cannot_be_given_is_refused(tmp_path, count):
    with pytest.raises(UserError, match="--num-prompts"):
        prompts.load(write(tmp_path, "a.txt", "x\ny"), count=count)


# --- formats ---


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "a cat\n\n  \na dog"),
        ("a.csv", 'ID,Caption\n1,a cat\n,\n2,"a dog"\n'),
        ("a.tsv", "Note\tTEXT\nx\ta cat\n\n\ta dog\n"),
        ("a.json", '["a cat", " ", {"Text": "a dog"}]'),
        ("b.json", '{"prompts": [{"prompt": "a cat"}, {"prompt": null}, {"prompt": "a dog"}]}'),
        ("a.jsonl", '{"prompt": "a cat"}\n\n"a dog"\n'),
        ("A.TXT", "a cat\ra dog\r"),
    ],
)
def test_every_format_gives_its_prompts(tmp_path, name, content):
    assert texts(write(tmp_path, name, content)) == ["a cat", "a dog"]
    assert texts(
        write(tmp_path, name, b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())
    ) == ["a cat", "a dog"]


@pytest.mark.parametrize(
    "text",
    [
        "🦊🏽‍🚀 in space",
        "قطة على العشب",
        "<script>alert('x')</script>",
        "word " * 999 + "word",
        "  twice  spaced".strip(),
    ],
)
@pytest.mark.parametrize("suffix", ["txt", "jsonl", "tsv"])
def test_a_caption_is_kept_as_it_is(tmp_path, text, suffix):
    content = {"txt": text, "jsonl": json.dumps({"prompt": text}), "tsv": f"prompt\n{text}"}[
        suffix
    ]
    assert texts(write(tmp_path, f"a.{suffix}", content)) == [text]


def test_line_breaks_and_broken_surrogates_inside_a_caption_do_no_harm(tmp_path):
    spec = write(tmp_path, "a.json", r'["two\nlines\u2028three", "half \ud83d pair"]')
    assert texts(spec) == ["two lines three", "half ? pair"]
    assert len(prompts.load(spec).hash) == 64


def test_coco_captions_can_be_first_longest_or_random(tmp_path):
    spec = f"coco2017:{coco_file(tmp_path)}"
    assert [(p.id, p.text, p.image) for p in prompts.load(spec)] == [
        ("9", "a dog", "9.jpg"),
        ("3", "a cat", "3.jpg"),
    ]
    assert texts(spec, caption="longest")[0] == "a very big dog"
    drawn = [texts(spec, seed=seed, caption="random")[0] for seed in range(20)]
    assert set(drawn) == {"a dog", "a very big dog"}
    assert drawn == [texts(spec, seed=seed, caption="random")[0] for seed in range(20)]


def test_repeated_ids_become_unique_and_are_counted(tmp_path):
    loaded = prompts.load(
        write(tmp_path, "a.csv", "id,prompt\na,1\na,2\na-2,3\na,4\nb|c,5\nb_c,6\n")
    )
    ids = [prompt.id for prompt in loaded]
    assert len(set(ids)) == 6
    assert (ids[0], ids[2]) == ("a", "a-2")
    assert not any("|" in name for name in ids)
    assert loaded.notes[0].startswith("3 ")


# --- failures ---


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "empty"),
        ("a.txt", " \n\r\n", "empty"),
        ("a.csv", "prompt\n", "no prompts"),
        ("a.csv", "title,n\nx,1\n", "no column called prompt"),
        ("a.csv", "title,n\n", "no column called prompt"),
        ("a.txt", "caf\xe9".encode("latin-1"), r"not UTF-8 \(byte 4\)"),
        ("a.txt", "x".encode("utf-16"), "not UTF-8"),
        ("a.json", '[\n"x",\n}', "line 3"),
        ("a.json", "[" * 100_000, "not valid JSON"),
        ("a.json", '{"x": 1}', "no list of prompts"),
        ("a.json", "[1]", "entry 1"),
        ("a.json", '[{"prompt": 5}]', "no text"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": \n', "line 2"),
        ("a.jsonl", '{"title": "x"}\n', "no column called prompt"),
        ("a.csv", "prompt\n" + "x" * 200_000, "line 2"),
        ("a.csv", 'prompt\na cat\n"a dog\na bird\n', "line 3 is malformed"),
    ],
)
def test_a_bad_file_gets_one_sentence(tmp_path, name, content, message):
    spec = write(tmp_path, name, content)
    with pytest.raises(UserError, match=message) as error:
        prompts.load(spec)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes", [{"images": None}, {"annotations": [{"caption": "x"}]}, {"images": [1]}]
)
def test_a_file_that_is_no_coco_file_is_refused(tmp_path, changes):
    with pytest.raises(UserError, match="no COCO captions file"):
        prompts.load(f"coco2017:{coco_file(tmp_path, **changes)}")


@pytest.mark.parametrize(
    "spec", ["nothing", "", "coco2017:", "parti:missing.tsv", "missing.txt", ".", "a\0b.txt"]
)
def test_an_unknown_source_is_refused(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        prompts.load(spec)
    with pytest.raises(UserError, match="first, longest, random"):
        prompts.load("demo", caption="shortest")  # type: ignore[arg-type]
