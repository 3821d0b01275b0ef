"""EAGLE drafters as published: their own embedding table, any number of layers, shared heads,
biases; all of a file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from golden_checks import decode_greedy
from golden_checks.common import read
from safetensors.torch import save_file
from test_anole import CAPTIONS, IMAGES, scrambled, small
from test_drafters import random_llamagen
from torch import Tensor

from lanternbench.engine import decode as engine
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.methods.proposals.drafting import EagleDrafter
from lanternbench.models.catalogue import with_drafter
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.drafters.eagle import Eagle, to_file
from lanternbench.models.family import drafter_at
from lanternbench.models.key_names import from_published, to_published
from lanternbench.models.llamagen import checkpoint as published_llamagen
from lanternbench.models.target import Target
from lanternbench.models.transformer import guide
from lanternbench.settings import GREEDY, Sampling

State = dict[str, Tensor]
DEPTH = 3


def published(
    dim: int, heads: int, kv: int, hidden: int, layers: int, words: int, bias: bool, seed: int = 5
) -> State:
    """A drafter for LlamaGen in LANTERN's layout; ``words``: rows of its own table."""
    gen, d = torch.Generator().manual_seed(seed), dim // heads
    shapes = {"fc.weight": (dim, 2 * dim), "fc.bias": (dim,)}
    if words:
        shapes["embed_tokens.weight"] = (words, dim)
    for i in range(layers):
        at = f"layers.{i}."
        for name, rows in (("q", heads * d), ("k", kv * d), ("v", kv * d), ("o", dim)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, dim)
            if bias:
                shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        for name in ("gate", "up"):
            shapes[f"{at}mlp.{name}_proj.weight"] = (hidden, dim)
        shapes[f"{at}mlp.down_proj.weight"] = (dim, hidden)
        shapes[f"{at}post_attention_layernorm.weight"] = (dim,)
        if i:
            shapes[f"{at}input_layernorm.weight"] = (dim,)
    return {k: torch.randn(s, generator=gen) * 0.3 + ("layernorm" in k) for k, s in shapes.items()}


# ---- the same thing computed plainly: no cache, no package code ----


