"""GLM-Image's autoregressive part: GLM-4 9B over two grids of image tokens, a coarse one and then the image's.

Source: transformers' ``glm_image``, whose key names its checkpoint has.  Positions are (t, h, w), M-RoPE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models import token_decoder
from lanternbench.models.grids import Grid, coarse
from lanternbench.models.loading import State
from lanternbench.models.token_decoder import TokenDecoder, TokenDecoderConfig, image_tables, llama_fields
from lanternbench.models.transformer import DecoderConfig


@dataclass(frozen=True)
class GlmImageConfig(TokenDecoderConfig):
    """``grid``: of the image, a token being 32 × 32 pixels.  ``sections``: of the pairs that turn, how many turn with
    t, h and w, over and over.  ``image_start``: the id that ends the prompt.
    """

    n_layer: int = 40
    hidden: int = 13696
    n_kv_head: int = 2
    vocab_size: int = 16384
    prompt_ids: int = 168064
    qkv_bias: bool = True
    sandwich_norm: bool = True
    rotary_width: int = 64
    sections: tuple[int, ...] = (8, 12, 12)
    image_start: int = 16384

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sections", tuple(self.sections))
        if 2 * sum(self.sections) != self.rotary_width:
            raise ValueError(f"rotary sections {list(self.sections)} of {self.rotary_width} dimensions that turn")


def positions(prompt: int, grids: Sequence[Grid]) -> Tensor:
    """(t, h, w) of every prompt position and image token [prompt + tokens, 3].

    Text at s: (s, s, s).  Row i, column j of a grid that begins at P: (P, P + i, P + j); the next begins max(h, w) on.
    """
    found, start = [torch.arange(prompt)[:, None].expand(-1, 3)], prompt
    for rows, columns in grids:
        found.append(start + torch.cartesian_prod(torch.zeros(1).long(), torch.arange(rows), torch.arange(columns)))
        start += max(rows, columns)
    return torch.cat(found)


class GlmImage(TokenDecoder):
    config: GlmImageConfig

    @property
    def grids(self) -> tuple[Grid, ...]:
        return coarse(self.config.grid), self.config.grid

    def rotary_table(self, prompt: int) -> Tensor:
        """Each pair's entry of the 1-D table at t, h or w."""
        axis = [i % 3 for i, pairs in enumerate(self.config.sections) for _ in range(pairs)]
        pair = torch.arange(self.rope.shape[1])
        axes = torch.tensor(axis + [0] * (len(pair) - len(axis)))
        return self.rope[positions(prompt, self.grids)[:, axes].to(self.device), pair.to(self.device)]


def from_published(state: State, config: DecoderConfig, to_id: Tensor) -> State:
    """transformers' key names -> ours, without what sees and tokenises images; ``to_id`` [V]: ids of image tokens."""
    language = {}
    for key, value in state.items():
        if "visual." not in key and "vqmodel." not in key:
            key = key.removeprefix("model.").removeprefix("language_model.")
            language[key.replace("mlp.gate_up_proj", "feed_forward.w13")] = value
    return image_tables(token_decoder.from_hf(language, config), to_id)


def config_from_published(config: dict[str, Any]) -> GlmImageConfig:
    """config.json -> ours.  Raises UserError for another architecture or an unknown variant."""
    if config.get("model_type") != "glm_image":
        raise UserError(
            f"config.json describes a model of type '{config.get('model_type')}', not GLM-Image: name the target it "
            "belongs to"
        )
    text, images = config["text_config"], config.get("vq_config") or {}
    fields, rope = llama_fields(text, GlmImageConfig, ("attention_bias",)), text.get("rope_parameters") or {}
    head = fields["head_width"] or fields["dim"] // fields["n_head"]
    return GlmImageConfig(
        prompt_ids=fields.pop("vocab_size"),
        vocab_size=images.get("num_embeddings", GlmImageConfig.vocab_size),
        qkv_bias=text.get("attention_bias", True),
        rotary_width=int(head * rope.get("partial_rotary_factor", 0.5)),
        sections=rope.get("mrope_section", GlmImageConfig.sections),
        image_start=config.get("image_start_token_id", GlmImageConfig.image_start),
        **fields,
    )
