"""Chameleon's vocabulary and prompts: which id is which image token, and the ids that frame captions and images.

Sources: the official ``text_tokenizer.json``; the published code of Anole and Lumina-mGPT (arXiv 2407.06135,
2408.02657).  An image token is called IMGIMG…Z, with its codebook index between, A for 0 to J for 9; special tokens are
called <…>.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.token_prompts import IdTokeniser, PromptFrame

ROW_END = 8803  # what Lumina-mGPT writes after each row of an image
SIZE_UNIT = 32  # pixels that a size id counts
PIXELS = 16  # pixels a side of one image token
SIZE_ZERO = 8804  # the size id of n units is SIZE_ZERO + n
MOST_UNITS = 128
LUMINA = "Generate an image of {width}x{height} according to the following prompt:\n{caption}"  # in pixels
_MARK = "IMGIMG"
_DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")
_ROLES = {
    "bos": "<s>",
    "pad": "<pad>",
    "eos": "</s>",
    "image_end": "<eoss>",
    "image_start": "<racm3:break>",
    "turn_end": "<reserved08706>",
}


@dataclass(frozen=True)
class Vocabulary:
    """Ids by role.  The defaults are those of all published Chameleon models."""

    to_id: Tensor  # [V] codebook index -> id
    bos: int = 0
    pad: int = 1
    eos: int = 2
    image_end: int = 8196
    image_start: int = 8197
    turn_end: int = 8710  # the separator after a prompt


def published(codes: int = 8192) -> Vocabulary:
    """The vocabulary without a tokeniser file: image ids in the order of the codebook from id 4 on."""
    return Vocabulary(torch.arange(codes) + 4)


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
    if absent := [name for name in _ROLES.values() if name not in names]:
        raise UserError(f"the tokeniser has no token {absent[0]}: use the text_tokenizer.json of a Chameleon model")
    to_id = torch.tensor(sorted(images, key=images.__getitem__))
    return Vocabulary(to_id, **{role: names[name] for role, name in _ROLES.items()})


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


class ChameleonText(IdTokeniser):
    """No caption can write a special or an image token."""

    def __init__(self, path: Path, vocab: Vocabulary):
        """``path``: the tokeniser file that ``vocab`` was read from."""
        super().__init__(path)
        self.vocab = vocab
        self.reserved |= {self.names[name] for name in special(self.names)} | set(vocab.to_id.tolist())


def size_id(pixels: int) -> int:
    """Lumina-mGPT's id for a width or height.  Raises UserError."""
    if pixels % SIZE_UNIT or not 0 < pixels <= MOST_UNITS * SIZE_UNIT:
        raise UserError(f"an image cannot be {pixels} pixels wide or high: use a multiple of {SIZE_UNIT}, such as 768")
    return SIZE_ZERO + pixels // SIZE_UNIT


def check_sizes(names: dict[str, int]) -> None:
    """Raises UserError for a vocabulary in which the ids of row ends and sizes mean something else."""
    sizes = {f"<reserved{8800 + n:05d}>": SIZE_ZERO + n for n in (16, 24, 32)}
    for name, i in ({"<reserved08799>": ROW_END} | sizes).items():
        if names.get(name, i) != i:
            raise UserError(
                f"the tokeniser gives '{name}' the id {names[name]}, not {i}: use the one published with Lumina-mGPT"
            )


def anole_frame(vocab: Vocabulary, width: int, height: int) -> PromptFrame:
    """Anole's prompts have no template, and do not say the image's size."""
    image = [vocab.image_start]
    return PromptFrame([vocab.bos], [vocab.turn_end, *image], [vocab.bos, *image], vocab.pad)


def lumina_frame(vocab: Vocabulary, width: int, height: int) -> PromptFrame:
    """Lumina-mGPT's prompts for images of this size in pixels.  Raises UserError for one that has no id."""
    image = [vocab.image_start, size_id(height), size_id(width)]
    template = LUMINA.format(width=width, height=height, caption="{caption}")
    return PromptFrame([vocab.bos], [vocab.turn_end, *image], image, vocab.pad, template)
