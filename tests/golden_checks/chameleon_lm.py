"""Chameleon's decoder: both norm placements, q/k norms per head or per shard, the cache, a padded
guided batch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden_checks.common import Found, Vectors, cached, close, loaded, read, worst
from lanternbench.engine.cache import DecoderCache, additive, causal, raster, run_address
from lanternbench.models.chameleon.checkpoint import Chameleon, ChameleonConfig, ChameleonFamily
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.entries import entry
from lanternbench.models.key_names import from_published
from lanternbench.models.token_decoder import TokenDecoder
from lanternbench.models.transformer import guide, mask_of_heads


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "chameleon_lm.safetensors")
    return [
        f._replace(group=f"{kind}: {f.group}")
        for kind in ("noswin", "swin")
        for f in one(vectors, kind)
    ]


def check_shards(folder: Path) -> list[Found]:
    """Lumina-mGPT's older layout: a row of q/k norm for several heads."""
    vectors = read(folder / "chameleon_lm_mp.safetensors")
    b = vectors.meta["build_config"]
    cfg = ChameleonConfig(
        b["hidden"], b["layers"], b["heads"], b["inter"], b["vocab"], b["kv"], swin_norm=b["swin"]
    )
    model = loaded(Chameleon(cfg), from_published(vectors.under("sd."), ("model.",), cfg.decoder))
    ids = vectors["input_ids"]
    everything = torch.ones(len(ids), 1, dtype=torch.bool)
    hidden = model.teacher_forced(
        model.tok_embeddings(ids[:, :1]), everything, torch.roll(ids, -1, 1)
    )
    return [
        close("last hidden", hidden, vectors["last_hidden"]),
        close("logits", model.output(hidden), vectors["logits"]),
    ]


def one(vectors: Vectors, kind: str) -> list[Found]:
    config: dict[str, Any] = vectors.meta[f"config_{kind}"]
    cfg = (
        ChameleonFamily()
        .at(entry("anole-7b"), None, "cpu")
        .described({"model_type": "chameleon", **config})
    )
    model = loaded(
        Chameleon(cfg), from_published(vectors.under(f"{kind}.sd."), ("model.",), cfg.decoder)
    )
    want, ids = vectors.under(f"{kind}."), vectors["input_ids"]
    hidden = by_layer(model, ids)
    logits = model.output(hidden[-1])
    images = [i for name, i in config["vocabulary_map"].items() if name.startswith("IMGIMG")]
    masked = logits.index_fill(-1, torch.tensor(images), torch.finfo(logits.dtype).min)
    prefill = vectors.meta["prefill_len"]
    pieces = [prefill, 1, 1, 3, ids.shape[1] - prefill - 5]
    stepwise, stack = incremental(model, ids, pieces)
    return [
        worst(
            "hidden states",
            [close("", h, want[f"hidden_states.{i}"]) for i, h in enumerate(hidden)],
        ),
        close("logits", logits, want["logits"]),
        close("logits as transformers returns them", masked, want["hf_logits"]),
        close("logits with the cache", stepwise, want["incremental_logits"]),
        *caches(stack, want),
        *guided(model, vectors, want),
    ]


def by_layer(model: TokenDecoder, ids: Tensor) -> list[Tensor]:
    """Embeddings, every layer's output, the last one after the final norm: [B, L, dim] each."""
    n = ids.shape[1]
    x = model.tok_embeddings(ids)
    states = [x]
    mask = mask_of_heads(causal(n, x.device), model.group)
    for layer in model.layers:
        x = layer(x, model.rope[None, :n, None], mask)
        states.append(x)
    return [*states[:-1], model.norm(x)]


def incremental(
    model: TokenDecoder, ids: Tensor, pieces: list[int]
) -> tuple[Tensor, DecoderCache]:
    """Logits [B, L, V] with a cache, in pieces of recorded lengths, and the cache."""
    x = model.tok_embeddings(ids)
    rows, length, _ = x.shape
    cache = DecoderCache(
        model, model.config.decoder, raster(length, 0, 0, 0, length, x.device), rows, model.rope, x
    )
    out, base = [], 0
    for n in pieces:
        out.append(cache.forward(x[:, base : base + n], run_address(base, n, causal(n, x.device))))
        base += n
    return model.output(torch.cat(out, 1)), cache


def caches(cache: DecoderCache, want: dict[str, Tensor]) -> list[Found]:
    """The cached keys and values of every layer that the file holds."""
    held = [int(m[1]) for name in want if (m := re.fullmatch(r"kv_cache_layer(\d+)_key", name))]
    assert held
    found = []
    for layer in held:
        key, value = cached(cache, layer)
        found += [
            close(f"cached keys, layer {layer}", halves(key), want[f"kv_cache_layer{layer}_key"]),
            close(f"cached values, layer {layer}", value, want[f"kv_cache_layer{layer}_value"]),
        ]
    return found


def halves(keys: Tensor) -> Tensor:
    """Keys in interleaved pairs [..., d] -> in rotate-half order."""
    return keys.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def guided(model: Chameleon, vectors: Vectors, want: dict[str, Tensor]) -> list[Found]:
    """Row 0 conditional, row 1 unconditional and left-padded; its positions start at its pads
    here.
    """
    ids, valid = vectors["cfg_batch.input_ids"], vectors["cfg_batch.attention_mask"]
    n = ids.shape[1]
    x = model.tok_embeddings(ids)
    hidden = model(x, model.rope[None, :n, None], additive(prefix_mask(valid, n)))
    prefix = int((valid == 0).sum()) + 2  # the unconditional row's pads, <s> and the image's start
    forced = model.teacher_forced(
        x[:, :prefix], valid[:, :prefix], torch.roll(ids[:, prefix - 1 :], -1, 1)
    )
    last = guide(model.output(forced[:, -1]), vectors.meta["cfg_scale"])
    return [
        close(
            "guided batch: logits",
            model.output(hidden) * valid[..., None],
            want["cfg_batch.logits"],
        ),
        close("guided batch: last logits, guided", last, want["cfg_batch.last_cfg_logits"]),
    ]
