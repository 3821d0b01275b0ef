"""Recorded steps.  Without a GPU a stand-in records: every operation, with what Python decided
frozen.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from conftest import slow_but
from fake_cuda_graph import frozen

import lanternbench
from lanternbench import api
from lanternbench.engine import decode as engine
from lanternbench.engine import opening, recording
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.compiled import of_mode
from lanternbench.prompts import load
from lanternbench.registry import components
from lanternbench.settings import Sampling
from lanternbench.utils.graph_capture import Graphs

# in test_dflash and test_diagonals
UNBUNDLED = ("dflash", "flashar")
EMBEDDED = [n for n, p in components("preset").items() if p.choices.proposal not in UNBUNDLED]
SOME = ["ar", "sd", "medusa", "eagle-1", "eagle-2", "lantern", "sjd", "adt-tree", "cool-sd"]
QUICK = ["ar", "medusa", "eagle-2", "sjd"]
CAPTIONS = [p.text for p in load("demo", 2)]


def decode(target, name, captions=CAPTIONS, steps=12, trace=False, **options):
    decoder = build(target, method(name), **options)
    return [engine.generate(decoder, [c], trace=trace, max_steps=steps)[0] for c in captions]


def drawn(generation):
    """The tokens of a decode that ended early, without what a step leaves behind them."""
    return generation.tokens[: 1 + sum(generation.accept_lengths)]


def recordings_by_phase(decoder):
    """The numbers of cache slots of each phase's recordings; None: the phase reads no cache."""
    spans = {}
    for span, shape in decoder.recordings.replays:
        spans.setdefault(shape[0], []).append(span)
    return spans


@pytest.mark.parametrize("name", slow_but(["ar"], ["ar", "eagle-1"]))
def test_recorded_steps_go_from_one_number_of_slots_to_the_next(shallow_8x8, name, monkeypatch):
    monkeypatch.setattr(opening, "CAPACITY", 1)
    monkeypatch.setattr(recording, "SPAN", 48)
    decoders = [
        build(t, method(name)) for t in (shallow_8x8, replace(shallow_8x8, graphs=Graphs(frozen)))
    ]
    want, made = (engine.generate(d, CAPTIONS[:1], max_steps=30)[0] for d in decoders)
    assert torch.equal(drawn(made), drawn(want))
    spans = recordings_by_phase(decoders[1])
    assert len(spans["verify"]) >= 2
    # every phase is recorded once, but for each number of slots if it reads the cache
    assert spans["commit"] == [None]
    if name == "ar":
        assert spans["draft"] == [None]


@pytest.mark.parametrize(
    ("name", "prompts", "temperature"),
    slow_but([(name, 3, 1.0) for name in QUICK], product(EMBEDDED, (1, 3), (1.0, 0.0))),
)
def test_recorded_steps_give_the_tokens_of_launched_ones(shallow_8x8, name, prompts, temperature):
    captions = [p.text for p in load("demo", prompts)]
    recorded = replace(shallow_8x8, graphs=Graphs(frozen))
    decoders = [
        build(t, method(name), Sampling(temperature=temperature)) for t in (shallow_8x8, recorded)
    ]
    wanted, found = (engine.generate(d, captions, max_steps=6) for d in decoders)
    assert decoders[1].recordings.replays
    for want, made in zip(wanted, found, strict=True):
        assert torch.equal(drawn(made), drawn(want))
        assert made.accept_lengths == want.accept_lengths


@pytest.mark.parametrize("name", slow_but(["jacobi"], EMBEDDED))
def test_a_recorded_decoder_draws_its_second_image_with_the_uniforms_of_that_image(
    shallow_8x8, name
):
    recorded = replace(shallow_8x8, graphs=Graphs(frozen))
    wanted, found = (decode(t, name, CAPTIONS[:2], 6) for t in (shallow_8x8, recorded))
    for want, made in zip(wanted, found, strict=True):
        assert torch.equal(drawn(made), drawn(want))


@pytest.mark.parametrize("name", slow_but(["lantern"], ["lantern", "lantern++"]))
def test_simulated_steps_are_recorded_alike(shallow_8x8, name):
    recorded = replace(shallow_8x8, graphs=Graphs(frozen))
    made, want = (
        decode(t, name, CAPTIONS[:1], 6, simulate_acceptance=2.0) for t in (recorded, shallow_8x8)
    )
    for a, b in zip(made, want, strict=True):
        assert torch.equal(drawn(a), drawn(b))


@pytest.mark.parametrize("name", slow_but(["sjd"], ["eagle-2", "cool-sd", "sjd"]))
def test_recorded_steps_keep_the_same_distributions(shallow_5x5, name):
    recorded = replace(shallow_5x5, graphs=Graphs(frozen))
    want, made = (
        decode(t, name, CAPTIONS[:1], trace=True)[0].trace for t in (shallow_5x5, recorded)
    )
    for kept, wanted in zip(vars(made).values(), vars(want).values(), strict=True):
        torch.testing.assert_close(kept, wanted)


