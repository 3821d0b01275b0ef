"""The first screen: sentences that the tables bear out."""

from __future__ import annotations

import pytest

from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row
from lanternbench.notes import Note
from lanternbench.report import findings
from lanternbench.report.findings import Pair


def row(label: str, speedup: float | None, loss: float = 0.0, lossless: bool = True) -> Row:
    figures = {"speedup": Estimate(speedup, speedup and speedup - 0.1, speedup and speedup + 0.1),
               "fidelity_loss": Estimate(loss)}  # fmt: skip
    return Row(label=label, method=label, n=20, figures=figures, lossless=lossless)


def pair(
    method: str,
    against: str,
    p: float,
    figure: str = "speed",
    value: float = 1.5,
    prompts: int = 20,
) -> Pair:
    return Pair(figure, method, against, prompts, value, value - 0.1, value + 0.1, p)


def answer(rows, pairs, notes, budget: float = 0.1) -> list[str]:
    return findings.answer(rows, pairs, notes, [], budget)


ROWS = [
    row("ar", 1.0),
    row("eagle", 1.8),
    row("sjd", 1.7),
    row("cool", 2.4, 0.3, False),
    row("mild", 2.0, 0.05, False),
]
PAIRS = [
    *(pair(label, "ar", 0.001) for label in ("eagle", "sjd", "cool", "mild")),
    pair("sjd", "eagle", 0.4),
    pair("mild", "eagle", 0.01),
]


def test_the_fastest_lossless_method_is_named_with_those_it_is_not_told_apart_from():
    first = answer(ROWS, PAIRS, [])[0]
    assert (
        first
        == "Fastest lossless method: eagle, 1.80× [1.70, 1.90] against ar. Not statistically distinguishable from it: sjd."
    )


def test_the_fastest_relaxed_method_stays_within_the_budget():
    assert "within a fidelity loss of 0.1: mild, 2.00×" in answer(ROWS, PAIRS, [])[1]
    assert "within a fidelity loss of 0.5: cool, 2.40×" in answer(ROWS, PAIRS, [], budget=0.5)[1]
    assert answer(ROWS, PAIRS, [], budget=0.01)[1].endswith("0.01: none.")


def test_a_lead_that_may_be_chance_is_called_so():
    chance = [one._replace(p=0.3) for one in PAIRS]
    said = answer(ROWS, chance, [])
    assert "That may be chance: the tests do not distinguish it from ar." in said[0]
    assert said[2] == (
        "Over 20 prompts, the tests distinguish the speed of 0 of 4 methods from ar and 0 of 2 other pairs of methods"
        " from each other (p < 0.05): more prompts would distinguish more."
    )


@pytest.mark.parametrize(
    ("prompts", "says"),
    [(10, "measure 11 prompts or more"), (11, "more prompts would distinguish more")],
)
def test_too_few_prompts_for_any_test_are_told_with_their_number(prompts, says):
    # of four methods against ar, one prompt of n the other way: 4 · 2 (n + 1) / 2^n is under 0.05
    # from n = 11 on
    assert 4 * 2 * 12 / 2**11 < 0.05 < 4 * 2 * 11 / 2**10
    said = answer(ROWS, [one._replace(p=0.3, prompts=prompts) for one in PAIRS], [])
    assert says in said[2]


def test_methods_told_apart_are_counted():
    assert (
        "4 of 4 methods from ar and 1 of 2 other pairs of methods from each other (p < 0.05)"
        in answer(ROWS, PAIRS, [])[2]
    )


def test_quality_that_differs_from_ar_is_told_with_its_sign():
    lower = [pair("cool", "ar", 0.002, "clip", -0.04), pair("eagle", "ar", 0.8, "clip", 0.01)]
    assert (
        answer(ROWS, PAIRS + lower, [])[-1]
        == "Different from ar in quality: cool (CLIP -0.04, p = 0.002)."
    )
    turned = [pair("ar", "cool", 0.002, "clip", 0.04)]
    assert (
        answer(ROWS, PAIRS + turned, [])[-1]
        == "Different from ar in quality: cool (CLIP -0.04, p = 0.002)."
    )


def test_no_difference_never_stands_without_the_difference_that_would_have_been_found():
    alike = pair("eagle", "ar", 0.8, "clip", 0.01)._replace(lo=-0.01, hi=0.03)
    assert (
        answer(ROWS, [*PAIRS, alike], [])[-1]
        == "No difference from ar in quality was found; these prompts find a difference of 0.029 in CLIP with a power"
        " of 80 %."
    )
    unknown = alike._replace(lo=None, hi=None)  # a single prompt has no interval
    said = answer(ROWS, [*PAIRS, unknown], [])[-1]
    assert said == "Too few prompts to find differences from ar in quality."


def test_a_disturbed_clock_is_said_and_a_quiet_one_too():
    note = Note("unfit", "latency_s", "Timing was noisy (…): measure again.")
    said = answer(ROWS, PAIRS, [note])
    assert said[0] == "Preliminary, do not quote: timing was noisy (…)."
    assert said[-1] == note.text
    steady = [
        Row(label="ar", method="ar", n=1, figures={"robust_latency_s": Estimate(1.0)}),
        *ROWS[1:],
    ]
    assert answer(steady, PAIRS, [])[-1] == "The timing shows no sign of disturbance."
    assert not any("timing" in sentence for sentence in answer(ROWS, PAIRS, []))


def test_what_makes_a_run_unfit_stands_first_and_no_fastest_is_named_without_it():
    notes = [
        Note("info", None, "Intervals are 95 % bootstrap intervals."),
        Note(
            "unfit",
            None,
            "The run is not finished (34 of 64 samples): columns rest on different prompts.",
        ),
        Note(
            "unfit",
            "latency_s",
            "The run was resumed in another environment (see run.json): both are mixed.",
        ),
    ]
    said = answer(ROWS, PAIRS, notes)
    assert said[0] == (
        "Preliminary, do not quote: the run is not finished (34 of 64 samples); "
        "the run was resumed in another environment (see run.json)."
    )
    fastest = [sentence for sentence in said if sentence.startswith("Fastest")]
    assert len(fastest) == 2
    assert all("(preliminary):" in sentence for sentence in fastest)
    assert not any("reliminary" in sentence for sentence in answer(ROWS, PAIRS, notes[:1]))


def test_a_run_without_speedups_claims_no_fastest_method():
    said = answer([row("sjd", None)], [], [])
    assert said == ["No speedup was measured: methods are compared by accepted length alone."]
