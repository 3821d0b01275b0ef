"""Captions as Chameleon reads them: ids of the published tokeniser, framed by the ids that begin an image."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.chameleon.model import ChameleonConfig
from lanternbench.models.chameleon.prompt_ids import (
    PIXELS,
    Prompt,
    anole_prompt,
    left_padded,
    lumina_prompt,
    lumina_text,
)
from lanternbench.models.chameleon.vocab import Vocabulary, special
from lanternbench.models.target import Prefix, Target
from lanternbench.models.tiny.text_encoder import BUCKETS, word_id, words


class ChameleonText:
    """Captions -> ids [B, T] and mask [B, T], right-padded.  No caption can write a special or an image token."""

    def __init__(self, path: Path, vocab: Vocabulary):
        """``path``: the tokeniser file that ``vocab`` was read from."""
        from tokenizers import Tokenizer

        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library has no type of its own for what is wrong with a file
            raise UserError(
                f"cannot read the tokeniser {path} ({str(error).splitlines()[0]}): use the one published with the model"
            ) from None
        names = self.tokenizer.get_vocab(with_added_tokens=True)
        self.reserved = {names[name] for name in special(names)} | set(vocab.to_id.tolist())

    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        made = (self.tokenizer.encode(caption, add_special_tokens=False).ids for caption in captions)
        return right_padded([[i for i in ids if i not in self.reserved] for ids in made])


def hashed_ids(captions: list[str], size: int) -> tuple[Tensor, Tensor]:
    """An id per word, out of the last of ``size`` ids: as many ids as a caption might have, without a tokeniser."""
    return right_padded([[size - BUCKETS + word_id(w) for w in words(caption)] for caption in captions])


def right_padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Lists of ids -> ids [B, T], 0 on the right, and mask [B, T]."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], dtype=torch.long)
    return ids, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])


def anole_prefix(vocab: Vocabulary, target: Target, captions: list[str], guided: bool) -> Prefix:
    """Anole's prompts.  Raises as ``framed``."""
    return framed(vocab, target, captions, [anole_prompt(ids, vocab) for ids in encoded(target, captions)], guided)


def lumina_prefix(vocab: Vocabulary, target: Target, captions: list[str], guided: bool) -> Prefix:
    """Lumina-mGPT's prompts, the size ids of the target's grid included.  Raises as ``framed``."""
    height, width = (side * PIXELS for side in target.grid)
    texts = encoded(target, [lumina_text(caption, width, height) for caption in captions])
    return framed(vocab, target, captions, [lumina_prompt(ids, width, height, vocab) for ids in texts], guided)


def encoded(target: Target, texts: list[str]) -> list[list[int]]:
    """Texts -> ids, without padding."""
    ids, mask = target.text(texts)
    return [row[seen].tolist() for row, seen in zip(ids, mask.bool(), strict=True)]


def framed(vocab: Vocabulary, target: Target, captions: list[str], prompts: list[Prompt], guided: bool) -> Prefix:
    """Prompts left-padded to the longest; an EAGLE drafter reads the prompt's own ids, one ahead.

    Raises UserError for a caption that leaves no room for the image.
    """
    config = cast(ChameleonConfig, target.model.config)
    room = config.positions - target.layout.slot(target.length)
    for caption, prompt in zip(captions, prompts, strict=True):
        if len(prompt.cond) > room:
            raise UserError(
                f"the prompt '{caption[:60]}…' is {len(prompt.cond)} ids long, but before the image there is room for "
                f"{room}: shorten it"
            )
    rows = [p.cond for p in prompts] + ([p.uncond for p in prompts] if guided else [])
    padded, valid = (x.to(target.device) for x in left_padded(rows, vocab))
    embeddings = cast(nn.Embedding, target.model.cls_embedding)(padded)
    return Prefix(embeddings, valid, padded, padded[:, 1:], valid[:, :-1])
