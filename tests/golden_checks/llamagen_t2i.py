"""LlamaGen's text-to-image decoder: prefill, teacher forcing, guidance, and greedy decoding by the
engine.
"""

from __future__ import annotations

from pathlib import Path

import torch

from golden_checks.common import (
    Found,
    captioned,
    close,
    greedy,
    logits_in_float64,
    official_model,
    read,
    same,
)
from lanternbench.engine.cache import additive
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.llamagen.checkpoint import left_pad
from lanternbench.models.transformer import guide


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "llamagen_t2i.safetensors")
    model, scale = official_model(vectors), vectors.meta["cfg_scale"]
    target = captioned(model, vectors["in.caption_embs"], vectors["in.emb_mask"])
    features, mask = left_pad(vectors["in.caption_embs"], vectors["in.emb_mask"])
    prefix = target.prefix([""], scale)
    n = prefix.valid.shape[1]
    hidden = model(
        prefix.embeddings, model.rope[None, :n, None], additive(prefix_mask(prefix.valid, n))
    )
    rows = vectors["in.tokens"].repeat(2, 1)
    logits = model.output(model.teacher_forced(prefix.embeddings, prefix.valid, rows))
    exact_logits = logits_in_float64(official_model(vectors), prefix, rows)
    want_mask = vectors["out.attn_mask"]
    found = [
        close("left padding: features", features, vectors["out.left_caption"]),
        same("left padding: mask", mask, vectors["out.left_mask"]),
        same("attention mask", prefix_mask(prefix.valid, want_mask.shape[-1])[:, 0], want_mask),
        close("prefill: hidden", hidden, vectors["out.prefill_hidden"]),
        close(
            "prefill: last logits", model.output(hidden[:, -1]), vectors["out.prefill_logits_last"]
        ),
        close("teacher-forced logits", logits, vectors["out.tf_logits"]),
        close(
            "teacher-forced logits, guided, from float64",
            guide(exact_logits, scale),
            vectors["out.tf_logits_cfg"],
        ),
        same("greedy tokens", greedy(target, scale)[0].tokens[None], vectors["out.greedy_tokens"]),
        same(
            "greedy tokens, no guidance",
            greedy(target, 1.0)[0].tokens[None],
            vectors["out.greedy_tokens_nocfg"],
        ),
    ]
    two = captioned(model, vectors["in.b2_caption_embs"], vectors["in.b2_emb_mask"])
    tokens = torch.stack([g.tokens for g in greedy(two, scale, images=2)])
    prefix = two.prefix(["", ""], scale)
    forced = vectors["out.b2_greedy_tokens"][:, :4].repeat(2, 1)
    logits = model.output(model.teacher_forced(prefix.embeddings, prefix.valid, forced))
    return [
        *found,
        same("batch of 2: greedy tokens", tokens, vectors["out.b2_greedy_tokens"]),
        close("batch of 2: teacher-forced logits", logits, vectors["out.b2_tf_logits4"]),
    ]
