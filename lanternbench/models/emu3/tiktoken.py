"""Emu3's and Emu3.5's tokeniser of text from its published merge table, ``emu3.tiktoken``.

Source: the published ``tokenization_emu3.py`` of both.  A line holds a token's bytes in base64 and
its rank, which is its id.  Special tokens follow, in the order of that code, and image tokens
after them; these are no part of the ``tokenizers`` object, which would take minutes to add them.
"""

import base64
from pathlib import Path

from tokenizers import Tokenizer, normalizers
from transformers.convert_slow_tokenizer import TikTokenConverter

from lanternbench.errors import UserError
from lanternbench.models.loading import explain_errors
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
    with explain_errors(f"{path} is no table of merges", "use the published one"):
        for line in path.read_bytes().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
    if sorted(ranks.values()) != list(range(MERGED)):
        raise UserError(
            f"{path} has {len(ranks):,} tokens, Emu3's table {MERGED:,}: use the published one"
        )
    return ranks


class MergeTable(TikTokenConverter):
    """transformers' converter, which would read the file with the package ``tiktoken``."""

    @staticmethod
    def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
        return read_ranks(Path(tiktoken_url))


def read_tokeniser(path: Path) -> Tokenizer:
    """Return the tokeniser of a merge table, with its special tokens but without image tokens."""
    table = MergeTable(path, SPLIT, extra_special_tokens=SPECIAL)
    tokenizer = table.converted()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer
