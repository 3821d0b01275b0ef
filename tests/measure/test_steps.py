"""Step clocks: what the steps of a run were like, and whether something else used the machine
meanwhile.
"""

from __future__ import annotations

import numpy as np
import pytest
from run_records import record_of

from lanternbench.experiment import Sample, sample_key
from lanternbench.measure.figures import PARTS, Figures, Steps, by_position, robust
from lanternbench.measure.run_notes import contention
from lanternbench.measure.run_record import Environment, RunRecord
from lanternbench.measure.summary import summarise


def sample(
    prompt: int, label: str, step_s: list[float] | None, lengths: list[int] | None = None, **more
) -> Sample:
    lengths = lengths or [1] * len(step_s or [1])
    fields = {
        "decode_s": sum(step_s or [1.0]),
        "method": label,
        "prompt": f"x {prompt}",
        "seed": 0,
        "timed": True,
    } | more
    return Sample(key=sample_key(str(prompt), label, 0), prompt_id=str(prompt), label=label, tokens=sum(lengths),
                  steps=len(lengths), accept_lengths=lengths, step_s=step_s, **fields)  # fmt: skip


def test_a_robust_latency_does_not_see_steps_that_were_held_up():
    quiet, disturbed = [0.01] * 100, [0.01] * 60 + [0.5] * 40
    assert robust(disturbed)[0] == robust(quiet)[0] == pytest.approx(1.0)
    assert (robust(quiet)[1], robust(disturbed)[1]) == (0, 40)


def test_one_thread_s_robust_latency_is_its_cpu_time():
    steps = [0.01] * 40 + [0.02] * 60  # the others had the core for a third of the time
    assert robust(steps, 1.0, 1) == (1.0, 0)
    assert (
        robust(steps, 1.0, 2)[0]
        == robust(steps, None, 1)[0]
        == robust(steps, 1.0)[0]
        == pytest.approx(2.0)
    )
    slow = [sample(i, "ar", [0.02] * 10, cpu_s=0.1, threads=1) for i in range(6)]
    slow += [sample(i, "fast", [0.02] * 10, cpu_s=0.05, threads=1) for i in range(6)]
    _, fast = summarise(Figures(slow), RunRecord()).rows
    assert (fast.figure("speedup").value, fast.figure("robust_speedup").value) == (
        1.0,
        pytest.approx(2.0),
    )


def test_a_robust_speedup_stands_beside_the_one_of_the_wall_clock():
    samples = [sample(i, "ar", [0.02] * 10) for i in range(6)]
    samples += [sample(i, "fast", [0.01] * 9 + ([0.5] if i == 0 else [0.01])) for i in range(6)]
    fast = summarise(Figures(samples), RunRecord()).rows[1]
    assert fast.value("robust_speedup") == pytest.approx(2.0)
    assert fast.value("speedup") == pytest.approx(6 * 0.2 / (5 * 0.1 + 0.59))
    assert fast.value("robust_latency_s") == pytest.approx(0.1)
    assert fast.figure("robust_speedup").lo == pytest.approx(2.0)


def test_percentiles_are_over_all_steps_and_over_all_images():
    steps = Steps()
    for i in range(100):
        steps.add(sample(i, "m", [0.001 * (1 + i)] * 7))
    found = steps.percentiles()
    ranks = np.percentile(0.001 * np.arange(1, 101), [50, 95, 99])
    assert [found[f"step_p{p}_s"] for p in (50, 95, 99)] == pytest.approx(ranks, rel=0.02)
    assert [found[f"latency_p{p}_s"] for p in (50, 95)] == pytest.approx(7 * ranks[:2], rel=0.02)
    assert summarise(Figures([sample(0, "m", [0.5, 0.5])]), RunRecord()).rows[0].value(
        "images_per_s"
    ) == pytest.approx(1.0)


def test_steps_of_untimed_samples_and_of_none_have_no_times():
    steps = Steps()
    assert (steps.percentiles(), steps.histogram(), steps.phase_shares()) == ({}, [], {})
    steps.add(sample(0, "m", [1.0, 1.0], timed=False))
    steps.add(sample(1, "m", None))
    assert set(steps.percentiles()) == {"latency_p50_s", "latency_p95_s"}


