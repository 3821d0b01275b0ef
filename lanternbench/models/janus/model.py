"""Janus-Pro's decoder: a Llama that reads image tokens through a small MLP and writes them with a head of two layers.

Source: Chen et al. 2025 (arXiv 2501.17811); key names of the original release and of transformers' ``janus``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models import token_decoder
from lanternbench.models.decoder import guide
from lanternbench.models.grids import Grid, grid_of
from lanternbench.models.loading import State
from lanternbench.models.token_decoder import TokenDecoder, TokenDecoderConfig, llama_fields
from lanternbench.models.transformer import DecoderConfig
from lanternbench.models.vq import from_vqgan


@dataclass(frozen=True)
class JanusConfig(TokenDecoderConfig):
    """Its defaults are Janus-Pro-7B's.  ``code_dim``: of the codes that image tokens stand for."""

    n_layer: int = 30
    vocab_size: int = 16384
    norm_eps: float = 1e-6
    grid: Grid = (24, 24)
    prompt_ids: int = 102400
    code_dim: int = 8


class CodeEmbedding(nn.Module):
    """Image tokens -> code -> Linear, GELU, Linear: [...] -> [..., dim]."""

    def __init__(self, config: JanusConfig):
        super().__init__()
        self.codes = nn.Embedding(config.vocab_size, config.code_dim)
        self.fc1, self.fc2 = nn.Linear(config.code_dim, config.dim), nn.Linear(config.dim, config.dim)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(self.codes(tokens))))

    @torch.no_grad()
    def table(self) -> nn.Embedding:
        """The same as a table: its products are computed once, in float32."""
        one, two = self.fc1, self.fc2
        hidden = F.gelu(F.linear(self.codes.weight.float(), one.weight.float(), one.bias.float()))
        rows = F.linear(hidden, two.weight.float(), two.bias.float()).to(self.codes.weight.dtype)
        return nn.Embedding.from_pretrained(rows)


class Head(nn.Module):
    """Linear, GELU, Linear: [..., dim] -> logits [..., V]."""

    def __init__(self, config: JanusConfig):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(config.dim, config.dim), nn.Linear(config.dim, config.vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Janus(TokenDecoder):
    def image_embeddings(self) -> nn.Module:
        return CodeEmbedding(self.config)

    def head(self) -> nn.Module:
        return Head(self.config)

    def own_tables(self) -> tuple[int, ...]:
        """None: image tokens are no prompt ids here, so no table holds both."""
        return ()

    def logits(self, hidden: Tensor, guidance: float = 1.0) -> Tensor:
        """The head is not linear, so guidance follows it."""
        return guide(self.output(hidden.to(self.dtype)), guidance)

    def folded(self) -> Janus:
        """Itself, with a table of image tokens in place of the MLP that computes it."""
        if isinstance(self.tok_embeddings, CodeEmbedding):
            self.tok_embeddings = self.tok_embeddings.table()
        return self


_LANGUAGE = ("language_model.model.", "model.language_model.")  # the original release's, transformers'
_OWN = {
    "tok_embeddings.codes.": ("gen_embed.", "model.generation_embeddings."),
    "tok_embeddings.fc1.": ("gen_aligner.layers.0.", "model.generation_aligner.fc1."),
    "tok_embeddings.fc2.": ("gen_aligner.layers.2.", "model.generation_aligner.hidden_layers.0."),
    "output.fc1.": ("gen_head.output_mlp_projector.", "model.generation_head.proj_out."),
    "output.fc2.": ("gen_head.vision_head.", "model.generation_head.vision_head."),
}


def from_published(state: State, config: DecoderConfig) -> State:
    """Either layout's key names -> ours; what reads images and the text head are left out.

    Any part of a checkpoint will do that has all tensors of the layers in it.
    """
    language, found = {}, {}
    for key, value in state.items():
        if prefix := next((p for p in _LANGUAGE if key.startswith(p)), None):
            language[key.removeprefix(prefix)] = value
        for ours, theirs in _OWN.items():
            if prefix := next((p for p in theirs if key.startswith(p)), None):
                found[key.replace(prefix, ours)] = value
    found |= token_decoder.from_hf(language, config)
    if "tok_embeddings.weight" in found:  # the language model's table is of prompts
        found["cls_embedding.weight"] = found.pop("tok_embeddings.weight")
    return found


_VQ = ("gen_vision_model.", "model.vqmodel.")


def vq_from_published(state: State) -> State:
    """The image tokeniser of either layout -> LlamaGen's key names.  transformers numbers levels as LlamaGen does."""
    found = {}
    for key, value in state.items():
        prefix = next((p for p in _VQ if key.startswith(p)), None)
        if prefix is not None and not key.endswith("codebook_used"):
            found[from_vqgan(key.removeprefix(prefix))] = value
    return found


_LLAMA = {  # what transformers' LlamaConfig has where a file is silent
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008,
    "vocab_size": 102400,
}  # fmt: skip


def config_from_published(config: dict[str, Any]) -> JanusConfig:
    """Either layout's config.json -> ours; what it leaves out has transformers' default for Llama.

    Raises UserError for another architecture or an unknown variant.
    """
    original = config.get("model_type") == "multi_modality"
    if not original and config.get("model_type") != "janus":
        raise UserError(
            f"config.json describes a model of type '{config.get('model_type')}', not Janus: name the target it "
            "belongs to"
        )
    text = config.get("language_config" if original else "text_config") or {}
    vq = (config.get("gen_vision_config") or {}).get("params") or {} if original else config.get("vq_config") or {}
    image_size, patch = (config.get("vision_config") or {}).get("image_size", 384), 16
    fields = llama_fields(_LLAMA | text, JanusConfig, allowed=("tie_word_embeddings",))  # its text head is not used
    prompt_ids = fields.pop("vocab_size")
    return JanusConfig(
        **fields,
        prompt_ids=prompt_ids,
        vocab_size=vq.get("image_token_size" if original else "num_embeddings", 16384),
        grid=grid_of(image_size // patch) if not original else JanusConfig.grid,
        code_dim=vq.get("n_embed" if original else "embed_dim", 8),
    )
