"""Chameleon's decoder (Anole, Lumina-mGPT): prompt and image are one sequence of ids with 1-D rotary positions.

Source: Chameleon Team 2024 (arXiv 2405.09818); layers as in transformers' ``ChameleonForConditionalGeneration``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.chameleon.vocab import published
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.eagle import Eagle, from_published, shape_of, to_published
from lanternbench.models.llamagen import model as llamagen
from lanternbench.models.loading import State, load_layers
from lanternbench.models.rope import rope_1d
from lanternbench.models.transformer import DecoderConfig


@dataclass(frozen=True)
class ChameleonConfig:
    """Shape of the decoder; the defaults are those of the 7B models, except for ``positions``.

    ``positions``: rows of the rotary table.  Prompt and image must fit; it costs nothing else.
    ``grid``: image tokens a side.
    ``prompt_ids``: 0 where one table holds all ids; otherwise prompts have a table of this size, and ``vocab_size``
    counts the image tokens alone (``image_tables``).
    """

    dim: int = 4096
    n_layer: int = 32
    n_head: int = 32
    hidden: int = 11008
    n_kv_head: int = 0
    vocab_size: int = 65536
    positions: int = 8192
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    swin_norm: bool = False
    grid: int = 32
    prompt_ids: int = 0

    @property
    def decoder(self) -> DecoderConfig:
        return DecoderConfig(
            self.dim,
            self.n_layer,
            self.n_head,
            self.hidden,
            self.vocab_size,
            self.n_kv_head,
            self.norm_eps,
            qk_norm=True,
            swin_norm=self.swin_norm,
        )


class Chameleon(ImageDecoder):
    """``output`` gives raw logits: image ids, which transformers masks, are as likely as the model says."""

    fits = (*ImageDecoder.fits, ("prompt_ids", "prompt ids"))
    tok_embeddings: nn.Embedding
    image_ids: Tensor  # [vocab_size] the prompt id of each image token, by which whole tables are told apart
    cls_embedding: nn.Embedding  # ids of prompts [R, P] -> [R, P, dim]; only where ``prompt_ids`` is not 0

    def __init__(self, config: ChameleonConfig, image_ids: Tensor | None = None):
        """``image_ids`` [V]: by default as published."""
        super().__init__(config)
        if config.prompt_ids:
            self.cls_embedding = nn.Embedding(config.prompt_ids, config.dim)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        rope = rope_1d(config.positions, config.decoder.head_dim, config.rope_base)
        self.register_buffer("rope", rope, persistent=False)
        if image_ids is None:
            words = config.vocab_size
            image_ids = published(words).to_id if config.prompt_ids else torch.arange(words)
        self.register_buffer("image_ids", image_ids, persistent=False)

    @property
    def prompt_embeddings(self) -> nn.Embedding:
        return self.cls_embedding if self.config.prompt_ids else self.tok_embeddings

    def new_eagle(self) -> Eagle:
        return Eagle(self.config.decoder, norm_eps=self.config.norm_eps)

    def eagle_drafter(self, path: Path, device: str, dtype: torch.dtype | None = None) -> Eagle:
        """A table of the drafter's own is of all ids."""
        config, bias, layers, ids = shape_of(path, self.config.decoder)
        to_id = self.image_ids.cpu()
        tables = (len(to_id), self.config.prompt_ids) if ids else ()

        def make() -> Eagle:
            return Eagle(config, bias, config.norm_eps, layers, *tables)

        def convert(part: State) -> State:
            return drafter_from_published(part, config, to_id)

        return load_layers(make, path, convert, device, dtype or self.dtype, strict=True)

    def eagle_state(self, net: Eagle) -> State:
        return drafter_to_published(net.state_dict(), net.config)


