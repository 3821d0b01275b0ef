"""What reaches torch's attention is what its fused kernels on a GPU take; the numbers are those of
the plain formula.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from test_anole import CAPTIONS, small
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lanternbench.engine import decode as engine
from lanternbench.engine.cache import Address, DecoderCache, additive, raster, shared_address
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.drafters.dflash import DFlash, shape
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.transformer import Attention, DecoderConfig, Stack, aligned, rope_1d
from lanternbench.settings import Sampling

GROUPED = DecoderConfig(64, 2, 8, 96, 50, n_kv_head=2)
ODD_WIDTH = DecoderConfig(60, 2, 3, 96, 50)  # heads are 20 wide, as 100 in LlamaGen-3B
EARLIER = 9  # slots that are written before
TREE = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]).bool()


class Call(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    is_causal: bool
    enable_gqa: bool


@pytest.fixture
def calls(monkeypatch) -> list[Call]:
    """What has been handed to torch's attention."""
    seen: list[Call] = []
    attention = F.scaled_dot_product_attention

    def noted(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
        seen.append(Call(q, k, v, attn_mask, is_causal, enable_gqa))
        return attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    return seen


def assert_fused(call: Call) -> None:
    """The conditions of ``sdp_utils.cpp`` for the kernels that take a mask, in bfloat16."""
    assert not call.enable_gqa
    assert call.q.shape[1] == call.k.shape[1] == call.v.shape[1]
    for x in (call.q, call.k, call.v):
        assert x.shape[-1] % 8 == 0
        assert x.stride(-1) == 1
    assert not (call.mask is not None and call.is_causal)


def written(config: DecoderConfig, net, rows: int = 2) -> DecoderCache:
    """A cache whose first slots hold something."""
    layout = raster(32, 0, EARLIER, 0, 44, torch.device("cpu"))
    rope = rope_1d(45, config.head_dim)
    cache = DecoderCache(net, config, layout, rows, rope, torch.zeros(1))
    cache.forward(inputs(config, EARLIER), shared_address(0, 0, EARLIER, slice(0, EARLIER), None))
    return cache


def inputs(config: DecoderConfig, n: int) -> Tensor:
    return torch.randn(2, n, config.dim, generator=torch.Generator().manual_seed(n))


def tree_address() -> Address:
    n = len(TREE)
    depth = TREE.sum(-1) - 1
    return shared_address(EARLIER, 0, n, depth[None] + EARLIER, additive(TREE)[None])


def with_all_heads(net: Stack, config: DecoderConfig) -> Stack:
    """The same decoder with the keys and values of a group repeated for each of its heads."""
    full = replace(config, n_kv_head=config.n_head)
    state = dict(net.state_dict())
    for name, value in net.state_dict().items():
        if name.endswith("wqkv.weight"):
            sizes = (config.n_head, config.kv_heads, config.kv_heads)
            parts = value.unflatten(0, (-1, config.head_dim)).split(sizes)
            repeated = [x.repeat_interleave(config.n_head // x.shape[0], 0) for x in parts]
            state[name] = torch.cat(repeated).flatten(0, 1)
    same = Stack(full)
    same.load_state_dict(state)
    return same


@torch.inference_mode()
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_grouped_heads_reach_the_kernel_as_queries_of_one_key(calls, n, last):
    net = Stack(GROUPED)
    at = tree_address() if n > 1 else shared_address(EARLIER, 0, 1, slice(9, 10), None)
    same = with_all_heads(net, GROUPED)
    full = replace(GROUPED, n_kv_head=GROUPED.n_head)
    want = written(full, same).forward(inputs(GROUPED, n), at, last)
    cache = written(GROUPED, net)
    calls.clear()
    states = cache.forward(inputs(GROUPED, n), at, last)
    torch.testing.assert_close(states, want, atol=1e-6, rtol=1e-5)
    for call in calls:
        assert_fused(call)
        assert call.k.untyped_storage().data_ptr() == cache.store.untyped_storage().data_ptr()
    if n > 1:  # made once for all layers
        assert calls[0].mask is not None
        assert len({x.mask.untyped_storage().data_ptr() for x in calls}) == 1


@torch.inference_mode()
@pytest.mark.parametrize("padded", [False, True])
def test_whole_sequences_of_grouped_heads_need_no_groups_of_the_kernel(calls, padded):
    net = Stack(GROUPED)
    n = 12
    valid = torch.ones(2, 4, dtype=torch.bool)
    valid[1, :2] = not padded
    mask = prefix_mask(valid, n) if padded else "causal"
    rope = rope_1d(n, GROUPED.head_dim)[None, :, None]
    x = inputs(GROUPED, n)
    want = with_all_heads(net, GROUPED)(x, rope, prefix_mask(valid, n))
    calls.clear()
    torch.testing.assert_close(net(x, rope, mask), want, atol=1e-6, rtol=1e-5)
    for call in calls:
        assert_fused(call)
        assert call.is_causal != padded


@torch.inference_mode()
def test_drafters_of_grouped_heads_need_no_groups_of_the_kernel(calls):
    eagle = Eagle(GROUPED, layers=2)
    written(eagle.config, eagle).forward(inputs(GROUPED, 4), tree_address())
    net = DFlash(shape(GROUPED, 2), 4, (1,))
    rope = rope_1d(12, GROUPED.head_dim)[None, :, None]
    mask = torch.zeros(1, 1, 12, 12)
    net(inputs(GROUPED, 12), rope, mask)
    assert len(calls) == 6
    for call in calls:
        assert_fused(call)


def plain_attention(net: Attention, x: Tensor, rope: Tensor, mask: Tensor) -> Tensor:
    """The formula, in float64."""
    q, k, v = (
        net.wqkv(x).double().unflatten(-1, (3, net.n_head, net.head_dim)).transpose(1, 3).unbind(2)
    )
    q, k = (
        torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous()) * rope)
        for y in (q, k)
    )
    scores = q.flatten(-2) @ k.flatten(-2).transpose(-1, -2) / net.head_dim**0.5 + mask
    y = scores.softmax(-1) @ v
    return net.wo(y.transpose(1, 2).flatten(2).float())


@torch.inference_mode()
def test_heads_of_any_width_are_filled_up_to_what_the_kernel_takes(calls):
    net = Stack(ODD_WIDTH)
    cache = written(ODD_WIDTH, net)
    assert cache.store.shape[-1] == 24
    calls.clear()
    cache.forward(inputs(ODD_WIDTH, 4), tree_address())
    for call in calls:
        assert_fused(call)
        assert call.k.untyped_storage().data_ptr() == cache.store.untyped_storage().data_ptr()
    attention = net.layers[0].attention
    rope = rope_1d(6, 20)
    x = inputs(ODD_WIDTH, 6)
    mask = additive(torch.ones(6, 6).tril().bool())
    want = plain_attention(attention, x, rope, mask)
    found = attention(x, rope[None, :, None], mask[None, None], None)
    torch.testing.assert_close(found, want, atol=1e-6, rtol=1e-5)


def test_rows_of_a_mask_are_aligned_once_for_all_layers(calls):
    for span in (13, 16):
        mask = torch.randn(2, 1, 3, span)
        made = aligned(mask)
        assert torch.equal(made, mask)
        assert all(stride % 8 == 0 for stride in made.stride()[:-1])
        assert (made is mask) == (span == 16)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        net = Stack(GROUPED)
        x = torch.empty(1, 3, GROUPED.dim)
        rope = torch.empty(1, 3, 1, 4, dtype=torch.complex64)
        net(x, rope, torch.empty(1, 1, 3, 13), lambda layer, kv: kv.new_empty(1, 4, 13, 8))
    masks = [call.mask for call in calls]
    assert masks[0] is masks[1]
    assert masks[0].shape == (1, 1, 3 * net.group, 13)
    assert all(stride % 8 == 0 for stride in masks[0].stride()[:-1])


def test_a_lone_token_attends_without_a_mask_where_nothing_is_hidden(calls):
    target = small("anole")
    decoder = build(target, method("ar"), Sampling(guidance=1.0))
    engine.generate(decoder, [CAPTIONS[0]] * 2, keys=["a", "b"], max_steps=3)
    steps = [call for call in calls if call.q.shape[2] == 1]
    assert len(steps) == 3 * len(target.model.layers)
    for call in steps:
        assert call.mask is None
        assert not call.is_causal
