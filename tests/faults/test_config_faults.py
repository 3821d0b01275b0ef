"""Settings that make no sense cost one sentence: never a traceback, never minutes, never another
meaning.
"""

from __future__ import annotations

import os

import pytest
from conftest import mistake

pytestmark = pytest.mark.usefixtures("in_time")

BILLION = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 10)}]}}\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
GRID = (
    "{method: lantern, k: ["
    + ", ".join(map(str, range(1, 3001)))
    + "], delta: ["
    + "0.1, " * 3000
    + "0.2]}"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "methods: [ar]\nseed: 1\nmethods: [sjd]\n",
            "line 3, column 1 is no valid YAML (the key 'methods' is given",
        ),
        (
            "methods:\n  - {method: cool-sd, lambda: 2, lambda: 3}\n",
            "the key 'lambda' is given twice",
        ),
        ("methods: [ar]\nbatch: true\n", "'batch' is wrong"),
        ("methods: [ar]\nseed: false\n", "'seed' is wrong"),
        ("methods: [ar]\ntemperature: yes\n", "'temperature' is wrong"),
        (BILLION + "methods: *i\n", "aliases such as *name are not supported"),
        ("a: &a [*a]\nmethods: *a\n", "aliases"),
        (MERGED + "methods: [{<<: *i}]\n", "aliases"),
        (f"methods: [{GRID}]\n", "at most 1000"),
        ("methods: [" + "ar, " * 5000 + "ar]\n", "at most 1000"),
        ("methods: [ar]\nbatch: 100000000\n", "'batch' is wrong"),
        ("methods: [ar]\nnum_prompts: " + "9" * 5000 + "\n", "cannot be read as YAML"),
        ("methods: [ar]\nnum_prompts: " + "9" * 50 + "\n", "'num_prompts' is wrong"),
        ("methods: [ar]\nseed: 18446744073709551616\n", "'seed' is wrong"),
        ("methods: [ar]\nguidance: 1e+39\n", "'guidance' is wrong"),
        ("methods: [ar]\ntemperature: 1.0e-40\n", "0, which is greedy"),
        ("methods: " + "[" * 100 + "]" * 100 + "\n", "methods"),
        ("methods: [{method: lantern, k: " + "[" * 200 + "]" * 200 + "}]\n", "'k'"),
        ("methods: " + "[" * 200_000 + "\n", "cannot be read as YAML"),
        ("methods: [ar]\ntarget: " + "a" * 5000 + "\n", "'target' is wrong"),
        ('methods: [ar]\ntarget: "a\\0b"\n', "'target' is wrong"),
        ('methods: [ar]\nprompts: "a\\nb"\n', "'prompts' is wrong"),
        ("methods: [ar]\nwhen: 2020-99-99\n", "cannot be read as YAML"),
        ("methods: [ar]\n? [a, b]\n: 1\n", "evil.yaml"),
        ("methods: [ar]\n1: 2\n", "settings"),
        ("methods: [{method: cool-sd, 1: 2}]\n", "1"),
        ("methods: [{method: cool-sd, lambda: .nan}]\n", "finite"),
        ("methods: [{method: cool-sd, lambda: {a: 1}}]\n", "lambda"),
        ("methods: [3]\n", "methods"),
        (
            "methods: [{method: ar, tree: 0}]\n",
            "'tree' of method 'ar' has a value that is no name",
        ),
        (
            "methods: [{method: ar, tree: {}}]\n",
            "'tree' of method 'ar' has a value that is no name",
        ),
        (
            'methods: [{method: ar, tree: "\\x1e"}]\n',
            "'tree' of method 'ar' has a value that is no name",
        ),
        ("methods: {ar: 1}\n", "methods"),
        ("methods:\n", "methods"),
        ("- ar\n", "must be a mapping"),
        ("", "must be a mapping"),
        ("a: 1\n---\nb: 2\n", "is no valid YAML"),
        ("# " + "x" * 2**20 + "\nmethods: [ar]\n", "larger than a sweep file can be"),
        ("methods: [ar]\n\x07\n", "cannot be read as YAML"),
        ("metrics: [1]\nmethods: [ar]\n", "metrics"),
    ],
    ids=lambda value: None if len(value) > 40 else value,
)
def test_a_senseless_sweep_file_is_one_sentence(text, says, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.yaml").write_text(text)
    said = mistake(monkeypatch, capfd, "sweep", "evil.yaml")
    assert says in said
    assert len(said) < 1000
    assert not (tmp_path / "results").exists()


def test_a_pipe_a_folder_and_what_cannot_be_read_are_no_sweep_files(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00methods")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for name in ("pipe.yaml", "folder.yaml", "bytes.yaml", "loop.yaml", "a" * 5000):
        assert mistake(monkeypatch, capfd, "sweep", name)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--threads", "100000"], "this machine has"),
        (["--seed", str(2**64)], "'seed' is wrong"),
        (["--seed", "9" * 400], "'seed' is wrong"),
        (["--guidance", "1e39"], "'guidance' is wrong"),
        (["--guidance", "nan"], "'guidance' is wrong"),
        (["--temperature", "inf"], "'temperature' is wrong"),
        (["--top-p", "nan"], "'top_p' is wrong"),
        (["--lambda", "1e400"], "finite"),
        (["--depth", "1000000000"], "depth"),
        (["--shape", "chain-1000000000"], "chain-1 to chain-64"),
        (["--window", "1000000000", "-m", "sjd"], "window"),
        (["--set", "shape=" + "[" * 30 + "]" * 30], "shape"),
        (["--set", "a=&x [*x]"], "--set"),
        (["--set", "lambda=2", "--set", "lambda=3"], "lambda"),
        (["--prompts", "a" * 5000], "'prompts' is wrong"),
        (["--drafter", "a" * 5000], "'drafter' is wrong"),
        (["--drafter", "/dev/null"], "/dev/null"),
        (["--target", "tiny=/nonexistent"], "/nonexistent"),
        (["--target", "../../etc"], "unknown target"),
        (["--target", ""], "target"),
        (["--out", "/dev/null/x"], "/dev/null/x"),
        (["--batch", str(10**30)], "'batch' is wrong"),
        (["-n", str(10**30)], "'num_prompts' is wrong"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else value[:20],
)
def test_a_senseless_option_is_one_sentence(args, says, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    method = (
        []
        if "-m" in args
        else ["-m", "eagle-1" if "--depth" in args or "--shape" in args else "cool-sd"]
    )
    assert says in mistake(monkeypatch, capfd, "run", *method, "-n", "1", *args)
    assert not list(tmp_path.glob("results/*/samples.jsonl"))
