"""How the prompts of a Chameleon model begin: the ids before the first image token.

Source: the published code of Anole and Lumina-mGPT (arXiv 2407.06135, 2408.02657).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.chameleon.vocab import Vocabulary

ROW_END = 8803  # what Lumina-mGPT writes after each row of an image
SIZE_UNIT = 32  # pixels that a size id counts
PIXELS = 16  # pixels a side of one image token
SIZE_ZERO = 8804  # the size id of n units is SIZE_ZERO + n
MOST_UNITS = 128


def size_id(pixels: int) -> int:
    """Lumina-mGPT's id for a width or height.  Raises UserError."""
    if pixels % SIZE_UNIT or not 0 < pixels <= MOST_UNITS * SIZE_UNIT:
        raise UserError(f"an image cannot be {pixels} pixels wide or high: use a multiple of {SIZE_UNIT}, such as 768")
    return SIZE_ZERO + pixels // SIZE_UNIT


class Prompt(NamedTuple):
    """What stands before the first image token; the unconditional ids hold no text."""

    cond: list[int]
    uncond: list[int]


def anole_prompt(text: list[int], vocab: Vocabulary) -> Prompt:
    """A caption's ids, as they come from the tokeniser -> Anole's prompt; no template."""
    frame = [vocab.image_start]
    return Prompt([vocab.bos, *text, vocab.turn_end, *frame], [vocab.bos, *frame])


def lumina_text(caption: str, width: int, height: int) -> str:
    """The caption in Lumina-mGPT's template; sizes in pixels."""
    return f"Generate an image of {width}x{height} according to the following prompt:\n{caption}"


def lumina_prompt(text: list[int], width: int, height: int, vocab: Vocabulary) -> Prompt:
    """The ids of ``lumina_text`` -> Lumina-mGPT's prompt, the image's size given.  Raises UserError."""
    frame = [vocab.image_start, size_id(height), size_id(width)]
    return Prompt([vocab.bos, *text, vocab.turn_end, *frame], frame)


def left_padded(rows: Sequence[list[int]], vocab: Vocabulary) -> tuple[Tensor, Tensor]:
    """Prompts of any lengths -> ids [B, T] padded on the left, and valid [B, T] bool."""
    longest = max(map(len, rows))
    ids = torch.tensor([[vocab.pad] * (longest - len(row)) + row for row in rows])
    blank = torch.tensor([longest - len(row) for row in rows])
    return ids, torch.arange(longest) >= blank[:, None]
