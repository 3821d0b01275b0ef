"""Runs, sweeps and their resumption, through the command line as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest
import torch
import typer
from click.testing import Result
from conftest import ROOT, interrupted, mistake, two_layers
from run_records import run_record
from typer.testing import CliRunner

from lanternbench import experiment as results
from lanternbench import registry
from lanternbench.cli import run_cmd
from lanternbench.cli.main import app, main
from lanternbench.engine import decode as engine
from lanternbench.engine.verify import Residual
from lanternbench.errors import UserError
from lanternbench.experiment import config, worker
from lanternbench.experiment import runner as sweeps
from lanternbench.experiment.config import expand, read_sweeps
from lanternbench.measure.summary import read_summary
from lanternbench.methods.build import build
from lanternbench.methods.method import method

CLI = [sys.executable, "-m", "lanternbench"]
SWEEP = """
target: tiny
prompts: demo
num_prompts: 2
methods: [ar, eagle-1, {method: cool-sd, lambda: [1.1, 2]}]
"""


def cli(*args: str, cwd: Path) -> Result:
    """A command in this process, in another folder."""
    with chdir(cwd):
        done = CliRunner().invoke(app, args, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def swept(shallow_5x5, tmp_path_factory) -> Path:
    """A folder in which one small sweep has been run, undisturbed, on small images of two layers
    of the target.
    """
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "small.yaml").write_text(SWEEP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "load_with_drafter", lambda *_: shallow_5x5)
        cli("sweep", "small.yaml", cwd=folder)
    return folder


def stored(folder: Path) -> dict[str, list[int]]:
    return {s.key: s.token_ids for s in results.read_samples(results.latest(folder / "results"))}


def test_a_sweep_stores_every_method_for_every_prompt(swept):
    keys = stored(swept)
    assert len(keys) == 2 * 4
    run = results.latest(swept / "results")
    rows = read_summary(run).rows
    assert [row.label for row in rows] == ["ar", "eagle-1", "cool-sd λ=1.1", "cool-sd λ=2"]
    for row in rows:
        assert row.value("speedup") > 0
        assert row.value("accept_len") >= 1
        assert None not in [row.value(name) for name in ("fidelity_loss", "clip-tiny", "fid-tiny")]
    assert rows[0].value("accept_len") == rows[0].value("step_compression") == 1.0
    assert all((run / s.image).is_file() for s in results.read_samples(run))


# the sweep of ``swept``, with so long before each sample that it can be killed between two
SLOWLY = """
import sys, time
from conftest import two_layers
from lanternbench.cli.main import main
from lanternbench.experiment import worker

worker.load_with_drafter = lambda *_: two_layers(side=5)
work = worker.Worker.work

def slow(self, *rest):
    time.sleep(0.5)
    yield from work(self, *rest)

