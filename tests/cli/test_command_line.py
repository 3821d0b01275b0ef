"""The command line as a whole: version, completion, start-up, axes and plans of sweeps."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import DATA, mistake
from counted_clock import CountedClock
from rich.cells import cell_len
from typer.testing import CliRunner

import lanternbench
from lanternbench import lossless
from lanternbench.cli import main as main_module
from lanternbench.cli.main import app
from lanternbench.cli.options import COMPONENTS
from lanternbench.errors import UserError
from lanternbench.experiment.config import read_sweeps
from lanternbench.methods.method import Method, all_options

NO_HELP = ("caption", "device")  # of `prompts` and `doctor`
CLI = [sys.executable, "-m", "lanternbench"]


def cli(*args: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    options = {
        "capture_output": True,
        "text": True,
        "timeout": 300,
        "env": os.environ | environment,
    }
    return subprocess.run([*CLI, *args], cwd=cwd, **options)


@pytest.fixture
def here(small_images, tmp_path, monkeypatch):
    """Runs a command in this process, in a folder of its own, on small images: what it prints on
    stdout as JSON.
    """
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Any:
        done = CliRunner().invoke(app, [*args, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_the_version_is_that_of_the_package(tmp_path):
    assert cli("--version", cwd=tmp_path).stdout == f"lanternbench {lanternbench.__version__}\n"


def test_the_shell_completes_commands_and_options(tmp_path):
    for words, wanted in (
        ("lanternbench sw", "sweep"),
        ("lanternbench sweep --time-b", "--time-budget"),
    ):
        asked = {
            "_LANTERNBENCH_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        code = "from lanternbench.cli.main import app; app(prog_name='lanternbench')"
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True
        )
        assert wanted in done.stdout.split()


def test_help_and_version_do_not_wait_for_torch():
    code = "import sys, lanternbench.cli.main; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_every_command_keeps_its_flags():
    """Those of ``flags.txt``; the options of methods follow from the components."""
    root = typer.main.get_command(app)
    for line in (DATA / "flags.txt").read_text().splitlines():
        name, _, flags = line.partition(": ")
        command = root
        for word in name.split():
            _, command, _ = command.resolve_command(typer.Context(command), [word])
        own = [p for p in command.params if not p.name.startswith("method_option_")]
        assert {o for p in own for o in (*p.opts, *p.secondary_opts) if o[0] == "-"} == set(
            flags.split()
        ), name
        assert name == "import" or all(
            p.help for p in own if p.opts[0][0] == "-" and p.name not in NO_HELP
        ), name


FLAGS = dict(line.split(": ") for line in (DATA / "flags.txt").read_text().splitlines())


@pytest.mark.parametrize("name", FLAGS)
def test_help_names_every_option_in_80_columns(name):
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*name.split(), "--help"])
    assert max(map(cell_len, done.stdout.splitlines())) <= 80
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", done.stdout))
    assert set(FLAGS[name].split()) <= named


def test_every_command_is_listed_with_a_whole_sentence():
    listed = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["--help"]).stdout
    for name in {name.split()[0] for name in FLAGS}:
        (about,) = re.findall(rf"│ {name} +(.*?) +│", listed)
        assert re.fullmatch(r"[A-Z].*\.", about)


def test_lists_of_settings_are_runs_named_after_their_values(tmp_path):
    path = tmp_path / "axes.yaml"
    path.write_text("methods: [ar]\nbatch: [1, 8]\n")
    assert [(r.name, r.batch) for r in read_sweeps(path)] == [
        ("axes+batch-1", 1),
        ("axes+batch-8", 8),
    ]
    path.write_text("methods: [ar]\ntemperature: [0, 0.5]\nseed: [1, 2]\nguidance: 2\n")
    runs = read_sweeps(path)
    assert [(r.name, r.temperature, r.seed, r.guidance) for r in runs] == [
        ("axes+seed-1+temperature-0", 0, 1, 2),
        ("axes+seed-1+temperature-0.5", 0.5, 1, 2),
        ("axes+seed-2+temperature-0", 0, 2, 2),
        ("axes+seed-2+temperature-0.5", 0.5, 2, 2),
    ]
    assert [r.name for r in read_sweeps(path, {"temperature": 1.0})] == [
        "axes+seed-1",
        "axes+seed-2",
    ]
    for wrong, says in (
        ("seed: []", "empty list"),
        ("seed: [1, 1]", "two runs named"),
        (f"seed: {list(range(40))}\ntop_k: {list(range(40))}", "1600 runs"),
        ("seed: [1, x]", "'seed' is wrong"),
        ("batch: [1, 0]", "'batch' is wrong"),
        ("top_p: [1, 2]", "'top_p' is wrong"),
    ):
        path.write_text(f"methods: [ar]\n{wrong}\n")
        with pytest.raises(UserError, match=says):
            read_sweeps(path)


def test_every_combination_is_a_run_of_its_own(here, tmp_path):
    (tmp_path / "seeds.yaml").write_text(
        "methods: [cool-sd]\nbaseline: false\nseed: [1, 2]\nnum_prompts: 1\nmetrics: []\n"
    )
    folders = [Path(run["run"]) for run in here("sweep", "seeds.yaml")["runs"]]
    seeds = [json.loads((tmp_path / f / "samples.jsonl").read_text())["seed"] for f in folders]
    assert seeds == [1, 2]


def test_run_takes_several_methods_and_each_reads_its_own_options(here, monkeypatch, capfd):
    given = [
        "-m",
        "eagle-1",
        "-m",
        "cool-sd",
        "-m",
        "lantern",
        "--lambda",
        "1.5",
        "--delta",
        "0.2",
        "--no-baseline",
    ]
    labels = [row["label"] for row in here("run", *given, "-n", "1", "--metrics", "")["rows"]]
    assert [label.split()[0] for label in labels] == ["eagle-1", "cool-sd", "lantern"]
    assert "λ=1.5" in labels[1]
    assert "δ=0.2" in labels[2]
    # read by none, out of range for all that read it
    for wrong in (["--window", "3"], ["--lambda", "0.5"]):
        mistake(monkeypatch, capfd, "run", "-m", "eagle-1", "-m", "cool-sd", *wrong)


@pytest.mark.slow
def test_a_plan_makes_nothing_and_its_estimate_is_near(here, tmp_path, monkeypatch):
    """On a clock that counts operations, whatever else the machine does."""
    (tmp_path / "small.yaml").write_text("methods: [cool-sd]\nnum_prompts: 2\nmetrics: []\n")
    with CountedClock(monkeypatch):
        plan = here("sweep", "small.yaml", "--dry-run")
        assert not (tmp_path / "results").exists()
        done = here("sweep", "small.yaml")
    assert plan["images"] == 2 * 2
    assert [row["method"] for row in plan["plan"]] == ["ar", "cool-sd λ=2"]
    samples = (tmp_path / done["run"] / "samples.jsonl").read_text().splitlines()
    spent = sum(s["decode_s"] + s["encode_s"] + s["render_s"] for s in map(json.loads, samples))
    assert spent / 1.5 < plan["minutes"] * 60 < spent * 1.5, (spent, plan)
    shown = CliRunner().invoke(app, ["sweep", "small.yaml", "--dry-run"]).stdout
    assert "4 images: about" in shown


def test_verify_takes_the_options_of_methods(monkeypatch):
    asked: list[Method] = []
    monkeypatch.setattr(
        lossless, "verify_all", lambda methods, *_, **__: asked.extend(methods) or []
    )
    done = CliRunner().invoke(
        app, ["verify", "eagle-1", "gsd", "--acceptance", "block", "--tree", "chain"]
    )
    assert done.exit_code == 0, done.output
    assert [m.choices.acceptance for m in asked] == ["block", "block"]
    monkeypatch.undo()
    with pytest.raises(
        UserError, match="'block' is an acceptance rule: name the method whose drafts it judges"
    ):
        CliRunner().invoke(app, ["verify", "block"], catch_exceptions=False)


# of other programs, or of CSS
FOREIGN = {
    "--abbrev",
    "--address",
    "--always",
    "--dirty",
    "--editable",
    "--exclude",
    "--format",
    "--id",
    "--no-optional-locks",
    "--porcelain",
    "--query-gpu",
    "--resolution",
    "--untracked-files",
}


def texts_of(path: Path) -> list[str]:
    """The string literals of a file without its docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    texts = [one.value for one in constants if id(one) not in docstrings]
    return [text for text in texts if isinstance(text, str) and "var(--" not in text]


