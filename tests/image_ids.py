"""The ids of a Chameleon model's image, one by one: what row ends and prompts in the package are
checked against.

Positions count from 0 at the first id after the image's start (Lumina-mGPT: after its two size
ids).  An image is ``height`` rows of ``width`` tokens; Lumina-mGPT ends each row, and the image,
with an id of their own.  Where only one id may follow it is forced, and not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.chameleon.checkpoint import (
    IMAGE_START,
    PIXELS,
    ROW_END,
    SIZE_UNIT,
    SIZE_ZERO,
    SPECIAL,
    ChameleonCheckpoint,
    size_id,
)
from lanternbench.models.token_decoder import image_ids


class Vocabulary(NamedTuple):
    """``to_id`` [V]: the id of each image token; ``ids``: those of ``SPECIAL``."""

    to_id: Tensor
    ids: Mapping[str, int] = SPECIAL

    @property
    def image_start(self) -> int:
        return self.ids[IMAGE_START]

    @property
    def image_end(self) -> int:
        return self.ids["<eoss>"]


def published(codes: int = 8192) -> Vocabulary:
    """Of all published Chameleons: image ids in the order of the codebook from id 4 on."""
    return Vocabulary(torch.arange(codes) + 4)


def of_names(names: Mapping[str, int]) -> Vocabulary:
    return Vocabulary(
        image_ids(names, ChameleonCheckpoint.image_name), {name: names[name] for name in SPECIAL}
    )


@dataclass(frozen=True)
class TokenRule:
    """The ids of one image.  ``row_end``, ``image_end``: None where the model writes no such id
    (Anole).
    """

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
        """The only id that may stand at ``position``, None where it is drawn (or the image is
        over).
        """
        if position == self.height * self.stride:
            return self.image_end
        inside = position < self.height * self.stride
        return self.row_end if inside and position % self.stride == self.width else None

    def allowed(self, position: int, size: int) -> Tensor:
        """Bool [size] over the vocabulary: what may stand at ``position``; after the image,
        anything.
        """
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
        """Codebook indices [B, height · width] -> the image's ids [B, length], forced ones filled
        in.
        """
        forced = [self.forced(n) for n in range(self.length)]
        ids = torch.tensor([-1 if i is None else i for i in forced], device=codes.device).repeat(
            len(codes), 1
        )
        ids[:, self.drawn().to(codes.device)] = self.vocab.to_id[codes]
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
        codes = codes_of(ids[self.drawn()], self.vocab).view(self.height, self.width)
        if bool((codes < 0).any()):
            raise UserError(
                "an id inside the image is no image token: check that vocabulary and image size are right"
            )
        return codes


def codes_of(ids: Tensor, vocab: Vocabulary) -> Tensor:
    """Ids -> codebook indices, any shape; −1 for ids that are no image token."""
    codes = torch.full((int(vocab.to_id.max()) + 1,), -1)
    codes[vocab.to_id] = torch.arange(len(vocab.to_id))
    return torch.where((ids >= 0) & (ids < len(codes)), codes[ids.clamp(0, len(codes) - 1)], -1)


def anole_rule(vocab: Vocabulary, side: int = 32) -> TokenRule:
    """Anole: ``side`` × ``side`` image tokens and nothing else."""
    return TokenRule(side, side, vocab)


def lumina_rule(vocab: Vocabulary, width: int, height: int) -> TokenRule:
    """Lumina-mGPT: an image of ``width`` × ``height`` pixels.  Raises UserError where no size id
    says so.
    """
    size_id(width), size_id(height)
    return TokenRule(height // PIXELS, width // PIXELS, vocab, ROW_END, vocab.image_end)


class Open(NamedTuple):
    """An image that a sequence has begun and not ended."""

    rule: TokenRule
    position: int  # of the next id


def open_image(ids: Sequence[int], vocab: Vocabulary) -> Open | None:
    """The unfinished Lumina-mGPT image at the end of a sequence; None before its two size ids are
    there.
    """
    if not guided(ids, vocab):
        return None
    start = len(ids) - 1 - list(reversed(ids)).index(vocab.image_start)
    height, width = (i - SIZE_ZERO for i in ids[start + 1 : start + 3])
    return Open(lumina_rule(vocab, width * SIZE_UNIT, height * SIZE_UNIT), len(ids) - start - 3)


def in_image(ids: Sequence[int], vocab: Vocabulary) -> bool:
    """Has the sequence begun an image that it has not ended?  (Then image top-k applies, otherwise
    text top-k.)
    """
    return list(ids).count(vocab.image_start) == list(ids).count(vocab.image_end) + 1


def guided(ids: Sequence[int], vocab: Vocabulary) -> bool:
    """Does guidance apply to the next id?  Lumina-mGPT draws even the two size ids without it."""
    return in_image(ids, vocab) and vocab.image_start not in ids[-2:]


def lumina_sizes(side: int, ratio: float = 4.0) -> list[tuple[int, int]]:
    """Width and height in pixels of the images that Lumina-mGPT knows, at most side² in area;
    widest first.
    """
    units = (side // SIZE_UNIT) ** 2
    sizes = [
        (w, h)
        for w in range(units, 0, -1)
        for h in range(max(1, units // (w + 1)), units // w + 1)
    ]
    return [(w * SIZE_UNIT, h * SIZE_UNIT) for w, h in sizes if max(w, h) <= ratio * min(w, h)]
