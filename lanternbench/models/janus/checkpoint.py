"""Janus-Pro: from published files of either layout, or with random weights to measure speed
alone.

Source: Chen et al. 2025 (arXiv 2501.17811); key names of the original release and of transformers'
``janus``. A folder holds ``model`` (config.json, tokenizer.json, and the weights of decoder and
image tokeniser together), and drafters such as ``eagle``.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.family import Family, TokenCheckpoint
from lanternbench.models.grids import Grid, grid_of
from lanternbench.models.loading import Json, State
from lanternbench.models.target import Options
from lanternbench.models.token_decoder import (
    IdTokeniser,
    PromptFrame,
    TokenDecoder,
    TokenDecoderConfig,
    check_type,
)
from lanternbench.models.transformer import guide
from lanternbench.registry import register

BOS = "<｜begin▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
IMAGE_START = "<begin_of_image>"
# for random weights: there is no tokeniser then
PUBLISHED = {BOS: 100000, PAD: 100002, IMAGE_START: 100016}
PATCH = 16  # pixels of a token's side
TEMPLATE = ("<|User|>: ", "\n\n<|Assistant|>:")  # a conversation that the assistant is to answer
_IMAGES = {  # ours -> key names of the original release, and of transformers
    "tok_embeddings.codes.": ("gen_embed.", "model.generation_embeddings."),
    "tok_embeddings.fc1.": ("gen_aligner.layers.0.", "model.generation_aligner.fc1."),
    "tok_embeddings.fc2.": ("gen_aligner.layers.2.", "model.generation_aligner.hidden_layers.0."),
    "output.fc1.": ("gen_head.output_mlp_projector.", "model.generation_head.proj_out."),
    "output.fc2.": ("gen_head.vision_head.", "model.generation_head.vision_head."),
}
_LLAMA = {  # transformers' defaults of LlamaConfig, and Janus's vocabulary
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 102400,
}


@dataclass(frozen=True)
class JanusConfig(TokenDecoderConfig):
    """Its defaults are Janus-Pro-7B's.  ``code_dim``: of the codes that image tokens stand for."""

    n_layer: int = 30
    vocab_size: int = 16384
    norm_eps: float = 1e-6
    grid: Grid = (24, 24)
    prompt_ids: int = 102400
    code_dim: int = 8


class Head(nn.Module):
    """Linear, GELU, Linear: [..., dim] -> logits [..., V]."""

    def __init__(self, config: JanusConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.dim, config.dim)
        self.fc2 = nn.Linear(config.dim, config.vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Janus(TokenDecoder):
    """A Llama that reads image tokens through a small MLP and writes them with a head of two
    layers.
    """

    tok_embeddings: Any  # the MLP, and a table of its products once ``folded``
    output: Head

    def __init__(self, config: JanusConfig):
        super().__init__(config)
        layers: dict[str, nn.Module] = {
            "codes": nn.Embedding(config.vocab_size, config.code_dim),
            "fc1": nn.Linear(config.code_dim, config.dim),
            "gelu": nn.GELU(),
            "fc2": nn.Linear(config.dim, config.dim),
        }
        self.tok_embeddings = nn.Sequential(OrderedDict(layers))
        self.output = Head(config)

    @property
    def eagle_tables(self) -> tuple[int, int]:
        """No tables: image tokens are not prompt ids, so none holds both."""
        return 0, 0

    def logits(self, hidden: Tensor, guidance: float = 1.0) -> Tensor:
        """The head is not linear, so guidance follows it."""
        return guide(self.output(hidden.to(self.dtype)), guidance)

    @torch.no_grad()
    def folded(self) -> Self:
        """Replace the MLP by a table of image tokens, whose products are computed once, in
        float32; return the decoder itself.
        """
        dtype = self.output.fc1.weight.dtype
        tokens = torch.arange(self.config.vocab_size, device=self.output.fc1.weight.device)
        table = self.tok_embeddings.float()(tokens).to(dtype)
        self.tok_embeddings = nn.Embedding.from_pretrained(table)
        return self


class JanusText(IdTokeniser):
    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        return super().__call__([caption.strip() for caption in captions])


class JanusCheckpoint(TokenCheckpoint[JanusConfig]):
    network = Janus
    configuration = JanusConfig
    title = "Janus"
    tokeniser_class = JanusText
    special = PUBLISHED
    prefixes = ("language_model.model.", "model.language_model.")
    template = TEMPLATE
    image_ids = None

    def frame(self) -> PromptFrame:
        ids = self.text.ids
        return PromptFrame([ids[BOS]], [ids[IMAGE_START]], None, ids[PAD])

    def described(self, config: Json) -> JanusConfig:
        """Either layout's config.json; what it leaves out has transformers' default for Llama."""
        check_type(config, self.title, "janus", "multi_modality")
        text = config.get("language_config") or config.get("text_config") or {}
        vq = (config.get("gen_vision_config") or {}).get("params") or config.get("vq_config") or {}
        codes = vq.get("image_token_size") or vq.get("num_embeddings", JanusConfig.vocab_size)
        code_dim = vq.get("n_embed") or vq.get("embed_dim", JanusConfig.code_dim)
        pixels = (config.get("vision_config") or {}).get("image_size", 384)
        # its text head is not used
        fields = JanusConfig.llama_fields(_LLAMA | text, allowed=("tie_word_embeddings",))
        fields["prompt_ids"] = fields["vocab_size"]
        fields["vocab_size"] = codes
        return JanusConfig(**fields, grid=grid_of(pixels // PATCH), code_dim=code_dim)

    def renamed(self, state: State) -> State:
        """The parts that read images and the text head are left out."""
        language = {key: value for key, value in state.items() if key.startswith(self.prefixes)}
        result = super().renamed(language)
        if "tok_embeddings.weight" in result:  # the language model's table is of prompts
            result["cls_embedding.weight"] = result.pop("tok_embeddings.weight")
        for ours, prefixes in _IMAGES.items():
            for theirs in prefixes:
                for key in state:
                    if key.startswith(theirs):
                        result[key.replace(theirs, ours)] = state[key]
        return result

    def decoder(self) -> ImageDecoder:
        return cast(Janus, super().decoder()).folded()


@register("target", "janus")
class JanusFamily(Family):
    checkpoint = JanusCheckpoint
    defaults: ClassVar[Options] = {"l_k": 10, "width_range": (3, 40)}
