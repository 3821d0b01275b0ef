"""The result of ``tune``: its verdict, the preset that it writes with the evidence, and that
evidence as one figure.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lanternbench.costs.forward_cost import StepCost
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.statistics import Estimate
from lanternbench.methods.presets import EVIDENCE
from lanternbench.report.style import GRID, LEADER, save, styled
from lanternbench.settings import Tune
from lanternbench.tune.tree_search import Candidate, Options
from lanternbench.utils.json_values import plain

# maximum fidelity loss of a lossy method's new sizes, relative to that of the default sizes
LOSSIER = 1.1
DRIFT = 1.3  # maximum ratio of measured to timed step costs, and of timed to measured ones
DEFAULT = "default"  # the name of the result with the method's own sizes
# the default sizes first
COLOURS = ("#7a7f87", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class Result:
    """The measurement of one candidate; ``robust``: by the times that other programs disturb
    least.
    """

    name: str
    label: str
    options: Options
    expected: Candidate | None  # None for ar
    tau: float
    tokens_per_s: float
    robust_tokens_per_s: float
    ratio: Estimate  # of tokens per second to those with the default sizes, prompt by prompt
    robust_ratio: Estimate
    fidelity_loss: float | None

    @property
    def speed(self) -> float:
        return self.robust_ratio.value or 0.0


@dataclass(frozen=True)
class Tuning:
    """A finished search: ``best`` is the name of the chosen result."""

    config: Tune
    about: str
    cost: StepCost
    results: list[Result]
    looked_at: int
    best: str
    acceptance: list[list[float]] | None  # P [depth, rank] of static trees
    machine: dict[str, Any]

    def result(self, name: str) -> Result:
        return next(result for result in self.results if result.name == name)

    def rows(self) -> list[dict[str, object]]:
        """Return the results as plain values; expected times are None if timing was noisy."""
        rows = []
        for result in self.results:
            row = plain(result)
            expected = row.pop("expected")
            if result.expected is not None:
                del expected["options"]
                expected["tau"] = result.expected.tau
                expected["tokens_per_s"] = result.expected.tokens_per_s
                if self.disturbed is not None:
                    expected |= {"tokens_per_s": None, "step_s": None}
                row["expected"] = expected
            rows.append(row)
        return rows

    @property
    def disturbed(self) -> str | None:
        """A sentence that says why times cannot be predicted; None if timed costs match the
        measured steps.
        """
        default = self.result(DEFAULT)
        if default.expected is None:
            return None
        drift = default.tau / default.robust_tokens_per_s / default.expected.step_s
        if 1 / DRIFT <= drift <= DRIFT:
            return None
        return (
            f"timing was noisy: a step took {drift:.2f} times as long when it was measured as when "
            "costs were timed, so no tokens/s are predicted; τ and all measured values hold"
        )

    @property
    def verdict(self) -> str:
        """One sentence."""
        prompts = self.config.num_prompts
        candidates = candidates_of(self.results)
        if self.best == DEFAULT:
            text = f"no other sizes are faster than {self.config.method}'s own"
            if candidates:
                ratio = max(candidates, key=lambda result: result.speed).robust_ratio
                best = f"the best of {len(candidates)} candidates"
                text += f" ({best} ran at {with_interval(ratio)} times their speed)"
            return f"{text}: the preset has those"
        chosen = self.result(self.best)
        return (
            f"{chosen.label}: {with_interval(chosen.robust_ratio)} times the tokens per second of "
            f"the method's own sizes, the best of {len(candidates)} candidates on {prompts} prompts, "
            f"{min(self.config.recorded, prompts)} of which were also used to find them: run it on "
            "other prompts before you quote it"
        )

    def preset_text(self) -> str:
        """Return the preset as YAML, with the evidence for it."""
        config = self.config
        preset = {"method": config.method} | config.options | self.result(self.best).options
        evidence = {
            "verdict": self.verdict,
            "target": config.target,
            "searched": f"{self.looked_at} sizes: {self.about}",
            "results": self.rows(),
            "costs": self.cost.model_dump(),
            "acceptance_by_depth_and_rank": self.acceptance,
            "machine": self.machine,
            "search": config.model_dump(exclude_none=True),
        }
        # as JSON returns it: without subclasses of str, such as torch's version
        whole = json.loads(json.dumps(plain(preset | {EVIDENCE: evidence})))
        machine = f"{self.machine.get('cpu')}, {self.machine['device']}"
        head = (
            f"# {config.method} on {config.target}, tuned on {machine}.\n"
            "# `lanternbench run --method THIS_FILE` runs it; in a sweep file: "
            "`methods: [ar, THIS_FILE]`.\n"
        )
        return head + yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120)


def with_interval(ratio: Estimate) -> str:
    if ratio.lo is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} [{ratio.lo:.2f}, {ratio.hi:.2f}]"


def candidates_of(results: list[Result]) -> list[Result]:
    return [result for result in results if result.name not in (DEFAULT, BASELINE)]


def best(results: list[Result]) -> str:
    """Return the name of the fastest candidate with a ratio interval above 1 and an allowed
    fidelity loss, else ``DEFAULT``.
    """
    default = next(result for result in results if result.name == DEFAULT)
    allowed = float("inf")
    if default.fidelity_loss is not None:
        allowed = LOSSIER * default.fidelity_loss
    better = []
    for result in candidates_of(results):
        if (result.robust_ratio.lo or 0) > 1 and (result.fidelity_loss or 0) <= allowed:
            better.append(result)
    if not better:
        return DEFAULT
    return max(better, key=lambda result: result.speed).name


def write_plot(tuning: Tuning, stem: Path) -> list[Path]:
    """Write ``stem``.png and .svg."""
    return save(tuning_figure(tuning), stem, ("png", "svg"), dpi=160)


@styled()
def tuning_figure(tuning: Tuning) -> Figure:
    """Return three panels side by side: costs, acceptance, expected and measured speed."""
    figure = Figure(figsize=(10.5, 3.3), layout="constrained")
    forward, acceptance, speed = figure.subplots(1, 3)
    _plot_costs(forward, tuning.cost)
    expected = [result for result in tuning.results if result.expected is not None]
    for result, colour in zip(expected, COLOURS):
        _plot_result(acceptance, speed, result, colour, result.name == tuning.best)
    acceptance.set(xlabel="drafted tokens i", ylabel="P(accepted ≥ i)", ylim=(0, 1))
    acceptance.set_title("acceptance by depth")
    if tuning.disturbed is None:
        _frame_speeds(speed, tuning)
    else:
        speed.clear()
        text = "timing was noisy:\nno speed is expected"
        speed.text(0.5, 0.5, text, ha="center", transform=speed.transAxes)
        speed.set_axis_off()
    for axes in (forward, acceptance, speed):
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=7)
    return figure


def _plot_costs(axes: Axes, cost: StepCost) -> None:
    for length, seconds in zip(cost.cached, cost.forward_s):
        milliseconds = [1e3 * s for s in seconds]
        label = f"{length} cached tokens"
        axes.plot(cost.nodes, milliseconds, marker="o", markersize=3, label=label)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="nodes of a forward pass", ylabel="ms", title="the target's forward pass")


def _plot_result(
    acceptance: Axes,
    speed: Axes,
    result: Result,
    colour: str,
    is_best: bool,
) -> None:
    if result.expected is None:
        return
    label = "its own sizes" if result.name == DEFAULT else result.name
    if is_best:
        label += " (chosen)"
    reach = result.expected.reach
    levels = range(1, len(reach) + 1)
    acceptance.plot(levels, reach, marker="o", markersize=3, color=colour, label=label)
    measured = result.robust_tokens_per_s
    speed.plot(result.expected.tokens_per_s, measured, "o", color=colour, label=label)


def _frame_speeds(axes: Axes, tuning: Tuning) -> None:
    """Draw the diagonal, its band and the baseline's speed."""
    speeds = []
    for result in tuning.results:
        speeds.append(result.robust_tokens_per_s)
        if result.expected is not None:
            speeds.append(result.expected.tokens_per_s)
    baseline = tuning.result(BASELINE).robust_tokens_per_s
    axes.axhline(baseline, color="#444444", linewidth=0.8, linestyle="--", label="ar")
    ends = [0.9 * min(speeds), 1.1 * max(speeds)]
    low = [0.85 * end for end in ends]
    high = [1.15 * end for end in ends]
    axes.plot(ends, ends, color=LEADER, linewidth=0.8)
    axes.fill_between(ends, low, high, color=LEADER, alpha=0.15, linewidth=0)
    axes.set(xlabel="expected tokens/s", ylabel="measured tokens/s, robust")
    axes.set_title("expected and measured (band: 15 %)")
