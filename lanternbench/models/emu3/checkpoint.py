"""Emu3-Gen and Emu3.5 as targets: from published files, or with random weights to measure speed alone.

Sources: the published code of Emu3 (arXiv 2409.18869) and of Emu3.5 (2510.26583), whose images no code here decodes;
key names of the original releases and of transformers' ``emu3``.  A folder holds ``model`` (config.json, weights,
tokenizer.json), ``vq`` (the image tokeniser) where the model's checkpoint has none, and drafters such as ``eagle``.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Emu3VQVAE, Emu3VQVAEConfig

from lanternbench.errors import UserError
from lanternbench.models.chameleon.vqgan import EuclideanCodebook, to_pixels
from lanternbench.models.entries import Entry
from lanternbench.models.family import PublishedFamily, decoder_shape
from lanternbench.models.grids import Grid, size, written
from lanternbench.models.loading import State, explain_errors, read_config, read_state
from lanternbench.models.token_decoder import TokenDecoder, TokenDecoderConfig, check_type, llama_fields
from lanternbench.models.token_prompts import IdTokeniser, PromptFrame, hashed
from lanternbench.registry import register

BOS, PAD, ROW_END, TURN = "<|extra_203|>", "<|endoftext|>", "<|extra_200|>", "<|extra_100|>"
IMAGE_START, TOKENS_START = "<|image start|>", "<|image token|>"
PUBLISHED = {BOS: 151849, PAD: 151643, ROW_END: 151846, TURN: 151746, IMAGE_START: 151852, TOKENS_START: 151851}
QUALITY = " masterpiece, film grained, best quality."  # after every caption
NEGATIVE = (  # in place of one, in the unconditional prompt
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
_VISUAL = re.compile(r"<\|visual token (\d+)\|>")
_VQ_RENAMED = (  # the original release's names -> transformers'
    (r"^decoder\.mid\.attn_1\.norm\.", "decoder.middle_block.attn_norm."),
    (r"^decoder\.mid\.", "decoder.middle_block."),
    (r"^decoder\.up\.(\d+)\.attn\.(\d+)\.norm\.", r"decoder.up_block.up.\1.attn_norms.\2."),
    (r"^decoder\.up\.", "decoder.up_block.up."),
    (r"(attn(?:_1|\.\d+))\.([qkv])\.", r"\1.\2_proj."),
    (r"(attn(?:_1|\.\d+))\.proj_out\.", r"\1.out_proj."),
)


class Dialect(NamedTuple):
    """What stands before and after a caption, what in place of all three, and the token after either.

    ``images``: whether image tokens can be decoded.
    """

    before: str
    after: str
    negative: str
    turn: tuple[str, ...] = ()
    images: bool = True


DIALECTS = {
    "emu3": Dialect("", QUALITY, NEGATIVE),
    "emu3.5": Dialect(
        "You are a helpful assistant for t2i task. USER: ",
        " ASSISTANT: ",
        "You are a helpful assistant. USER:  ASSISTANT: ",
        (TURN,),
        images=False,
    ),
}


@dataclass(frozen=True)
class Emu3Config(TokenDecoderConfig):
    """Its defaults are Emu3-Gen's."""

    hidden: int = 14336
    n_kv_head: int = 8
    vocab_size: int = 32768
    positions: int = 9216
    rope_base: float = 1e6
    grid: Grid = (90, 90)
    prompt_ids: int = 184622
    first_image_id: int = 151854


class Emu3(TokenDecoder):
    """A Llama of one vocabulary for text and images."""


class Emu3VQ(nn.Module):
    """Token grids [B, h, w] -> images: the decoder of transformers' video VQGAN, for one frame (2409.18869, 2.2)."""

    def __init__(self, config: Emu3VQVAEConfig):
        super().__init__()
        whole = Emu3VQVAE(config)  # of which the encoder is dropped
        self.quantize = EuclideanCodebook(config.codebook_size, config.embed_dim)
        self.post_quant_conv, self.decoder = whole.post_quant_conv, whole.decoder

    def decode(self, tokens: Tensor) -> Tensor:
        """[B, h, w] -> [B, 3, H, W], not clamped.

        One latent frame becomes four, of which an image is the first: layers over space see that one alone.
        """
        code = self.quantize.codes()[tokens].permute(0, 3, 1, 2)[:, :, None]  # [B, 4, 1, h, w]
        net = self.decoder
        both = torch.cat([self.post_quant_conv(code), code])
        for block in net.time_res_stack:
            both = block(both)
        for block in net.time_conv:
            both = F.silu(block(both))
        x, code = both[:, :, 0].chunk(2)
        x = net.up_block(net.middle_block(net.conv_in(x), code), code)
        return net.conv_out(F.silu(net.norm_out(x, code)))


