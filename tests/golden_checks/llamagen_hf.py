"""The same weights in LANTERN's Hugging Face layout: key names, and the hidden states of padded
caption positions.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from golden_checks.common import (
    Found,
    captioned,
    close,
    greedy,
    loaded,
    logits_in_float64,
    read,
    same,
)
from lanternbench.engine.cache import additive
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.key_names import from_published
from lanternbench.models.llamagen.checkpoint import LlamaGen, LlamaGenConfig
from lanternbench.models.transformer import guide


def config_from_hf(config: dict[str, Any]) -> LlamaGenConfig:
    """A Hugging Face ``config.json`` of LANTERN's class -> ours."""
    return LlamaGenConfig(
        dim=config["hidden_size"],
        n_layer=config["num_hidden_layers"],
        n_head=config["num_attention_heads"],
        vocab_size=config["vocab_size"],
        grid=math.isqrt(config["block_size"]),
        model_type=config["input_type"],
        caption_dim=config["caption_dim"],
        cls_token_num=config["cls_token_num"],
        num_classes=config["num_classes"],
        multiple_of=config["intermediate_size"],  # rounding up to the width itself gives the width
    )


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "llamagen_hf.safetensors")
    scale = vectors.meta["cfg_scale"]
    model = loaded(
        LlamaGen(config_from_hf(vectors.meta["config"])),
        from_published(vectors.under("state."), ("model.",)),
    )
    target = captioned(
        model, vectors["in.caption_embs"], vectors["in.emb_mask"], pad_rows="uniform"
    )
    prefix = target.prefix([""], scale)
    n = prefix.valid.shape[1]
    hidden = model(
        prefix.embeddings,
        model.rope[None, :n, None],
        additive(prefix_mask(prefix.valid, n, "uniform")),
    )
    rows = vectors["in.tokens"].repeat(2, 1)
    logits = model.output(model.teacher_forced(prefix.embeddings, prefix.valid, rows))
    tokens = greedy(target, scale)[0].tokens[None]
    exact_logits = logits_in_float64(model, prefix, rows)
    return [
        close("prefill: hidden, padded positions too", hidden, vectors["out.prefill_hidden"]),
        close("teacher-forced logits", logits, vectors["out.tf_logits"]),
        close(
            "teacher-forced logits, guided, from float64",
            guide(exact_logits, scale),
            vectors["out.tf_logits_cfg"],
        ),
        same("greedy tokens", tokens, vectors["out.greedy_tokens"]),
    ]
