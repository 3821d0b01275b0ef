"""Chameleon's vocabulary: which id is which image token, and the ids that frame an image.

Source: the official ``text_tokenizer.json`` and its readers.  An image token is called IMGIMG…Z, with its codebook
index between, A for 0 to J for 9; special tokens are called <…>.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lanternbench.errors import UserError

_MARK = "IMGIMG"
_DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")


@dataclass(frozen=True)
class Vocabulary:
    """Ids by role.  The defaults are those of all published Chameleon models."""

    to_id: Tensor  # [V] codebook index -> id
    to_code: Tensor  # [highest image id + 1] id -> codebook index, −1 where no image token has the id
    bos: int = 0
    pad: int = 1
    eos: int = 2
    image_end: int = 8196  # <eoss>
    image_start: int = 8197  # <racm3:break>
    turn_end: int = 8710  # <reserved08706>, the separator after a prompt

    def ids(self, codes: Tensor) -> Tensor:
        """Codebook indices -> ids, any shape."""
        return self.to_id[codes]

    def codes(self, ids: Tensor) -> Tensor:
        """Ids -> codebook indices, any shape; −1 for ids that are no image token."""
        known = (ids >= 0) & (ids < len(self.to_code))
        return torch.where(known, self.to_code[ids.clamp(0, len(self.to_code) - 1)], -1)


def published(codes: int = 8192) -> Vocabulary:
    """The vocabulary without a tokeniser file: image ids in the order of the codebook from id 4 on."""
    return _vocabulary({4 + code: code for code in range(codes)})


def from_names(names: dict[str, int]) -> Vocabulary:
    """A map of token names to ids -> the vocabulary.

    Raises UserError if image tokens are missing or a framing token is absent.
    """
    images = {i: int(n[len(_MARK) : -1].translate(_DIGITS)) for n, i in names.items() if n.startswith(_MARK)}
    if not images or sorted(images.values()) != list(range(len(images))):
        raise UserError(
            f"the tokeniser names {len(images)} image tokens but not every codebook index once: use the "
            "text_tokenizer.json published with the model"
        )
    roles = {
        "bos": "<s>",
        "pad": "<pad>",
        "eos": "</s>",
        "image_end": "<eoss>",
        "image_start": "<racm3:break>",
        "turn_end": "<reserved08706>",
    }
    absent = [name for name in roles.values() if name not in names]
    if absent:
        raise UserError(f"the tokeniser has no token {absent[0]}: use the text_tokenizer.json of a Chameleon model")
    return _vocabulary(images, **{role: names[name] for role, name in roles.items()})


def read(path: Path) -> Vocabulary:
    """The official ``text_tokenizer.json`` (or a Hugging Face ``tokenizer.json``).  Raises UserError."""
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
        return from_names({str(name): int(i) for name, i in names.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"cannot read a vocabulary from {path} ({type(error).__name__}: {error}); it has to be the "
            "text_tokenizer.json published with the model"
        ) from None


def special(names: Iterable[str]) -> set[str]:
    """The names that stand for no text: all in angle brackets; a lone ``<`` is text."""
    return {name for name in names if name.startswith("<") and name != "<"}


def _vocabulary(images: dict[int, int], **roles: int) -> Vocabulary:
    to_id = torch.empty(len(images), dtype=torch.long)
    to_code = torch.full((max(images) + 1,), -1)
    for i, code in images.items():
        to_id[code], to_code[i] = i, code
    return Vocabulary(to_id, to_code, **roles)
