"""``lanternbench runs`` says what lies in a results folder, and a run is found by its name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from run_records import run_record

from lanternbench import load_run
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, Sample, find, read_run
from lanternbench.measure.summary import summarise


def make(
    root: Path, name: str, prompts: int, of: int, load: float = 0.1, finish: bool = True
) -> Path:
    """A run of two methods, of which ``of`` prompts were asked for."""
    methods = [{"label": label, "method": label, "lossless": True} for label in ("ar", "eagle-1")]
    facts = dict(
        environment={"cores": 2, "device": "cpu"}, target={"name": "tiny"}, methods=methods
    )
    with RunFolder.open(
        root, run_record(name, {"of": of}, prompts={"dataset": "demo", "count": of}, **facts)
    ) as folder:
        for i in range(prompts):
            for label in ("ar", "eagle-1"):
                folder.append(
                    Sample(key=f"{i}|{label}|0", prompt_id=str(i), prompt=f"x {i}", label=label, method=label, seed=0,
                           tokens=4, steps=2, accept_lengths=[1, 3], decode_s=1.0, load=load)
                )  # fmt: skip
        if finish:
            folder.finish(summarise(folder.figures, folder.run))
    return folder.path


@pytest.fixture
def results(tmp_path) -> Path:
    root = tmp_path / "results"
    make(root, "demo-0123abcd", 2, 2)
    make(root, "tradeoff-11111111", 1, 4, finish=False)
    make(root, "demo-ffffffff", 2, 3, load=30.0)
    (root / "notes").mkdir()
    (root / "broken-00000000").mkdir()
    (root / "broken-00000000" / "run.json").write_text("{")
    return root


def test_what_lies_in_results_is_listed_newest_first_without_torch(results):
    code = (
        "import sys\n"
        "from contextlib import suppress\n"
        "from lanternbench.cli.main import main\n"
        "sys.argv = ['lanternbench', 'runs', *sys.argv[1:]]\n"
        "with suppress(SystemExit):\n"
        "    main()\n"
        "print('torch' in sys.modules, file=sys.stderr)\n"
    )

    def listed(*args: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", code, *args]
        return subprocess.run(
            command, cwd=results.parent, capture_output=True, text=True, check=True
        )

    done = listed("--json")
    assert done.stderr.splitlines()[-1] == "False"
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == ["demo-ffffffff", "tradeoff-11111111", "demo-0123abcd"]
    assert [row["finished"] for row in rows] == [False, False, True]
    assert [(row["samples"], row["of"]) for row in rows] == [(4, 6), (2, 8), (4, 4)]
    assert [row["disturbed"] for row in rows] == [True, None, False]  # None: not summed up yet
    assert {(row["target"], row["prompts"], row["methods"]) for row in rows[:1]} == {
        ("tiny", "demo 3", 2)
    }
    text = listed().stdout
    assert "4 of 6" in text
    assert text.index("demo-ffffffff") < text.index("demo-0123abcd")


def test_a_run_is_found_by_its_name_the_newest_first(results, monkeypatch):
    monkeypatch.chdir(results.parent)
    assert load_run("demo").path.name == "demo-ffffffff"
    assert load_run("demo-0123abcd").path.name == "demo-0123abcd"
    assert find(Path("results"), ["tradeoff"])[0].name == "tradeoff-11111111"
    with pytest.raises(UserError, match="there is no run 'dem'"):
        find(Path("results"), ["dem"])


def test_an_empty_folder_is_one_sentence(tmp_path):
    from lanternbench.experiment.run_folder import listing

    with pytest.raises(UserError, match="there is no run in"):
        listing(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"run_id":', r"run\.json is damaged"),
        ('{"schema_version": 99}', r"run\.json has schema_version 99.*: upgrade it"),
    ],
)
@pytest.mark.parametrize("name", ["demo", "demo-0123abcd"])
def test_a_run_that_cannot_be_read_is_named_as_such_by_any_of_its_names(
    name, content, says, tmp_path
):
    folder = tmp_path / "demo-0123abcd"
    folder.mkdir()
    (folder / "run.json").write_text(content)
    with pytest.raises(UserError, match=says):
        read_run(find(tmp_path, [name])[0])
