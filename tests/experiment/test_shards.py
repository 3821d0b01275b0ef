"""Shards of a run: processes that share a folder, and what a report makes of them."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from conftest import mistake, two_layers
from run_records import run_record

from lanternbench import registry
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, Sample, config, find, read_run, read_samples, worker
from lanternbench.experiment import runner as sweeps
from lanternbench.experiment.run_folder import listing
from lanternbench.experiment.shards import Shard
from lanternbench.measure.run_record import RunRecord
from lanternbench.measure.summary import read_summary, summarise
from lanternbench.metrics import ImageMetric, SetMetric, SetScore
from lanternbench.models.target import Target
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.report.load import load_run, rows_by_run

LABELS = ("ar", "eagle-1")
PROMPTS = 5
SMALL = config.sweep(
    {"name": "small", "methods": ["eagle-1"], "num_prompts": 3, "metrics": ["brightness", "count"]}
)


class Brightness(ImageMetric):
    """A metric of single images."""

    def prepare(self):
        pass

    def score(self, images, captions):
        return [float(np.asarray(image).mean()) for image in images]


class Count(SetMetric):
    """A metric of a whole set of images."""

    def compute(self, images):
        count = len(list(images))
        return SetScore(float(count), count)


def some_prompts(count: int) -> PromptSet:
    prompts = tuple(Prompt(id=str(i), text=f"prompt {i}") for i in range(count))
    return PromptSet(prompts, "list", "list", 0)


def record(cpu: str = "a CPU", seed: int = 0, run_id: str = "demo-0123abcd") -> RunRecord:
    methods = [{"label": label, "method": label, "lossless": True} for label in LABELS]
    return run_record(
        run_id,
        {"seed": seed},
        environment={"cores": 2, "device": "cpu", "cpu": cpu},
        target={"name": "tiny"},
        prompts={"dataset": "demo", "source": "demo", "count": PROMPTS, "hash": "0"},
        methods=methods,
    )


def sample(prompt: int, label: str) -> Sample:
    return Sample(
        key=f"{prompt}|{label}|0",
        prompt_id=str(prompt),
        prompt=f"x {prompt}",
        label=label,
        method=label,
        seed=0,
        tokens=4,
        steps=2,
        accept_lengths=[1, 3],
        decode_s=1.0,
        load=0.1,
    )


def measure(root: Path, shard: Shard, run: RunRecord, prompts: int | None = None) -> Path:
    """Store the first ``prompts`` prompts of a shard, by default all, which finishes it."""
    with RunFolder.open_shard(root, run, shard) as folder:
        wanted = range(shard.number - 1, PROMPTS, shard.of)
        for prompt in wanted[:prompts]:
            for one in (sample(prompt, label) for label in LABELS):
                if one.key not in folder.samples.keys:
                    folder.append(one)
        if prompts is None:
            folder.finish(summarise(folder.figures, folder.run))
    return folder.whole


@pytest.mark.parametrize(("count", "of"), [(6, 1), (6, 4), (7, 7), (10, 3)])
def test_every_prompt_is_in_one_shard_and_sizes_differ_by_one_at_most(count, of):
    prompts = some_prompts(count)
    shards = [Shard(number, of) for number in range(1, of + 1)]
    parts = [[prompt.id for prompt in shard.part(prompts)] for shard in shards]
    sizes = [len(part) for part in parts]
    assert sorted(itertools.chain(*parts)) == sorted(prompt.id for prompt in prompts)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == [shard.count(count) for shard in shards]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--shard", "3/2"], "--shard 3/2: give K/N, the K-th of N shards, such as 2/8"),
        (["--shard", "0/4"], "--shard 0/4: give K/N"),
        (["--shard", "two"], "--shard two: give K/N"),
        (["--shard", "1/501"], "N up to 500"),
        (["--shard", "1/2", "--fresh"], "--shard cannot go with"),
        (["--shard", "1/2", "--time-budget", "1"], "--shard cannot go with"),
        (["--shard", "1/2", "--until-told-apart"], "--shard cannot go with"),
        (["--shard", "1/3", "-n", "2"], "2 prompts are too few for 3 shards"),
    ],
)
def test_a_mistake_about_shards_is_one_sentence(args, says, tmp_path, monkeypatch, capfd):
    assert says in mistake(
        monkeypatch, capfd, "sweep", "configs/demo.yaml", *args, "--out", str(tmp_path)
    )
    assert not list(tmp_path.iterdir())


def test_a_report_of_unfinished_shards_has_what_is_there_and_says_which_are_missing(tmp_path):
    measure(tmp_path, Shard(1, 3), record())
    measure(tmp_path, Shard(2, 3), record(), prompts=1)
    assert [(run.samples, run.of, run.finished) for run in listing(tmp_path)] == [(6, 10, False)]
    run = load_run(find(tmp_path, ["demo"])[0])
    says = "The run is not finished (3 of 5 prompts are there; unfinished shards: 2, 3 of 3)."
    assert [(row.n, row.warnings) for row in rows_by_run([run])] == [(3, (says,))] * 2
    # what they store afterwards is not missed
    measure(tmp_path, Shard(3, 3), record())
    measure(tmp_path, Shard(2, 3), record())
    run = load_run(find(tmp_path, ["demo"])[0])
    assert [(row.n, row.warnings) for row in rows_by_run([run])] == [(5, ())] * 2
    assert [run.finished for run in listing(tmp_path)] == [True]


def test_joined_samples_are_in_the_order_of_one_process_and_keep_later_scores(tmp_path):
    for number in (3, 1):
        whole = measure(tmp_path, Shard(number, 3), record())
    find(tmp_path)
    with RunFolder.existing(whole) as folder:  # as `score` does
        scored = [one.model_copy(update={"metrics": {"clip": 0.5}}) for one in folder.samples]
        folder.replace(scored)
    measure(tmp_path, Shard(2, 3), record())
    samples = read_samples(find(tmp_path)[0])
    assert [one.key for one in samples] == [f"{i}|{x}|0" for i in range(PROMPTS) for x in LABELS]
    assert [one.metrics for one in samples if one.prompt_id in "14"] == [{}] * 4
    assert [one.metrics for one in samples if one.prompt_id in "023"] == [{"clip": 0.5}] * 6


@pytest.mark.parametrize("cpu", ["a CPU", "another CPU"])
def test_machines_that_differ_are_named_wherever_the_figures_are(cpu, tmp_path):
    measure(tmp_path, Shard(1, 2), record("a CPU"))
    measure(tmp_path, Shard(2, 2), record(cpu))
    run = load_run(find(tmp_path)[0])
    warnings = rows_by_run([run])[0].warnings
    if cpu == "a CPU":
        assert warnings == ()
    else:
        assert warnings == ('Shards ran on machines that differ (cpu: "a CPU" -> "another CPU").',)


def test_what_does_not_belong_to_the_run_is_refused(tmp_path):
    with ExitStack() as stack:
        stack.enter_context(RunFolder.open_shard(tmp_path, record(), Shard(1, 2)))
        with pytest.raises(UserError, match=r"1-of-2 is in use by another process.*shard of its"):
            RunFolder.open_shard(tmp_path, record(), Shard(1, 2))
        stack.enter_context(RunFolder.open_shard(tmp_path, record(), Shard(2, 2)))  # no conflict
    with pytest.raises(UserError, match=r"other settings \(shards: 2 -> 3\): give another --out"):
        RunFolder.open_shard(tmp_path, record(), Shard(1, 3))
    with pytest.raises(UserError, match=r"other settings \(shards: 2 -> null\)"):
        RunFolder.open(tmp_path, record())
    other = record(seed=1, run_id="demo-ffffffff")
    with pytest.raises(UserError, match=r"not finished.*other settings \(seed: 0 -> 1\)"):
        RunFolder.open_shard(tmp_path, other, Shard(1, 2))
    scored = [record().model_copy(update={"metric_weights": {"clip": x}}) for x in "ab"]
    RunFolder.open_shard(tmp_path / "scored", scored[0], Shard(1, 2)).close()
    with pytest.raises(UserError, match=r'other weights \(clip: "a" -> "b"\)'):
        RunFolder.open_shard(tmp_path / "scored", scored[1], Shard(2, 2))


@cache
def small_target() -> Target:
    return two_layers(side=4)


@contextmanager
def small_images() -> Iterator[pytest.MonkeyPatch]:
    """Runs in this process draw small images, and have metrics that load nothing."""
    metrics = {"metric": {"brightness": Brightness, "count": Count}}
    with registry.temporary(metrics), pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "load_with_drafter", lambda *_: small_target())
        patch.setattr(worker, "memory_rate", lambda device: 10.0)
        yield patch


@pytest.fixture(scope="module")
def whole_and_shards(tmp_path_factory) -> tuple[Path, Path]:
    """The folder of an unsharded run, and of the same one in two shards."""
    root = tmp_path_factory.mktemp("shards")
    with small_images():
        whole, _ = sweeps.run(SMALL, root / "whole")
        part, summary = sweeps.run(SMALL, root / "shards", shard=Shard(2, 2))
        last, _ = sweeps.run(SMALL, root / "shards", shard=Shard(1, 2))
    assert part.name == "2-of-2"
    assert [row.n for row in summary.rows] == [1, 1]
    assert "shard 2/2 alone; unfinished shards: 1" in summary.notes[0].text
    return whole, last


def known(path: Path) -> list[tuple[object, ...]]:
    """What must be the same, in the order of the file."""
    facts: list[tuple[object, ...]] = []
    for one in read_samples(path):
        image = (path / str(one.image)).read_bytes()
        facts.append((one.key, one.token_ids, one.metrics, one.fidelity_loss, image))
    return facts


def test_shards_make_the_samples_of_one_process_and_the_last_scores_sets(whole_and_shards):
    whole, shards = whole_and_shards
    assert known(shards) == known(whole)
    tokens = "tokens.safetensors"
    assert (shards / tokens).read_bytes() == (whole / tokens).read_bytes()
    rows = [[row.figures[name] for row in read_summary(path).rows for name in ("brightness", "count")]
            for path in (whole, shards)]  # fmt: skip
    assert rows[0] == rows[1]
    assert rows[0][1].value == 3
    assert read_run(shards).unfinished_shards == []


def test_a_finished_shard_decodes_nothing(whole_and_shards):
    _, shards = whole_and_shards
    before = known(shards)
    with small_images() as patch:
        patch.setattr(worker.Executor, "samples", None)  # not called
        path, _ = sweeps.run(SMALL, shards.parent, shard=Shard(2, 2))
    assert path == shards
    assert known(shards) == before


def stored_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_a_killed_shard_is_resumed_by_the_same_command_to_the_samples_of_one_process(
    two_layers_here, tmp_path
):
    (tmp_path / "small.yaml").write_text(
        "target: shallow\nnum_prompts: 6\nmethods: [eagle-1]\nmetrics: []\n"
    )
    sweep = [sys.executable, "-m", "lanternbench", "sweep", "small.yaml", "--shard"]
    first, second, third = ([*sweep, f"{number}/3"] for number in (1, 2, 3))
    others = [subprocess.Popen(command) for command in (first, third)]
    killed = subprocess.Popen(second)
    deadline = time.monotonic() + 200
    found: list[Path] = []
    while not any(map(stored_lines, found)) and time.monotonic() < deadline:
        found = list(tmp_path.glob("results/*/shards/2-of-3/samples.jsonl"))
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert [process.wait() for process in others] == [0, 0]
    before = read_samples(found[0].parent)
    assert 1 <= len(before) < 4
    [path] = find(tmp_path / "results")
    assert read_run(path).unfinished_shards == [2]
    assert "unfinished shards: 2 of 3" in rows_by_run([load_run(path)])[0].warnings[0]

    subprocess.run(second, check=True)
    after = read_samples(found[0].parent)
    # times included
    assert [s.model_dump() for s in after[: len(before)]] == [s.model_dump() for s in before]
    subprocess.run([*sweep[:-1], "--out", "whole"], check=True)
    [whole] = find(tmp_path / "whole")
    assert known(path) == known(whole)
    assert (path / "tokens.safetensors").read_bytes() == (
        whole / "tokens.safetensors"
    ).read_bytes()
    assert read_run(path).unfinished_shards == []
