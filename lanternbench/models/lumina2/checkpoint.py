"""Lumina-mGPT 2.0: from published files, or with random weights to measure speed alone.

Source: its published code (github.com/Alpha-VLLM/Lumina-mGPT-2.0).  The published model writes an
image's start, height and width itself, which can go wrong; they are part of the prompt here.  A
folder holds ``model`` (config.json, tokenizer.json, tokenizer_config.json, safetensors) and
``vq`` (MoVQGAN's movqgan_270M.ckpt).
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from transformers import Emu3VQVAEConfig

from lanternbench.errors import UserError
from lanternbench.models.chameleon.checkpoint import (
    DIALECTS,
    IMAGE_START,
    LUMINA,
    TURN_END,
    Chameleon,
    ChameleonConfig,
    described_decoder,
    size_units,
)
from lanternbench.models.family import Family, TokenCheckpoint
from lanternbench.models.grids import Grid
from lanternbench.models.loading import Json, State, read_config, read_state
from lanternbench.models.movq import MoVQ, from_movq
from lanternbench.models.token_decoder import IdTokeniser, PromptFrame
from lanternbench.registry import register

ROW_END = "<reserved08799>"
CODE = "<MOVQGAN"  # how the name of an image token begins
BOS = "<|endoftext|>"  # without a tokeniser
# ids that the code names, and without a tokeniser those of the others
SPECIAL = {IMAGE_START: 151665, ROW_END: 151670, TURN_END: 151664, BOS: 151643}
SIZE_ZERO = 151671  # without a tokeniser the id of n units is SIZE_ZERO + n
PIXELS = 8  # a side of one image token
VQ: Json = {  # MoVQGAN's of 270 million weights
    "codebook_size": 16384,
    "embed_dim": 4,
    "latent_channels": 4,
    "base_channels": 256,
    "channel_multiplier": [1, 2, 2, 4],
    "num_res_blocks": 2,
    "attn_resolutions": [3],
    "hidden_size": 1024,
    "temporal_downsample_factor": 1,
}


@dataclass(frozen=True)
class Lumina2Config(ChameleonConfig):
    vocab_size: int = 16384
    positions: int = 10240
    grid: Grid = (96, 96)
    prompt_ids: int = 171385
    first_image_id: int = 155000


def size_name(pixels: int) -> str:
    """Return the name of the token for a width or height.  Raises UserError."""
    return f"<reserved{8800 + size_units(pixels):05d}>"


class Lumina2Checkpoint(TokenCheckpoint[Lumina2Config]):
    network = Chameleon
    configuration = Lumina2Config
    title = "Lumina-mGPT 2.0"
    row_end_name = ROW_END
    vq_file = "movqgan_270M.ckpt of ai-forever/MoVQGAN"

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """The image's height and width in pixels."""
        rows, columns = self.config.grid
        return PIXELS * rows, PIXELS * columns

    @cached_property
    def bos(self) -> str:
        """The token before every prompt: the tokeniser's own, or else its end of text."""
        if self.is_random:
            return BOS
        path = self.tokeniser.with_name("tokenizer_config.json")
        config = read_config(path)
        for key in ("bos_token", "eos_token"):
            token = config.get(key)
            name = token.get("content") if isinstance(token, dict) else token
            if isinstance(name, str):
                return name
        raise UserError(f"{path} names no bos_token and no eos_token: use the published one")

    @property
    def named_tokens(self) -> dict[str, int]:
        sizes = {size_name(side): SIZE_ZERO + size_units(side) for side in self.sizes}
        named = {name: SPECIAL[name] for name in (IMAGE_START, ROW_END, TURN_END)}
        return {self.bos: SPECIAL[BOS]} | named | sizes

    def named_image_ids(self) -> Tensor:
        """Return the ids after the first one: the code counts them, names may be absent."""
        shape = self.configuration(**self.decoder_shape)
        return torch.arange(shape.vocab_size) + shape.first_image_id

    def described(self, config: Json) -> Lumina2Config:
        fields = described_decoder(config, self.title)
        return Lumina2Config(prompt_ids=fields.pop("vocab_size"), **fields)

    def new_vq(self) -> MoVQ:
        return MoVQ(Emu3VQVAEConfig(**VQ | self.vq_shape))

    def vq_state(self, where: Path) -> State:
        return from_movq(read_state(where))

    @cached_property
    def text(self) -> IdTokeniser:
        """No caption can write a token that was added to the words' pieces.

        Raises UserError if the tokeniser numbers image tokens otherwise.
        """
        text = super().text
        if self.is_random:
            return text
        text.reserved |= set(text.tokenizer.get_added_tokens_decoder())
        named = [number for name, number in text.names.items() if name.startswith(CODE)]
        if named and sorted(named) != self.named_image_ids().tolist():
            raise UserError(
                f"the tokeniser {self.tokeniser} gives {len(named)} image tokens other ids than "
                f"{self.title} has: use the one published with the model"
            )
        return text

    def frame(self) -> PromptFrame:
        """The unconditional prompt is the start of an image alone; in the published Jacobi
        decoding it begins with the caption's end.
        """
        ids = self.text.ids
        height, width = self.sizes
        image = [ids[IMAGE_START], ids[size_name(height)], ids[size_name(width)]]
        after = [ids[TURN_END], *image]
        unconditional = after if self.row.shape.get("dialect") == "jacobi" else image
        template = LUMINA.format(width=width, height=height, caption="{caption}")
        return PromptFrame([ids[self.bos]], after, unconditional, ids[self.bos], template)


@register("target", "lumina-mgpt-2")
class Lumina2Family(Family):
    checkpoint = Lumina2Checkpoint
    defaults = DIALECTS["lumina"].options
