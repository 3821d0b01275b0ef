"""Captions as Chameleon models read them: the published tokeniser's ids, framed by those that begin an image.

Source: the published code of Anole and Lumina-mGPT (arXiv 2407.06135, 2408.02657).
"""

from __future__ import annotations

from pathlib import Path

from lanternbench.errors import UserError
from lanternbench.models.chameleon.vocab import Vocabulary, special
from lanternbench.models.target import Prefix, Target
from lanternbench.models.token_prompts import IdTokeniser, Prompt, encoded, frame_prompts

ROW_END = 8803  # what Lumina-mGPT writes after each row of an image
SIZE_UNIT = 32  # pixels that a size id counts
PIXELS = 16  # pixels a side of one image token
SIZE_ZERO = 8804  # the size id of n units is SIZE_ZERO + n
MOST_UNITS = 128


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
    for name, i in (
        ("<reserved08799>", ROW_END),
        *((f"<reserved{8800 + n:05d}>", SIZE_ZERO + n) for n in (16, 24, 32)),
    ):
        if names.get(name, i) != i:
            raise UserError(
                f"the tokeniser gives '{name}' the id {names[name]}, not {i}: use the one published with Lumina-mGPT"
            )


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


def anole_prefix(vocab: Vocabulary, target: Target, captions: list[str], guided: bool) -> Prefix:
    """Anole's prompts.  Raises as ``frame_prompts``."""
    return frame_prompts(
        target, captions, [anole_prompt(ids, vocab) for ids in encoded(target, captions)], guided, vocab.pad
    )


def lumina_prefix(vocab: Vocabulary, target: Target, captions: list[str], guided: bool) -> Prefix:
    """Lumina-mGPT's prompts, the size ids of the target's grid included.  Raises as ``frame_prompts``."""
    height, width = (side * PIXELS for side in target.grid)
    texts = encoded(target, [lumina_text(caption, width, height) for caption in captions])
    prompts = [lumina_prompt(ids, width, height, vocab) for ids in texts]
    return frame_prompts(target, captions, prompts, guided, vocab.pad)
