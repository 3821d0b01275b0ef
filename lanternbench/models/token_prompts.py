"""Prompts that are token ids: from captions through ids to a prefix, with a tokeniser's file or without."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.loading import cause
from lanternbench.models.target import Prefix, Target
from lanternbench.models.tiny.text_encoder import BUCKETS, word_id, words


class Prompt(NamedTuple):
    """The ids before the first image token, with the caption and without."""

    cond: list[int]
    uncond: list[int]


class IdTokeniser:
    """Captions in a template -> ids [B, T] and mask [B, T], right-padded.  No caption can write a reserved token."""

    def __init__(self, path: Path, named: Iterable[str] = (), template: tuple[str, str] = ("", "")):
        """``path``: a tokenizer.json; ``named``: tokens whose ``ids`` are wanted.  Raises UserError where one lacks."""
        from tokenizers import Tokenizer

        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library has no exception type for an invalid file
            raise UserError(f"cannot read the tokeniser {path} ({cause(error)}): use the published one") from None
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


class WordIds:
    """An ``IdTokeniser`` without a file: an id per word, of the last of ``size``; ``named``: published ids."""

    def __init__(self, size: int, named: Mapping[str, int]):
        self.size, self.ids = size, {name: i % size for name, i in named.items()}

    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        return right_padded([self.encode(caption) for caption in captions])

    def encode(self, caption: str, before: str = "", after: str = "") -> list[int]:
        return [self.size - BUCKETS + word_id(word) for word in words(f"{before}{caption}{after}")]


def image_ids(names: Mapping[str, int], number: Callable[[str], int | None]) -> Tensor:
    """A vocabulary -> the id of each image token [V]; ``number``: its number by name.  Raises UserError for gaps."""
    numbered = sorted((n, i) for name, i in names.items() if (n := number(name)) is not None)
    if not numbered or [n for n, _ in numbered] != list(range(len(numbered))):
        raise UserError(f"the tokeniser names {len(numbered)} image tokens but not every one once: use the original")
    return torch.tensor([i for _, i in numbered])


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
    """The ids around a caption's, as a target's ``condition``."""

    before: list[int]
    after: list[int]
    uncond: list[int] | None  # None: the conditional prompt with padding, which is attended to, for the caption
    pad: int = 0  # the id in front of prompts that are shorter than others
    template: str = "{caption}"  # the text that a caption stands in

    def prompt(self, text: list[int]) -> Prompt:
        """The ids of a caption -> the prompt."""
        padded = [*self.before, *[self.pad] * len(text), *self.after]
        return Prompt([*self.before, *text, *self.after], padded if self.uncond is None else self.uncond)

    def __call__(self, target: Target, captions: list[str], guided: bool) -> Prefix:
        """Prompts left-padded to the longest; EAGLE reads their ids, one ahead.  Raises UserError for one too long."""
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