@pytest.mark.parametrize(
    ("name", "phases"),
    slow_but([("ar", 3), ("sjd", 5)], [("ar", 3), ("eagle-1", 4), ("eagle-2", 4), ("sjd", 5)]),
)
def test_every_phase_is_one_recording(shallow_8x8, name, phases):
    # the first draft, after one token, has a shape of its own
    recorded = replace(shallow_8x8, graphs=Graphs(frozen))
    decoder = build(recorded, method(name))
    engine.generate(decoder, CAPTIONS[:1], max_steps=3)
    assert len(decoder.recordings.replays) == phases


@pytest.mark.parametrize("name", slow_but(["ar", "eagle-2", "sjd"], SOME))
def test_what_a_recording_reads_lives_as_long_as_it(shallow_8x8, name):
    """A CUDA graph has addresses alone: it would read memory that went with the decode all the
    same.
    """
    recorded = replace(shallow_8x8, graphs=Graphs(frozen))
    decoder = build(recorded, method(name))
    engine.generate(decoder, CAPTIONS[:1], max_steps=3)
    replays = [recording.replay for recording in decoder.recordings.replays.values()]
    constants = 0
    for replay in replays:
        with torch.inference_mode():
            outputs = replay.run()
        outputs = outputs if isinstance(outputs, list) else [outputs]
        kept = {x.untyped_storage().data_ptr() for x in [*replay.read, *replay.inputs, *outputs]}
        reads = getattr(replay.run, "reads", [])  # a phase without kernels has no graph
        assert {x.untyped_storage().data_ptr() for x in reads if x.numel()} <= kept
        constants += len(reads)
    assert constants > 0


def test_recording_is_off_the_clock(shallow_8x8, monkeypatch):
    now = 0.0

    def read():  # a second passes between two looks at the clock
        nonlocal now
        now += 1
        return now

    def slow(work, inputs):
        nonlocal now
        now += 1000
        return frozen(work, inputs)

    recorded = replace(shallow_8x8, graphs=Graphs(slow))
    decoder = build(recorded, method("eagle-2"))
    monkeypatch.setattr("lanternbench.engine.timing.perf_counter", read)
    made = engine.generate(decoder, CAPTIONS[:1], max_steps=2)[0]
    assert now > 4 * 1000  # four recordings
    assert sum(made.phases.values()) == made.decode_s < 1000


@pytest.mark.parametrize("name", slow_but(["ar"], ["ar", "eagle-1"]))
def test_a_warm_up_records_all_that_later_images_need(shallow_8x8, name, monkeypatch):
    monkeypatch.setattr(opening, "CAPACITY", 1)
    monkeypatch.setattr(recording, "SPAN", 48)
    recorded = replace(shallow_8x8, graphs=Graphs(frozen))
    decoder = build(recorded, method(name))
    engine.generate(decoder, CAPTIONS[:1], max_steps=3)
    before = len(decoder.recordings.replays)
    engine.generate(decoder, CAPTIONS[:1])
    engine.generate(decoder, CAPTIONS[1:], max_steps=3)
    assert len(decoder.recordings.replays) == before > 0


@pytest.mark.parametrize("name", slow_but(["ar"], ["ar", "eagle-2"]))
def test_prompts_whose_caches_differ_in_size_do_not_share_recordings(
    shallow_8x8, name, monkeypatch
):
    monkeypatch.setattr(opening, "CAPACITY", 1)

    def condition(target, captions, guided):
        prefix, cut = (
            shallow_8x8.prefix(captions, 2.0 if guided else 1.0),
            16 * (captions[0] == CAPTIONS[1]),
        )
        return prefix._replace(
            **{
                name: getattr(prefix, name)[:, cut:]
                for name in ("embeddings", "valid", "ahead_ids", "seen")
            }
        )

    usual = replace(shallow_8x8, condition=condition)
    recorded = replace(usual, graphs=Graphs(frozen))
    captions = [*CAPTIONS, *CAPTIONS]
    for want, made in zip(*(decode(t, name, captions) for t in (usual, recorded)), strict=True):
        assert torch.equal(made.tokens, want.tokens)


def again(work, inputs):
    """A recorder whose replays do the work again, into the same tensors."""
    outputs = work(*inputs)

    def replay():
        for own, new in zip(outputs, work(*inputs), strict=True):
            own.copy_(new)
        return outputs

    return replay


def test_a_second_call_from_python_records_nothing_anew(shallow_5x5):
    recorded = []

    def counted(work, inputs):
        recorded.append(work.__name__)
        return again(work, inputs)

    model = api.Model(replace(shallow_5x5, graphs=Graphs(counted)))
    first = model.generate(CAPTIONS[0], "sjd", seed=1)
    before = list(recorded)
    second = model.generate(
        CAPTIONS[0], "sjd", seed=1, temperature=shallow_5x5.sampling.temperature
    )
    assert recorded == before
    assert torch.equal(first.tokens, second.tokens)
    model.generate(CAPTIONS[0], "sjd", temperature=0.0)
    assert len(recorded) > len(before)


