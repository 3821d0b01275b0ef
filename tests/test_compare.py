"""``compare`` tells a real change from chance, and fails a build for the first only."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import mistake
from typer.testing import CliRunner

from lanternbench.analysis.change import changes
from lanternbench.analysis.figures import Figures
from lanternbench.cli.main import app
from lanternbench.experiment import RunFolder, Sample


def samples(factor: float, seed: int, prompts: int = 24) -> list[Sample]:
    """``ar`` and ``eagle-1`` on the same prompts; eagle-1's latency is multiplied by ``factor``, with 5 % of noise."""
    rng, made = np.random.default_rng(seed), []
    for i in range(prompts):
        for label, seconds in (("ar", 2.0), ("eagle-1", factor)):
            made.append(
                Sample(key=f"{i}|{label}|0", prompt_id=str(i), prompt="p", label=label, method=label, seed=0, tokens=4,
                       steps=2, accept_lengths=[1, 3], decode_s=seconds * rng.normal(1, 0.05), fidelity_loss=0.0)
            )  # fmt: skip
    return made


@pytest.fixture
def stored(tmp_path):
    for name, factor, seed in (("old", 1.0, 1), ("same", 1.0, 2), ("slower", 1.15, 3)):
        with RunFolder.open(tmp_path, name, {"name": name}) as folder:
            for sample in samples(factor, seed):
                folder.append(sample)
    return tmp_path


def test_the_interval_of_a_change_covers_it_as_often_as_it_says():
    covered = 0
    for seed in range(100):
        old, new = Figures(samples(1.0, 2 * seed)), Figures(samples(1.25, 2 * seed + 1))
        (change,) = (c for c in changes(old, new, ["speedup"]) if c.label == "eagle-1")
        covered += change.relative[1] < -0.2 < change.relative[2]
    assert 85 <= covered <= 100  # of 95 expected; 24 prompts' percentile intervals are a little narrow


def test_a_slower_method_fails_and_chance_does_not(stored):
    def exit_code(new: str, *conditions: str) -> int:
        options = [x for c in conditions for x in ("--fail-if", c)]
        return CliRunner().invoke(app, ["compare", "old", new, "--results", str(stored), *options]).exit_code

    assert exit_code("slower", "speedup<-5%") == 1
    assert exit_code("slower", "speedup<-30%") == 0
    assert exit_code("slower") == 0
    assert exit_code("same", "speedup<-5%", "latency_s>5%") == 0
    assert exit_code("slower", "fidelity_loss>0.1", "latency_s>0.05") == 1


def test_json_has_every_change_with_its_interval(stored):
    done = CliRunner().invoke(app, ["compare", "old", "slower", "--results", str(stored), "--json"])
    found = {(c["label"], c["figure"]): c for c in json.loads(done.stdout)}
    value, lo, hi = found["eagle-1", "latency_s"]["relative"]
    assert lo < 0.15 < hi
    assert value == pytest.approx(0.15, abs=0.05)
    assert found["eagle-1", "speedup"]["prompts"] == 24


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["old", "same", "--fail-if", "speedup"], "cannot be read"),
        (["old", "same", "--fail-if", "beauty<0"], "no such figure"),
        (["old", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_comparison_is_one_sentence(stored, monkeypatch, capfd, args, says):
    assert says in mistake(monkeypatch, capfd, "compare", *args, "--results", str(stored))