def plain_features(state: State, x: Tensor, rope: Tensor, head_dim: int) -> Tensor:
    """A drafter of LlamaGen's kind over a whole sequence: x [R, n, 2 · dim], rope complex [n, d/2]
    -> [R, n, dim].
    """
    x = F.linear(x, state["fc.weight"], state.get("fc.bias"))
    rows, n, dim = x.shape

    def norm(x: Tensor, name: str) -> Tensor:
        return (
            x * state[name] / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
            if name in state
            else x
        )

    for i in range(sum(key.endswith("down_proj.weight") for key in state)):
        at, y = f"layers.{i}.", norm(x, f"layers.{i}.input_layernorm.weight")

        def turned(name: str, y: Tensor = y, at: str = at) -> Tensor:
            made = F.linear(
                y, state[f"{at}self_attn.{name}.weight"], state.get(f"{at}self_attn.{name}.bias")
            )
            made = made.view(rows, n, -1, head_dim)
            if name != "v_proj":
                pairs = torch.complex(made[..., 0::2], made[..., 1::2]) * rope[:, None]
                made = torch.stack([pairs.real, pairs.imag], -1).flatten(-2)
            return made.repeat_interleave(dim // head_dim // made.shape[2], 2)

        q, k, v = (turned(f"{name}_proj") for name in "qkv")
        scores = torch.einsum("rqhd,rkhd->rhqk", q, k) / head_dim**0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        y = torch.einsum("rhqk,rkhd->rqhd", scores.softmax(-1), v).flatten(-2)
        x = x + F.linear(
            y, state[f"{at}self_attn.o_proj.weight"], state.get(f"{at}self_attn.o_proj.bias")
        )
        y = norm(x, f"{at}post_attention_layernorm.weight")
        gate, up = (y @ state[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ state[f"{at}mlp.down_proj.weight"].T
    return x


def plain_chain(
    target: Target, state: State, caption: str, tokens: Tensor, lengths: list[int]
) -> list[Tensor]:
    """Guided logits of each step's root and of the chain drafted from it, at T = 0: [D, V] a step.

    ``tokens`` [L] of the image, of which a step knows as many as ``lengths`` says.
    """
    model, prefix, table = (
        target.model,
        target.prefix([caption], target.guidance),
        state["embed_tokens.weight"],
    )
    rows, p = prefix.valid.shape
    x = torch.cat([prefix.embeddings, model.tok_embeddings(tokens).expand(rows, -1, -1)], 1)
    n = x.shape[1]
    hidden = model(x, model.rope[None, :n, None], prefix_mask(prefix.valid, n, target.pad_rows))
    found = []
    for length in lengths:
        # token 0 stands for every prompt's id
        ids = torch.cat([torch.zeros(p - 1, dtype=torch.long), tokens[:length]])
        states, made = hidden[:, : p + length - 1], []
        for _ in range(DEPTH):
            fed = torch.cat([table[ids].expand(rows, -1, -1), states], -1)
            last = plain_features(
                state, fed, model.rope[1 : len(ids) + 1], model.config.decoder.head_dim
            )[:, -1:]
            made.append(guide(model.output(last), target.guidance)[0, 0])
            ids, states = torch.cat([ids, made[-1].argmax()[None]]), torch.cat([states, last], 1)
        found.append(torch.stack(made))
    return found


def drafted(
    target: Target, caption: str, monkeypatch: Any, steps: int
) -> tuple[Any, list[Tensor], list[int]]:
    """A decode at T = 0 with chains: what it made, each step's drafter logits [D, V], tokens known
    before the step.
    """
    logits: list[list[Tensor]] = []
    lengths: list[int] = []
    expander = EagleDrafter.expander

    def recorded(self: EagleDrafter, state: Any, cache: Any) -> Any:
        expand = expander(self, state, cache)
        logits.append([])
        lengths.append(state.now.length.host[0])

        def kept(*level: Any) -> Tensor:
            result = expand(*level)
            logits[-1].append(result[0, 0])
            return result

        return kept

    monkeypatch.setattr(EagleDrafter, "expander", recorded)
    decoder = build(target, method("eagle-1", shape=f"chain-{DEPTH}"), GREEDY)
    made = engine.generate(decoder, [caption], max_steps=steps)[0]
    return made, [torch.stack(x) for x in logits], lengths


def agree(got: list[Tensor], want: list[Tensor], limit: float = 2e-4) -> None:
    assert len(got) == len(want) > 3
    for a, b in zip(got, want, strict=True):
        assert (a - b).abs().max() < limit * b.abs().max()


def with_file(target: Target, state: State, folder: Path) -> Target:
    save_file(state, folder / "drafter.safetensors")
    return with_drafter(replace(target, drafters={}), str(folder / "drafter.safetensors"))[0]


# ---- what is promised ----


def test_a_drafter_drafts_with_its_own_table_step_for_step(shared, tmp_path, monkeypatch):
    vectors = read(shared / "golden" / "decode_greedy.safetensors")
    target = replace(
        decode_greedy.recorded_target(vectors),
        sampling=Sampling(guidance=vectors.meta["cfg_scale"]),
    )
    with monkeypatch.context() as patch:
        own = drafted(target, "", patch, 40)[0]
    state = vectors.under("drafter.") | {"embed_tokens.weight": vectors["target.lm_head.weight"]}
    other = with_file(target, state, tmp_path)
    ar = engine.generate(build(target, method("ar"), GREEDY), [""])[0].tokens
    made, logits, lengths = drafted(other, "", monkeypatch, 40)
    agree(logits, plain_chain(target, state, "", ar, lengths))
    chains = [x.argmax(-1).tolist() for x in logits]
    accepted = [
        next((i for i in range(DEPTH) if chain[i] != int(ar[n + i])), DEPTH) + 1
        for n, chain in zip(lengths, chains, strict=True)
    ]
    assert made.accept_lengths == accepted
    assert torch.equal(made.tokens[: lengths[-1]], ar[: lengths[-1]])
    # with the target's own table it drafts something else
    assert own.accept_lengths != made.accept_lengths


@pytest.mark.parametrize(
    ("layers", "kv", "bias"),
    [(1, 2, False), (2, 2, False), (1, 1, False), (1, 2, True), (3, 1, True)],
)
def test_a_drafter_has_the_layers_heads_and_biases_of_its_file(
    layers, kv, bias, tmp_path, monkeypatch
):
    made = small("anole")
    labels = lambda captions: published_llamagen.class_labels(captions, "cpu")  # noqa: E731
    target = Target(
        "classes", random_llamagen(0, n_layer=2), made.vq, labels, sampling=Sampling(guidance=4.0)
    )
    state = published(32, 2, kv, 48, layers, 64, bias)
    target = with_file(target, state, tmp_path)
    net = target.drafters["eagle"]
    assert (net.config.n_layer, net.config.kv_heads, net.config.qkv_bias) == (layers, kv, bias)
    ar = engine.generate(build(target, method("ar"), GREEDY), ["7"])[0].tokens
    _, logits, lengths = drafted(target, "7", monkeypatch, 12)
    kept = [i for i, n in enumerate(lengths) if n + DEPTH < target.length]
    agree(
        [logits[i] for i in kept], plain_chain(target, state, "7", ar, [lengths[i] for i in kept])
    )


@pytest.mark.parametrize("dialect", ["anole", "lumina"])
def test_a_chameleon_drafter_s_table_is_of_all_ids(dialect, tmp_path, monkeypatch):
    target = small(dialect)
    net, ids = target.drafters["eagle"], target.model.image_ids
    torch.manual_seed(8)
    table = torch.randn(IMAGES.prompt_ids, IMAGES.dim)
    save_file(
        to_file(net, target.model) | {"embed_tokens.weight": table}, tmp_path / "a.safetensors"
    )
    other = with_drafter(replace(target, drafters={}), str(tmp_path))[0]
    made = other.drafters["eagle"]
    prefix = other.prefix(CAPTIONS, other.guidance)
    assert torch.equal(
        made.embed_prompt(prefix.ahead_ids, other.model), table[prefix.features[:, 1:]]
    )
    assert torch.equal(made.embed(torch.arange(len(ids)), other.model), table[ids])
    run = build(other, method("eagle-1", shape="chain-3"), GREEDY)
    plain = engine.generate(build(other, method("ar"), GREEDY), CAPTIONS)
    begin, states = EagleDrafter.begin, []

    def noted(self: EagleDrafter, *given: Any) -> Any:
        states.append((self, begin(self, *given)))
        return states[-1][1]

    monkeypatch.setattr(EagleDrafter, "begin", noted)
    fast = engine.generate(run, CAPTIONS)
    if dialect == "lumina":
        hidden = torch.randn(2, 1, IMAGES.dim)
        drafter, own = states[0]
        read = drafter.row_end(own.row_end, hidden, hidden)
        assert torch.equal(read, made.fuse(table[other.row_end].expand_as(hidden), hidden))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(plain, fast, strict=True))


def test_a_drafter_without_a_table_reads_its_target_s(tmp_path):
    target = small("anole")
    save_file(to_file(target.drafters["eagle"], target.model), tmp_path / "a.safetensors")
    net = with_drafter(replace(target, drafters={}), str(tmp_path))[0].drafters["eagle"]
    assert torch.equal(
        net.embed(torch.arange(4), target.model), target.model.tok_embeddings.weight[:4]
    )
    assert torch.equal(
        net.embed_prompt(torch.arange(9), target.model), target.model.cls_embedding.weight[:9]
    )


def test_a_tensor_that_has_no_place_is_named(tmp_path):
    target = small("anole")
    labels = lambda captions: published_llamagen.class_labels(captions, "cpu")  # noqa: E731
    classes = Target(
        "classes",
        random_llamagen(0, n_layer=2),
        target.vq,
        labels,
        sampling=Sampling(guidance=4.0),
    )
    state = published(32, 2, 2, 48, 1, 64, False)
    for name in (
        "layers.0.mlp.down_proj.bias",
        "lm_head.weight",
        "layers.0.input_layernorm.weight",
    ):
        with pytest.raises(UserError, match="has no place"):
            with_file(classes, state | {name: torch.zeros(32)}, tmp_path)
    with pytest.raises(UserError, match=r"'hidden_norm\.weight' that a Eagle"):
        with_file(classes, state | {"hidden_norm.weight": torch.zeros(32)}, tmp_path)
    lacking = {k: v for k, v in state.items() if "v_proj" not in k}
    with pytest.raises(UserError, match=r"layers\.0\.self_attn\.v_proj\.weight"):
        with_file(classes, lacking, tmp_path)
    with pytest.raises(
        UserError,
        match=r"'tok_embeddings\.weight' in .* is \[60, 32\] but this target needs \[64, 32\]",
    ):
        with_file(classes, state | {"embed_tokens.weight": torch.zeros(60, 32)}, tmp_path)
    short = to_file(target.drafters["eagle"], target.model) | {
        "embed_tokens.weight": torch.zeros(9, 32)
    }
    with pytest.raises(
        UserError, match=r"'embed_tokens\.weight' has 9 ids but the target image tokens up to id"
    ):
        with_file(target, short, tmp_path)
    # older files hold it; it is computed
    rotary = {"layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    assert with_file(classes, state | rotary, tmp_path).drafters["eagle"].config.n_layer == 1


def test_what_is_saved_is_what_was_read(tmp_path):
    state = published(32, 4, 2, 48, 2, 64, True)
    back = to_published(from_published(state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[k], state[k]) for k in state)
    target = small("anole")
    cfg = replace(IMAGES.decoder, n_kv_head=1, qkv_bias=True)
    net = scrambled(Eagle(cfg, False, cfg.norm_eps, 2, IMAGES.vocab_size, IMAGES.prompt_ids), 4)
    net.tok_embeddings.weight.copy_(net.prompt_embeddings.weight[target.model.image_ids])
    save_file(to_file(net, target.model), tmp_path / "a.safetensors")
    again = drafter_at(tmp_path, target.model, "cpu").state_dict()
    assert again.keys() == net.state_dict().keys()
    assert all(torch.equal(v, again[k]) for k, v in net.state_dict().items())


def test_heads_that_weights_do_not_show_are_read_from_the_config_beside_them(tmp_path):
    target = small("anole")
    save_file(to_file(target.drafters["eagle"], target.model), tmp_path / "a.safetensors")
    (tmp_path / "config.json").write_text('{"num_attention_heads": 4, "rms_norm_eps": 1e-4}')
    with pytest.raises(UserError, match="the drafter has 4 attention heads but the target has 2"):
        with_drafter(target, str(tmp_path / "a.safetensors"))
    (tmp_path / "config.json").write_text('{"num_attention_heads": 2, "rms_norm_eps": 1e-4}')
    for spec in (tmp_path, tmp_path / "a.safetensors"):
        assert with_drafter(target, str(spec))[0].drafters["eagle"].config.norm_eps == 1e-4
