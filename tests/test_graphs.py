"""Recorded forwards.  Without a GPU a stand-in records: every operation, with what Python decided frozen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from frozen import frozen

import lanternbench
from lanternbench.decoding import engine, presets
from lanternbench.errors import UserError
from lanternbench.models import cached
from lanternbench.models.graphs import Graphs, of_mode
from lanternbench.prompts import load

CAPTIONS = [p.text for p in load("demo", 2)]


def decode(target, name, captions=CAPTIONS[:1]):
    decoder = engine.build(target, presets.method(name))
    return [engine.generate(decoder, [c])[0] for c in captions]


@pytest.mark.parametrize("name", ["ar", "sd", "medusa", "eagle-1", "eagle-2", "sjd", "adt-tree"])
def test_recorded_forwards_give_the_tokens_of_eager_ones(shallow, name, monkeypatch):
    monkeypatch.setattr(cached, "SPAN", 128)  # several lengths of the cache
    recorded = replace(shallow, graphs=Graphs(frozen))
    for want, made in zip(decode(shallow, name), decode(recorded, name), strict=True):
        assert torch.equal(made.tokens, want.tokens)
        assert made.accept_lengths == want.accept_lengths
    assert all(stack.replays for stack in recorded.graphs.stacks.values())


def test_the_second_image_and_another_method_of_the_same_shapes_record_nothing(shallow):
    recorded = replace(shallow, graphs=Graphs(frozen))
    decode(recorded, "eagle-1")
    before = {key: len(stack.replays) for key, stack in recorded.graphs.stacks.items()}
    decode(recorded, "eagle-1", captions=CAPTIONS[1:])
    decode(recorded, "uniform-rsd", captions=CAPTIONS[1:])
    assert {key: len(stack.replays) for key, stack in recorded.graphs.stacks.items()} == before


def test_a_warm_up_records_all_that_an_image_needs(shallow, monkeypatch):
    monkeypatch.setattr(cached, "SPAN", 128)
    recorded = replace(shallow, graphs=Graphs(frozen))
    decoder = engine.build(recorded, presets.method("eagle-1"))
    engine.generate(decoder, CAPTIONS[:1], most_steps=3)
    before = sum(len(stack.replays) for stack in recorded.graphs.stacks.values())
    engine.generate(decoder, CAPTIONS[:1])
    assert sum(len(stack.replays) for stack in recorded.graphs.stacks.values()) == before > 0


def test_batches_are_not_recorded(shallow):
    recorded = replace(shallow, graphs=Graphs(frozen))
    engine.generate(engine.build(recorded, presets.method("ar")), CAPTIONS, most_steps=2)
    assert recorded.graphs.stacks == {}


def test_graphs_are_the_default_on_a_gpu_alone_and_refused_without_one():
    assert of_mode(None, "cpu") is None
    assert of_mode("eager", "cuda") is None
    assert of_mode(None, "cuda:0") is not None
    with pytest.raises(UserError, match="--compile eager"):
        of_mode("graphs", "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU: recorded forwards were checked with a stand-in only")
@pytest.mark.parametrize("name", ["ar", "eagle-1", "eagle-2", "sjd", "cool-sd"])
def test_cuda_graphs_give_the_tokens_of_eager_forwards(name):
    eager, recorded = (lanternbench.load("tiny", "cuda", compile_mode=m).target for m in ("eager", "graphs"))
    for target in (eager, recorded):  # ties of float32 rounding would not be a fault of the graphs
        target.model.double()
        for net in target.drafters.values():
            net.double()
    for want, made in zip(decode(eager, name), decode(recorded, name), strict=True):
        assert torch.equal(made.tokens, want.tokens)
