"""Lumina-mGPT 2.0's decoder: logits, states and cache, its sequential images with their guidance,
and the rows of its Jacobi passes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from golden_checks.chameleon_lm import by_layer, caches
from golden_checks.common import Found, Vectors, close, loaded, read, same, worst
from lanternbench.engine.cache import DecoderCache, causal, raster, run_address
from lanternbench.engine.sampling import Warp
from lanternbench.models.chameleon.checkpoint import Chameleon, ChameleonConfig, described_decoder
from lanternbench.models.key_names import from_published
from lanternbench.models.transformer import guide
from lanternbench.settings import Sampling

GUIDED = 4e-4  # guidance multiplies the rounding of two logits
FRAME = 3  # start, height and width


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "lumina2_lm.safetensors")
    model = decoder(vectors)
    ids = vectors["input_ids"]
    hidden = by_layer(model, ids)
    stepwise, cache = incremental(model, ids, vectors.meta["chunks"])
    states = [close("", h, vectors[f"hidden_states.{i}"]) for i, h in enumerate(hidden)]
    found = [
        worst("hidden states", states),
        close("logits", model.output(hidden[-1]), vectors["logits"]),
        close("logits with the cache", stepwise, vectors["incremental_logits"]),
        *caches(cache, vectors.tensors),
    ]
    for name, run in vectors.meta["sequential"].items():
        found += sequential(model, vectors, name, run)
    return [*found, *passes(model, vectors)]


def decoder(vectors: Vectors) -> Chameleon:
    """The network with the recorded weights, whose table holds all ids."""
    config = vectors.meta["config"] | {"model_type": "chameleon"}
    cfg = ChameleonConfig(**described_decoder(config, "Lumina-mGPT 2.0"))
    return loaded(Chameleon(cfg), from_published(vectors.under("sd."), ("model.",), cfg))


def logits(model: Chameleon, ids: Tensor) -> Tensor:
    """[n] ids -> [n, V], by one forward without a cache."""
    return model.output(by_layer(model, ids[None])[-1])[0]


def incremental(model: Chameleon, ids: Tensor, chunks: list[int]) -> tuple[Tensor, DecoderCache]:
    """Logits [B, L, V] with a cache, in pieces of recorded lengths, and the cache."""
    x = model.tok_embeddings(ids)
    rows, length, _ = x.shape
    layout = raster(length, 0, 0, 0, length, x.device)
    cache = DecoderCache(model, model.config.decoder, layout, rows, model.rope, x)
    out = []
    base = 0
    for n in chunks:
        out.append(cache.forward(x[:, base : base + n], run_address(base, n, causal(n, x.device))))
        base += n
    return model.output(torch.cat(out, 1)), cache


def sequential(model: Chameleon, vectors: Vectors, name: str, run: dict) -> list[Found]:
    """A whole image: every row's logits, their guidance, what may be drawn, and the draws."""
    want = vectors.under(f"seq.{name}.")
    prompt = run["prompt_len"]
    tokens = want["tokens"]
    names = vectors.meta["vocabulary"]
    first, last = names["image"]
    cond = logits(model, tokens)[prompt - 1 : -1]
    uncond = logits(model, tokens[prompt:-1])[FRAME - 1 :]
    guided = [
        guide(torch.stack([c, u]), float(g))
        for c, u, g in zip(cond[FRAME:], uncond, want["guidance_used"][FRAME:], strict=True)
    ]
    after = torch.stack(guided).flatten(1)
    drawn = tokens[prompt + FRAME :]
    is_code = (drawn >= first) & (drawn <= last)
    warp = Warp(Sampling(top_k=run["image_top_k"], temperature=run["temperature"]))
    probs = warp(after[is_code][:, first : last + 1])
    end = torch.tensor([names["row_end"], names["end"]])
    # inverse CDF: the smallest k whose cumulated probability exceeds u
    cumulated = probs.double().cumsum(-1)
    u = want["uniforms"][FRAME:][is_code][:, None] * cumulated[:, -1:]
    return [
        close(f"{name}: conditional logits", cond, want["cond_logits"]),
        close(f"{name}: unconditional logits", uncond, want["uncond_logits"]),
        close(f"{name}: after guidance", after, want["after_guidance"][FRAME:], GUIDED),
        close(
            f"{name}: law of the codes",
            probs,
            want["probs"][FRAME:][is_code][:, first : last + 1],
        ),
        same(f"{name}: codes", (cumulated <= u).sum(-1) + first, drawn[is_code]),
        same(f"{name}: other ids", (~torch.isin(drawn[~is_code], end)).sum(), 0),
    ]


def passes(model: Chameleon, vectors: Vectors) -> list[Found]:
    """The forwards of a Jacobi decode: its unconditional row begins at the prompt's last id."""
    found = []
    prompt = len(vectors.meta["prompt_ids"])
    for t in vectors.meta["passes"]["picked"]:
        want = vectors.under(f"pass.{t}.")
        ids = want["input_ids"][0]
        whole = ids if t == 0 else torch.cat([want["committed"], ids[1:]])
        count = 1 if t == 0 else len(ids)
        rows = [logits(model, whole)[-count:], logits(model, whole[prompt - 1 :])[-count:]]
        found.append(close("", torch.stack(rows), want["logits"][:, -count:]))
    return [worst("Jacobi passes, both rows", found)]