@pytest.mark.parametrize("name", ["ar", "eagle-1", "sjd"])
def test_the_host_s_time_between_replays_counts_as_overhead(shallow_8x8, name, monkeypatch):
    now = 0.0
    decoder = build(replace(shallow_8x8, graphs=Graphs(again)), method(name))
    engine.generate(decoder, CAPTIONS[:1], max_steps=4)
    honest = engine.Phases

    def slow(*args):
        nonlocal now
        now += 3.0
        return honest(*args)

    monkeypatch.setattr(engine, "Phases", slow)
    monkeypatch.setattr("lanternbench.engine.timing.perf_counter", lambda: now)
    (made,) = engine.generate(decoder, CAPTIONS[:1], max_steps=4)
    assert made.decode_s == 12.0
    assert {phase: seconds for phase, seconds in made.phases.items() if seconds} == {"other": 12.0}


def test_growth_and_warping_inside_a_recording_do_not_count_as_forward_passes(
    shallow_8x8, monkeypatch
):
    """Every look at the clock takes a second: a recorded draft has one before, and one after, each
    of its forward passes.
    """
    now = 0.0

    def read():
        nonlocal now
        now += 1.0
        return now

    monkeypatch.setattr("lanternbench.engine.timing.perf_counter", read)
    decoder = build(replace(shallow_8x8, graphs=Graphs(again)), method("eagle-2"))
    engine.generate(decoder, CAPTIONS[:1], max_steps=2)
    shares = {shape[0]: r.shares for (_, shape), r in decoder.recordings.replays.items()}
    levels = decoder.proposer.size.max_depth
    assert shares["draft"]["draft"] == pytest.approx(levels / (2 * levels + 1))
    assert sum(shares["draft"].values()) == pytest.approx(1.0)
    assert shares["commit"] == {}


def test_the_table_of_known_laws_is_neither_copied_nor_recorded_anew(shallow_8x8):
    target = replace(shallow_8x8, graphs=Graphs(again))
    decoder = build(target, method("sjd", init="vertical-sample"))
    engine.generate(decoder, CAPTIONS[:1], max_steps=4)
    (table,) = target.graphs.tables.values()
    assert table.shape == (1, target.length, target.vocab)
    recordings = dict(decoder.recordings.replays)
    engine.generate(decoder, CAPTIONS[:1], max_steps=4)
    assert decoder.recordings.replays == recordings
    inputs = [x for recording in recordings.values() for x in recording.replay.inputs]
    assert [x is table for x in inputs if x.shape == table.shape].count(False) == 0
    assert any(x is table for x in inputs)


def test_a_replay_of_the_stand_in_reads_its_inputs_anew_and_keeps_what_python_decided():
    factor = 2.0

    def work(x):
        total = x * factor
        total[1:] += table
        return [total, x[:1]]

    x, table = torch.ones(3), torch.ones(1)
    replay = frozen(work, [x])
    factor = 3.0
    x.fill_(5.0)
    table.fill_(4.0)
    made, view = replay()
    assert made.tolist() == [10.0, 14.0, 14.0]
    assert view.tolist() == [5.0]
    assert replay()[0] is made
    assert [read is table for read in replay.reads] == [True]


def test_what_a_cuda_graph_could_not_record_is_noticed():
    with pytest.raises(AssertionError, match="could not record"):
        frozen(lambda x: x + torch.tensor(1.0), [torch.ones(1)])
    with pytest.raises(RuntimeError):
        frozen(lambda x: x + float(x), [torch.ones(1)])


def test_graphs_are_the_default_on_a_gpu_alone_and_refused_without_one():
    assert of_mode(None, "cpu") is None
    assert of_mode("eager", "cuda") is None
    assert of_mode(None, "cuda:0") is not None
    with pytest.raises(UserError, match="--compile eager"):
        of_mode("graphs", "cpu")


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="NO GPU: recorded forwards were checked with a stand-in only",
)
@pytest.mark.parametrize("name", ["ar", "eagle-1", "eagle-2", "sjd", "cool-sd"])
def test_cuda_graphs_give_the_tokens_of_eager_forwards(name):
    eager, recorded = (
        lanternbench.load("tiny", "cuda", compile_mode=m).target for m in ("eager", "graphs")
    )
    for target in (eager, recorded):  # ties of float32 rounding would not be a fault of the graphs
        target.model.double()
        for net in target.drafters.values():
            net.double()
    for want, made in zip(decode(eager, name), decode(recorded, name), strict=True):
        assert torch.equal(made.tokens, want.tokens)
