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
from lanternbench.report.style import save
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
        return next(r for r in self.results if r.name == name)

    def rows(self) -> list[dict[str, Any]]:
        """The results as plain values; expected times are None where the clock was disturbed."""
        rows = []
        for r in self.results:
            rows.append({name: value for name, value in vars(r).items() if name != "expected"})
            if e := r.expected:
                seconds = (e.tokens_per_s, e.step_s) if self.disturbed is None else (None, None)
                names = ("tau", "tokens_per_s", "step_s", "reach", "shape")
                rows[-1]["expected"] = dict(
                    zip(names, (e.tau, *seconds, e.reach, e.shape), strict=True)
                )
        return plain(rows)

    @property
    def disturbed(self) -> str | None:
        """Why times cannot be predicted, as a sentence; None where timed costs match the measured
        steps.
        """
        default = self.result(DEFAULT)
        drift = (
            default.tau / default.robust_tokens_per_s / default.expected.step_s
            if default.expected
            else 1.0
        )
        if 1 / DRIFT <= drift <= DRIFT:
            return None
        text = (
            f"a step took {drift:.2f} times as long when it was measured as when costs were timed"
        )
        return f"the clock was disturbed: {text}, so no tokens/s are expected here; τ and the measured figures hold"

    @property
    def verdict(self) -> str:
        """One sentence."""
        c, chosen, tried = self.config, self.result(self.best), tried_of(self.results)
        if self.best != DEFAULT:
            text = f"{chosen.label}: {with_interval(chosen.robust_ratio)} times the tokens per second of the method's"
            text += f" own sizes, as the best of {len(tried)} on {c.num_prompts} prompts"
            chose = f"{min(c.recorded, c.num_prompts)} of which also chose them"
            return f"{text}, {chose}: run it on other prompts before you quote it"
        best = with_interval(max(tried, key=lambda r: r.speed).robust_ratio) if tried else None
        figure = f" (the best of {len(tried)} gave {best})" if tried else ""
        return f"nothing beats the sizes that {c.method} has already{figure}: they are what is written"

    def preset_text(self) -> str:
        """The preset as YAML, with the evidence for it."""
        config, machine = self.config, self.machine
        entry = {"method": config.method} | plain(config.options | self.result(self.best).options)
        evidence = {
            "verdict": self.verdict,
            "target": config.target,
            "searched": f"{self.looked_at} sizes: {self.about}",
            "results": self.rows(),
            "costs": self.cost.model_dump(),
            "acceptance_by_depth_and_rank": self.acceptance,
            "machine": machine,
            "search": config.model_dump(exclude_none=True),
        }
        # as JSON gives it back: without subclasses of str, as torch's version is
        whole = json.loads(json.dumps(entry | {EVIDENCE: plain(evidence)}))
        head = f"# {config.method} on {config.target}, tuned on {machine.get('cpu')}, {machine['device']}.\n"
        head += "# `lanternbench run --method THIS_FILE` runs it; in a sweep file: `methods: [ar, THIS_FILE]`.\n"
        return head + yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120)


def with_interval(ratio: Estimate) -> str:
    return (
        f"{ratio.value:.2f}"
        if ratio.lo is None
        else f"{ratio.value:.2f} [{ratio.lo:.2f}, {ratio.hi:.2f}]"
    )


def tried_of(results: list[Result]) -> list[Result]:
    """The results of the candidates."""
    return [r for r in results if r.name not in (DEFAULT, BASELINE)]


def best(results: list[Result]) -> str:
    """The fastest candidate with a ratio interval above 1 and an allowed fidelity loss, else
    ``DEFAULT``.
    """
    default = next(r for r in results if r.name == DEFAULT)
    allowed = float("inf") if default.fidelity_loss is None else LOSSIER * default.fidelity_loss
    better = [
        r
        for r in tried_of(results)
        if (r.robust_ratio.lo or 0) > 1 and (r.fidelity_loss or 0) <= allowed
    ]
    return max(better, key=lambda r: r.speed).name if better else DEFAULT


def write_plot(tuning: Tuning, stem: Path) -> list[Path]:
    """``stem``.png and .svg."""
    return save(lambda: tuning_figure(tuning), stem, ("png", "svg"), dpi=160)


def tuning_figure(tuning: Tuning) -> Figure:
    """Three panels side by side."""
    figure = Figure(figsize=(10.5, 3.3), layout="constrained")
    forward, acceptance, speed = figure.subplots(1, 3)
    cost = tuning.cost
    for length, row in zip(cost.cached, cost.forward_s):
        forward.plot(
            cost.nodes,
            [1e3 * s for s in row],
            marker="o",
            markersize=3,
            label=f"{length} cached tokens",
        )
    forward.set_ylim(bottom=0)
    forward.set(xlabel="nodes of a forward", ylabel="ms", title="the target's forward")
    for (r, expected), colour in zip(
        [(r, r.expected) for r in tuning.results if r.expected], COLOURS
    ):
        name = ("its own sizes" if r.name == DEFAULT else r.name) + (
            " (chosen)" if r.name == tuning.best else ""
        )
        levels = range(1, len(expected.reach) + 1)
        acceptance.plot(levels, expected.reach, marker="o", markersize=3, color=colour, label=name)
        speed.plot(expected.tokens_per_s, r.robust_tokens_per_s, "o", color=colour, label=name)
    acceptance.set(
        xlabel="drafted tokens i",
        ylabel="P(accepted ≥ i)",
        ylim=(0, 1),
        title="acceptance by depth",
    )
    _speed(speed, tuning)
    for axes in (forward, acceptance, speed):
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=7)
    return figure


def _speed(axes: Axes, tuning: Tuning) -> None:
    """The diagonal, its band and the baseline's speed; a note instead where the clock was
    disturbed.
    """
    if tuning.disturbed is not None:
        axes.clear()
        axes.text(
            0.5,
            0.5,
            "the clock was disturbed:\nno speed is expected",
            ha="center",
            transform=axes.transAxes,
        )
        axes.set_axis_off()
        return
    speeds = [r.robust_tokens_per_s for r in tuning.results]
    speeds += [r.expected.tokens_per_s for r in tuning.results if r.expected is not None]
    ar = tuning.result(BASELINE).robust_tokens_per_s
    axes.axhline(ar, color="#444444", linewidth=0.8, linestyle="--", label="ar")
    ends = [0.9 * min(speeds), 1.1 * max(speeds)]
    low, high = ([share * end for end in ends] for share in (0.85, 1.15))
    axes.plot(ends, ends, color="#9aa0a6", linewidth=0.8)
    axes.fill_between(ends, low, high, color="#9aa0a6", alpha=0.15, linewidth=0)
    axes.set(xlabel="expected tokens/s", ylabel="measured tokens/s, robust")
    axes.set_title("expected against measured (band: 15 %)")
