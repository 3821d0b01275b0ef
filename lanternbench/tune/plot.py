"""The evidence of a search as one figure: the cost curve, acceptance by depth, expected against measured speed."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lanternbench.report.scene import save
from lanternbench.tune.result import BASELINE, DEFAULT, Tuning

COLOURS = ("#7a7f87", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # the default sizes first


def write_plot(tuning: Tuning, stem: Path) -> list[Path]:
    """``stem``.png and .svg."""
    return save(lambda: tuning_figure(tuning), stem, ("png", "svg"), dpi=160)


def tuning_figure(tuning: Tuning) -> Figure:
    """Three panels side by side."""
    figure = Figure(figsize=(10.5, 3.3), layout="constrained")
    forward, acceptance, speed = figure.subplots(1, 3)
    cost = tuning.cost
    for length, row in zip(cost.cached, cost.forward_s):
        forward.plot(cost.nodes, [1e3 * s for s in row], marker="o", markersize=3, label=f"{length} cached tokens")
    forward.set_ylim(bottom=0)
    forward.set(xlabel="nodes of a forward", ylabel="ms", title="the target's forward")
    for r, colour in zip((r for r in tuning.results if r.expected is not None), COLOURS):
        assert r.expected is not None
        name = ("its own sizes" if r.name == DEFAULT else r.name) + (" (chosen)" if r.name == tuning.best else "")
        reach = r.expected.reach
        acceptance.plot(range(1, len(reach) + 1), reach, marker="o", markersize=3, color=colour, label=name)
        speed.plot(r.expected.tokens_per_s, r.robust_tokens_per_s, "o", color=colour, label=name)
    acceptance.set(xlabel="drafted tokens i", ylabel="P(accepted ≥ i)", ylim=(0, 1), title="acceptance by depth")
    _speed(speed, tuning)
    for axes in (forward, acceptance, speed):
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=7)
    return figure


def _speed(axes: Axes, tuning: Tuning) -> None:
    """The diagonal, its band and the baseline's speed; a note instead where the clock was disturbed."""
    if tuning.disturbed is not None:
        axes.clear()
        axes.text(0.5, 0.5, "the clock was disturbed:\nno speed is expected", ha="center", transform=axes.transAxes)
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
