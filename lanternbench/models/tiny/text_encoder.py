"""The embedded model's text encoder: any Unicode caption -> features, in the place that Flan-T5 has for LlamaGen."""

import hashlib
import re
import unicodedata

import torch
from torch import Tensor, nn

WORDS = 24  # features per caption (LlamaGen: 120)
BUCKETS = 4096
WIDTH = 128


def words(caption: str) -> list[str]:
    """Case-folded words; every other visible symbol (an emoji, say) is a separate word."""
    return re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFKC", caption).casefold())


def word_id(word: str) -> int:
    """A stable id 1 … BUCKETS − 1; 0 is padding."""
    digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (BUCKETS - 1)


def read(caption: str) -> list[str]:
    """The words that the encoder reads; an empty caption keeps one neutral word."""
    return [w for w in words(caption)[:WORDS] if w != ","] or [""]


def padded(rows: list[list[int]], length: int) -> Tensor:
    """int64 [B, length], 0 on the right."""
    return torch.tensor([row + [0] * (length - len(row)) for row in rows], dtype=torch.long).view(-1, length)


def tokenize(captions: list[str]) -> Tensor:
    """int64 [B, WORDS], right-padded with 0."""
    return padded([[word_id(w) for w in read(caption)] for caption in captions], WORDS)


class TextEncoder(nn.Module):
    """Two bidirectional layers over hashed words; every position carries the mean over the caption.

    LlamaGen's image tokens attend to all caption positions alike, so the mean is what they could see of them anyway.
    """

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(BUCKETS, WIDTH, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(WORDS, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids [B, WORDS] -> features [B, WORDS, WIDTH], mask [B, WORDS] (1 = word), right-padded."""
        mask = ids != 0
        x = self.body(self.word(ids) + self.place, src_key_padding_mask=~mask)
        mean = (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        return mean * mask[..., None], mask.long()
