"""Packed weights change the speed on a CPU and nothing else."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from families import SMALL_VQ, random_llamagen
from torch import nn

from lanternbench.engine import decode as engine
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models import packing
from lanternbench.models.packing import (
    HalfLinear,
    PackedLinear,
    QuickNorm,
    TransposedLinear,
    available,
    pack,
)
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.models.transformer import DecoderConfig, FeedForward, RMSNorm
from lanternbench.profile import step_profile as profile
from lanternbench.settings import GREEDY

pytestmark = pytest.mark.skipif(
    not available(), reason="this build of torch has no packed linear layers"
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [PackedLinear, TransposedLinear])
@torch.inference_mode()
def test_a_packed_layer_gives_what_the_plain_one_gives(kind, bias, dtype):
    if kind is PackedLinear and not available(dtype):
        pytest.skip(f"this machine has no packed layers of {dtype}")
    torch.manual_seed(0)
    plain = nn.Linear(512, 768, bias=bias).to(dtype)
    packed = kind(plain)
    for rows in (1, 2, 12, 120):
        x = torch.randn(2, rows, 512, dtype=dtype)
        wanted = plain(x).float()
        assert torch.allclose(
            packed(x).float(), wanted, atol=2e-2 if dtype is torch.bfloat16 else 1e-5
        )
        assert not torch.allclose(packed(x + 1).float(), wanted, atol=2e-2)


@pytest.mark.skipif(
    not available(kind=HalfLinear), reason="this machine has no products of float32 and float16"
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
@torch.inference_mode()
def test_float16_weights_change_nothing_where_they_are_exact_and_are_not_used_elsewhere(
    threads, bias
):
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    plain = nn.Linear(128, 704, bias=bias)
    assert not HalfLinear.holds(plain)
    plain.weight.copy_(plain.weight.half())
    assert HalfLinear.holds(plain)
    assert not HalfLinear.holds(nn.Linear(128, 704).bfloat16())
    made = HalfLinear(plain)
    exact = nn.Linear(128, 704, bias=bias).double()
    exact.load_state_dict(plain.state_dict())
    for rows in (1, 2, 10, 200):
        x = torch.randn(rows, 128)
        assert torch.allclose(made(x).double(), exact(x.double()), atol=1e-5)
        assert torch.equal(deepcopy(made)(x), made(x))
    assert (made.for_many is None) == (threads == 1)  # one thread never needs the second layout
    net = nn.Sequential(plain, nn.Linear(704, 128))
    pack(net)
    assert type(net[0]) is HalfLinear
    assert type(net[1]) is TransposedLinear


@torch.inference_mode()
def test_a_norm_of_fewer_kernels_is_the_norm():
    torch.manual_seed(0)
    norm = RMSNorm(128, 1e-5)
    norm.weight.copy_(torch.rand(128))
    quick = QuickNorm(norm)
    for scale in (1e-4, 1.0, 1e4):  # where ε counts as well
        x = scale * torch.randn(2, 5, 128)
        assert torch.allclose(quick(x), norm(x), rtol=1e-5, atol=1e-7)
    assert quick(torch.zeros(1, 128)).abs().sum() == 0
    net = nn.Sequential(norm)
    pack(net)
    assert type(net[0]) is QuickNorm


def test_where_a_machine_has_no_packed_layers_of_a_type_they_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(packing, "available", lambda dtype: dtype is torch.float32)
    for dtype, kind in ((torch.float32, PackedLinear), (torch.bfloat16, nn.Linear)):
        net = nn.Sequential(nn.Linear(512, 1024, dtype=dtype))
        pack(net)
        assert type(net[0]) is kind
        assert net(torch.zeros(1, 512, dtype=dtype)).shape == (1, 1024)


def test_the_embedded_models_weights_are_exact_in_float16():
    target = tiny.load()
    nets = (target.model, *target.drafters.values())
    assert all(torch.equal(p.half().float(), p) for net in nets for p in net.parameters())


def test_each_layer_gets_the_layout_of_its_size_and_none_stays_twice():
    net = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 512))
    size = sum(p.numel() for p in net.parameters())
    pack(net)
    assert type(net[0]) is TransposedLinear
    assert isinstance(net[2], PackedLinear)
    assert sum(p.numel() for p in net.parameters()) == size


def test_a_packed_target_decodes_the_same_tokens_and_counts_the_same_bytes():
    shape = dict(
        dim=512,
        n_layer=2,
        n_head=8,
        grid=4,
        vocab_size=512,
        caption_dim=64,
        cls_token_num=8,
        vq=SMALL_VQ,
    )
    plain = random_llamagen(shape, 3.0, 0)
    made = [plain, replace(plain, model=deepcopy(plain.model), drafters=deepcopy(plain.drafters))]
    pack(made[1].model)
    pack(made[1].drafters["eagle"])
    assert any(isinstance(m, PackedLinear) for m in made[1].model.modules())
    assert profile.read_bytes(made[0].model) == profile.read_bytes(made[1].model)
    for name in ("ar", "eagle-1"):
        tokens = [
            engine.generate(build(t, method(name), GREEDY), ["a cat"])[0].tokens for t in made
        ]
        assert torch.equal(*tokens)


def test_the_parts_of_a_decoder_are_those_last_set_and_their_hooks_are_called():
    net = FeedForward(DecoderConfig(8, 1, 1, 16, 4))
    x, seen = torch.ones(1, 1, 8), []
    copied = deepcopy(net)
    assert copied.w2 is copied.get_submodule("w2") is not net.w2
    net.w2 = nn.Linear(16, 8)
    nn.init.zeros_(net.w2.weight)
    assert torch.equal(net(x)[0, 0], net.w2.bias)
    assert not torch.equal(copied(x), net(x))
    handle = net.register_forward_hook(lambda module, inputs, output: seen.append(output))
    made = net(x)
    handle.remove()
    net(x)
    assert [id(y) for y in seen] == [id(made)]
