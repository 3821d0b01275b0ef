"""Whole greedy decodes by the engine, every token and step: AR, EAGLE-1, EAGLE-2, LANTERN,
LANTERN++.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden_checks.common import Found, Vectors, captioned, close, greedy, loaded, read, same
from golden_checks.drafting import eagle
from golden_checks.llamagen_hf import config_from_hf
from lanternbench.engine.cache import additive
from lanternbench.engine.decode import Generation
from lanternbench.methods.acceptance.lantern import nearest
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.key_names import from_published
from lanternbench.models.llamagen.checkpoint import LlamaGen
from lanternbench.models.target import Target


def check(folder: Path, only: Collection[str] | None = None) -> list[Found]:
    """``only``: names of runs (None: all of them)."""
    vectors = read(folder / "decode_greedy.safetensors")
    target, scale = recorded_target(vectors), vectors.meta["cfg_scale"]
    prefix, model = target.prefix([""], scale), target.model
    n = prefix.valid.shape[1]
    hidden = model(
        prefix.embeddings,
        model.rope[None, :n, None],
        additive(prefix_mask(prefix.valid, n, "uniform")),
    )
    code = vectors["in.codebook"].double()
    distance = torch.cdist(code, code, compute_mode="donot_use_mm_for_euclid_dist")
    ar = vectors["out.ar_tokens"]
    ours, theirs = nearest(target.codebook, len(code))[:, 1:], vectors["in.nearest_latents"].long()
    found = [
        close("prefill: hidden", hidden, vectors["out.prefill_hidden"]),
        close("neighbours: distances", distance.gather(1, ours), distance.gather(1, theirs)),
        same("ar: tokens", greedy(target, scale)[0].tokens[None, : ar.shape[-1]], ar),
    ]
    for run in (r for r in vectors.meta["runs"] if only is None or r["name"] in only):
        name, options = method_of(run, vectors.meta["trees"])
        made = greedy(target, scale, name=name, **options)[0]
        found += compare(run["name"], made, vectors.under(f"out.{run['name']}."))
    return found


def recorded_target(vectors: Vectors) -> Target:
    model = loaded(
        LlamaGen(config_from_hf(vectors.meta["target_config"])),
        from_published(vectors.under("target."), ("model.",)),
    )
    return captioned(
        model,
        vectors["in.caption_embs"],
        vectors["in.emb_mask"],
        vectors["in.codebook"],
        drafters={"eagle": eagle(vectors.under("drafter."), vectors.meta["drafter_config"])},
        pad_rows="uniform",
        eagle_pads="uniform",
    )


def method_of(
    run: dict[str, Any], trees: dict[str, list[list[int]]]
) -> tuple[str, dict[str, Any]]:
    """The reference's arguments -> a preset and its options.  Its δ above 1 is LANTERN++'s λ."""
    options: dict[str, Any] = {"variant": "reference"}
    if run["static_tree"]:
        options |= {"tree": "static", "shape": trees[run["tree"]]}
    else:  # its depth counts the levels after the first
        options |= {"tree": "dynamic", "draft_top_k": run["top_k"]}
        options |= {"depth": run["depth"] + 1, "total_nodes": run["total_token"]}
    if not run["lantern"]:
        return ("eagle-1" if run["static_tree"] else "eagle-2"), options
    delta = run["lantern_delta"]
    if delta > 1:
        return "lantern++", options | {"k": run["lantern_k"], "lam": delta}
    return "lantern", options | {"k": run["lantern_k"], "delta": delta}


def compare(name: str, made: Generation, want: dict[str, Tensor]) -> list[Found]:
    """The recorded tokens, and the steps that made them: the last one as far as it goes.

    Ours stops with the image's last token; the reference goes on until it has emitted more than it
    keeps.
    """
    length = want["tokens"].shape[-1]
    steps, recorded = (
        _within(length - 1, n)
        for n in (made.accept_lengths, (want["accept_lengths"] + 1).tolist())
    )
    return [
        same(f"{name}: tokens", made.tokens[None, :length], want["tokens"]),
        same(f"{name}: tokens of each step", steps, recorded),
    ]


def _within(left: int, emitted: list[int]) -> list[int]:
    """Tokens per step as far as ``left`` tokens go; the first token is the prefill's."""
    cut = []
    for n in emitted:
        if left > 0:
            cut.append(min(n, left))
            left -= n
    return cut
