"""Files of EAGLE drafters: LANTERN's published layout, and the shape of a drafter that its tensors tell.

Its class keeps an embedding table of its own, which need not be the target's: LANTERN fills it from the target's
``lm_head`` where the target is a single file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lanternbench.errors import UserError
from lanternbench.models.loading import State, explain_errors, read_config, read_state
from lanternbench.models.transformer import DecoderConfig


class Shape(NamedTuple):
    """What a drafter's file says of its shape."""

    config: DecoderConfig
    bias: bool  # does ``fc`` have one?
    layers: int
    ids: int  # rows of its own embedding table, 0 where it has none
    fused: bool  # is it an EAGLE-3 drafter?
    norm_eps: float | None = None  # where a config.json beside it says so


def shape_in(state: State, config: DecoderConfig) -> Shape:
    """A drafter's tensors in LANTERN's layout -> its shape, where they do not say that of ``config``."""
    table, first = state.get("embed_tokens.weight"), "layers.0.self_attn."
    found: dict[str, Any] = {
        "qkv_bias": first + "q_proj.bias" in state,
        "out_bias": first + "o_proj.bias" in state,
        "sandwich_norm": "layers.0.post_mlp_layernorm.weight" in state,
    }
    if (down := state.get("layers.0.mlp.down_proj.weight")) is not None:
        found["hidden"] = down.shape[1]
    if (keys := state.get(first + "k_proj.weight")) is not None:
        found["n_kv_head"] = len(keys) // config.head_dim
    layers = 1 + max((int(m[1]) for key in state if (m := re.match(r"layers\.(\d+)\.", key))), default=0)
    ids, fused = 0 if table is None else len(table), "fusion.weight" in state
    return Shape(replace(config, **found), "fc.bias" in state, layers, ids, fused)


def shape_of(path: Path, config: DecoderConfig) -> Shape:
    """As ``shape_in``, of the drafter at ``path`` and, for what weights do not show, of the config.json beside it.

    Raises UserError where there is none, or one with other heads than ``config``.
    """
    state = read_state(path)
    if "fc.weight" not in state:
        raise UserError(f"{path} holds no EAGLE drafter: it has no 'fc.weight'; give one in LANTERN's layout")
    beside = (path if path.is_dir() else path.parent) / "config.json"
    said = read_config(beside) if beside.is_file() else {}
    heads = said.get("num_attention_heads", config.n_head)
    if heads != config.n_head:
        raise UserError(
            f"{beside} says that the drafter has {heads} attention heads but the target has {config.n_head}: give one "
            "made for this target"
        )
    with explain_errors(path, "is no EAGLE drafter of this target"):
        return shape_in(state, config)._replace(norm_eps=said.get("rms_norm_eps"))


_TABLE = ("embed_tokens.weight", "tok_embeddings.weight")
_FUSED = (
    ("attention.wqkv", "self_attn", ("q_proj", "k_proj", "v_proj")),
    ("feed_forward.w13", "mlp", ("gate_proj", "up_proj")),
)
_RENAMED = {
    "self_attn.o_proj": "attention.wo",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_self_attn_layernorm": "attention_out_norm",  # GLM's, with ``sandwich_norm``
    "post_mlp_layernorm": "ffn_out_norm",
}


def from_published(state: State) -> State:
    """LANTERN's key names -> ours; q, k, v and gate, up are fused.  Rotary frequencies are computed, not read."""
    rest = {k: v for k, v in state.items() if not k.endswith("rotary_emb.inv_freq")}
    found = {}
    for ours, block, parts in _FUSED:
        for key in [k for k in rest if f"{block}.{parts[0]}." in k]:
            whole = [rest.pop(key.replace(parts[0], part)) for part in parts]
            found[key.replace(f"{block}.{parts[0]}", ours)] = torch.cat(whole)
    for key, value in rest.items():
        for old, new in _RENAMED.items():
            key = key.replace(old, new)
        found[_TABLE[1] if key == _TABLE[0] else key] = value
    return found


def to_published(state: State) -> State:
    """Ours -> LANTERN's key names, with the table of all ids where there is one."""
    found = {}
    for key, value in state.items():
        if "attention.wqkv" in key:
            own = state[key.replace(".bias", ".weight")].shape[1]  # of queries
            shared = (len(value) - own) // 2  # of keys, and of values, which heads may have in common
            parts, sizes = _FUSED[0][2], [own, shared, shared]
            for name, part in zip(parts, value.split(sizes), strict=True):
                found[key.replace("attention.wqkv", f"self_attn.{name}")] = part.contiguous()
        elif "feed_forward.w13" in key:
            for name, part in zip(_FUSED[1][2], value.chunk(2), strict=True):
                found[key.replace("feed_forward.w13", f"mlp.{name}")] = part.contiguous()
        else:
            for old, new in _RENAMED.items():
                key = key.replace(new, old)
            found[key] = value
    table = found.pop(_TABLE[1], None)
    table = found.pop("prompt_embeddings.weight", table)
    return found if table is None else found | {_TABLE[0]: table}