def test_messages_name_only_options_that_there_are():
    known = {"--help", "--version", "--no-", *FOREIGN}
    known |= {word for words in FLAGS.values() for word in words.split()}
    known |= {f"--{part}" for part in COMPONENTS}
    for name, fields in all_options().items():
        known |= {f"--{(field.alias or name).replace('_', '-')}" for field in fields}
    wrong = {}
    for path in Path(lanternbench.__file__).parent.rglob("*.py"):
        for text in texts_of(path):
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
            if named - known:
                wrong[path.name] = named - known
    assert wrong == {}


@pytest.mark.parametrize(
    ("command", "message", "said"),
    [
        ("report", "restore it or give --fresh.", " (--fresh is an option of `run`)"),
        ("run", "restore it or give --fresh.", ""),
        ("report", "make it with `lanternbench run --fresh`.", ""),
        ("profile", "give a smaller --batch or --device cpu", " (--batch is an option of `run`)"),
        ("report", "use --nothing", ""),
    ],
)
def test_advice_names_the_command_of_an_option_that_its_own_command_lacks(
    command, message, said, monkeypatch, capsys, tmp_path
):
    def broken(*_, **__):
        raise UserError(message)

    root = typer.main.get_command(app)
    monkeypatch.setattr(main_module.Commands, "options", None)
    root.resolve_command(typer.Context(root), [command])
    monkeypatch.setattr(main_module, "app", broken)
    with pytest.raises(SystemExit):
        main_module.main()
    assert capsys.readouterr().err == f"lanternbench: {message}{said}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("predict x --compile foo", "--compile is wrong: 'foo' is not one of 'graphs', 'eager'"),
        ("score x --caption foo", "--caption is wrong: 'foo' is not one of 'first'"),
        ("codebook tiny --proximity foo", "--proximity is wrong: 'foo' is not one of 'l2'"),
        ("train drafter --recipe foo", "--recipe is wrong: 'foo' is not one of 'eagle-1'"),
        ("run --method ar --seed foo", "--seed is wrong: must be a whole number; correct it"),
        ("train drafter --steps 0", "--steps is wrong: must be at least 1; correct it"),
        ("train drafter --batch 1e9", "--batch is wrong: must be a whole number; correct it"),
        ("train tiny --scale 99", "--scale is wrong: must be at most 10; correct it"),
        ("report --budget foo", "--budget is wrong: must be a number; correct it"),
    ],
)
def test_a_wrong_value_of_an_option_is_one_sentence(words, said, monkeypatch, capfd):
    assert mistake(monkeypatch, capfd, *words.split()).startswith(f"lanternbench: {said}")
