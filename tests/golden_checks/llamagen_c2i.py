"""LlamaGen's class-conditional decoder: a label is a prefix of one position, the null class is the
last label.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden_checks.common import Found, close, greedy, official_model, read, same
from lanternbench.models.target import Target
from lanternbench.models.transformer import guide


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "llamagen_c2i.safetensors")
    model, scale = official_model(vectors), vectors.meta["cfg_scale"]
    nothing: Any = None
    labels = vectors["in.labels"][:, None]
    target = Target("golden", model, nothing, lambda captions: (labels, torch.ones_like(labels)))
    prefix = target.prefix([""] * len(labels), scale)

    def forced(tokens: Tensor) -> Tensor:
        return model.output(
            model.teacher_forced(prefix.embeddings, prefix.valid, tokens.repeat(2, 1))
        )

    logits = forced(vectors["in.tokens"])
    images = len(labels)
    tokens = torch.stack([g.tokens for g in greedy(target, scale, images)])
    # the engine guides every position; the official option that stops guiding is checked on the
    # logits alone
    late = vectors["out.greedy_tokens_cfg_interval"]
    raw = forced(late)
    # decode step i gives token i + 1
    guided = torch.arange(late.shape[1]) <= vectors.meta["cfg_interval"] + 1
    best = torch.where(guided[:, None], guide(raw, scale), raw[:images]).argmax(-1)
    return [
        close("teacher-forced logits", logits, vectors["out.tf_logits"]),
        close("teacher-forced logits, guided", guide(logits, scale), vectors["out.tf_logits_cfg"]),
        same("greedy tokens, batch of 2", tokens, vectors["out.greedy_tokens"]),
        same("greedy tokens, cfg_interval (argmax of forced logits)", best, late),
    ]
