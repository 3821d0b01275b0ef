"""Which ids may follow while a Chameleon model writes an image, and how its prompts begin.

Positions count from 0 at the first id after the image's start (Lumina-mGPT: after its two size ids).  An image is
``height`` rows of ``width`` tokens; Lumina-mGPT ends each row, and the image, with an id of their own.  Where only one
id may follow, it is known without the target: a forced token costs no step.  Source: the published code of Anole and
Lumina-mGPT (arXiv 2407.06135, 2408.02657).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.chameleon_vocab import Vocabulary

ROW_END = 8803
SIZE_UNIT = 32  # pixels that a size id counts
PIXELS = 16  # pixels a side of one image token
SIZE_ZERO = 8804  # the size id of n units is SIZE_ZERO + n
MOST_UNITS = 128


@dataclass(frozen=True)
class TokenRule:
    """The ids of one image.  ``row_end``, ``image_end``: None where the model writes no such id (Anole)."""

    height: int
    width: int
    vocab: Vocabulary
    row_end: int | None = None
    image_end: int | None = None

    @property
    def stride(self) -> int:
        """Ids a row."""
        return self.width + (self.row_end is not None)

    @property
    def length(self) -> int:
        """Ids of the image, its end included."""
        return self.height * self.stride + (self.image_end is not None)

    def forced(self, position: int) -> int | None:
        """The only id that may stand at ``position``, None where it is drawn (or the image is over)."""
        if position == self.height * self.stride:
            return self.image_end
        inside = position < self.height * self.stride
        return self.row_end if inside and position % self.stride == self.width else None

    def allowed(self, position: int, size: int) -> Tensor:
        """Bool [size] over the vocabulary: what may stand at ``position``; after the image, anything."""
        if position >= self.length:
            return torch.ones(size, dtype=torch.bool)
        mask = torch.zeros(size, dtype=torch.bool)
        only = self.forced(position)
        mask[self.vocab.to_id if only is None else only] = True
        return mask

    def drawn(self) -> Tensor:
        """[height · width] positions whose ids the target has to draw, in raster order."""
        rows = torch.arange(self.height)[:, None] * self.stride
        return (rows + torch.arange(self.width)).flatten()

    def lay_out(self, codes: Tensor) -> Tensor:
        """Codebook indices [B, height · width] -> the image's ids [B, length], forced ones filled in."""
        forced = [self.forced(n) for n in range(self.length)]
        ids = torch.tensor([-1 if i is None else i for i in forced], device=codes.device).repeat(len(codes), 1)
        ids[:, self.drawn().to(codes.device)] = self.vocab.ids(codes)
        return ids

    def codes(self, ids: Tensor) -> Tensor:
        """An image's ids [≥ height · stride] -> codebook indices [height, width].

        Raises UserError if there are too few or one of them is no image token.
        """
        if len(ids) < self.height * self.stride:
            raise UserError(
                f"{len(ids)} ids are no image of {self.height} × {self.width} tokens, which takes "
                f"{self.height * self.stride}: decode the whole image"
            )
        codes = self.vocab.codes(ids[self.drawn()]).view(self.height, self.width)
        if bool((codes < 0).any()):
            raise UserError("an id inside the image is no image token: check that vocabulary and image size are right")
        return codes


def anole_rule(vocab: Vocabulary, side: int = 32) -> TokenRule:
    """Anole: ``side`` × ``side`` image tokens and nothing else."""
    return TokenRule(side, side, vocab)


def lumina_rule(vocab: Vocabulary, width: int, height: int) -> TokenRule:
    """Lumina-mGPT: an image of ``width`` × ``height`` pixels.  Raises UserError where no size id says so."""
    size_id(width), size_id(height)
    return TokenRule(height // PIXELS, width // PIXELS, vocab, ROW_END, vocab.image_end)


def size_id(pixels: int) -> int:
    """Lumina-mGPT's id for a width or height.  Raises UserError."""
    if pixels % SIZE_UNIT or not 0 < pixels <= MOST_UNITS * SIZE_UNIT:
        raise UserError(f"an image cannot be {pixels} pixels wide or high: use a multiple of {SIZE_UNIT}, such as 768")
    return SIZE_ZERO + pixels // SIZE_UNIT


class Open(NamedTuple):
    """An image that a sequence has begun and not ended."""

    rule: TokenRule
    position: int  # of the next id


def open_image(ids: Sequence[int], vocab: Vocabulary) -> Open | None:
    """The unfinished Lumina-mGPT image at the end of a sequence; None before its two size ids are there."""
    if not guided(ids, vocab):
        return None
    start = len(ids) - 1 - list(reversed(ids)).index(vocab.image_start)
    height, width = (i - SIZE_ZERO for i in ids[start + 1 : start + 3])
    return Open(lumina_rule(vocab, width * SIZE_UNIT, height * SIZE_UNIT), len(ids) - start - 3)


def in_image(ids: Sequence[int], vocab: Vocabulary) -> bool:
    """Has the sequence begun an image that it has not ended?  (Then image top-k applies, otherwise text top-k.)"""
    return list(ids).count(vocab.image_start) == list(ids).count(vocab.image_end) + 1


def guided(ids: Sequence[int], vocab: Vocabulary) -> bool:
    """Does guidance apply to the next id?  Lumina-mGPT draws even the two size ids without it."""
    return in_image(ids, vocab) and vocab.image_start not in ids[-2:]


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


def lumina_sizes(side: int, ratio: float = 4.0) -> list[tuple[int, int]]:
    """Width and height in pixels of the images that Lumina-mGPT knows, at most side² in area; widest first."""
    units = (side // SIZE_UNIT) ** 2
    sizes = [(w, h) for w in range(units, 0, -1) for h in range(max(1, units // (w + 1)), units // w + 1)]
    return [(w * SIZE_UNIT, h * SIZE_UNIT) for w, h in sizes if max(w, h) <= ratio * min(w, h)]
