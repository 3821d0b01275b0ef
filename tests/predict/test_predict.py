"""Predictions: the roofline by hand, a synthetic machine found again, runs replayed and never
touched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import get_type_hints

import numpy as np
import pytest
import torch
from conftest import mistake, two_layers
from counted_clock import CountedClock
from rich.console import Console
from run_records import run_record
from typer.testing import CliRunner

from lanternbench.cli import study_cmd
from lanternbench.cli.main import app
from lanternbench.costs import roofline
from lanternbench.costs.forward_cost import Bandwidth, Shape, Timed
from lanternbench.costs.operators import baseline_operators
from lanternbench.costs.roofline import (
    DeviceModel,
    Execution,
    Load,
    Operators,
    device_model,
    device_models,
)
from lanternbench.engine.decode import generate
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder
from lanternbench.experiment.worker import make_samples
from lanternbench.measure.samples import Sample
from lanternbench.methods.build import build, build_proposer
from lanternbench.methods.method import method
from lanternbench.models.network import Network
from lanternbench.models.packing import packed
from lanternbench.predict import machines, predict
from lanternbench.predict.predict import terminal_tables
from lanternbench.predict.replay import (
    TOY,
    Acceptance,
    Case,
    Trace,
    baseline,
    batches,
    cases,
    shape_of,
    sketch,
    stretched,
)
from lanternbench.prompts import Prompt
from lanternbench.settings import Sweep

RUN = Acceptance(TOY, "run")
A100 = device_model("a100-40g")
ON_A100 = Execution(A100, "bfloat16")
OPERATORS = Operators(layer=16.0, forward=27.0, level=50.0, rest=40.0)
# 36 × (4·1280² of attention + 3·1280·3584 of the MLP + 2 norms) + a norm; a head of 1280 × 16384
XL_LAYERS, XL_HEAD = 36 * (4 * 1280**2 + 3 * 1280 * 3584 + 2 * 1280) + 1280, 1280 * 16384


@pytest.fixture(scope="module")
def xl():
    return sketch("llamagen-xl-stage1")


@pytest.fixture(scope="module")
def tiny():
    return sketch("tiny")


def sample(label="eagle-1", lengths=(3, 1, 2), nodes=6, depth=5, number=0, **more) -> Sample:
    """An image of the embedded target: the prefill, then these accepted lengths over and over."""
    steps = stretched(lengths, [nodes] * len(lengths), [depth] * len(lengths), 256)
    fields = {"options": {}, "seed": 0, "decode_s": 1.0, "tree_nodes": [1, *steps.nodes.tolist()]}
    return Sample(
        key=f"demo-{number}|{label}|0", prompt_id=f"demo-{number}", prompt=f"a red star {number}", label=label, tokens=256,
        steps=1 + steps.steps, accept_lengths=[1, *steps.committed.tolist()],
        tree_depths=[0, *steps.depths.tolist()], **({"method": label} | fields | more),
    )  # fmt: skip


AR = dict(label="ar", lengths=(1,), nodes=1, depth=0)


@pytest.fixture
def run(tmp_path):
    """A run of three methods on the embedded target, two prompts."""
    config = Sweep(num_prompts=2, methods=["eagle-1", "sjd"]).record() | {
        "guidance": 3.0,
        "device": "cpu",
    }
    with RunFolder.open(
        tmp_path, run_record("measured", config, target={"name": "tiny", "grid": [16, 16]})
    ) as folder:
        for number in range(2):
            folder.append(sample(**AR, number=number))
            folder.append(sample(number=number, lengths=(3, 1, 2 + number)))
            folder.append(sample("sjd", (4, 2), 17, 16, number))
    return tmp_path / "measured"


# the roofline


def test_weights_of_llamagen_xl_in_bfloat16_pass_an_a100_in_a_millisecond(xl):
    net = shape_of(xl).network
    assert (net.weights, net.head) == (XL_LAYERS, XL_HEAD) == (731_475_200, 20_971_520)
    spent = roofline.forward(net, Load(1, 2, 1, 0), ON_A100)
    assert (
        float(spent.weights)
        == pytest.approx(2 * 752_446_720 / 1.555e12)
        == pytest.approx(0.968e-3, rel=1e-3)
    )
    assert float(spent.arithmetic) == 0


def test_the_cache_of_llamagen_xl_by_hand(xl):
    """2 rows × 376 positions × 36 layers × (keys and values of 1280) × 2 bytes = 138.6 MB: 0.089
    ms.
    """
    net = shape_of(xl).network
    spent = roofline.forward(net, Load(1, 2, 1, 375), ON_A100)
    assert (
        float(spent.cache)
        == pytest.approx(2 * 376 * 36 * 2 * 1280 * 2 / 1.555e12)
        == pytest.approx(89.1e-6, rel=1e-3)
    )


def test_many_nodes_are_bound_by_arithmetic_and_few_by_bandwidth(xl):
    """Products outweigh bytes from π / β = 200 FLOP a byte on: with 2 bytes a weight, from about
    200 rows.
    """
    net = shape_of(xl).network
    few, many = (roofline.forward(net, Load(1, 2, n, 300), ON_A100) for n in (60, 400))
    assert float(few.weights) > 0 == float(few.arithmetic)
    products = 2 * (2 * 400 * XL_LAYERS + 400 * XL_HEAD) / 312e12
    attention = 4 * 2 * 400 * (36 * 1280) * 700 / 312e12
    assert float(many.weights) == 0
    cache = float(many.cache)
    assert float(many.arithmetic) == pytest.approx(products + (attention if cache == 0 else 0))


def test_every_device_model_names_its_source_and_holds_the_papers_dtypes():
    assert {"a100-40g", "a100-80g", "h100", "h200", "rtx-4090", "l40s"} <= device_models().keys()
    for model in device_models().values():
        assert model.source
        assert model.peak("bfloat16") > model.peak("float32") > 1e13
    with pytest.raises(UserError, match="no FLOP/s for int8"):
        A100.peak("int8")


def test_more_bandwidth_is_never_slower_and_the_host_limits_what_has_no_graphs(xl, tiny):
    found = cases([sample()], tiny, xl, None, RUN)
    slow, fast = (
        predict.predict(machines.Roofline(device_model(n), "bfloat16"), found.cases, [1, 64])
        for n in ("h100", "h200")
    )
    assert all(a.latency_s > b.latency_s for a, b in zip(slow, fast, strict=True))
    eager = predict.predict(
        machines.Roofline(device_model("h100"), "bfloat16", False), found.cases, [1]
    )
    operators = baseline_operators()
    kernels = operators.layer * 36 + operators.forward + operators.rest
    assert eager[0].ms_per_token == pytest.approx(1e-3 * kernels * device_model("h100").issue)
    assert eager[0].bound == "launches"


# replays


def test_a_trace_is_repeated_and_cut_to_the_tokens_of_the_target():
    trace = stretched([3, 1, 2], [6, 7, 8], [5, 5, 4], 12)  # 11 tokens beside the prefill's
    assert trace.committed.tolist() == [3, 1, 2, 3, 1, 1]
    assert trace.nodes.tolist() == [6, 7, 8, 6, 7, 8]
    assert trace.start.tolist() == [1, 4, 5, 7, 10, 11]


def test_without_drafts_every_token_but_the_prefills_is_a_step(tiny):
    (trace,) = baseline(shape_of(tiny)).traces
    assert trace.steps == 255
    assert set(trace.committed.tolist()) == set(trace.nodes.tolist()) == {1}


def test_a_batch_takes_the_steps_of_its_slowest_prompt_and_drops_the_finished_as_the_engine_does():
    quick, slow = stretched([4], [5], [4], 9), stretched([1], [5], [4], 9)  # 2 and 8 steps
    kept, dropped = (batches([quick, slow], 2, keeps)[0] for keeps in (True, False))
    assert kept.batch.tolist() == [2] * 8
    assert dropped.batch.tolist() == [2, 2, 1, 1, 1, 1, 1, 1]
    assert len(batches([quick, slow], 1, True)) == 2
    # prompts several times over
    assert batches([quick, slow], 5, True)[0].batch.tolist() == [5] * 8
    assert kept.start.tolist() == [1, 5, 3, 4, 5, 6, 7, 8]


def test_drafters_run_as_many_forwards_as_replays_count(target):
    for name, options in (
        ("eagle-1", {}), ("eagle-1", {"shape": "twig-12"}), ("eagle-2", {}), ("medusa", {}), ("sd", {}),
        ("adt-tree", {"width_range": (2, 4), "depth_range": (1, 3), "total_nodes": 64}),
    ):  # fmt: skip
        decoder = build(target, method(name, **options))
        drafter, calls = decoder.proposer.drafter, []

        def counted(state, cache, expander=drafter.expander, calls=calls):
            expand = expander(state, cache)

            def further(tokens, *rest):
                if rest[-1] > 0:
                    calls.append(tokens.shape[1])
                return expand(tokens, *rest)

            return further

        drafter.expander = counted
        made = generate(decoder, ["a red star"], max_steps=1)[0]
        levels = decoder.proposer.levels(made.tree_depths[0], made.tree_nodes[0])
        assert (tuple(calls) if drafter.per_level else ()) == levels, name


def test_a_run_without_tree_sizes_is_replayed_where_the_method_fixes_them(tiny):
    old = sample(tree_nodes=None)
    (trace,) = cases([old], tiny, tiny, None, RUN).cases[0].traces
    assert set(trace.nodes.tolist()) == {6}
    with pytest.raises(
        UserError, match=r"'adt-tree' lack the tree size of each step.*measure it again"
    ):
        cases([sample("adt-tree", tree_nodes=None)], tiny, tiny, None, RUN)


def test_methods_without_a_drafter_on_the_target_are_left_out_by_name(tiny, xl):
    found = cases([sample(), sample("medusa", nodes=9, depth=4)], tiny, xl, None, RUN)
    assert [case.label for case in found.cases] == ["eagle-1"]
    left_out = "left out, because nobody published their drafter for llamagen-xl-stage1: medusa"
    assert left_out in found.notes
    with_model = cases(
        [sample("sd", nodes=4, depth=3)],
        tiny,
        sketch("llamagen-3b-c2i", "llamagen-l-c2i"),
        None,
        RUN,
    )
    (case,) = with_model.cases
    assert case.drafter.stored == pytest.approx(343e6, rel=0.01)


def test_methods_of_several_rows_are_left_out_by_name_where_the_grid_is_another(tiny):
    rows = [sample(), sample("pjd", nodes=17, depth=8), sample("zipar", nodes=2, depth=0)]
    there = cases(rows, tiny, sketch("anole-7b"), None, RUN)
    assert [case.label for case in there.cases] == ["eagle-1"]
    assert sum("follow from the grid" in note for note in there.notes) == 2
    here = cases(rows, tiny, tiny, None, RUN)
    assert [case.label for case in here.cases] == ["eagle-1", "pjd"]
    assert any("zipar is left out: it drafts nothing" in note for note in here.notes)


def test_the_largest_shape_has_34_billion_weights_and_a_small_card_does_not_hold_it(tiny):
    big = sketch("chameleon-34b")
    assert shape_of(big).network.stored == pytest.approx(34e9, rel=0.02)
    machine = machines.Roofline(device_model("rtx-4090"), "bfloat16")
    found = cases([sample()], tiny, big, None, RUN)
    rows = predict.predict(machine, found.cases, [1])
    assert {row.fits for row in rows} == {False}
    assert {row.fits_up_to for row in rows} == {0}


# a machine of known parameters


@pytest.mark.parametrize("gap", [3.0, 20.0])
def test_a_synthetic_machine_is_found_again(monkeypatch, gap):
    """Its forwards take what the roofline says of known bandwidth, FLOP/s and overhead; the probe
    must recover them.
    """
    made = DeviceModel(
        name="made",
        about="",
        bandwidth=40,
        memory=8,
        tflops={"float32": 0.5},
        gap=gap,
        issue=0,
        source="test",
    )
    net = Network(12, 40_000_000, 2_000_000, 12 * 512, 12 * 256, 1024, 43_000_000)
    operators = baseline_operators()
    kernels = operators.layer * net.layers + operators.forward
    execution = Execution(made, "float32")
    least = float(sum(roofline.forward(net, Load(1, 2, 1, 1), execution, kernels)))
    monkeypatch.setattr(machines, "bandwidth", lambda device: Bandwidth(40.0, 40.0, 10, 1))
    monkeypatch.setattr(machines, "seconds_of", lambda work, device: 2 * machines.SIDE**3 / 0.5e12)
    found = machines.host(torch.device("cpu"), net, least, 2, "float32")
    assert found.bandwidth == pytest.approx(40)
    assert found.tflops["float32"] == pytest.approx(0.5)
    assert found.gap == pytest.approx(gap, rel=0.03)


def test_a_synthetic_run_is_predicted_exactly(tiny):
    """Each step took 1 ms, 0.2 ms a node, 2 µs a cached token, 0.3 ms a forward of the drafter,
    0.4 ms outside.
    """

    def seconds(trace: Trace, levels: int) -> float:
        verify = 1e-3 + 2e-4 * trace.nodes + 2e-6 * trace.start
        return float((verify + 3e-4 * levels + 4e-4).sum())

    (autoregressive,) = baseline(shape_of(tiny)).traces
    made = []
    for number, lengths in enumerate(((3, 1, 2), (5, 1), (1, 1, 4))):
        timed = sample(number=number, lengths=lengths)
        trace = stretched(
            timed.accept_lengths[1:], timed.tree_nodes[1:], timed.tree_depths[1:], 256
        )
        # a root and four levels
        made.append(timed.model_copy(update={"decode_s": seconds(trace, 5)}))
        made.append(sample(**AR, number=number, decode_s=seconds(autoregressive, 0)))
    verify = np.array([1e-3, 2e-4, 2e-6])  # of 1, nodes, cached tokens
    costs = {
        "ar": machines.MethodCost(verify, np.zeros(4), 4e-4),
        "eagle-1": machines.MethodCost(verify, np.array([3e-4, 3e-4, 0.0, 0.0]), 4e-4),
    }
    machine = machines.Measured("float32", costs)
    found = cases(made, tiny, tiny, None, RUN)
    checked = predict.validate(machine, found.cases, made)
    assert {v.label for v in checked} == {"ar", "eagle-1"}
    assert all(v.error < 1e-9 and v.images == 3 for v in checked)
    assert [v.speedup_error for v in checked if v.label == "eagle-1"] == [
        pytest.approx(0, abs=1e-9)
    ]
    slower = replace(machine, costs=costs | {"eagle-1": costs["eagle-1"]._replace(outside=2e-3)})
    assert predict.validate(slower, found.cases, made)[0].error > 0.2


@pytest.mark.parametrize("order", ["fixed", "adapting"])
def test_what_steps_cost_is_found_again_from_steps_of_several_sizes(tiny, monkeypatch, order):
    """1 ms, 0.2 ms a node, 2 µs a cached token; 0.3 ms a forward of the drafter, 0.1 ms a node it
    reads; 0.4 else.
    """
    proposal = build_proposer(tiny, method("eagle-1"))
    sizes = [(5, 6)] if order == "fixed" else [(d, n) for d in (1, 3, 5) for n in (6, 16, 31)]

    def steps(*_: object) -> Iterator[Timed]:
        # one in four is held up
        for (depth, nodes), cached, held in product(sizes, (32, 128, 216), (1, 1, 1, 9)):
            levels = proposal.levels(depth, nodes)
            draft = 3e-4 * (1 + len(levels)) + 1e-4 * sum(levels)
            verify = 1e-3 + 2e-4 * nodes + 2e-6 * cached
            yield Timed(Shape(nodes, depth), cached, held * draft, held * verify, held * 4e-4)

    monkeypatch.setattr(machines, "step_times", steps)
    cost = machines.method_cost(build(tiny, method("eagle-1")), "x")
    machine = machines.Measured("float32", {"eagle-1": cost})
    depth, nodes = sizes[len(sizes) // 2]
    trace = Trace(*(np.array([x]) for x in (1, nodes, depth)))
    used, shape = method("eagle-1"), shape_of(tiny)
    case = Case("eagle-1", used, shape, None, proposal, OPERATORS, [trace])
    spent = machine.seconds(case, batches(case.traces, 1, False)[0])
    levels = proposal.levels(depth, nodes)
    assert spent["verify"] == pytest.approx(1e-3 + 2e-4 * nodes + 2e-6)
    assert spent["draft"] == pytest.approx(3e-4 * (1 + len(levels)) + 1e-4 * sum(levels))
    assert spent["outside"] == pytest.approx(4e-4)


@pytest.mark.slow
def test_probing_machines_predicts_the_run_that_was_measured_on_it(tmp_path, monkeypatch):
    """Every operation takes as long as any other: what is promised of seconds is measured
    elsewhere.
    """
    for name, less in (("REPEATS", 3), ("STEPS", 3)):
        monkeypatch.setattr(machines, name, less)
    shallow = packed(two_layers(dtype=torch.float32))
    monkeypatch.setattr(machines, "load_with_drafter", lambda *_: shallow)
    monkeypatch.setattr(machines, "bandwidth", partial(machines.bandwidth, seconds=0.0))
    clock = CountedClock(monkeypatch)
    config = Sweep(num_prompts=1, methods=["eagle-1"]).record() | {
        "guidance": 3.0,
        "device": "cpu",
    }
    with (
        RunFolder.open(tmp_path, run_record("real", config, target={"name": "tiny"})) as folder,
        clock,
    ):
        decoder = build(shallow, method("eagle-1"))
        ((made, *_),) = make_samples(decoder, [Prompt("demo-1", "a red star")], 0, True)
        folder.append(made)
    args = ["predict", str(tmp_path / "real"), "--device", "this", "--batch", "1", "--json"]
    with clock:
        found = json.loads(CliRunner().invoke(app, args, catch_exceptions=False).stdout)
    (checked,) = found["validation"]
    assert checked["label"] == "eagle-1"
    assert checked["predicted_s"] / checked["robust_s"] == pytest.approx(1, abs=0.1)
    assert any("median error on this machine: " in note for note in found["notes"])


# the command


def test_predictions_are_labelled_fit_a_terminal_and_leave_the_run_alone(run, tmp_path):
    def contents():
        files = sorted(p for p in run.rglob("*") if p.is_file())
        return [(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]

    before, out = contents(), tmp_path / "predicted"
    args = [
        "predict",
        str(run),
        "--device",
        "h100",
        "--device",
        "l40s",
        "--target",
        "llamagen-xl-stage1",
    ]
    found = CliRunner().invoke(
        app, [*args, "--batch", "1,64", "--out", str(out), "--json"], catch_exceptions=False
    )
    told = json.loads(found.stdout)
    assert contents() == before
    assert told["predicted"] is True
    assert all(row["predicted"] for row in told["rows"])
    assert {(r["device"], r["batch"]) for r in told["rows"]} == {
        (d, b) for d in ("h100", "l40s") for b in (1, 64)
    }
    assert {p.name for p in out.iterdir()} == {
        "predictions.csv",
        "predictions.json",
        "predictions.md",
        "predictions.png",
    }
    assert (
        "Predicted, not measured: llamagen-xl-stage1 on h100"
        in (out / "predictions.md").read_text()
    )
    rows = [
        predict.Prediction(**{k: v for k, v in row.items() if k != "predicted"})
        for row in told["rows"]
    ]
    with (console := Console(width=80)).capture() as text:
        console.print(*terminal_tables([row for row in rows if row.device == "h100"]))
    lines = text.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Predicted, not measured")
    assert not any("…" in line for line in lines)


def test_speedups_are_ratios_of_predicted_latencies(run):
    found = CliRunner().invoke(
        app, ["predict", str(run), "--batch", "1,8", "--json"], catch_exceptions=False
    )
    rows = json.loads(found.stdout)["rows"]
    base = {row["batch"]: row["latency_s"] for row in rows if row["method"] == "ar"}
    for row in rows:
        assert row["speedup"] == pytest.approx(base[row["batch"]] / row["latency_s"])
        assert row["images_per_s"] == pytest.approx(row["batch"] / row["latency_s"])
        assert sum(row["shares"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--device", "h1000"], "unknown device 'h1000': did you mean 'h100'?"),
        (
            ["--device", "this", "--batch", "0"],
            "--batch 0 cannot be read: give whole numbers from 1",
        ),
        (["--target", "nope"], "unknown target 'nope'"),
        (["--dtype", "int3"], "unknown dtype 'int3'"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(run, monkeypatch, capfd, args, sentence):
    assert sentence in mistake(monkeypatch, capfd, "predict", str(run), *args)


def test_an_unknown_compile_mode_is_refused_with_the_modes(run, monkeypatch, capfd):
    said = mistake(monkeypatch, capfd, "predict", str(run), "--compile", "fast")
    assert all(word in said for word in ("'fast'", "'graphs'", "'eager'"))


def test_a_run_without_samples_or_without_trees_is_one_sentence(tmp_path, monkeypatch, capfd):
    config = Sweep(num_prompts=1, methods=["ar"]).record()
    with RunFolder.open(tmp_path, run_record("empty", config)):
        pass
    assert "has no samples yet" in mistake(monkeypatch, capfd, "predict", str(tmp_path / "empty"))
    with RunFolder.open(tmp_path, run_record("plain", config)) as folder:
        folder.append(sample(**AR))
    said = mistake(monkeypatch, capfd, "predict", str(tmp_path / "plain"))
    assert "there are no draft trees to replay" in said
    assert "only methods that draft nothing (ar)" in said


def test_predictions_are_not_written_into_a_run(run, monkeypatch, capfd):
    said = mistake(monkeypatch, capfd, "predict", str(run), "--out", str(run))
    assert "is a run folder, which holds measurements" in said


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("a100", "a100-40g"),
        ("A100-80G", "a100-80g"),
        ("RTX 4090", "rtx-4090"),
        ("H200", "h200"),
        ("l40", "l40s"),
    ],
)
def test_a_device_is_named_by_how_its_name_begins_in_any_spelling(asked, name):
    assert device_model(asked).name == name


def test_help_names_every_device_model():
    device = get_type_hints(study_cmd.Elsewhere, include_extras=True)["device"]
    assert all(name in device.__metadata__[0].help for name in device_models())
