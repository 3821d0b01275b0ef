"""Decoders whose prompts are token ids: prompt and image are one sequence with 1-D rotary positions.

Chameleon, Janus and Emu3 are of this kind.  Published layouts rotate halves of a head, as transformers does; here pairs
are interleaved.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.drafters.eagle_files import from_published, to_published
from lanternbench.models.grids import Grid, grid_of
from lanternbench.models.loading import State
from lanternbench.models.transformer import DecoderConfig, rope_1d


@dataclass(frozen=True)
class TokenDecoderConfig(DecoderConfig):
    """Shape of the decoder.

    ``positions``: rows of the rotary table.  Prompt and image must fit; it costs nothing else.
    ``grid``: rows and columns of image tokens; a number for a square.
    ``prompt_ids``: 0 where one table holds all ids; otherwise prompts have a table of this size, and ``vocab_size``
    counts the image tokens alone (``image_tables``).
    ``first_image_id``: the prompt id of image token 0 where ids follow the order of the codebook, to go by when no
    tokeniser is available.
    """

    dim: int = 4096
    n_layer: int = 32
    n_head: int = 32
    hidden: int = 11008
    vocab_size: int = 65536
    positions: int = 8192
    rope_base: float = 10000.0
    grid: Grid = (32, 32)
    prompt_ids: int = 0
    first_image_id: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grid", grid_of(self.grid))


class TokenDecoder(ImageDecoder):
    """``output`` gives the logits of image tokens alone: no other token may be drawn inside an image."""

    fits = (*ImageDecoder.fits, ("prompt_ids", "prompt ids"))
    image_ids: Tensor  # [vocab_size] the prompt id of each image token
    cls_embedding: nn.Embedding  # ids of prompts [R, P] -> [R, P, dim]; only where ``prompt_ids`` is not 0

    def __init__(self, config: TokenDecoderConfig, image_ids: Tensor | None = None):
        """``image_ids`` [V]: by default in the order of the codebook from ``first_image_id`` on."""
        super().__init__(config)
        if config.prompt_ids:
            self.cls_embedding = nn.Embedding(config.prompt_ids, config.dim)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        rope = rope_1d(config.positions, config.head_dim, config.rope_base, config.rotary_width)
        self.register_buffer("rope", rope, persistent=False)
        if image_ids is None:
            image_ids = torch.arange(config.vocab_size) + (config.first_image_id if config.prompt_ids else 0)
        self.register_buffer("image_ids", image_ids, persistent=False)

    @property
    def prompt_embeddings(self) -> nn.Module:
        return self.cls_embedding if self.config.prompt_ids else self.tok_embeddings

    @property
    def eagle_tables(self) -> tuple[int, int]:
        return self.config.vocab_size, self.config.prompt_ids

    def eagle_weights(self, state: State, config: DecoderConfig, table: bool) -> State:
        """``table``: over all ids, of which image tokens are some."""
        return drafter_from_published(state, config, self.image_ids.cpu() if table else None)

    def eagle_state(self, net: Eagle) -> State:
        return rotary_pairs(to_published(net.state_dict()), net.config, back=True)


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
            value = per_head(value, cfg.n_head if ".q_norm" in key else cfg.kv_heads)
            value = value if "_normalization." in key else value[:, order]
        elif ".q_proj." in key or ".k_proj." in key:
            value = value.unflatten(0, (-1, cfg.head_dim))[:, order].flatten(0, 1)
        result[key.replace("_normalization.", "_norm.")] = value
    return result


def per_head(norm: Tensor, heads: int) -> Tensor:
    """q/k norm [heads | model-parallel shards, d] or [d] -> [heads, d]: a shard's row serves its consecutive heads.

    Raises UserError if the heads do not divide among the rows.
    """
    rows = norm.view(-1, norm.shape[-1])
    if heads % len(rows):
        raise UserError(
            f"the checkpoint's query/key norms have {len(rows)} rows for {heads} heads; its config.json belongs to "
            "another model: use the one published with the weights"
        )
    return rows.repeat_interleave(heads // len(rows), 0)


def drafter_from_published(state: State, cfg: DecoderConfig, to_id: Tensor | None = None) -> State:
    """LANTERN's EAGLE drafter for Anole -> ours.

    ``to_id`` [V]: the id of each image token, the rows of its table for drafted tokens; None: all ids are tokens.
    Raises UserError for ids that its table does not have.
    """
    result = from_published(rotary_pairs(state, cfg))
    embeddings = result.get("tok_embeddings.weight")
    if embeddings is None or to_id is None:
        return result
    if int(to_id.max()) >= len(embeddings):
        raise UserError(
            f"the drafter's 'embed_tokens.weight' has {len(embeddings)} ids but the target image tokens up to id "
            f"{int(to_id.max())}: give a drafter made for this target"
        )
    return result | {"tok_embeddings.weight": embeddings[to_id], "prompt_embeddings.weight": embeddings}


def from_hf(state: State, cfg: DecoderConfig, prefixes: tuple[str, ...] = ("model.",)) -> State:
    """transformers' or Meta's key names of a language model -> ours, without those that encode or tokenise images.

    ``prefixes``: see ``from_published``.
    """
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
        raise UserError(
            f"the tokeniser has image tokens up to id {int(to_id.max())} but the checkpoint {len(table)} ids in all: "
            "use the tokenizer.json published with the weights"
        )
    tables = {"cls_embedding.weight": table, "tok_embeddings.weight": table[to_id], "output.weight": head[to_id]}
    return state | tables


def check_type(config: Mapping[str, Any], name: str, *types: str) -> None:
    """Raises UserError unless ``model_type`` of a config.json is one of ``types``; ``name``: of the model."""
    if config.get("model_type") not in types:
        raise UserError(
            f"config.json describes a model of type '{config.get('model_type')}', not {name}: name the target it "
            "belongs to"
        )


def llama_fields(
    text: Mapping[str, Any], kind: type[TokenDecoderConfig], allowed: tuple[str, ...] = ()
) -> dict[str, Any]:
    """As ``llama_sizes``; raises UserError also for a variant that no published model of this kind uses.

    ``allowed``: those that make no difference to it.
    """
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    odd = {name: name for name in ("attention_bias", "mlp_bias", "tie_word_embeddings") if text.get(name)}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        odd["rope_scaling"] = "rope_scaling"
    if text.get("hidden_act", "silu") != "silu":
        odd["hidden_act"] = f"hidden_act {text['hidden_act']}"
    if refused := [variant for name, variant in odd.items() if name not in allowed]:
        name = kind.__name__.removesuffix("Config")
        raise UserError(
            f"config.json asks for {refused[0]}, which no published {name} uses: use the original checkpoint"
        )
    return llama_sizes(text, kind)


def llama_sizes(text: Mapping[str, Any], kind: type[TokenDecoderConfig]) -> dict[str, Any]:
    """A Llama-like part of a config.json, in transformers' names -> fields of ``kind``, whose defaults fill gaps.

    Raises UserError for a size that is absent.
    """
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    try:
        return {
            "dim": text["hidden_size"],
            "n_layer": text["num_hidden_layers"],
            "n_head": text["num_attention_heads"],
            "hidden": text["intermediate_size"],
            "n_kv_head": text.get("num_key_value_heads") or 0,
            "head_width": text.get("head_dim") or 0,
            "vocab_size": text["vocab_size"],
            "positions": max(text.get("max_position_embeddings", 0), kind.positions),
            "rope_base": rope.get("rope_theta") or text.get("rope_theta") or kind.rope_base,
            "norm_eps": text.get("rms_norm_eps", kind.norm_eps),
        }
    except KeyError as missing:
        raise UserError(f"config.json has no {missing}; use the one published with the weights") from None
