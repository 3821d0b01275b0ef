"""A run says how good its baseline is: the share of the memory's bandwidth that ``ar`` uses."""

from __future__ import annotations

import pytest
import torch
from run_records import run_record
from torch import nn

from lanternbench.costs import forward_cost
from lanternbench.experiment import Sample
from lanternbench.measure.baseline import utilisation
from lanternbench.measure.figures import Figures
from lanternbench.measure.summary import summarise


def figures(ms_per_token: float, label: str = "ar") -> Figures:
    """One image of 100 tokens after the prefill's."""
    return Figures([
        Sample(key=f"0|{label}|0", prompt_id="0", prompt="p", label=label, method=label, seed=0, tokens=101, steps=101,
               accept_lengths=[1] * 101, decode_s=ms_per_token / 10, timed=True, step_s=[ms_per_token / 1000] * 100)
    ])  # fmt: skip


def record(gigabytes: float = 14.0, bandwidth: float | None = 2000.0):
    environment = {"memory_gb_per_s": bandwidth}
    return run_record(environment=environment, target={"read_bytes": int(1e9 * gigabytes)})


def test_the_share_is_bytes_of_weights_over_time_and_bandwidth():
    # 14 GB in 14 ms are 1,000 GB/s, half of 2,000
    used = utilisation(figures(14.0), record())
    assert used.ms_per_token == pytest.approx(14.0)
    assert used.share == pytest.approx(0.5)


def test_a_good_baseline_is_stated_and_a_slow_one_is_a_warning_that_travels():
    good = summarise(figures(14.0), record())
    (note,) = [note for note in good.notes if "bandwidth" in note.text]
    assert note.kind == "info"
    assert "ar takes 14 ms a token and reads its weights (14,000 MB) at 50% of" in note.text
    slow = summarise(figures(28.0), record())
    (note,) = [note for note in slow.notes if "bandwidth" in note.text]
    assert (note.kind, note.fact) == ("warning", "slow baseline")
    assert "at 25% of" in note.text
    assert note.text.startswith(
        "The baseline is slow, which flatters every speedup: ar takes 28 ms"
    )
    assert slow.rows[0].value("bandwidth_share") == pytest.approx(0.25)


def test_weights_that_caches_hold_are_no_reason_for_a_warning():
    small = summarise(figures(28.0), record(gigabytes=0.02))
    (note,) = [note for note in small.notes if "bandwidth" in note.text]
    assert note.kind == "info"


@pytest.mark.parametrize(
    ("of", "run"),
    [
        (figures(14.0), record(bandwidth=None)),
        (figures(14.0), run_record()),
        (figures(14.0, label="sjd"), record()),
    ],
)
def test_without_a_bandwidth_weights_or_a_baseline_nothing_is_said(of, run):
    assert utilisation(of, run) is None
    assert not any("bandwidth" in note.text for note in summarise(of, run).notes)


def test_a_forward_pass_reads_all_weights_but_the_embeddings():
    model = nn.ModuleDict({"embedding": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)})
    assert forward_cost.read_bytes(model) == 4 * 40
    assert forward_cost.read_bytes(model.to(torch.bfloat16)) == 2 * 40


def test_the_bandwidth_is_measured_once_a_process(monkeypatch):
    calls = []
    forward_cost.memory_rate.cache_clear()
    measured = forward_cost.Bandwidth(123.46, 120.0, 10, 2)
    monkeypatch.setattr(forward_cost, "bandwidth", lambda *_, **__: calls.append(1) or measured)
    assert [forward_cost.memory_rate("cpu") for _ in range(3)] == [123.5] * 3
    assert len(calls) == 1
    forward_cost.memory_rate.cache_clear()


def test_another_measurement_of_the_bandwidth_is_no_other_environment():
    one = record(bandwidth=2000.0).environment
    other = record(bandwidth=1990.0).environment
    assert one.lasting() == other.lasting()
