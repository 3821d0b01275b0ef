"""Emu3's and Emu3.5's tokeniser of text from its published merge table, ``emu3.tiktoken``.

Source: the published ``tokenization_emu3.py`` of both.  A line holds a token's bytes in base64 and
its rank, which is its id.  Special tokens follow, in the order of that code, and image tokens
after them; these are no part of the ``tokenizers`` object, which would take minutes to add them.
"""

import base64
import binascii
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lanternbench.errors import UserError
from lanternbench.utils.damage import damage

MERGED = 151_643  # tokens of the table
EXTRAS = 205
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *(f"<|extra_{number}|>" for number in range(EXTRAS)),
    "<|image token|>",
    "<|image start|>",
    "<|image end|>",
)
FIRST_IMAGE_ID = MERGED + len(SPECIAL)


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return the rank of each token of a merge table.  Raises UserError for any other file."""
    if wrong := damage(path):
        raise UserError(f"{path} {wrong}")
    ranks: dict[bytes, int] = {}
    try:
        for line in path.read_bytes().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (OSError, ValueError, binascii.Error) as error:
        raise UserError(f"{path} is no table of merges ({error}): use the published one") from None
    if sorted(ranks.values()) != list(range(MERGED)):
        raise UserError(
            f"{path} has {len(ranks):,} tokens, Emu3's table {MERGED:,}: use the published one"
        )
    return ranks


def read_tokeniser(path: Path) -> Tokenizer:
    """Return the tokeniser of a merge table, with its special tokens but without image tokens."""
    ranks = read_ranks(path)
    characters = bytes_to_unicode()
    named = {token: "".join(map(characters.__getitem__, token)) for token in ranks}
    vocabulary = {named[token]: rank for token, rank in ranks.items()}
    merges = [(named[left], named[right]) for left, right in _merges(ranks)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(name, special=True, normalized=False) for name in SPECIAL]
    tokenizer.add_special_tokens(added)
    return tokenizer


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return every split of every token into two, by the token's rank, then by those of both."""
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        splits = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [pair for pair in splits if pair[0] in ranks and pair[1] in ranks]
        merges += sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return merges
