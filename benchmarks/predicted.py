"""Predicted speedups next to the papers', with published accepted lengths and with those of the
toy model, and what to expect of methods on GPUs.

    python -m benchmarks.predicted

The papers' accepted lengths, their methods' trees and the GPUs that they name go into the roofline
of `lanternbench predict`; the toy model's accepted lengths are those of
benchmarks/results/methods.md.  Nothing is measured.  Writes predicted.md and predicted-methods.md
in benchmarks/results, gpu-expected.json for `make gpu`, and lanternbench/predict/spreads.yaml.
"""

from __future__ import annotations

import json
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from typer.testing import CliRunner

from benchmarks.gpu.decoding import misfit
from benchmarks.gpu.model import StepModel
from benchmarks.gpu.report import EXPECTED as EXPECTED_ON_GPU
from benchmarks.gpu.result import Row
from benchmarks.gpu.shapes import ANOLE, JANUS, XL, full_size
from benchmarks.result_files import OUTPUT, ROOT, write
from lanternbench.cli.main import app
from lanternbench.costs.operators import count_operators
from lanternbench.costs.roofline import BYTES, Operators, device_model
from lanternbench.errors import UserError
from lanternbench.methods.method import method, preset
from lanternbench.models.target import Target
from lanternbench.predict.machines import Roofline
from lanternbench.predict.predict import latency
from lanternbench.predict.published import accepted_length, decode_of, method_of
from lanternbench.predict.replay import BASE, Case, baseline, shape_of, sketch
from lanternbench.registry import components
from lanternbench.report.papers import parameters, published_rows
from lanternbench.report.tables import markdown

SPREADS = ROOT / "lanternbench/predict/spreads.yaml"
TOY = OUTPUT.results / "methods.md"
GPUS = {
    "A100-40GB": "a100-40g",
    "A100-80GB": "a100-80g",
    "A100": "a100-80g",
    "RTX4090": "rtx-4090",
    "": "a100-80g",
}
# what 10.11 s for an image suggest, see the text
TARGETS = {"llamagen-xl-stage-unstated": "llamagen-xl-stage2"}
FEW = 8  # rows of a family, below which its spread is that of all rows
# of `lanternbench predict --published`
EXPECTED = ("lumina-mgpt-7b-768", "anole-7b", "llamagen-xl-stage2")
ASKED = ("--device", "h100", "--batch", "1,16")

ON_GPU = {"A100": "a100-80g", "H100": "h100", "H200": "h200"}  # part of its name: model
MODELLED = {"steps": XL, "anole": ANOLE, "janus": JANUS}  # by piece


class Line(NamedTuple):
    """A published row with its predictions, from its own accepted length and the toy model's."""

    paper: dict[str, str]
    target: str
    device: str
    family: str
    published: float
    tau: float
    predicted: float
    eager: float
    toy_tau: float | None
    toy: float | None

    @property
    def error(self) -> float:
        """How far the prediction is from the published speedup, as a share of it."""
        return abs(self.predicted / self.published - 1)

    @property
    def toy_error(self) -> float | None:
        return None if self.toy is None else abs(self.toy / self.published - 1)


@cache
def known(name: str) -> Target:
    return sketch(TARGETS.get(name, name))


@cache
def toy_lengths() -> dict[tuple[str, str], float]:
    """τ of the toy model by temperature and method, with the rule that replaces its own: of the
    first row of each in the study.
    """
    found: dict[tuple[str, str], float] = {}
    for temperature, table in re.findall(
        r"^## T = (\d)\n(.*?)(?=^## )", TOY.read_text(encoding="utf-8"), re.M | re.S
    ):
        for label, tau in re.findall(r"^\| (\S+)[^|]*\|[^|]*\| (\d+\.\d+) \|", table, re.M):
            found.setdefault((temperature, label), float(tau))
    return found


def toy_length(paper: dict[str, str]) -> float | None:
    rule = parameters(paper).get("acceptance")
    label = paper["method"] if rule is None else f"{paper['method']}+{rule}"
    return toy_lengths().get((paper["temperature"] or "1", label))


def gain(machine: Roofline, case: Case) -> float:
    base = latency(machine, baseline(case.shape), 1)[0]
    return base / latency(machine, case, 1)[0]


def lines() -> tuple[list[Line], list[str]]:
    """The papers' rows with a speedup and an accepted length, and a sentence on each of which
    nothing can be predicted.
    """
    found: list[Line] = []
    left_out: list[str] = []
    for paper in published_rows():
        tau = accepted_length(paper)
        if paper["method"] == BASE or not paper["speedup"] or tau is None:
            continue
        name = f"{paper['method']} {paper['params']}".strip()
        text = f"{name} on {paper['target']} ({paper['source']}, {paper['speedup']}×)"
        used = method_of(paper)
        if used is None:
            left_out.append(f"{text}: the method is not implemented")
            continue
        target = known(paper["target"])
        try:
            case = decode_of(paper, used, target, tau)
        except UserError as error:
            left_out.append(f"{text}: {error}")
            continue
        model = device_model(GPUS[paper["hardware"]])
        graphs = Roofline(model, "bfloat16")
        toy_tau = toy_length(paper)
        toy = None
        if toy_tau is not None:
            toy = gain(graphs, decode_of(paper, used, target, toy_tau))
        line = Line(
            paper=paper,
            target=target.name,
            device=model.name,
            family=preset(paper["method"]).family,
            published=float(paper["speedup"]),
            tau=tau,
            predicted=gain(graphs, case),
            eager=gain(Roofline(model, "bfloat16", False), case),
            toy_tau=toy_tau,
            toy=toy,
        )
        found.append(line)
    return found, left_out


def written(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def beside(found: list[Line]) -> str:
    titles = [
        *("paper", "target", "GPU", "T", "method", "published", "published τ", "predicted"),
        *("error", "eager", "τ of tiny", "predicted", "error"),
    ]
    rows = []
    for line in found:
        paper = line.paper
        gpu = paper["hardware"] or f"not named ({line.device})"
        name = f"{paper['method']} {paper['params']}".strip()
        numbers = (
            f"{line.published:.2f}×",
            f"{line.tau:.2f}",
            f"{line.predicted:.2f}×",
            f"{line.error:.0%}",
            f"{line.eager:.2f}×",
            written(line.toy_tau, ".2f"),
            "–" if line.toy is None else f"{line.toy:.2f}×",
            written(line.toy_error, ".0%"),
        )
        rows.append([paper["source"], line.target, gpu, paper["temperature"], name, *numbers])
    return markdown(titles, rows, [False] * 5 + [True] * 8)


def families(found: list[Line]) -> dict[str, list[Line]]:
    groups = {"all": found}
    for line in found:
        groups.setdefault(line.family, []).append(line)
    return groups


def errors(found: list[Line]) -> str:
    """The median and the worst error by family, of both accepted lengths."""
    rows = []
    for family, group in families(found).items():
        cells = [family, str(len(group))]
        for kind in ("error", "toy_error"):
            values = [getattr(line, kind) for line in group if getattr(line, kind) is not None]
            cells += [f"{median(values):.1%}", f"{max(values):.0%}"] if values else ["–", "–"]
        rows.append(cells)
    titles = ["family", "rows", "published τ: median", "worst", "τ of tiny: median", "worst"]
    return markdown(titles, rows, [False] + [True] * 5)


def ratios(group: Iterable[Line], predicted: Callable[[Line], float | None]) -> list[float]:
    pairs = [(line.published, predicted(line)) for line in group]
    return [published / value for published, value in pairs if value is not None]


def spreads(found: list[Line]) -> str:
    """spreads.yaml: published speedups over predicted ones, 10th and 90th percentile."""
    text = (
        "# Published speedups over predicted ones, 10th and 90th percentile, by origin of the accepted lengths and\n"
        f"# family of methods, of which those with fewer than {FEW} rows take that of all.\n"
        "# Written by `python -m benchmarks.predicted`.\n"
    )
    of_kind = {"published": lambda line: line.predicted, "toy": lambda line: line.toy}
    for kind, predicted in of_kind.items():
        text += f"\n{kind}:\n"
        for family, group in families(found).items():
            values = ratios(group, predicted)
            if len(values) >= FEW:
                low, high = np.quantile(values, [0.1, 0.9])
                text += f"  {family}: [{low:.3f}, {high:.3f}]\n"
    return text


def baselines() -> tuple[str, list[float]]:
    """The papers' autoregressive latencies a token beside the time to read the weights once; their
    ratios.
    """
    rows, ratios = [], []
    for paper in published_rows():
        target = TARGETS.get(paper["target"], paper["target"])
        if paper["method"] != BASE or not paper["latency_s"]:
            continue
        model, shape = device_model(GPUS[paper["hardware"]]), shape_of(known(target))
        measured = 1e3 * float(paper["latency_s"]) / shape.length
        limit = (
            BYTES["bfloat16"]
            * (shape.network.weights + shape.network.head)
            / model.bandwidth
            / 1e6
        )
        eager = latency(Roofline(model, "bfloat16", False), baseline(shape), 1)[0]
        ratios.append(measured / limit)
        figures = (
            f"{measured:.1f}",
            f"{limit:.2f}",
            f"{1e3 * eager / (shape.length - 1):.2f}",
            f"{measured / limit:.1f}×",
        )
        rows.append([paper["source"], target, paper["hardware"], *figures])
    titles = [
        "paper",
        "target",
        "GPU",
        "ar, published ms/token",
        "weights read once, ms",
        "predicted eager",
        "off the limit",
    ]
    return markdown(titles, rows, [False] * 3 + [True] * 4), ratios


def for_gpu_report() -> dict[str, dict[str, dict[str, Row]]]:
    """Return what `make gpu` is to be read with: by GPU, piece and method, a step at τ = 2.7, its
    speedup, and the kernels and bytes that they follow from.
    """
    counted: dict[str, dict[str, Operators]] = {}
    found: dict[str, dict[str, dict[str, Row]]] = {}
    for gpu, device in ON_GPU.items():
        found[gpu] = {}
        for piece, shape in MODELLED.items():
            target = full_size(shape, "meta")
            operators = counted.setdefault(shape, operators_of(target))
            model = StepModel(target, device_model(device), operators)
            found[gpu][piece] = modelled(model)
        base = found[gpu]["steps"][BASE]
        found[gpu]["ar"] = {"recorded": {"ms": base["step"]}}
    return found


def operators_of(target: Target) -> dict[str, Operators]:
    """Return the counted operators of every preset that can be built on a target."""
    fit = [name for name in components("preset") if misfit(target, name) is None]
    return {name: count_operators(method(name), target.options) for name in fit}


def modelled(model: StepModel) -> dict[str, Row]:
    """Return the modelled steps of a target's presets."""
    rows: dict[str, Row] = {}
    base = model.step(BASE)
    for name in model.counted:
        if not model.has(name):
            continue
        step = model.step(name)
        rows[name] = step.cells()
        if name != BASE:
            rows[name]["speedup"] = f"{step.gain(base):.2f}×"
    return rows


INTRO = """
    Predictions by the roofline of `lanternbench predict` ([docs/predict.md](../../docs/predict.md)); nothing on
    this page was measured here. All rows of the papers' tables that have a speedup and an accepted length τ (or else
    a step compression), of methods that there are here: once with the paper's τ, once with the τ that the same method
    has on the bundled model `tiny` at the same temperature ([study](methods.md), the method's first row, whatever
    the relaxation). The target's default tree for the method (trees that adapt: the paper's mean depth), or the window
    and siblings that the paper states, bfloat16, batch 1, guidance on, CUDA graphs; `eager`: the host issues each
    kernel. Where a paper names no GPU, an A100 80 GB stands in; where it does not say which stage of LlamaGen-XL,
    stage 2 does, because 10.11 s an image would be 40 ms a token in stage 1. Written by `python -m
    benchmarks.predicted`.
"""
PART = """
    **With the papers' τ**, the median error is {error} over {all} rows ({named} where the paper names its GPU), the
    worst {worst}. {higher} predictions are above the published figure. The model's baseline reads the weights once a
    token and launches this engine's kernels; the papers' baselines take {least:.1f} to {most:.1f} times as long as
    reading the weights (table below). A ratio forgives that as long as all that a step adds is slow in the same
    proportion. In {above} rows the published speedup exceeds τ itself, which fewer forward passes cannot explain:
    either the baseline's steps were slower than the method's, or τ was counted otherwise. **With the τ of `tiny`**
    the median error is {toy_error}, the worst {toy_worst}: a toy model's acceptance says nothing about another
    target.
"""
EXPECT = """
    Speedups over `ar` on an H100 from accepted lengths that papers published for the very target, T = 1, bfloat16,
    CUDA graphs, each method with its default tree: `lanternbench predict --published --target TARGET {asked}`.
    Nothing on this page was measured here. The launch overhead, 1.5 µs a kernel, is an estimate, and at LlamaGen-XL's
    size the largest part of a token. Written by `python -m benchmarks.predicted`.
"""


def filled(text: str, **figures: float | str) -> str:
    return textwrap.fill(
        " ".join(text.format(**figures).split()),
        120,
        break_on_hyphens=False,
        break_long_words=False,
    )


def published(target: str) -> str:
    """The tables of `lanternbench predict --published`."""
    with tempfile.TemporaryDirectory() as folder:
        asked = ["predict", "--published", "--target", target, *ASKED, "--out", folder]
        CliRunner().invoke(app, asked, catch_exceptions=False)
        return (Path(folder) / "predictions.md").read_text(encoding="utf-8")


def main() -> None:
    found, left_out = lines()
    SPREADS.write_text(spreads(found), encoding="utf-8")
    table, over_limit = baselines()
    toy = [line.toy_error for line in found if line.toy_error is not None]
    part = filled(
        PART,
        error=f"{median(line.error for line in found):.1%}",
        named=f"{median(line.error for line in found if line.paper['hardware']):.1%}",
        worst=f"{max(line.error for line in found):.0%}",
        all=len(found),
        higher=sum(line.predicted > line.published for line in found),
        least=min(over_limit),
        most=max(over_limit),
        above=sum(line.published > line.tau for line in found),
        toy_error=f"{median(toy):.1%}",
        toy_worst=f"{max(toy):.0%}",
    )
    parts = [
        "# Predicted speedups next to published ones",
        filled(INTRO),
        "## Errors by family of methods",
        errors(found),
        part,
        "## All rows",
        beside(found),
        "Left out:\n\n" + "\n".join(f"- {text}" for text in left_out),
        "## The papers' baselines",
        table,
    ]
    write("predicted.md", ["\n\n".join(part.strip() for part in parts)])
    (OUTPUT.results / EXPECTED_ON_GPU).write_text(
        json.dumps(for_gpu_report(), indent=1, ensure_ascii=False) + "\n"
    )
    expect = ["# Predicted from published accepted lengths", filled(EXPECT, asked=" ".join(ASKED))]
    expect += [published(target).strip() for target in EXPECTED]
    write("predicted-methods.md", ["\n\n".join(expect)])


if __name__ == "__main__":
    main()