def image_ids(names: dict[str, int]) -> Tensor:
    """A vocabulary -> the id of each image token [V].  Raises UserError where one is missing."""
    ids = {int(m[1]): i for name, i in names.items() if (m := _VISUAL.fullmatch(name))}
    if not ids or sorted(ids) != list(range(len(ids))):
        raise UserError(
            f"the tokeniser names {len(ids)} image tokens but not every one once: use the tokenizer.json published "
            "with the model"
        )
    return torch.tensor([ids[code] for code in range(len(ids))])


@register("target", "emu3")
class Emu3Family(PublishedFamily):
    rows = Path(__file__).with_name("catalogue.yaml")
    network, configuration, title = Emu3, Emu3Config, "Emu3"
    prefixes = ("model.text_model.", "text_model.model.", "text_model.", "model.")
    vq_file = "Emu3's tokeniser"

    def new_vq(self, row: Entry, folder: Path | None) -> Emu3VQ:
        return Emu3VQ(Emu3VQVAEConfig(**row.shape.get("vq", {})))

    def vq_state(self, where: Path, row: Entry, folder: Path) -> State:
        """Either release's key names; the encoder is left out, and attention by 1 × 1 convolutions is linear."""
        result = {}
        for key, value in read_state(where).items():
            key = key.removeprefix("model.").removeprefix("vqmodel.")
            if key.startswith(("decoder.", "quantize.", "post_quant_conv.")):
                for old, new in _VQ_RENAMED:
                    key = re.sub(old, new, key)
                result[key] = value[..., 0, 0] if key.endswith("_proj.weight") and value.ndim == 4 else value
        return result

    def vq(self, row: Entry, folder: Path | None, device: str) -> Emu3VQ | None:
        return super().vq(row, folder, device) if dialect_of(row).images else None

    def text(self, row: Entry, folder: Path, device: str, dtype: torch.dtype) -> IdTokeniser:
        dialect = dialect_of(row)
        named = [name for name in PUBLISHED if name != TURN or name in dialect.turn]
        text = IdTokeniser(folder / "model" / "tokenizer.json", named, (dialect.before, dialect.after))
        text.reserved |= set(image_ids(text.names).tolist())
        return text

    def fields(self, row: Entry, model: Emu3, text: IdTokeniser | None) -> dict[str, Any]:
        """The unconditional prompt has a different text and length."""
        dialect, grid = dialect_of(row), "{}*{}".format(*model.config.grid)
        if text is None:
            count = model.config.prompt_ids
            ids = {name: i % count for name, i in PUBLISHED.items()}
            dimensions, negative = hashed(grid, count), hashed(dialect.negative, count)
        else:
            ids, dimensions, negative = text.ids, text.encode(grid), text.encode(dialect.negative)
        turn = [ids[name] for name in dialect.turn]
        after = [*turn, ids[IMAGE_START], *dimensions, ids[TOKENS_START]]
        return {
            "condition": PromptFrame([ids[BOS]], after, [ids[BOS], *negative, *after], ids[PAD]),
            "pixels": to_pixels,
            "row_end": ids[ROW_END],
            "prompt_template": f"{dialect.before}{{caption}}{dialect.after}",
        }

    def described(self, config: dict[str, Any]) -> Emu3Config:
        """Either layout's config.json."""
        check_type(config, self.title, "emu3", "Emu3")
        text = config.get("text_config") or config
        side = round(text.get("image_area", size(Emu3Config.grid) * 64) ** 0.5 / 8)
        fields = llama_fields(text, Emu3Config)
        return Emu3Config(grid=(side, side), prompt_ids=fields.pop("vocab_size"), **fields)

    def published(self, row: Entry, folder: Path) -> tuple[Emu3Config, Tensor]:
        model = folder / "model"
        to_id = image_ids(IdTokeniser(model / "tokenizer.json").names)
        described, shape = read_config(model / "config.json"), decoder_shape(row)
        with explain_errors(model / "config.json", "is no config of Emu3"):
            published = self.described(described)
            config = replace(published, vocab_size=len(to_id), **shape)
        if "image_area" in described and dialect_of(row).images and config.grid != published.grid:
            raise UserError(
                f"config.json is of images of {written(published.grid)} tokens but target '{row.name}' has "
                f"{written(config.grid)}: name the target that it belongs to"
            )
        return config, to_id


def dialect_of(row: Entry) -> Dialect:
    """How the model is prompted: as Emu3-Gen where the row does not say."""
    return DIALECTS[row.shape.get("dialect", "emu3")]