worker.Worker.work = slow
sys.argv = ["lanternbench", "sweep", "small.yaml"]
main()
"""


@pytest.mark.slow
def test_a_killed_sweep_continues_to_the_same_results_and_computes_nothing_twice(
    swept, small_images, tmp_path
):
    (tmp_path / "small.yaml").write_text(SWEEP)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": paths},
    )
    deadline = time.monotonic() + 300
    lines: list[str] = []
    while len(lines) < 3 and time.monotonic() < deadline and process.poll() is None:
        found = list(tmp_path.glob("results/*/samples.jsonl"))
        lines = found[0].read_text().splitlines() if found else []
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = results.read_samples(results.latest(tmp_path / "results"))
    assert 3 <= len(before) < 8
    cli("sweep", "small.yaml", cwd=tmp_path)
    after = results.read_samples(results.latest(tmp_path / "results"))
    # times included
    assert [s.model_dump() for s in after[: len(before)]] == [s.model_dump() for s in before]
    assert stored(tmp_path) == stored(swept)


@pytest.mark.slow
def test_report_writes_every_format(swept):
    cli("report", "--published", cwd=swept)
    written = {p.suffix for p in (results.latest(swept / "results") / "report").iterdir()}
    assert {".md", ".csv", ".tex", ".png", ".svg", ".pdf", ".html"} <= written


def test_run_measures_ar_alongside_and_resumes(swept, small_images):
    first = cli("run", "--method", "cool-sd", "--lambda", "2", "-n", "1", "--json", cwd=swept)
    rows = json.loads(first.stdout)["rows"]
    assert [r["label"] for r in rows] == ["ar", "cool-sd λ=2"]
    again = cli("run", "--method", "cool-sd", "--lambda", "2", "-n", "1", "--json", cwd=swept)
    assert json.loads(again.stdout)["rows"] == rows


@pytest.mark.parametrize(
    "name",
    ["coco2017:{shared}/coco/captions_val2017.json", "parti:{shared}/prompts/PartiPrompts.tsv"],
)
def test_official_prompts_run(shared, small_images, tmp_path, name):
    done = cli(
        "run", "-m", "cool-sd", "--prompts", name.format(shared=shared), "-n", "2", "--no-baseline", "--json",
        cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(done.stdout)["rows"][0]["n"] == 2


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "--method", "nope"], "unknown method 'nope'"),
        (["run", "--method", "ar", "--target", "nope"], "unknown target 'nope'"),
        (["run", "--method", "cool-sd", "--lambda", "0.5"], "option 'lambda' = 0.5 is wrong"),
        (["run", "--method", "ar", "--prompts", "empty.txt"], "empty.txt is empty"),
        (["run", "--method", "ar", "--prompts", "missing.txt"], "missing.txt"),
        (["run", "--method", "ar", "--set", "depth"], "NAME=VALUE"),
        (["run", "--method", "ar", "--metrics", "beauty"], "beauty"),
        (["run", "--method", "ar", "--device", "tpu"], "unknown device"),
        (
            ["run", "--method", "ar", "--dtype", "int8"],
            "'dtype' is wrong (must be 'float32', 'bfloat16' or 'float16')",
        ),
        (
            ["sweep", "fine.yaml", "--dtype", "half"],
            "'dtype' is wrong (must be 'float32', 'bfloat16' or 'float16')",
        ),
        (
            ["profile", "--dtype", "int8"],
            "'dtype' is wrong (must be 'float32', 'bfloat16' or 'float16')",
        ),
        (
            ["profile", "eagle-1", "--drafter", "tiny"],
            "of kind 'model', which no method of this run uses",
        ),
        (["sweep", "broken.yaml"], "began on line 3"),
        (["sweep", "missing.yaml"], "no sweep file"),
        (["sweep", "typo.yaml"], "no setting 'metods'"),
        (["sweep", "evil.yaml"], "evil.yaml"),
        (["report", "--results", "nowhere"], "no run in nowhere"),
        (["report", "not-a-run"], "not-a-run"),
        (["verify", "nope"], "unknown method"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capfd, args, says):
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "broken.yaml").write_text("target: tiny\nmethods:\n  - [ar\n")
    (tmp_path / "fine.yaml").write_text("methods: [ar]\n")
    (tmp_path / "typo.yaml").write_text("metods: [ar]\nmethods: [ar]\n")
    (tmp_path / "evil.yaml").write_text(
        "methods: !!python/object/apply:os.system ['touch owned']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lanternbench", *args])
    with pytest.raises(SystemExit) as exit_:
        main()
    said = capfd.readouterr().err
    assert exit_.value.code == 2
    assert says in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "owned").exists()
    assert not list(tmp_path.glob("results/*/samples.jsonl"))


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ([{"method": ["ar", "eagle-1"]}], "with one name, not"),
        ([{"method": "cool-sd", "lambda": []}], "empty list"),
        ([{"method": "cool-sd", "lambda": float("nan")}], "finite number"),
        ([{"method": "cool-sd", "lambda": 1e300}], "must be at most 1000"),
    ],
)
def test_methods_that_say_nothing_sensible_are_refused(methods, says):
    with pytest.raises(UserError, match=says):
        expand(config.sweep({"methods": methods}, "test"))


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path):
    run = [
        sys.executable,
        "-m",
        "lanternbench",
        "run",
        "-m",
        "ar",
        "-n",
        "0",
        "--out",
        str(tmp_path),
    ]
    said = interrupted(run, tmp_path, lambda: any(tmp_path.glob("*/run.json")))
    assert "the same command continues where it stopped" in said
    assert "Traceback" not in said


def test_a_mistake_leaves_no_traceback(tmp_path):
    done = subprocess.run(
        [*CLI, "run", "--method", "nope"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_folder_of_another_configuration_is_not_mixed_with(swept):
    run = results.latest(swept / "results")
    with pytest.raises(UserError, match=r"other settings.*temperature.*--fresh"):
        results.RunFolder.open(
            run.parent,
            run_record(run.name, results.read_run(run).config.written() | {"temperature": 0.3}),
        )


def test_another_dtype_is_another_run_and_is_not_mixed_with(tmp_path, monkeypatch):
    def loaded(spec, *_):
        half = spec.dtype == "bfloat16"
        return two_layers(side=8, dtype=torch.bfloat16 if half else torch.float32)

    monkeypatch.setattr(worker, "load_with_drafter", loaded)
    (tmp_path / "ar.yaml").write_text("methods: [ar]\nnum_prompts: 1\nmetrics: []\n")
    plain = read_sweeps(tmp_path / "ar.yaml")[0]
    assert "dtype" not in plain.record()  # so folders of old stay valid
    first = sweeps.run(plain, tmp_path)[0]
    (tmp_path / "ar.yaml").write_text(
        "methods: [ar]\nnum_prompts: 1\nmetrics: []\ndtype: bfloat16\n"
    )
    halved = read_sweeps(tmp_path / "ar.yaml")[0]
    assert halved.record() == plain.record() | {"dtype": "bfloat16"}
    second = sweeps.run(halved, tmp_path)[0]
    assert first != second
    assert [results.read_run(p).environment.dtype for p in (first, second)] == [
        "float32",
        "bfloat16",
    ]
    assert results.read_samples(first)[0].token_ids != results.read_samples(second)[0].token_ids
    run = results.read_run(first)
    with pytest.raises(UserError, match=r'other settings \(dtype: null -> "bfloat16"\)'):
        results.RunFolder.open(
            tmp_path,
            run_record(
                first.name,
                run.config.written() | {"dtype": "bfloat16"},
                prompts=run.prompts.written(),
            ),
        )


@pytest.mark.parametrize("given", [["run", "-m", "ar"], ["sweep", "fine.yaml"]])
def test_the_command_line_s_dtype_reaches_the_run(given, tmp_path, monkeypatch):
    asked = []

    def execute(config, *rest):
        asked.append(config.dtype)
        raise typer.Exit

    monkeypatch.setattr(run_cmd, "execute", execute)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fine.yaml").write_text("methods: [ar]\ndtype: float32\n")
    for options in ([], ["--dtype", "bfloat16"]):
        CliRunner().invoke(app, [*given, *options], catch_exceptions=False)
    assert asked == [None if given[0] == "run" else "float32", "bfloat16"]


def test_no_prompts_are_all_prompts_and_odd_settings_are_refused(monkeypatch, capfd):
    assert config.sweep({"methods": ["ar"], "num_prompts": 0}, "t").num_prompts is None
    for wrong in (
        {"num_prompts": -1},
        {"num_prompts": False},
        {"guidance": float("inf")},
        {"guidance": float("nan")},
    ):
        with pytest.raises(UserError, match=next(iter(wrong))):
            config.sweep({"methods": ["ar"]} | wrong, "t")
    said = mistake(monkeypatch, capfd, "run", "-m", "sd", "--set", "method=ar")
    assert "a method is chosen by --method ar" in said


def test_a_grid_of_options_is_expanded_and_each_method_kept_once():
    made = config.sweep(
        {"methods": ["eagle-1", {"method": "lantern", "delta": [0.1, 0.2], "k": [5, 9]}, "ar"]},
        "t",
    )
    labels = [m.label for m in expand(made)]
    assert len(labels) == len(set(labels)) == 2 + 4
    assert labels[0] == "ar"


def test_a_registered_residual_is_not_taken_for_lossless_but_measured(shallow_8x8):
    forgets = Residual(lambda q, p, x, depth, rule: q, None, False, True, None)
    with registry.temporary({"residual": {"forgets": forgets}}):
        made = method("eagle-1", residual="forgets")
        assert not made.lossless
        decoder = build(shallow_8x8, made)
        made = engine.generate(decoder, ["a red circle"], trace=True)
        assert decoder.lossless is False
        assert worker.trace_fields(decoder, made)[0]["fidelity_loss"] > 0.02


def test_shipped_sweeps_are_valid_and_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (ROOT / "configs").glob("*.yaml"):
        assert expand(read_sweeps(path)[0])
        assert read_sweeps(Path("configs") / path.name) == read_sweeps(path)
    # another file of that name is not taken
    with pytest.raises(UserError, match=r"no sweep file mine/demo\.yaml"):
        read_sweeps(Path("mine/demo.yaml"))


def test_the_plan_of_a_sweep_by_batches_counts_the_time_of_a_batch_once(monkeypatch):
    def generated(decoder, captions, seed, max_steps):
        one = engine.Generation(
            torch.zeros(256, dtype=torch.long), [5], [0], [1], decode_s=2.0, encode_s=0.4
        )
        return [one] * len(captions)

    monkeypatch.setattr(worker, "generate", generated)
    made = worker.Worker(config.Sweep(methods=["ar"], batch=4, metrics=[]), "cpu")
    monkeypatch.setattr(type(made.target), "images", lambda self, tokens, captions: [])
    alone, four = (made.seconds_per_image("ar", ["a red circle"] * n) for n in (1, 4))
    assert alone == pytest.approx(0.4 + 2.0 * 256 / 5, rel=1e-3)
    assert four == pytest.approx(alone / 4, rel=1e-3)


def test_the_batch_of_a_sweep_can_be_given_in_place_of_the_file_s(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(run_cmd, "show_plan", lambda runs, *_: asked.extend(runs))
    (tmp_path / "mine.yaml").write_text("methods: [ar]\nbatch: 2\n")
    for given, want in (([], 2), (["--batch", "16"], 16)):
        CliRunner().invoke(
            app,
            ["sweep", str(tmp_path / "mine.yaml"), "--dry-run", *given],
            catch_exceptions=False,
        )
        assert asked.pop().batch == want


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("prompts: absent.txt", "there is no file absent.txt"),
        ("num_prompts: 100000", "lower --num-prompts"),
        ("metrics: [clip, clop]", "there is no metric called 'clop'"),
        ("target: [tiny, llamagen-xl-stage1]", "llamagen-xl-stage1"),
        ("temperature: [1.0, -1.0]", "'temperature'"),
        ("methods: [ar, {method: cool-sd, lambda: [1.1, -5]}]", "'lambda'"),
    ],
)
def test_every_combination_of_a_sweep_is_checked_before_models_are_loaded(
    change, says, dry_run, tmp_path, monkeypatch, capfd
):
    def load(*_: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr(worker, "Worker", load)
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    kept = [line for line in SWEEP.splitlines() if not line.startswith(change.partition(":")[0])]
    Path("mine.yaml").write_text("\n".join([*kept, change, ""]))
    assert says in mistake(monkeypatch, capfd, "sweep", "mine.yaml", *dry_run)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
