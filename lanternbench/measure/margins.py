"""Non-inferiority: whether a method is not worse than another by more than a margin.

With d the mean of paired differences over prompts, oriented so that more is better, s its standard
error and m > 0 the margin, a method is *not worse by more than m* if the hypothesis d ≤ −m is
rejected, and *worse* if d ≥ 0 is rejected instead.  Both are one-sided t tests at 5 %, corrected
by Holm's method for the number of comparisons.  Everything else is *undecided*: no difference was
found, and none was ruled out.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from lanternbench.measure.statistics import ALPHA, Floats, holm

POWER = 0.8
# prompts that would decide are an estimate: two digits of them are known
DIGITS = 2
Conclusion = Literal["not worse", "worse", "undecided"]


class Difference(NamedTuple):
    """The mean of paired differences, positive if the method is better, and its standard error.

    ``freedom``: degrees of freedom of the error; infinite for one that a bootstrap estimated.
    """

    figure: str
    method: str
    against: str
    prompts: int
    value: float
    error: float
    freedom: float


class MarginTest(NamedTuple):
    """The test of one difference against its margin.

    ``low`` and ``high`` are one-sided 95 % bounds of the difference, not corrected; ``p`` is that
    of "worse by the margin or more", corrected.  ``prompts_needed``: with which a difference of 0
    would be decided with a power of 80 %.
    """

    figure: str
    method: str
    against: str
    margin: float
    prompts: int
    difference: float
    low: float
    high: float
    p: float
    conclusion: Conclusion
    prompts_needed: int

    @property
    def sentence(self) -> str:
        if self.conclusion == "not worse":
            return f"not worse by more than {self.margin:g} (95 %)"
        if self.conclusion == "worse":
            return "worse (95 %)"
        return f"undecided: about {self.prompts_needed:,} prompts would decide"


def paired_difference(
    figure: str, method: str, against: str, new: Floats, old: Floats, better: int
) -> Difference | None:
    """Return the difference of values [prompts] of two methods, NaN if a prompt has none; None for
    fewer than two shared prompts.

    ``better``: 1 if higher values are better, −1 if lower ones are.
    """
    differences = better * (new - old)
    differences = differences[np.isfinite(differences)]
    prompts = len(differences)
    if prompts < 2:
        return None
    error = float(differences.std(ddof=1)) / math.sqrt(prompts)
    mean = float(differences.mean())
    return Difference(figure, method, against, prompts, mean, error, prompts - 1)


def bootstrap_difference(
    figure: str, method: str, against: str, values: Floats, prompts: int
) -> Difference:
    """Return a difference of whole sets of images: the first of ``values``, whose error is the
    standard deviation of the others, its bootstrap replicates.
    """
    error = float(values[1:].std(ddof=1))
    return Difference(figure, method, against, prompts, float(values[0]), error, math.inf)


def judge_margins(
    differences: Sequence[Difference], margins: Mapping[str, float]
) -> list[MarginTest]:
    """Return the test of each difference against the margin of its figure, as one family."""
    from scipy.special import stdtrit  # takes longer to import than most commands run

    sizes = [margins[one.figure] for one in differences]
    not_worse = holm([_p_above(one, -size) for one, size in zip(differences, sizes)])
    worse = holm([_p_above(one._replace(value=-one.value), 0.0) for one in differences])
    tests = []
    for one, size, p, p_worse in zip(differences, sizes, not_worse, worse, strict=True):
        reach = float(stdtrit(one.freedom, 1 - ALPHA)) * one.error
        test = MarginTest(
            figure=one.figure,
            method=one.method,
            against=one.against,
            margin=size,
            prompts=one.prompts,
            difference=one.value,
            low=one.value - reach,
            high=one.value + reach,
            p=float(p),
            conclusion=_conclusion(p, p_worse),
            prompts_needed=prompts_to_decide(one, size, len(differences)),
        )
        tests.append(test)
    return tests


def _conclusion(p_not_worse: float, p_worse: float) -> Conclusion:
    if p_not_worse < ALPHA:
        return "not worse"
    return "worse" if p_worse < ALPHA else "undecided"


def _p_above(one: Difference, bound: float) -> float:
    """Return the p-value of the hypothesis that the difference is ``bound`` or less."""
    if one.error == 0:
        return float(one.value <= bound)
    from scipy.special import stdtr

    return float(stdtr(one.freedom, (bound - one.value) / one.error))


def prompts_to_decide(one: Difference, margin: float, tests: int) -> int:
    """Return the prompts with which "not worse" would be concluded with power 0.8 if there is no
    difference, n = ((z₁₋α + z₀.₈) · σ / m)², with α shared by the ``tests``.
    """
    normal = NormalDist()
    reach = normal.inv_cdf(1 - ALPHA / tests) + normal.inv_cdf(POWER)
    deviation = one.error * math.sqrt(one.prompts)
    needed = (reach * deviation / margin) ** 2
    # a t test of few prompts needs about z² / 2 more
    needed = math.ceil(needed + normal.inv_cdf(1 - ALPHA / tests) ** 2 / 2)
    return _rounded_up(max(needed, 2))


def _rounded_up(count: int) -> int:
    unit = 10 ** max(len(str(count)) - DIGITS, 0)
    return math.ceil(count / unit) * unit


def detectable(error: float, tests: int) -> float:
    """Return the difference that a two-sided test at 5 %, corrected for ``tests``, finds with
    power 0.8.
    """
    normal = NormalDist()
    return (normal.inv_cdf(1 - ALPHA / tests / 2) + normal.inv_cdf(POWER)) * error
