"""Operators of a step: counted where a step costs nothing, for every size of target."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import mean

import pytest
import torch
from conftest import slow_but
from torch.utils._python_dispatch import TorchDispatchMode

from lanternbench.costs import operators, roofline
from lanternbench.costs.operators import count_operators, count_phases
from lanternbench.costs.roofline import Decoder, Execution, Load, device_model
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.llamagen.random import small_target
from lanternbench.models.network import network
from lanternbench.models.transformer import DecoderConfig, Layer
from lanternbench.registry import components
from lanternbench.utils.graph_capture import Graphs

ON_H100 = Execution(device_model("h100"), "bfloat16")
VIEWS = {"view", "transpose", "narrow", "chunk", "flatten", "view_as_real", "view_as_complex"}


def test_a_layer_launches_what_was_counted_and_one_write_of_the_cache():
    layer = Layer(DecoderConfig(64, 1, 4, 128, 16)).to(torch.bfloat16)
    seen: Counter[str] = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen[func.overloadpacket.__name__] += func.overloadpacket.__name__ not in VIEWS
            return func(*args, **(kwargs or {}))

    x = torch.randn(2, 6, 64, dtype=torch.bfloat16)
    rope = torch.ones(1, 6, 1, 8, dtype=torch.complex64)
    with torch.inference_mode(), Count():
        layer(x, rope, None)
    assert sum(seen.values()) + 1 == operators.layer_operators(), seen


@pytest.mark.parametrize("name", slow_but(["cool-sd"], components("preset")))
def test_operators_predict_the_step_of_a_target_of_any_depth(name):
    """Counted at two layers, predicted at four."""
    target = small_target(dtype=torch.bfloat16, layers=4)
    decoder = build(target, method(name))
    counted = count_phases(decoder)
    proposer = decoder.proposer
    networks = Decoder(
        network(target.model, target.model, target.model.layers),
        proposer.network(),
        count_operators(method(name), {}),
    )
    seconds = []
    for depth, nodes in counted.sizes:
        levels = proposer.levels(depth, nodes)
        load = Load(1.0, 2.0, float(nodes), 100.0)
        spent = roofline.step(networks, load, (1.0, *levels), ON_H100)
        seconds.append(float(spent.launches))
    kernels = mean(seconds) / (1e-6 * ON_H100.device.gap)
    assert kernels == pytest.approx(sum(counted.phases.values()), rel=0.05)


def test_counting_leaves_the_decoder_and_its_tokens_alone():
    decoder = build(small_target(), method("eagle-1"))
    count_phases(decoder)
    assert decoder.target.graphs is None
    assert count_phases(decoder) == count_phases(decoder)


def test_recorders_know_the_phase_that_they_record():
    names = []

    def record(work, inputs):
        names.append(work.__name__)
        outputs = work(*inputs)
        return lambda: outputs

    target = replace(small_target(), graphs=Graphs(record))
    operators.generate(build(target, method("cool-sd")), ["a red circle"], max_steps=1)
    assert {"draft", "verify", "commit"} <= set(names)