def interleaved(rows: Tensor, head_dim: int) -> Tensor:
    """Rotate-half order -> interleaved pairs: within each head, row i and row i + d/2 become rows 2i and 2i + 1.

    [heads · d, …] -> [heads · d, …].  Queries and keys permuted alike have the same products, so a checkpoint made
    for either order gives the same attention.
    """
    return rows.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def halved(rows: Tensor, head_dim: int) -> Tensor:
    """The inverse of ``interleaved``."""
    return rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


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


def rotary_pairs(state: dict[str, Tensor], cfg: DecoderConfig) -> dict[str, Tensor]:
    """Published key names, rotate-half -> the same names with queries, keys and their norms in interleaved pairs."""
    found = {}
    for key, value in state.items():
        if ".q_norm." in key or ".k_norm." in key:
            rows = per_head(value, cfg.n_head if ".q_norm." in key else cfg.kv_heads)
            value = interleaved(rows.flatten(), cfg.head_dim).view_as(rows)
        elif ".q_proj." in key or ".k_proj." in key:
            value = interleaved(value, cfg.head_dim)
        found[key] = value
    return found


def drafter_from_published(
    state: dict[str, Tensor], cfg: DecoderConfig, to_id: Tensor | None = None
) -> dict[str, Tensor]:
    """LANTERN's EAGLE drafter for Anole -> ours: ``Eagle(cfg, bias, cfg.norm_eps, …)``.

    ``to_id`` [V]: the id of each image token, whose rows of its table serve drafted tokens; None: all ids are tokens.
    Raises UserError for ids that its table does not have.
    """
    found = from_published(rotary_pairs(state, cfg))
    words = found.get("tok_embeddings.weight")
    if words is None or to_id is None:
        return found
    if int(to_id.max()) >= len(words):
        raise UserError(
            f"the drafter's 'embed_tokens.weight' has {len(words)} ids but the target image tokens up to id "
            f"{int(to_id.max())}: give a drafter made for this target"
        )
    return found | {"tok_embeddings.weight": words[to_id], "prompt_embeddings.weight": words}


def drafter_to_published(state: dict[str, Tensor], cfg: DecoderConfig) -> dict[str, Tensor]:
    """Ours -> the layout of LANTERN's EAGLE drafter for Anole, a row of q/k norm per head."""
    found = to_published(state)
    for key, value in found.items():
        if ".q_norm." in key or ".k_norm." in key:
            found[key] = halved(value.flatten(), cfg.head_dim).view_as(value)
        elif ".q_proj." in key or ".k_proj." in key:
            found[key] = halved(value, cfg.head_dim)
    return found


_TOP = {"embed_tokens.weight": "tok_embeddings.weight", "lm_head.weight": "output.weight"}


def from_hf(state: dict[str, Tensor], cfg: DecoderConfig) -> dict[str, Tensor]:
    """transformers' key names (Anole's and Lumina-mGPT's Hugging Face checkpoints) -> ours.

    Any part of a checkpoint will do that has all tensors of the layers in it.  The image tokeniser is left out.
    """
    own = {k.removeprefix("model."): v for k, v in state.items()}
    top = {_TOP[k]: v for k, v in own.items() if k in _TOP}
    skipped = ("vqmodel.", "rotary_emb.inv_freq")
    layers = {k: v for k, v in own.items() if k not in _TOP and not any(s in k for s in skipped)}
    return from_published(rotary_pairs(layers, cfg)) | top


def from_official(state: dict[str, Tensor], cfg: DecoderConfig) -> dict[str, Tensor]:
    """Meta's key names (Chameleon's and Anole's own releases) -> ours: fused or not, pairs interleaved as here.

    Any part of a checkpoint will do that has all tensors of the layers in it.
    """
    found = {}
    for key, value in llamagen.from_official(state).items():
        key = key.replace("_normalization.", "_norm.")
        if ".q_norm." in key or ".k_norm." in key:
            value = per_head(value, cfg.n_head if ".q_norm." in key else cfg.kv_heads)
        if ".attention.wq." in key:
            parts = [state[key.replace(".wq.", f".w{c}.")] for c in "qkv"]
            found[key.replace(".wq.", ".wqkv.")] = torch.cat(parts)
        elif ".attention.wk." not in key and ".attention.wv." not in key and key != "rope.freqs":
            found[key] = value
    return found


