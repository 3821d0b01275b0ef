"""Published key names and layouts of weights <-> ours, of decoders and of their EAGLE drafters.

Published layouts rotate halves of a head, as transformers does; here pairs are interleaved, as in
LlamaGen and Meta's.
"""

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.state_files import State
from lanternbench.models.transformer import DecoderConfig

# our fused matrices -> their parts, in transformers' names and in the official ones of LlamaGen
# and Chameleon
HF = {
    "attention.wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "feed_forward.w13": ("mlp.gate_proj", "mlp.up_proj"),
}
OFFICIAL = {
    "attention.wqkv": ("attention.wq", "attention.wk", "attention.wv"),
    "feed_forward.w13": ("feed_forward.w1", "feed_forward.w3"),
}
TABLE = "embed_tokens.weight"  # of all ids
_RENAMED = {
    TABLE: "tok_embeddings.weight",
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
# rotary frequencies, which are not read
_COMPUTED = ("rotary_emb.inv_freq", "rope.freqs", "freqs_cis")
_ENCODERS = ("vqmodel.", "visual.")  # of images, which a decoder's checkpoint may hold


class AbsentPartError(Exception):
    """A checkpoint lacks a tensor, named by the message, of several that are one matrix here."""


def fused(state: State) -> State:
    """Return a state with the parts of matrices concatenated.

    Raises AbsentPartError if only some parts of a matrix are there.
    """
    result = dict(state)
    for whole, parts in (*HF.items(), *OFFICIAL.items()):
        for key in state:
            part = next((part for part in parts if f"{part}." in key), None)
            if part is None or key not in result:
                continue
            names = [key.replace(part, other) for other in parts]
            for name in names:
                if name not in result:
                    raise AbsentPartError(name)
            pieces = [result.pop(name) for name in names]
            result[key.replace(part, whole)] = torch.cat(pieces)
    return result


def split(state: State, layout: dict[str, tuple[str, ...]]) -> State:
    """Return the inverse of ``fused``, with the names of one layout."""
    result = dict(state)
    for whole, parts in layout.items():
        for key in state:
            if f"{whole}." not in key:
                continue
            value = result.pop(key)
            output = state[f"{key.partition(whole)[0]}attention.wo.weight"]
            # keys and values may have fewer heads than queries
            queries = output.shape[1] if len(parts) == 3 else 0
            shared = (len(value) - queries) // 2
            sizes = [queries, shared, shared][-len(parts) :]
            for part, piece in zip(parts, value.split(sizes), strict=True):
                result[key.replace(whole, part)] = piece.contiguous()
    return result


def from_published(
    state: State, prefixes: tuple[str, ...] | None = None, halves: DecoderConfig | None = None
) -> State:
    """Return a state in transformers', LANTERN's or official names under ours.

    ``prefixes``: a decoder's, longest first; None: a drafter's.  ``halves``: the shape of a
    decoder whose heads are rotated in halves, see ``rotary_pairs``.  Image encoders are left out.
    """
    if prefixes is not None:
        for part in _ENCODERS:
            state = {key: value for key, value in state.items() if part not in key}
    if halves is not None:
        state = rotary_pairs(state, halves)
    result = {}
    for key, value in fused(state).items():
        if key.endswith(_COMPUTED):
            continue
        for theirs, ours in _RENAMED.items():
            key = key.replace(theirs, ours)
        if prefixes is not None:
            key = key.removeprefix(next(filter(key.startswith, prefixes), ""))
            key = key.replace("horizontal_head", "lm_head")  # FlashAR's name
            key = key.replace("lm_head", "output")
        result[key] = value
    return result


def to_published(state: State) -> State:
    """Return a state under LANTERN's names, with the table of all ids if there is one."""
    result = {}
    for key, value in split(state, HF).items():
        for theirs, ours in _RENAMED.items():
            key = key.replace(ours, theirs)
        result[key] = value
    if "prompt_embeddings.weight" in result:
        result[TABLE] = result.pop("prompt_embeddings.weight")
    return result


def rotary_pairs(state: State, cfg: DecoderConfig, back: bool = False) -> State:
    """Return a state in published names, whose heads are rotated in halves, with queries, keys and
    their norms in interleaved pairs.

    Meta's, whose norms are called ``q_normalization``, are in such pairs already.  Of the d
    dimensions that turn in each head, i and i + d/2 become 2i and 2i + 1.  Queries and keys
    permuted alike have the same products, so a checkpoint in either order gives the same
    attention.  ``back``: the inverse.
    """
    dims = torch.arange(cfg.head_dim)
    width = cfg.rotary_width or cfg.head_dim
    order = torch.cat([dims[:width].view(2, -1).T.flatten(), dims[width:]])
    if back:
        order = order.argsort()
    result = {}
    for key, value in state.items():
        if ".q_norm" in key or ".k_norm" in key:
            value = _norm_rows(key, value, cfg)
            if "_normalization." not in key:
                value = value[:, order]
        elif ".q_proj." in key or ".k_proj." in key:
            value = value.unflatten(0, (-1, cfg.head_dim))[:, order].flatten(0, 1)
        result[key.replace("_normalization.", "_norm.")] = value
    return result


def _norm_rows(key: str, value: Tensor, cfg: DecoderConfig) -> Tensor:
    """Return a norm of queries or keys with a row for each head; a model-parallel shard has one
    for all its heads.
    """
    rows = value.view(-1, value.shape[-1])
    heads = cfg.n_head if ".q_norm" in key else cfg.kv_heads
    if heads % len(rows):
        raise UserError(
            f"query/key norms have {len(rows)} rows for {heads} heads: use their config.json"
        )
    return rows.repeat_interleave(heads // len(rows), 0)


def image_tables(state: State, to_id: Tensor) -> State:
    """Return a state with tables over all ids for a decoder of images, whose tokens are codebook
    indices.

    ``to_id`` [V]: the id of each codebook index.  Only image tokens may be drawn, so dropping the
    other rows of ``output`` is the same as masking them; prompts keep the whole table as
    ``cls_embedding``.  Raises UserError for ids that the tables do not have.
    """
    if not {"tok_embeddings.weight", "output.weight"} <= state.keys():
        return state  # the loader reports what is missing
    table = state["tok_embeddings.weight"]
    head = state["output.weight"]
    last = int(to_id.max())
    if last >= min(len(table), len(head)):
        raise UserError(
            f"image tokens up to id {last} of {len(table)}: use the weights' tokenizer.json"
        )
    return state | {
        "cls_embedding.weight": table,
        "tok_embeddings.weight": table[to_id],
        "output.weight": head[to_id],
    }
