"""Acceptance by position of a draft, as serving engines report it, from the accepted lengths of steps alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any


def joint_rates(histogram: Sequence[int]) -> list[float]:
    """P(at least i drafted tokens accepted), i = 1, 2, …: vLLM's per-position acceptance rate.

    histogram: how many steps committed 0, 1, 2, … tokens, one of which is no accepted draft: the bonus token, or the
    one drawn after a rejection.
    """
    steps = sum(histogram)
    at_least = list(accumulate(reversed(histogram)))[::-1]  # steps that committed so many tokens or more
    return [n / steps for n in at_least[2:] if n]


def conditional_rates(histogram: Sequence[int]) -> list[float]:
    """P(drafted token i accepted | all before it were), i = 1, 2, …: NVIDIA's conditional acceptance rate."""
    joint = joint_rates(histogram)
    return [now / before for before, now in zip([1.0, *joint], joint)]


def acceptance(histogram: Sequence[int]) -> dict[str, Any]:
    """The figures by the names of vLLM and AIPerf; empty where nothing was drafted and accepted.

    ``mean_acceptance_length`` counts the bonus token, 1 + Σᵢ per_position[i]; ``acceptance_histogram`` (steps that
    accepted 0, 1, 2, … drafted tokens) and both rates leave it out.
    """
    joint = joint_rates(histogram)
    return {} if not joint else {
        "mean_acceptance_length": 1.0 + sum(joint),
        "per_position": joint,
        "conditional_per_position": conditional_rates(histogram),
        "acceptance_histogram": list(histogram[1:]),
    }  # fmt: skip
