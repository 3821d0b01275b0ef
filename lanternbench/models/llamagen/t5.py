"""Flan-T5-XL features for LlamaGen's text-to-image models, stored per prompt and dtype.

The encoder is loaded for the first caption without stored features, and unloaded before decoding begins.  Its seconds
per caption, without loading, are stored with the features, so that end-to-end times can count them.
"""

import hashlib
import html
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.loading import cause, random_net
from lanternbench.models.tiny.text_encoder import words
from lanternbench.utils.files import HOME, replacing

FLAN_T5_XL: dict[str, Any] = {"vocab_size": 32_128, "d_model": 2048, "d_kv": 64, "d_ff": 5120, "num_layers": 24}
FLAN_T5_XL |= {"num_heads": 32, "feed_forward_proj": "gated-gelu"}
SECONDS = "encode_seconds"  # the entry of a file's header
# in this order: what is replaced in a caption in lower case, and by what
_CLEANED = (
    (r"\b(?:https?:/+|www\.)\S+", ""),
    (r"<[^<>]*>", ""),
    (r"@\w+", ""),
    ("[\u31c0-\u4dbf\u4dc0-\u9fff]+", ""),  # CJK
    ("[\u2010-\u2015\u2e3a\u2e3b\u301c\uff0d]+", "-"),
    ("[`´«»“”¨]", '"'),
    ("[‘’]", "'"),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\.{2,}|\s+\.\s+", " "),
)


def clean(caption: str) -> str:
    """A caption as LlamaGen was trained on captions: lower case, plain quotes and dashes, no addresses or symbols."""
    text = html.unescape(caption).strip().lower()
    for pattern, replacement in _CLEANED:
        text = re.sub(pattern, replacement, text)
    if len(re.findall(r"[-_]", text)) > 3:
        text = re.sub(r"[-_]", " ", text)
    text = re.sub(r"(\D[,.])\b", r"\1 ", text)
    return re.sub(r"\s+", " ", text).strip().strip("'_,-:;+ ")


class T5Features:
    """Captions -> features [B, length, 2048] and mask [B, length], right-padded."""

    def __init__(self, folder: Path, length: int, device: str, dtype: torch.dtype, width: int):
        """``width``: of the features that the decoder reads."""
        self.folder, self.length, self.device, self.dtype, self.width = folder, length, device, dtype, width

    def prepare(self, captions: list[str]) -> list[Path]:
        """The files of the captions' features; missing ones are computed together."""
        texts = {self.path(text): text for text in map(clean, captions)}
        if new := {path: text for path, text in texts.items() if self._seconds(path) is None}:
            self._encode(new)
        return [self.path(clean(caption)) for caption in captions]

    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        rows = [load_file(path)["features"].to(self.dtype) for path in self.prepare(captions)]  # [words, 2048] each
        features = torch.zeros(len(rows), self.length, self.width, dtype=self.dtype)
        mask = torch.zeros(len(rows), self.length, dtype=torch.long)
        for i, row in enumerate(rows):
            features[i, : len(row)], mask[i, : len(row)] = row, 1
        return features.to(self.device), mask.to(self.device)

    def encode_seconds(self, captions: list[str]) -> float:
        """Seconds that the encoder took for these captions, one by one."""
        return sum(self._seconds(path) or 0.0 for path in self.prepare(captions))

    def path(self, caption: str) -> Path:
        """The file of a cleaned caption's features: one per dtype, so that no run depends on an earlier one's."""
        digest = hashlib.sha256(caption.encode()).hexdigest()[:32]
        return self.folder.parent / "features" / f"{digest}-{str(self.dtype).removeprefix('torch.')}.safetensors"

    def _seconds(self, path: Path) -> float | None:
        """Seconds that the encoder took for these features; None where they are missing or damaged."""
        try:
            with safe_open(path, "pt") as file:
                rows, width = file.get_slice("features").get_shape()
                seconds = float(file.metadata()[SECONDS])
        except (OSError, SafetensorError, ValueError, TypeError, KeyError):
            return None
        return seconds if 0 < rows <= self.length and width == self.width else None

    @torch.inference_mode()
    def _encode(self, captions: dict[Path, str]) -> None:
        encoder, tokens = self._encoder()
        (self.folder.parent / "features").mkdir(parents=True, exist_ok=True)

        def encode(caption: str) -> Tensor:
            ids = tokens(caption).to(self.device)
            state = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            return state[0].cpu().contiguous()  # which waits for the device

        encode(next(iter(captions.values())))  # first calls allocate and choose kernels
        for path, caption in captions.items():
            began = perf_counter()
            features = encode(caption)
            seconds = perf_counter() - began
            with replacing(path, HOME, shared=True) as file:
                file.write(save({"features": features}, {SECONDS: repr(seconds)}))

    def _encoder(self) -> tuple[nn.Module, Callable[[str], Tensor]]:
        """The encoder on its device, and what turns a caption into its tokens [1, n].  Raises UserError."""
        from transformers import AutoTokenizer, T5EncoderModel

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
            encoder = T5EncoderModel.from_pretrained(self.folder, local_files_only=True, dtype=self.dtype)
        except Exception as error:  # the library has no exception type for an invalid file
            raise UserError(
                f"cannot read the text encoder in {self.folder} ({cause(error)}); fetch the target again"
            ) from None
        if encoder.config.d_model != self.width:
            raise UserError(
                f"the text encoder in {self.folder} gives features {encoder.config.d_model} wide but this target reads "
                f"{self.width}: it has to be Flan-T5-XL"
            )

        def tokens(caption: str) -> Tensor:
            return tokenizer([caption], max_length=self.length, truncation=True, return_tensors="pt")["input_ids"]

        return encoder.to(self.device).eval(), tokens  # type: ignore[arg-type]


class RandomT5Features(T5Features):
    """Flan-T5-XL's size with random weights, so that end-to-end times count it; features last as long as this."""

    def __init__(self, length: int, device: str, dtype: torch.dtype, width: int, layers: int):
        self._home = TemporaryDirectory(prefix="lanternbench-t5-")
        super().__init__(Path(self._home.name) / "text", length, device, dtype, width)
        self.layers = min(layers, FLAN_T5_XL["num_layers"])

    def _encoder(self) -> tuple[nn.Module, Callable[[str], Tensor]]:
        from transformers import T5Config, T5EncoderModel

        config = T5Config(**FLAN_T5_XL | {"d_model": self.width, "num_layers": self.layers})
        encoder = random_net(lambda: T5EncoderModel(config), self.device, self.dtype)
        encoder.set_input_embeddings(encoder.shared)  # one table under two names

        def tokens(caption: str) -> Tensor:
            return torch.tensor([[word_id(w, config.vocab_size) for w in words(caption)[: self.length - 1]] + [1]])

        return encoder, tokens


def word_id(word: str, vocab: int) -> int:
    """A token for a word where there is no tokenizer: any but the first two, padding and end."""
    return 2 + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=7).digest(), "little") % (vocab - 2)
