"""Files of EAGLE drafters and of decoder layers: published key names and ours, and the shape that tensors tell."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lanternbench.errors import UserError
from lanternbench.models.loading import State, explain_errors, read_config, read_state
from lanternbench.models.transformer import DecoderConfig

# our fused matrices -> their parts: in transformers' names, and in the official ones of LlamaGen and Chameleon
HF = {
    "attention.wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "feed_forward.w13": ("mlp.gate_proj", "mlp.up_proj"),
}
OFFICIAL = {
    "attention.wqkv": ("attention.wq", "attention.wk", "attention.wv"),
    "feed_forward.w13": ("feed_forward.w1", "feed_forward.w3"),
}
_RENAMED = {
    "self_attn.o_proj": "attention.wo",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "mlp.gate_up_proj": "feed_forward.w13",  # GLM's, fused as here
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_self_attn_layernorm": "attention_out_norm",  # GLM's, with ``sandwich_norm``
    "post_mlp_layernorm": "ffn_out_norm",
}
_COMPUTED = ("rotary_emb.inv_freq", "rope.freqs", "freqs_cis")
_TABLE = ("embed_tokens.weight", "tok_embeddings.weight")


def fused(state: State) -> State:
    """Parts of matrices, where there are any, concatenated.  Raises KeyError where one of several is absent."""
    result = dict(state)
    for whole, parts in (*HF.items(), *OFFICIAL.items()):
        for key in [k for k in state if f"{parts[0]}." in k]:
            result[key.replace(parts[0], whole)] = torch.cat([result.pop(key.replace(parts[0], p)) for p in parts])
    return result


def split(state: State, layout: dict[str, tuple[str, ...]]) -> State:
    """The inverse of ``fused``."""
    result = {}
    for key, value in state.items():
        whole = next((name for name in layout if f"{name}." in key), None)
        if whole is None:
            result[key] = value
            continue
        queries = state[f"{key.partition(whole)[0]}attention.wo.weight"].shape[1] if "wqkv" in whole else 0
        shared = (len(value) - queries) // 2  # keys and values may have fewer heads than queries
        sizes = [queries, shared, shared] if queries else [shared, shared]
        for part, piece in zip(layout[whole], value.split(sizes), strict=True):
            result[key.replace(whole, part)] = piece.contiguous()
    return result


def from_published(state: State, prefixes: tuple[str, ...] | None = None) -> State:
    """transformers', LANTERN's and official key names -> ours.  Rotary frequencies are computed, not read.

    ``prefixes``: of a decoder's names, the longest first; None: a drafter's have none.
    """
    result = {}
    for key, value in fused(state).items():
        for theirs, ours in _RENAMED.items():
            key = key.replace(theirs, ours)
        if prefixes is not None:
            key = key.removeprefix(next((p for p in prefixes if key.startswith(p)), "")).replace("lm_head", "output")
        if not key.endswith(_COMPUTED):
            result[_TABLE[1] if key == _TABLE[0] else key] = value
    return result


def to_published(state: State) -> State:
    """Ours -> LANTERN's key names, with the table of all ids where there is one."""
    result = {}
    for key, value in split(state, HF).items():
        for theirs, ours in _RENAMED.items():
            key = key.replace(ours, theirs)
        result[key] = value
    table = result.pop(_TABLE[1], None)
    table = result.pop("prompt_embeddings.weight", table)
    return result if table is None else result | {_TABLE[0]: table}


def arguments_of(path: Path, config: DecoderConfig) -> dict[str, Any]:
    """The arguments of ``Eagle`` for the drafter at ``path``; ``token_ids``: rows of its table over all ids.

    Values in neither its tensors nor its config.json are those of ``config``.  Raises UserError where ``path``
    holds no drafter, or one with other heads than ``config``.
    """
    state = read_state(path)
    if "fc.weight" not in state:
        raise UserError(f"{path} holds no EAGLE drafter: it has no 'fc.weight'; give one in LANTERN's layout")
    beside = (path if path.is_dir() else path.parent) / "config.json"
    published = read_config(beside) if beside.is_file() else {}
    heads = published.get("num_attention_heads", config.n_head)
    if heads != config.n_head:
        raise UserError(
            f"{beside} says that the drafter has {heads} attention heads but the target has {config.n_head}: give one "
            "made for this target"
        )
    attention = "layers.0.self_attn."
    with explain_errors(path, "is no EAGLE drafter of this target"):
        shape: dict[str, Any] = {
            "qkv_bias": f"{attention}q_proj.bias" in state,
            "out_bias": f"{attention}o_proj.bias" in state,
            "sandwich_norm": "layers.0.post_mlp_layernorm.weight" in state,
        }
        if (down := state.get("layers.0.mlp.down_proj.weight")) is not None:
            shape["hidden"] = down.shape[1]
        if (keys := state.get(f"{attention}k_proj.weight")) is not None:
            shape["n_kv_head"] = len(keys) // config.head_dim
        return {
            "config": replace(config, **shape),
            "bias": "fc.bias" in state,
            "norm_eps": published.get("rms_norm_eps") or config.norm_eps,
            "layers": 1 + max((int(m[1]) for key in state if (m := re.match(r"layers\.(\d+)\.", key))), default=0),
            "token_ids": len(state.get(_TABLE[0], ())),
            "fused": "fusion.weight" in state,
        }
