"""Prompts that are token ids: from captions through ids to a prefix, and ids without a tokeniser."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.target import Prefix, Target
from lanternbench.models.tiny.text_encoder import BUCKETS, word_id, words


class Prompt(NamedTuple):
    """The ids before the first image token, with the caption and without."""

    cond: list[int]
    uncond: list[int]


class IdTokeniser:
    """Captions in a template -> ids [B, T] and mask [B, T], right-padded.  No caption can write a reserved token."""

    def __init__(self, path: Path, named: Iterable[str] = (), template: tuple[str, str] = ("", "")):
        """``path``: a tokenizer.json.  ``named``: tokens whose ``ids`` are wanted.

        ``template``: what stands before and after a caption.

        Raises UserError for a file that cannot be read and for a token that it lacks.
        """
        from tokenizers import Tokenizer

        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library has no exception type for an invalid file
            raise UserError(
                f"cannot read the tokeniser {path} ({str(error).splitlines()[0]}): use the one published with the model"
            ) from None
        self.names: dict[str, int] = self.tokenizer.get_vocab(with_added_tokens=True)
        if absent := [name for name in named if name not in self.names]:
            raise UserError(f"the tokeniser {path} has no token {absent[0]}: use the one published with the model")
        self.ids = {name: self.names[name] for name in named}
        self.template = template
        special = {i for i, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        self.reserved = special | set(self.ids.values())

    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        return right_padded([self.encode(caption, *self.template) for caption in captions])

    def encode(self, caption: str, before: str = "", after: str = "") -> list[int]:
        """Ids of all three; reserved tokens may stand in the template alone."""
        start, stop = len(before), len(before) + len(caption)
        encoding = self.tokenizer.encode(f"{before}{caption}{after}", add_special_tokens=False)
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return [i for i, (a, b) in spans if i not in self.reserved or not (start <= a and b <= stop)]


def hashed_ids(captions: list[str], size: int) -> tuple[Tensor, Tensor]:
    """An id per word, out of the last of ``size`` ids: as many ids as a caption might have, without a tokeniser."""
    return right_padded([[size - BUCKETS + word_id(w) for w in words(caption)] for caption in captions])


def hashed(text: str, size: int) -> list[int]:
    """``hashed_ids`` of one text."""
    return hashed_ids([text], size)[0][0].tolist()


def right_padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Lists of ids -> ids [B, T], 0 on the right, and mask [B, T]."""
    ids, valid = left_padded([row[::-1] for row in rows], 0)
    return ids.flip(1), valid.flip(1).long()


def left_padded(rows: Sequence[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Prompts of any lengths -> ids [B, T] padded on the left, and valid [B, T] bool."""
    longest = max(map(len, rows))
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows], dtype=torch.long)
    padding = torch.tensor([longest - len(row) for row in rows])
    return ids, torch.arange(longest) >= padding[:, None]


@dataclass(frozen=True)
class PromptFrame:
    """The ids around a caption's, as a target's ``condition``.

    ``uncond``: the unconditional prompt; None: the conditional one with padding, which is attended to, for the caption.
    ``pad``: the id in front of prompts that are shorter than others.  ``template``: the text that a caption stands in.
    """

    before: list[int]
    after: list[int]
    uncond: list[int] | None
    pad: int = 0
    template: str = "{caption}"

    def prompt(self, text: list[int]) -> Prompt:
        """The ids of a caption -> the prompt."""
        if self.uncond is not None:
            return Prompt([*self.before, *text, *self.after], self.uncond)
        return Prompt([*self.before, *text, *self.after], [*self.before, *[self.pad] * len(text), *self.after])

    def __call__(self, target: Target, captions: list[str], guided: bool) -> Prefix:
        """Prompts left-padded to the longest; an EAGLE drafter reads the prompt's ids, one ahead.

        Raises UserError for a caption too long for the decoder's positions.
        """
        texts, mask = target.text([self.template.replace("{caption}", caption) for caption in captions])
        prompts = [self.prompt(ids[seen].tolist()) for ids, seen in zip(texts, mask.bool(), strict=True)]
        longest = target.model.config.positions - target.image_slots
        for caption, prompt in zip(captions, prompts, strict=True):
            if len(prompt.cond) > longest:
                raise UserError(
                    f"the prompt '{caption[:60]}…' is {len(prompt.cond)} ids long, but before the image there is room "
                    f"for {longest}: shorten it"
                )
        rows = [p.cond for p in prompts] + ([p.uncond for p in prompts] if guided else [])
        ids, valid = (x.to(target.device) for x in left_padded(rows, self.pad))
        return Prefix(target.model.cls_embedding(ids), valid, ids, ids[:, 1:], valid[:, :-1])