def test_accepted_lengths_are_counted_without_the_prefill_and_by_place_in_the_image():
    steps = Steps()
    steps.add(sample(0, "m", None, [1, 3, 1, 4]))
    steps.add(sample(1, "m", None, [1, 1, 3, 4]))
    assert steps.histogram() == [0, 2, 0, 2, 2]
    assert len(steps.accept_len_by_position()) == PARTS
    tokens, begun = by_position(np.array([8, 8, 16]))  # of 32: two tokens a sixteenth
    assert {i: n for i, n in enumerate(tokens.tolist()) if n} == {0: 8, 4: 8, 8: 16}
    assert begun.tolist() == [int(i in (0, 4, 8)) for i in range(PARTS)]
    assert by_position(np.array([1, 31]))[0][0] == 32


def test_the_mean_over_places_weighted_by_steps_is_the_accepted_length():
    rng, steps = np.random.default_rng(0), Steps()
    taus = []
    for i in range(20):
        lengths = [1, *rng.integers(1, 6, 80).tolist()]
        steps.add(sample(i, "m", None, lengths))
        taus += lengths[1:]
    tokens = sum(n * count for n, count in enumerate(steps.histogram()))
    assert tokens / sum(steps.histogram()) == pytest.approx(np.mean(taus))
    assert (
        min(v for v in steps.accept_len_by_position() if v)
        < np.mean(taus)
        < max(v for v in steps.accept_len_by_position() if v)
    )


def test_shares_of_phases_sum_to_one():
    steps = Steps()
    phases = {"draft_s": 1.0, "verify_s": 2.0, "commit_s": 0.5, "other_s": 0.5}
    steps.add(sample(0, "m", None, phases=phases))
    steps.add(sample(1, "m", None, phases=phases))
    assert steps.phase_shares() == {"draft": 0.25, "verify": 0.5, "commit": 0.125, "other": 0.125}


QUIET = {"step_s": [0.01] * 100, "cpu_s": 0.99, "load": 1.0}


@pytest.mark.parametrize(
    ("marks", "device", "says"),
    [
        ({}, "cpu", None),
        ({"load": 3.4}, "cpu", "the load was 3.4 on 2 cores"),
        (
            {"step_s": [0.01] * 95 + [0.1] * 5},
            "cpu",
            "5.0% of the steps took more than twice their median",
        ),
        ({"cpu_s": 0.5}, "cpu", "decoding had the CPU for 50% of its time"),
        ({"cpu_s": 0.5}, "cuda:0", None),  # a CPU that waits for its GPU is not held up
        ({"cpu_s": None, "load": None, "step_s": None}, "cpu", None),
    ],
)
def test_contention_is_noticed_by_its_marks_and_said_in_one_sentence(marks, device, says):
    step_s = (QUIET | marks)["step_s"]
    more = {k: v for k, v in (QUIET | marks).items() if k != "step_s"}
    figures = Figures(sample(i, "m", step_s, [1] * 100, decode_s=1.0, **more) for i in range(3))
    note = contention(figures, Environment.model_validate({"cores": 2, "device": device}))
    if says is None:
        assert note is None
    else:
        assert (note.kind, note.metric) == ("unfit", "latency_s")
        assert says in note.text
        assert "stop other programs" in note.text


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        ([1.0, 1.1, 0.95, 1.05, 1.0, 1.02], None),
        ([1.0, 2.0, 1.1, 1.9, 1.2, 1.5], "varied by a factor of 1.9"),
        ([1.0, 2.0, 1.1, 1.9], None),  # too few images to tell
    ],
)
def test_a_machine_whose_speed_varies_is_found_by_its_baseline(seconds, says):
    samples = [
        sample(i, "ar", [s / 100] * 100, [1] * 101, decode_s=s, cpu_s=s, load=1.0)
        for i, s in enumerate(seconds)
    ]
    record = record_of({"environment": {"cores": 8, "device": "cpu"}})
    notes = [n for n in summarise(Figures(samples), record).notes if n.metric == "latency_s"]
    if says is None:
        assert not notes
    else:
        assert [note.kind for note in notes] == ["warning"]
        assert says in notes[0].text
        assert "ms a token" in notes[0].text


def test_a_method_whose_work_varies_is_not_taken_for_the_machine():
    samples = [
        sample(i, label, [0.01] * 100, [1] * 101, decode_s=1.0 + i * (label == "sjd"))
        for i in range(6)
        for label in ("ar", "sjd")
    ]
    record = record_of({"environment": {"cores": 8, "device": "cpu"}})
    assert not any("speed varied" in n.text for n in summarise(Figures(samples), record).notes)


def test_a_disturbed_clock_is_in_the_summary():
    samples = [sample(i, "ar", [0.01] * 90 + [0.2] * 10) for i in range(3)]
    notes = summarise(
        Figures(samples), record_of({"environment": {"cores": 8, "device": "cpu"}})
    ).notes
    assert any("Timing was noisy" in note.text for note in notes)
