"""Key names and layouts of published checkpoints -> ours, of decoders and of their EAGLE drafters.

Published layouts rotate halves of a head, as transformers does; here pairs are interleaved, as in LlamaGen and Meta's.
"""

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.loading import State
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
_COMPUTED = ("rotary_emb.inv_freq", "rope.freqs", "freqs_cis")  # rotary frequencies, which are not read
TABLE = "embed_tokens.weight"  # of all ids


def fused(state: State) -> State:
    """Parts of matrices, where there are any, concatenated.  Raises KeyError where one of several is absent."""
    result = dict(state)
    for whole, parts in (*HF.items(), *OFFICIAL.items()):
        for key in [k for k in state if f"{parts[0]}." in k]:
            result[key.replace(parts[0], whole)] = torch.cat([result.pop(key.replace(parts[0], p)) for p in parts])
    return result


def split(state: State, layout: dict[str, tuple[str, ...]]) -> State:
    """The inverse of ``fused``."""
    result = dict(state)
    for whole, parts in layout.items():
        for key in [k for k in state if f"{whole}." in k]:
            value, beside = result.pop(key), f"{key.partition(whole)[0]}attention.wo.weight"
            queries = state[beside].shape[1] if len(parts) == 3 else 0
            shared = (len(value) - queries) // 2  # keys and values may have fewer heads than queries
            pieces = value.split([queries, shared, shared][-len(parts) :])
            result |= {key.replace(whole, part): x.contiguous() for part, x in zip(parts, pieces, strict=True)}
    return result


def from_published(state: State, prefixes: tuple[str, ...] | None = None) -> State:
    """transformers', LANTERN's, official names -> ours; ``prefixes``: a decoder's, longest first; None: a drafter's."""
    result = {}
    for key, value in fused(state).items():
        for theirs, ours in _RENAMED.items():
            key = key.replace(theirs, ours)
        if prefixes is not None:
            key = key.removeprefix(next((p for p in prefixes if key.startswith(p)), "")).replace("lm_head", "output")
        if not key.endswith(_COMPUTED):
            result["tok_embeddings.weight" if key == TABLE else key] = value
    return result


def to_published(state: State) -> State:
    """Ours -> LANTERN's key names, with the table of all ids where there is one."""
    result = {}
    for key, value in split(state, HF).items():
        for theirs, ours in _RENAMED.items():
            key = key.replace(ours, theirs)
        result[key] = value
    table = result.pop("tok_embeddings.weight", None)
    table = result.pop("prompt_embeddings.weight", table)
    return result if table is None else result | {TABLE: table}


def rotary_pairs(state: State, cfg: DecoderConfig, back: bool = False) -> State:
    """Published key names, rotate-half -> the same names with queries, keys and their norms in interleaved pairs.

    Meta's, whose norms are called ``q_normalization``, are in such pairs already.  Of the d dimensions that turn in
    each head, i and i + d/2 become 2i and 2i + 1.  Queries and keys permuted alike have the same products, so a
    checkpoint in either order gives the same attention.  ``back``: the inverse.
    """
    dims, width = torch.arange(cfg.head_dim), cfg.rotary_width or cfg.head_dim
    order = torch.cat([dims[:width].view(2, -1).T.flatten(), dims[width:]])
    order = order.argsort() if back else order
    result = {}
    for key, value in state.items():
        if ".q_norm" in key or ".k_norm" in key:
            rows, heads = value.view(-1, value.shape[-1]), cfg.n_head if ".q_norm" in key else cfg.kv_heads
            if heads % len(rows):
                raise UserError(f"query/key norms have {len(rows)} rows for {heads} heads: use their config.json")
            value = rows.repeat_interleave(heads // len(rows), 0)  # a model-parallel shard's row serves its heads
            value = value if "_normalization." in key else value[:, order]
        elif ".q_proj." in key or ".k_proj." in key:
            value = value.unflatten(0, (-1, cfg.head_dim))[:, order].flatten(0, 1)
        result[key.replace("_normalization.", "_norm.")] = value
    return result


def from_hf(state: State, cfg: DecoderConfig, prefixes: tuple[str, ...] = ("model.",)) -> State:
    """transformers' or Meta's names of a language model -> ours, without image encoders; see ``from_published``."""
    named = {key: value for key, value in state.items() if "vqmodel." not in key and "visual." not in key}
    return from_published(rotary_pairs(named, cfg), prefixes)


def image_tables(state: State, to_id: Tensor) -> State:
    """Our key names with tables over all ids -> the same for a decoder of images, whose tokens are codebook indices.

    ``to_id`` [V]: the id of each codebook index.  Only image tokens may be drawn, so dropping the other rows of
    ``output`` is the same as masking them; prompts keep the whole table as ``cls_embedding``.  Raises UserError for ids
    that the tables do not have.
    """
    if not {"tok_embeddings.weight", "output.weight"} <= state.keys():
        return state  # the loader reports what is missing
    table, head = state["tok_embeddings.weight"], state["output.weight"]
    if int(to_id.max()) >= min(len(table), len(head)):
        raise UserError(f"image tokens up to id {int(to_id.max())} of {len(table)}: use the weights' tokenizer.json")
    tables = {"cls_embedding.weight": table, "tok_embeddings.weight": table[to_id], "output.weight": head[to_id]}
    return state | tables
