"""DFlash: a block's distributions are those of a plain network over the committed context, however
computed.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import slow_but
from fake_cuda_graph import frozen
from safetensors.torch import save_file
from test_anole import CAPTIONS, scrambled
from test_eagle3 import captions_of, deep
from test_train_drafter import DEMO
from torch import Tensor

from lanternbench import prompts
from lanternbench.engine import decode as engine
from lanternbench.engine.state import DecodeState
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import with_drafter
from lanternbench.models.drafters.dflash import DFlash, shape, spread, to_file, untrained
from lanternbench.models.drafters.kinds import Sizes
from lanternbench.models.target import Target
from lanternbench.models.transformer import DecoderConfig, rope_1d
from lanternbench.settings import GREEDY
from lanternbench.training import drafter, losses
from lanternbench.utils.graph_capture import Graphs

KINDS = ["tiny", "classes", "lumina", "janus", "emu3"]  # two of them write row ends
SMALL = ["classes", "lumina", "janus"]
TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]


def blocky(kind: str, causal: bool = False, block: int = 4) -> Target:
    """A target of four layers with a random DFlash drafter of two."""
    made = deep(kind)
    net = (
        scrambled(untrained(made.model, "dflash", Sizes(block, 2, causal)), 1)
        .to(made.dtype)
        .eval()
        .requires_grad_(False)
    )
    net.mask = torch.nn.Parameter(torch.randn_like(net.mask), False)
    return replace(
        made,
        drafters=made.drafters | {"dflash": net},
        options=made.options | {"block": f"chain-{block - 1}"},
    )


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """x [..., n, heads, d] by complex [n, d/2], pair by pair."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angle.real[:, None], angle.imag[:, None]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def plain_block(
    net: DFlash, features: Tensor, seen: Tensor, rope: Tensor, block: Tensor
) -> Tensor:
    """DFlash's network, plainly, for one row: features [n, …] of positions, block [B, dim], rope
    [n + B, d/2].
    """
    config, w = net.config, net.state_dict()
    eps, d, heads, kv = config.norm_eps, config.head_dim, config.n_head, config.kv_heads
    n, x = len(features), block
    context = rms(features @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
    own = torch.ones(len(x), len(x)).tril() if net.causal else torch.ones(len(x), len(x))
    allowed = torch.cat([seen.expand(len(x), -1).to(own), own], 1).bool()
    for i in range(config.n_layer):
        at = f"layers.{i}."
        wq, wk, wv = w[at + "attention.wqkv.weight"].split([heads * d, kv * d, kv * d])
        normed = rms(x, w[at + "attention_norm.weight"], eps)
        both = torch.cat([context, normed])
        q = turned(
            rms((normed @ wq.T).unflatten(-1, (heads, d)), w[at + "attention.q_norm.weight"], eps),
            rope[n:],
        )
        k = turned(
            rms((both @ wk.T).unflatten(-1, (kv, d)), w[at + "attention.k_norm.weight"], eps), rope
        )
        k, v = (
            y.repeat_interleave(heads // kv, 1) for y in (k, (both @ wv.T).unflatten(-1, (kv, d)))
        )
        scores = torch.einsum("qhd,khd->hqk", q, k) / d**0.5
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        x = (
            x
            + torch.einsum("hqk,khd->qhd", weights, v).flatten(1) @ w[at + "attention.wo.weight"].T
        )
        normed = rms(x, w[at + "ffn_norm.weight"], eps)
        gate, up = (normed @ w[at + "feed_forward.w13.weight"].T).chunk(2, -1)
        x = x + (F.silu(gate) * up) @ w[at + "feed_forward.w2.weight"].T
    return rms(x, w["norm.weight"], eps)[1:]


def plain_drafts(
    target: Target, captions: list[str], tokens: Tensor, prompt: int, length: int
) -> Tensor:
    """The distributions [B − 1, V] that the drafter has to give after ``length`` committed tokens:
    no cache.
    """
    net, model = target.drafters["dflash"], target.model
    prefix = target.prefix(captions, target.guidance)
    states = losses.target_states(target, prefix, tokens, net.depths)
    width, p = target.row_width, prefix.valid.shape[1]
    slot = lambda token: p + token + (token // width if width else 0)  # noqa: E731
    # every state that predicted a committed token
    at = [*range(p - 1), *(slot(t) - 1 for t in range(length))]
    here = [slot(length - 1 + i) for i in range(net.block)]
    rope = model.rope[torch.tensor(at + here).clamp(max=len(model.rope) - 1)]
    anchor = model.tok_embeddings(tokens[prompt, length - 1])
    block = torch.cat([anchor[None], net.mask.expand(net.block - 1, -1)])
    rows = []
    for row in (prompt, prompt + len(captions))[: len(prefix.valid) // len(captions)]:
        seen = torch.cat([prefix.seen[row], torch.ones(length, dtype=torch.bool)])
        rows.append(plain_block(net, states[row, at], seen, rope, block))
    return build(target, method("dflash")).warp(model.logits(torch.stack(rows), target.guidance))[
        0
    ]


def of_transformers(net: DFlash) -> Any:
    """DFlash's layers as Qwen3's, of which the published drafters are made, with the weights of
    ``net``.
    """
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import (
        Qwen3DecoderLayer,
        Qwen3RMSNorm,
        Qwen3RotaryEmbedding,
    )

    config, w = net.config, net.state_dict()
    qwen = Qwen3Config(
        hidden_size=config.dim, num_hidden_layers=config.n_layer, num_attention_heads=config.n_head,
        num_key_value_heads=config.kv_heads, head_dim=config.head_dim, intermediate_size=config.hidden,
        rms_norm_eps=config.norm_eps, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    # of pairs, there
    halves = torch.cat([torch.arange(0, config.head_dim, 2), torch.arange(1, config.head_dim, 2)])
    own: dict[str, Tensor] = {}
    for i in range(config.n_layer):
        at = f"layers.{i}."
        shares = [n * config.head_dim for n in (config.n_head, config.kv_heads, config.kv_heads)]
        *turned, v = w[at + "attention.wqkv.weight"].split(shares)
        q, k = (x.view(-1, config.head_dim, config.dim)[:, halves].flatten(0, 1) for x in turned)
        gate, up = w[at + "feed_forward.w13.weight"].chunk(2)
        own |= {
            f"{i}.self_attn.q_proj.weight": q, f"{i}.self_attn.k_proj.weight": k, f"{i}.self_attn.v_proj.weight": v,
            f"{i}.self_attn.o_proj.weight": w[at + "attention.wo.weight"],
            f"{i}.self_attn.q_norm.weight": w[at + "attention.q_norm.weight"][halves],
            f"{i}.self_attn.k_norm.weight": w[at + "attention.k_norm.weight"][halves],
            f"{i}.mlp.gate_proj.weight": gate, f"{i}.mlp.up_proj.weight": up,
            f"{i}.mlp.down_proj.weight": w[at + "feed_forward.w2.weight"],
            f"{i}.input_layernorm.weight": w[at + "attention_norm.weight"],
            f"{i}.post_attention_layernorm.weight": w[at + "ffn_norm.weight"],
        }  # fmt: skip
    layers = torch.nn.ModuleList(Qwen3DecoderLayer(qwen, i) for i in range(config.n_layer))
    layers.load_state_dict(own)
    norms = []
    for key in ("hidden_norm.weight", "norm.weight"):
        norms.append(norm := Qwen3RMSNorm(config.dim, config.norm_eps))
        norm.load_state_dict({"weight": w[key]})
    return layers, norms, Qwen3RotaryEmbedding(qwen)


@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize(
    ("block", "layers", "kv_heads", "context"), [(16, 5, 4, 40), (4, 1, 2, 7), (8, 2, 1, 0)]
)
@torch.no_grad()
def test_the_network_is_dflash_s_put_together_of_transformers_own_parts(
    causal, block, layers, kv_heads, context
):
    """Qwen3's norms, projections, rotation, attention and MLP; what is ours is only who attends to
    whom.
    """
    from transformers.models.qwen3.modeling_qwen3 import (
        apply_rotary_pos_emb,
        eager_attention_forward,
    )

    torch.manual_seed(0)
    net = DFlash(
        shape(DecoderConfig(64, layers, 4, 96, 50, kv_heads, 1e-6), layers), block, (1, 3), causal
    ).eval()
    for name, p in net.named_parameters():
        p.copy_(0.15 * torch.randn_like(p) + ("norm" in name))
    features, anchor = torch.randn(2, context, 3 * 64), torch.randn(2, 64)
    x = torch.cat([net.read(features), net.blocks(anchor)], 1)
    place = 5 + torch.arange(context + block)  # absolute positions, which need not begin at 0
    mask = torch.ones(block, context + block, dtype=torch.bool)
    if causal:
        mask[:, context:] = torch.ones(block, block).tril().bool()
    found = net(x, rope_1d(100, 16)[place][None, :, None], mask[None, None])

    parts, (hidden_norm, norm), rotary = of_transformers(net)
    fused = hidden_norm(features @ net.fc.weight.T)
    y = torch.cat([anchor[:, None], net.mask.expand(2, block - 1, -1)], 1)
    cos, sin = rotary(y, place[None])
    hidden = torch.zeros(block, context + block).masked_fill(~mask, -torch.inf)[None, None]
    for layer in parts:
        attention, normed = layer.self_attn, layer.input_layernorm(y)
        both = torch.cat([fused, normed], 1)
        heads = lambda z: z.unflatten(-1, (-1, 16))  # noqa: E731
        q = attention.q_norm(heads(attention.q_proj(normed))).transpose(1, 2)
        k = attention.k_norm(heads(attention.k_proj(both))).transpose(1, 2)
        v = heads(attention.v_proj(both)).transpose(1, 2)
        q, _ = apply_rotary_pos_emb(q, q, cos[:, context:], sin[:, context:])
        k, _ = apply_rotary_pos_emb(k, k, cos, sin)
        seen, _ = eager_attention_forward(attention, q, k, v, hidden, attention.scaling)
        y = y + attention.o_proj(seen.flatten(2))
        y = y + layer.mlp(layer.post_attention_layernorm(y))
    assert (found - norm(y)).abs().max() <= 1e-5
    assert (found[:, 1] - found[:, 2]).abs().max() > 1e-2  # slots differ


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("kind", slow_but(SMALL, KINDS))
def test_what_it_drafts_from_is_a_plain_network_over_the_committed_context(kind, causal, batch):
    target, captions = blocky(kind, causal), captions_of(kind)[:batch]
    # so that some drafts are taken
    decoder = build(target, method("dflash"), simulate_acceptance=2.0)
    seen: list[tuple[list[int], list[int], Tensor]] = []
    honest = decoder.proposer.draft

    def draft(state: DecodeState, own: Any, u: Tensor) -> Any:
        made = honest(state, own, u)
        seen.append((list(state.origin), list(state.now.length.host or ()), made.p))
        return made

    # a frozen dataclass: what it drafts with stays, what it drafts is seen
    object.__setattr__(decoder.proposer, "draft", draft)
    with torch.inference_mode():
        tokens = torch.stack([g.tokens for g in engine.generate(decoder, captions, max_steps=7)])
        assert len({tuple(lengths) for _, lengths, _ in seen}) == 7
        apart = 0.0
        for origin, lengths, p in seen:
            for row, (prompt, length) in enumerate(zip(origin, lengths, strict=True)):
                want = plain_drafts(target, captions, tokens, prompt, length)
                assert (p[row] - want).abs().max() < 1e-5
                apart = max(apart, float((want[0] - want[1]).abs().max()))
    assert apart > 1e-3  # slots differ


@pytest.mark.parametrize("paths", slow_but([None], [None, TREE]), ids=["chain", "tree"])
@pytest.mark.parametrize("kind", slow_but(["lumina"], ["tiny", "lumina"]))
def test_recorded_batched_and_single_decodes_have_the_same_tokens(kind, paths):
    target, captions = blocky(kind), captions_of(kind)
    one = method("dflash") if paths is None else method("dflash", tree="static", shape=paths)
    plain, graphs = (build(t, one) for t in (target, replace(target, graphs=Graphs(frozen))))
    batch, recorded = (engine.generate(d, captions, max_steps=4) for d in (plain, graphs))
    alone = [engine.generate(plain, [c], max_steps=4)[0] for c in captions]
    for a, b, c in zip(batch, recorded, alone, strict=True):
        n = 1 + sum(a.accept_lengths)
        assert a.accept_lengths == b.accept_lengths == c.accept_lengths
        assert torch.equal(a.tokens[:n], b.tokens[:n])
        assert torch.equal(a.tokens[:n], c.tokens[:n])


@pytest.mark.parametrize(
    "options",
    [{}, {"tree": "static", "shape": TREE}, {"tree": "dynamic"}, {"variant": "reference"}],
    ids=str,
)
def test_at_temperature_0_it_keeps_the_target_s_tokens_and_may_lose_rows_of_the_batch(options):
    target = blocky("lumina")
    captions = [*CAPTIONS, "a third"]
    ar, fast = (
        engine.generate(build(target, m, GREEDY), captions)
        for m in (method("ar"), method("dflash", **options))
    )
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(ar, fast, strict=True))


def test_training_reads_and_drafts_what_decoding_does():
    for kind in ("lumina", "tiny"):
        target, captions = blocky(kind), captions_of(kind)
        net, length = target.drafters["dflash"], target.length
        tokens = torch.randint(
            target.vocab, (2, length), generator=torch.Generator().manual_seed(0)
        )
        with torch.no_grad():
            net.float(), target.model.float()
            prefix = target.prefix(captions, target.guidance)
            fed, last = losses.block_read(target, net, prefix, tokens)
            at = torch.tensor([0, 3, 4, 9, length - 5])
            found = build(target, method("ar")).warp(
                target.model.logits(losses.block_drafts(net, fed, at), target.guidance)
            )
            for i, anchor in enumerate(at.tolist()):
                want = plain_drafts(target, captions, tokens, 1, anchor + 1)
                assert (found[1, i] - want).abs().max() < 1e-4
            states = losses.read(target, target.drafters["eagle-3"].float(), prefix, tokens)[1]
            assert (last - states).abs().max() < 1e-4


def test_blocks_past_the_image_and_other_blocks_teach_nothing():
    target = blocky("tiny")
    net, length = target.drafters["dflash"].float(), target.length
    target.model.float()
    tokens = torch.randint(target.vocab, (1, length), generator=torch.Generator().manual_seed(0))
    logits = lambda x: target.model.logits(x, 3.0)  # noqa: E731
    with torch.no_grad():
        fed, _ = losses.block_read(target, net, target.prefix(["x"], 3.0), tokens)
        several, alone = (
            losses.block_drafts(net, fed, torch.tensor(at)) for at in ([5, 80, length - 2], [80])
        )
        assert (several[:, 1] - alone[:, 0]).abs().max() < 1e-5
        q = torch.rand(1, length - 1, target.vocab).softmax(-1)
        found = losses.block_losses(
            net, fed, SimpleNamespace(choice=lambda *a, **k: np.array([length - 2])), logits, q
        )  # a block of whose three drafts one is inside
        p = logits(losses.block_drafts(net, fed, torch.tensor([length - 2])))[0, 0, 0].softmax(-1)
    inside = torch.minimum(p, q[0, -1]).sum()
    cross = -(q[0, -1] * p.log()).sum()
    assert found["accept-1"].isclose(inside)
    assert found["loss"].isclose(cross + losses.VARIATION * (1 - inside))


def test_a_file_says_what_it_is_and_is_checked(tmp_path, monkeypatch):
    target = blocky("lumina", causal=True)
    net = target.drafters["dflash"]
    state = to_file(net, target.model)
    save_file(state, tmp_path / "a.safetensors")
    loaded, kind = with_drafter(replace(target, drafters={}), str(tmp_path))
    again = loaded.drafters["dflash"]
    assert (kind, again.block, again.depths, again.causal) == (
        "dflash",
        net.block,
        net.depths,
        True,
    )
    assert "JetSpec" in again.about
    bad = {
        "block": (state | {"block_size": torch.tensor(1)}, "blocks of 1"),
        "lost": (
            {k: v for k, v in state.items() if k != "mask"},
            "1 of 20 weights is absent, such as 'mask'",
        ),
        "sizes": ({k: v for k, v in state.items() if k != "causal"}, "holds no DFlash drafter"),
        "width": (state | {"fc.weight": torch.zeros(8, 8)}, "another size"),
    }
    for name, (wrong, message) in bad.items():
        save_file(wrong, tmp_path / f"{name}.bin.safetensors")
        with pytest.raises(UserError, match=message):
            with_drafter(target, str(tmp_path / f"{name}.bin.safetensors"))
    with pytest.raises(UserError, match="may be 4 levels deep but the drafter's blocks hold 3"):
        build(loaded, method("dflash", depth=4))
    with pytest.raises(UserError, match="has no drafter of kind 'dflash'"):
        build(replace(target, drafters={}), method("dflash"))
    with pytest.raises(UserError, match="chooses its tokens"):
        method("dflash", acceptance="block", variant="reference")


def test_layers_that_it_reads_follow_the_paper_s_formula():
    assert spread(36) == (2, 10, 18, 26, 34)
    assert [spread(n) for n in (1, 2, 4, 5)] == [(), (1,), (1, 2, 3), (2, 3)]


@pytest.mark.parametrize("kind", slow_but(SMALL, KINDS))
def test_every_family_trains_one_and_loads_what_was_saved(kind, tmp_path, monkeypatch):
    made = replace(blocky(kind), drafters={})
    made.model.float()
    chosen = replace(DEMO, prompts=tuple(prompts.Prompt(c, c) for c in captions_of(kind)))
    sizes = Sizes(block=3, layers=2, causal=kind == "janus")
    plan = drafter.Plan("any", chosen, 2, 1, 3e-3, 0, recipe="dflash", sizes=sizes)
    monkeypatch.setattr(drafter, "load_unpacked", lambda *a, **k: made)
    drafter.train(plan, "cpu", tmp_path / "work", tmp_path / "out", log=lambda line: None)
    drafted, name = with_drafter(made, str(tmp_path / "out"))
    net = drafted.drafters["dflash"]
    assert (name, net.block, len(net.layers), net.causal) == ("dflash", 3, 2, kind == "janus")
    torch.manual_seed(0)
    fresh = untrained(made.model, "dflash", Sizes(3, 2)).state_dict()
    for key in ("mask", "fc.weight", "layers.1.attention.q_norm.weight", "norm.weight"):
        assert not torch.equal(torch.load(tmp_path / "work/dflash.pt")["model"][key], fresh[key])
    engine.generate(build(drafted, method("dflash", depth=2)), captions_of(kind), max_steps=3)
    with pytest.raises(UserError, match=r"other settings \(start, sizes\)"):
        drafter.train(replace(plan, sizes=Sizes(4, 2)), "cpu", tmp_path / "work", tmp_path / "o")
    with pytest.raises(
        UserError, match="holds a drafter of kind dflash, of which eagle-1 makes none"
    ):
        drafter.train(
            replace(plan, start=tmp_path / "out", recipe="eagle-1"),
            "cpu",
            tmp_path / "w",
            tmp_path / "o2",
        )
