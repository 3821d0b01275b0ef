"""The statistics: intervals cover, tests are exact, and the summary says what the samples say."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from run_records import record_of

from lanternbench.experiment import Sample, sample_key
from lanternbench.measure.figures import Figures
from lanternbench.measure.run_record import Environment, RunRecord
from lanternbench.measure.statistics import Estimate, bootstrap_mean, bootstrap_ratio, paired_test
from lanternbench.measure.summary import RANDOM_NOTE, Row, Summary, summarise
from lanternbench.notes import Note
from lanternbench.report.findings import compared

TRIALS = 400


def coverage(interval, truth: float) -> float:
    """Share of TRIALS intervals that hold the truth; its standard deviation is 1.1 % at 95 %."""
    hits = 0
    for trial in range(TRIALS):
        found = interval(np.random.default_rng([7, trial]), trial)
        hits += found.lo <= truth <= found.hi
    return hits / TRIALS


# --- intervals ---


@pytest.mark.parametrize(
    ("prompts", "least", "most"),
    [
        (2, 0.45, 0.61),
        (3, 0.70, 0.82),
        (5, 0.88, 0.97),
        (8, 0.92, 0.985),
        (30, 0.92, 0.985),
        (100, 0.92, 0.985),
    ],
)
def test_the_interval_of_a_mean_covers_the_truth_as_often_as_documented(prompts, least, most):
    share = coverage(
        lambda rng, seed: bootstrap_mean(rng.normal(3.0, 1.0, prompts), 1000, seed), 3.0
    )
    # an interval that truly covered 90 % would give less than 0.92 in 91 % of such experiments
    assert least <= share <= most


@pytest.mark.parametrize("prompts", [10, 50])
def test_the_interval_of_a_speedup_covers_the_truth_95_percent_of_the_time(prompts):
    def interval(rng, seed):
        # shared by both methods: the pairs are correlated
        length = rng.lognormal(0.0, 0.3, prompts)
        base = 2.0 * length * rng.lognormal(0.0, 0.1, prompts)
        return bootstrap_ratio(base, length * rng.lognormal(0.0, 0.1, prompts), 1000, seed)

    assert 0.92 <= coverage(interval, 2.0) <= 0.985


def test_pairing_makes_the_interval_narrower():
    rng = np.random.default_rng(0)
    length = rng.lognormal(0.0, 0.5, 40)
    base, other = 2 * length, length * rng.lognormal(0.0, 0.02, 40)
    paired, shuffled = bootstrap_ratio(base, other), bootstrap_ratio(rng.permutation(base), other)
    assert paired.hi - paired.lo < 0.2 * (shuffled.hi - shuffled.lo)


def test_the_bootstrap_agrees_with_the_enumeration_of_all_resamples():
    x = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    means = [np.mean(drawn) for drawn in itertools.product(x, repeat=5)]
    found = bootstrap_mean(x, 20_000)
    # 5 prompts: Φ(−√(5/4)·2.776) = 0.095 % in each tail instead of 2.5 %
    lo, hi = np.quantile(means, [0.00095, 0.99905])
    assert found.value == pytest.approx(6.2)
    assert found.lo == pytest.approx(lo, abs=0.41)
    assert found.hi == pytest.approx(hi, abs=1.0)


def test_intervals_are_reproducible_hold_the_estimate_and_vanish_without_noise():
    rng = np.random.default_rng(1)
    base, other = rng.uniform(1, 2, 20), rng.uniform(1, 2, 20)
    assert bootstrap_ratio(base, other) == bootstrap_ratio(base, other)
    assert bootstrap_ratio(base, other) != bootstrap_ratio(base, other, seed=1)
    value, lo, hi, *_ = bootstrap_ratio(base, other)
    assert value == pytest.approx(base.mean() / other.mean())
    assert lo < value < hi
    assert bootstrap_ratio(3 * other, other)[:3] == pytest.approx((3, 3, 3))


def test_a_single_prompt_has_no_interval():
    assert bootstrap_ratio([4.0], [2.0]) == Estimate(2.0, n=1)
    assert bootstrap_mean([4.0]) == Estimate(4.0, n=1)


@pytest.mark.parametrize(
    ("base", "other"),
    [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), ([math.nan], [1.0]), ([[1.0]], [[1.0]])],
)
def test_meaningless_ratios_are_refused(base, other):
    with pytest.raises(ValueError, match="bootstrap_ratio needs"):
        bootstrap_ratio(base, other)


# --- paired test ---


def test_the_paired_test_is_the_exact_permutation_test():
    rng = np.random.default_rng(2)
    for pairs in (1, 2, 5, 9):
        a, b = rng.normal(0.5, 1, pairs), rng.normal(0, 1, pairs)
        every = [abs(np.dot(signs, a - b)) for signs in itertools.product((1, -1), repeat=pairs)]
        assert paired_test(a, b) == pytest.approx(
            np.mean(np.array(every) >= abs(sum(a - b)) - 1e-9)
        )
    assert paired_test([1, 2, 3, 4, 5], [0, 0, 0, 0, 0]) == 2 / 32
    assert paired_test([0.1, 0.2, 0.3], [0.3, 0.2, 0.1]) == 1.0  # ties up to rounding count
    assert paired_test(np.ones(40), np.ones(40)) == 1.0


def test_the_sampled_paired_test_agrees_with_the_exact_one():
    from scipy import stats

    rng = np.random.default_rng(3)
    difference = rng.normal(0.5, 1, 14)
    exact = stats.permutation_test(
        (difference, np.zeros(14)), lambda x, y, axis: np.mean(x - y, axis), permutation_type="samples",
        vectorized=True, n_resamples=math.inf,
    )  # fmt: skip
    # 10,000 draws: a standard deviation of 0.002 at p = 0.05
    assert paired_test(difference, np.zeros(14)) == pytest.approx(exact.pvalue, abs=0.01)


def test_a_sampled_p_value_counts_the_observed_pattern():
    """No random pattern of 60 signs is as extreme: one of 1,001 is, the observed one."""
    assert paired_test(np.arange(1, 61), np.zeros(60), n=1000) == pytest.approx(1 / 1001)


@pytest.mark.parametrize("pairs", [8, 30])
def test_the_paired_test_rejects_5_percent_of_true_nulls_and_finds_a_true_difference(pairs):
    rng = np.random.default_rng(4)
    null = [
        paired_test(rng.standard_t(3, pairs), np.zeros(pairs), 400, seed) <= 0.05
        for seed in range(500)
    ]
    assert 0.02 <= np.mean(null) <= 0.08  # standard deviation 1 %
    real = [
        paired_test(rng.normal(1.5, 1, pairs), np.zeros(pairs), 400, seed) <= 0.05
        for seed in range(100)
    ]
    assert np.mean(real) >= 0.9


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([math.inf], [1.0])])
def test_meaningless_pairs_are_refused(a, b):
    with pytest.raises(ValueError, match="paired_test needs"):
        paired_test(a, b)


# --- summary ---


def sample(prompt: str, label: str, decode_s: float, lengths: list[int], **fields) -> Sample:
    seed = fields.pop("seed", 0)
    return Sample(
        key=sample_key(prompt, label, seed), prompt_id=prompt, prompt=f"x {prompt}", label=label, method=label.split()[0],
        seed=seed, tokens=sum(lengths), steps=len(lengths), accept_lengths=lengths, decode_s=decode_s, **fields,
    )  # fmt: skip


RUN = {
    "config": {"temperature": 1.0},
    "prompts": {"source": "coco2017:captions_val2017.json"},
    "target": {"name": "tiny", "evaluators": "tiny"},
    "methods": [{"label": "fast λ=2", "lossless": False}, {"label": "ar", "lossless": True}],
}


def rows(samples, run=RUN, sets=None) -> dict[str, Row]:
    return {row.label: row for row in summarise(Figures(samples), record_of(run), sets).rows}


def texts(samples, run=RUN) -> list[str]:
    return [note.text for note in summarise(Figures(samples), record_of(run)).notes]


def pair_of_methods() -> list[Sample]:
    samples = []
    for i, slow in enumerate([4.0, 6.0, 8.0]):
        samples.append(sample(str(i), "fast λ=2", slow / 2, [1, 3], tree_depths=[0, 5], fidelity_loss=0.1 * i,
                              first_token_acceptance=0.5, metrics={"clip": 0.3}, peak_memory_mb=10.0 + i,
                              phases={"draft_s": 1.0, "verify_s": 2.0, "commit_s": 0.5, "other_s": 0.5}))  # fmt: skip
        samples.append(sample(str(i), "ar", slow, [1, 1, 1, 1], metrics={"clip": 0.2 + 0.1 * i}))
    return samples


def test_the_summary_states_what_the_samples_say():
    summary = summarise(Figures(pair_of_methods()), record_of(RUN))
    assert [row.label for row in summary.rows] == ["ar", "fast λ=2"]
    ar, fast = summary.rows
    assert (fast.n, fast.target, fast.dataset, fast.temperature) == (3, "tiny", "coco2017", 1.0)
    assert (ar.lossless, fast.lossless) == (True, False)
    assert [ar.value(name) for name in ("speedup", "accept_len", "step_compression")] == [
        1.0,
        1.0,
        1.0,
    ]
    for name, value in {
        "latency_s": 3.0, "speedup": 2.0, "step_compression": 2.0, "accept_len": 3.0,
        "tree_depth": 5.0, "first_token_acceptance": 0.5, "tokens_per_s": 9 / 9, "fidelity_loss": 0.1,
        "overhead_fraction": 0.25, "peak_memory_mb": 12.0, "clip": 0.3,
    }.items():  # fmt: skip
        assert fast.value(name) == pytest.approx(value), name
    assert fast.figure("speedup").lo == 2.0
    assert fast.figure("latency_s").lo < 3.0 < fast.figure("latency_s").hi
    assert (fast.figure("clip").p, ar.figure("clip").p, fast.figure("clip").n) == (1.0, None, 3)
    assert any("-tiny" in note.text for note in summary.notes)
    assert any("3 prompts are too few" in note.text for note in summary.notes)


def test_an_unfinished_run_says_so():
    run = RUN | {"prompts": {"count": 4}}
    notes = texts(pair_of_methods(), run)
    assert any("not finished (6 of 8 samples)" in note for note in notes)
    assert not any("not finished" in note for note in texts(pair_of_methods()))
    one_left = [s for s in pair_of_methods() if s.label == "ar" or s.prompt_id == "0"]
    assert any("single prompt" in note for note in texts(one_left, run))


def test_end_to_end_counts_captions_and_pictures_too():
    made = [s.model_copy(update={"encode_s": 0.5, "render_s": 0.5}) for s in pair_of_methods()]
    fast = rows(made)["fast λ=2"]
    assert fast.value("end_to_end_s") == pytest.approx(4.0)
    assert fast.value("render_s") == 0.5
    assert fast.value("decode_share") == pytest.approx(fast.value("latency_s") / 4.0)
    assert fast.value("token_ms") == pytest.approx(1000 / fast.value("tokens_per_s"))
    assert fast.value("end_to_end_speedup") == pytest.approx(7 / 4)
    assert fast.value("speedup") == pytest.approx(2)


def test_what_is_missing_is_none_and_never_zero():
    samples = [
        s.model_copy(update={"metrics": {}}) if s.label == "ar" else s for s in pair_of_methods()
    ]
    ar = rows(samples)["ar"]
    for name in ("clip", "fidelity_loss", "tree_depth", "overhead_fraction", "peak_memory_mb", "robust_latency_s",
                 "step_p50_s", "first_token_acceptance"):  # fmt: skip
        assert ar.figure(name)[:3] == (None, None, None), name
    assert rows(samples)["fast λ=2"].figure("clip").p is None


def test_figures_of_target_and_drafter_reach_the_summary_and_perplexity_is_of_their_mean():
    samples = [
        sample(
            str(i),
            "sd",
            1.0,
            [1, 1],
            stats={"log_prob": -1.0 - i, "entropy": 2.0},
            drafter={"top1": 0.5, "tv": 0.1 * i},
        )
        for i in range(3)
    ]
    row = rows([*samples, sample("0", "ar", 1.0, [1, 1], stats={"log_prob": -1.0})])
    sd, ar = row["sd"], row["ar"]
    assert (sd.value("log_prob"), sd.value("drafter_top1")) == (-2.0, 0.5)
    assert (sd.value("perplexity"), sd.value("drafter_tv")) == (
        pytest.approx(math.exp(2)),
        pytest.approx(0.1),
    )
    assert sd.figure("perplexity").lo < sd.value("perplexity") < sd.figure("perplexity").hi
    assert ar.value("drafter_top1") is None
    assert sd.value("drafter_top3") is None


def test_scores_of_random_weights_are_told():
    told = [
        summarise(
            Figures([sample("0", "ar", 1.0, [1], metrics={name: 0.5})]), record_of(RUN)
        ).notes
        for name in ("clip-random", "clip")
    ]
    assert [RANDOM_NOTE in notes for notes in told] == [True, False]


def test_metrics_of_a_whole_label_come_without_interval_but_with_their_count():
    found = rows(pair_of_methods(), sets={"ar": {"fid-tiny": Estimate(30.0, n=2)}})
    assert found["ar"].figure("fid-tiny") == Estimate(30.0, n=2)
    assert found["fast λ=2"].value("fid-tiny") is None
    assert summarise(
        Figures(pair_of_methods()), record_of(RUN), {"ar": {"fid-tiny": Estimate(30.0, n=2)}}
    ).sets == ["fid-tiny"]


def test_speedup_counts_timed_pairs_only():
    samples = [*pair_of_methods(), sample("9", "fast λ=2", 100.0, [4])]  # no ar beside it
    samples.append(sample("0", "fast λ=2", 100.0, [4], seed=1, timed=False))
    summary = summarise(Figures(samples), record_of(RUN))
    assert summary.rows[1].value("speedup") == pytest.approx(2.0)
    assert any("2 of 5 samples have no `ar` pair" in note.text for note in summary.notes)
    untimed = summarise(
        Figures([s.model_copy(update={"timed": False}) for s in pair_of_methods()]), record_of(RUN)
    )
    assert all(
        row.value(name) is None
        for row in untimed.rows
        for name in ("latency_s", "speedup", "tokens_per_s")
    )
    assert any(note.kind == "missing" and "batch 1" in note.text for note in untimed.notes)


def test_seeds_of_one_prompt_are_no_independent_evidence():
    rng = np.random.default_rng(5)
    samples = []
    for i in range(8):
        score = rng.normal()
        samples += [
            sample(str(i), "ar", 1.0, [1], seed=s, metrics={"clip": score}) for s in range(20)
        ]
    found = rows(samples)["ar"].figure("clip")
    once = rows([s for s in samples if s.seed == 0])["ar"].figure("clip")
    assert found.hi - found.lo == pytest.approx(once.hi - once.lo)


def test_one_prompt_no_baseline_and_no_samples_are_told():
    summary = summarise(
        Figures([sample("1", "fast λ=2", 1.0, [2], metrics={"clip": 0.3})]), record_of(RUN)
    )
    (row,) = summary.rows
    assert row.figure("clip") == Estimate(0.3, n=1)
    assert (row.value("speedup"), row.figure("latency_s")) == (None, Estimate(1.0, n=1))
    assert any("no `ar` baseline" in note.text for note in summary.notes)
    assert any("single prompt" in note.text for note in summary.notes)
    assert summarise(Figures([]), RunRecord()) == Summary(
        notes=[Note("warning", None, "The run has no samples yet.")]
    )


def test_a_run_resumed_on_another_machine_is_told():
    run = RUN | {
        "resumed": [{"at": "x", "environment": {"cpu": "b"}}],
        "prompts": {"notes": ["one note"]},
    }
    notes = texts(pair_of_methods(), run)
    assert any("another environment" in note for note in notes)
    assert "one note" in notes


def resumed_under(more: dict[str, int | None]) -> tuple[list[Sample], dict]:
    """Three prompts' samples of a run that was resumed: ``more`` maps an index of them to the
    threads it then had.
    """
    samples = [
        s.model_copy(
            update={"setting": Environment.model_validate({"threads": more.get(i) or 1}).setting}
        )
        for i, s in enumerate(pair_of_methods())
    ]
    return samples, RUN | {
        "environment": {"threads": 1},
        "resumed": [{"at": "x", "environment": {"threads": 2}}],
    }


def test_a_speedup_whose_sides_were_timed_under_other_settings_is_withheld():
    count = len(pair_of_methods())
    methods = {i: 2 for i, s in enumerate(pair_of_methods()) if s.label != "ar"}
    samples, run = resumed_under(methods)
    summary = summarise(Figures(samples), record_of(run))
    names = ("speedup", "robust_speedup", "end_to_end_speedup")
    assert [summary.rows[1].figure(name) for name in names] == [Estimate(n=0)] * 3
    assert summary.rows[1].value("latency_s") is not None
    assert [n.text for n in summary.notes if (n.kind, n.metric) == ("missing", "speedup")] == [
        f"fast λ=2: {len(methods)} of {len(methods)} samples and their `ar` pairs were timed under other settings "
        "(threads: 1 -> 2): there is no speedup; run again with --fresh."
    ]
    alike, run = resumed_under(dict.fromkeys(range(count), 2))
    assert not any(
        "timed under" in note.text for note in summarise(Figures(alike), record_of(run)).notes
    )


def test_pairs_of_one_setting_keep_their_speedup():
    last = max(i for i, s in enumerate(pair_of_methods()) if s.label != "ar")
    samples, run = resumed_under({last: 2})
    samples[last] = samples[last].model_copy(update={"decode_s": 1e-3})  # would be the headline
    summary = summarise(Figures(samples), record_of(run))
    fair = (
        summarise(Figures(samples[:last] + samples[last + 1 :]), record_of(RUN))
        .rows[1]
        .figure("speedup")
    )
    assert summary.rows[1].figure("speedup") == fair
    assert any(
        f"speedup rests on the other {fair.n}; run again" in note.text for note in summary.notes
    )
    speeds = [
        pair for pair in compared(Figures(samples), ["ar", "fast λ=2"]) if pair.figure == "speed"
    ]
    assert [(pair.prompts, pair.value) for pair in speeds] == [(fair.n, pytest.approx(fair.value))]


@pytest.mark.parametrize(("load", "kept"), [(3.0, True), (3.5, False), (None, True)])
def test_a_pair_under_clearly_another_load_gives_no_speedup(load, kept):
    samples = [
        s.model_copy(update={"load": 1.0 if s.label == "ar" else load}) for s in pair_of_methods()
    ]
    summary = summarise(Figures(samples), record_of(RUN))
    assert (summary.rows[1].value("speedup") is not None) is kept
    assert (
        any("under another load: there is no speedup" in note.text for note in summary.notes)
        is not kept
    )


def test_a_promise_to_be_lossless_holds_only_as_far_as_the_samples_show_no_loss():
    run = RUN | {
        "methods": [{"label": "fast λ=2", "lossless": True}, {"label": "ar", "lossless": True}]
    }
    summary = summarise(Figures(pair_of_methods()), record_of(run))  # a mean loss of 0.1
    assert [row.lossless for row in summary.rows] == [True, False]
    assert (
        Note(
            "warning",
            "fidelity_loss",
            "fast λ=2 promises to be lossless, but its samples show a loss.",
        )
        in summary.notes
    )
    exact = [s.model_copy(update={"fidelity_loss": 1e-7}) for s in pair_of_methods()]
    assert [row.lossless for row in summarise(Figures(exact), record_of(run)).rows] == [True, True]
    # nobody promised anything
    assert [row.lossless for row in summarise(Figures(exact), RunRecord()).rows] == [None, None]


def test_prompts_of_one_caption_are_one_observation_of_intervals():
    def speedup(copies: int):
        samples = []
        for i in range(4 * copies):
            caption = i % 4
            for label, decode_s in (("ar", 4.0 + caption), ("sjd", 2.0 + caption**2)):
                one = sample(str(i), label, decode_s, [1, 2])
                samples.append(one.model_copy(update={"prompt": f"caption {caption}"}))
        return rows(samples)["sjd"].figure("speedup")

    once = speedup(1)
    twice = speedup(2)
    # every image counts, but a copy of each prompt is no further evidence
    assert (once.n, twice.n) == (4, 8)
    assert (twice.value, twice.lo, twice.hi) == pytest.approx((once.value, once.lo, once.hi))