def image_tables(state: dict[str, Tensor], to_id: Tensor) -> dict[str, Tensor]:
    """Our key names with tables over all ids -> the same for a decoder of images, whose tokens are codebook indices.

    ``to_id`` [V]: the id of each codebook index.  Only image tokens may be drawn, so dropping the other rows of
    ``output`` is the same as masking them; prompts keep the whole table as ``cls_embedding``.  Raises UserError for ids
    that the tables do not have.
    """
    if not {"tok_embeddings.weight", "output.weight"} <= state.keys():
        return state  # the loader says what is absent
    words, head = state["tok_embeddings.weight"], state["output.weight"]
    if int(to_id.max()) >= min(len(words), len(head)):
        raise UserError(
            f"the tokeniser has image tokens up to id {int(to_id.max())} but the checkpoint {len(words)} ids in all: "
            "use the tokenizer.json published with the weights"
        )
    return state | {
        "cls_embedding.weight": words,
        "tok_embeddings.weight": words[to_id],
        "output.weight": head[to_id],
    }


def config_from_hf(config: dict[str, Any]) -> ChameleonConfig:
    """A Hugging Face ``config.json`` -> ours.  Raises UserError for another architecture or an unknown variant."""
    kind = config.get("model_type")
    if kind != "chameleon":
        raise UserError(
            f"config.json describes a model of type '{kind}', not 'chameleon': name the target it belongs to"
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    odd = [k for k in ("attention_bias", "mlp_bias", "tie_word_embeddings") if config.get(k)]
    odd += ["rope_scaling"] if rope.get("rope_type", rope.get("type", "default")) != "default" else []
    if odd or config.get("hidden_act", "silu") != "silu":
        raise UserError(
            f"config.json asks for {odd[0] if odd else config['hidden_act']}, which no published Chameleon uses and "
            "lanternbench does not know; use an original Anole or Lumina-mGPT checkpoint"
        )
    try:
        return ChameleonConfig(
            dim=config["hidden_size"],
            n_layer=config["num_hidden_layers"],
            n_head=config["num_attention_heads"],
            hidden=config["intermediate_size"],
            n_kv_head=config.get("num_key_value_heads") or 0,
            vocab_size=config["vocab_size"],
            positions=max(config.get("max_position_embeddings", 0), ChameleonConfig.positions),
            rope_base=rope.get("rope_theta") or config.get("rope_theta") or 10000.0,
            norm_eps=config.get("rms_norm_eps", 1e-5),
            swin_norm=bool(config.get("swin_norm")),
        )
    except KeyError as missing:
        raise UserError(f"config.json has no {missing}; use the one published with the weights") from None


def config_from_official(params: dict[str, Any]) -> ChameleonConfig:
    """Meta's ``params.json`` -> ours.  Raises UserError for what it leaves out."""
    model = params.get("model", params)
    try:
        dim = model["dim"]
        width = int(model.get("ffn_dim_multiplier", 1.0) * int(8 * dim / 3))  # rounded up below
        multiple = model.get("multiple_of", 256)
        return ChameleonConfig(
            dim=dim,
            n_layer=model["n_layers"],
            n_head=model["n_heads"],
            hidden=-(-width // multiple) * multiple,
            n_kv_head=model.get("n_kv_heads") or 0,
            vocab_size=model.get("vocab_size") or ChameleonConfig.vocab_size,
            rope_base=model.get("rope_theta", ChameleonConfig.rope_base),
            norm_eps=model.get("norm_eps", ChameleonConfig.norm_eps),
            swin_norm=bool(model.get("swin_norm")),
        )
    except (KeyError, TypeError) as missing:
        raise UserError(f"params.json has no {missing}; use the one published with the weights") from None
