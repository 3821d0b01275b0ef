"""LlamaGen (Sun et al. 2024, arXiv 2406.06525): from official files, or with random weights.

Class- or caption-conditional, with 2-D rotary positions and official key names.  A folder holds
one sub-folder per role: ``model`` (an official .pt, or LANTERN's Hugging Face conversion), ``vq``,
``text`` (Flan-T5-XL), and drafters such as ``eagle`` in LANTERN's layout.
"""

import hashlib
import html
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.entries import DIGESTED, Entry, catalogue, fingerprint
from lanternbench.models.family import Checkpoint, Family
from lanternbench.models.grids import Grid, grid_of, size
from lanternbench.models.key_names import OFFICIAL, split
from lanternbench.models.loading import explain_errors, random_net, read_state
from lanternbench.models.target import Options, Prefix, Target, TextEncoder
from lanternbench.models.token_decoder import word_id, words
from lanternbench.models.transformer import DecoderConfig, rope_2d
from lanternbench.registry import register
from lanternbench.utils.damage import damage
from lanternbench.utils.device import hardware
from lanternbench.utils.files import HOME, cache_dir, make_folder, write_file
from lanternbench.utils.quiet import quiet_transformers

FLAN_T5_XL: dict[str, Any] = {
    "vocab_size": 32_128,
    "d_model": 2048,
    "d_kv": 64,
    "d_ff": 5120,
    "num_layers": 24,
    "num_heads": 32,
    "feed_forward_proj": "gated-gelu",
}
SECONDS = "encode_seconds"  # the entry of a file's header
TABLE_MULTIPLE = 128  # of the rows of T5's embedding table, which are as many as pieces or more
# replacements in a caption in lower case, in this order
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
# our state -> the official key names, in which queries, keys and values are one matrix too
to_official = partial(split, layout={"feed_forward.w13": OFFICIAL["feed_forward.w13"]})


@dataclass(frozen=True)
class LlamaGenConfig:
    """The arguments of the official ``ModelArgs`` that inference needs."""

    dim: int
    n_layer: int
    n_head: int
    vocab_size: int = 16384
    grid: Grid = (16, 16)  # rows and columns of image tokens; a number for a square
    model_type: str = "t2i"  # or "c2i"
    caption_dim: int = 2048
    cls_token_num: int = 120
    num_classes: int = 1000
    multiple_of: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", grid_of(self.grid))

    @property
    def prefix(self) -> int:
        """Conditioning positions before the first image token."""
        return self.cls_token_num if self.model_type == "t2i" else 1

    @property
    def decoder(self) -> DecoderConfig:
        # 8/3 · dim, rounded up
        width = -(-int(8 * self.dim / 3) // self.multiple_of) * self.multiple_of
        return DecoderConfig(self.dim, self.n_layer, self.n_head, width, self.vocab_size)


class CaptionEmbedding(nn.Module):
    """Text features -> prefix embeddings; the unconditional prompt has learned features."""

    def __init__(self, cfg: LlamaGenConfig):
        super().__init__()
        layers: dict[str, nn.Module] = {
            "fc1": nn.Linear(cfg.caption_dim, cfg.dim, bias=False),
            "gelu": nn.GELU("tanh"),
            "fc2": nn.Linear(cfg.dim, cfg.dim, bias=False),
        }
        self.cap_proj = nn.Sequential(OrderedDict(layers))
        self.uncond_embedding = nn.Parameter(
            torch.randn(cfg.cls_token_num, cfg.caption_dim) / cfg.caption_dim**0.5
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.cap_proj(features)

    def unconditional(self, count: int) -> Tensor:
        """Return the features that stand for no caption [count, T, c]."""
        return self.uncond_embedding.expand(count, -1, -1)


class LabelEmbedding(nn.Module):
    """Class labels [B, 1] -> one prefix embedding [B, 1, dim]; the last row is the null class."""

    def __init__(self, cfg: LlamaGenConfig):
        super().__init__()
        self.embedding_table = nn.Embedding(cfg.num_classes + 1, cfg.dim)

    def forward(self, labels: Tensor) -> Tensor:
        return self.embedding_table(labels)

    def unconditional(self, count: int) -> Tensor:
        """Return the labels that stand for no class [count, 1]."""
        table = self.embedding_table.weight
        return table.new_full((count, 1), len(table) - 1, dtype=torch.long)


def left_pad(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Right-padded features [B, T, c] and mask [B, T] -> left-padded, with zeros for padding, like
    the official sampler.
    """
    length = mask.shape[1]
    words = mask.sum(-1, keepdim=True)
    index = (torch.arange(length, device=mask.device) + words) % length  # [B, T]
    flipped = mask.flip(-1)
    turned = features.gather(1, index[..., None].expand_as(features))
    return turned * flipped[..., None], flipped


class LlamaGen(ImageDecoder):
    fits = (
        *ImageDecoder.fits,
        ("model_type", "as conditioning"),
        ("caption_dim", "as width of captions"),
        ("cls_token_num", "conditioning positions"),
    )
    config: LlamaGenConfig
    cls_embedding: CaptionEmbedding | LabelEmbedding

    def __init__(self, config: LlamaGenConfig):
        super().__init__(config)
        embedding = CaptionEmbedding if config.model_type == "t2i" else LabelEmbedding
        self.cls_embedding = embedding(config)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        rope = rope_2d(*config.grid, config.decoder.head_dim, config.prefix)
        self.register_buffer("rope", rope, persistent=False)

    @property
    def prompt_positions(self) -> int:
        return self.config.prefix

    @property
    def eagle_config(self) -> DecoderConfig:
        """LANTERN's drafter, whose only layer has no input norm."""
        return replace(self.config.decoder, first_norm=False, norm_eps=1e-6)

    def prefix(self, features: Tensor, mask: Tensor, guided: bool) -> Prefix:
        """Features, or a class, are the prefix; an EAGLE drafter reads token 0 as the next one of
        each, and sees pads.
        """
        if features.ndim == 3:
            features, mask = left_pad(features, mask)
        if guided:
            unconditional = self.cls_embedding.unconditional(len(features))
            features = torch.cat([features, unconditional])
            mask = mask.repeat(2, 1)
        x = self.cls_embedding(features)
        ahead = torch.zeros(x.shape[0], x.shape[1] - 1, dtype=torch.long, device=x.device)
        return Prefix(x, mask.bool(), features, ahead, torch.ones_like(ahead, dtype=torch.bool))

    def teacher_forced(self, prefix: Tensor, valid: Tensor, tokens: Tensor) -> Tensor:
        """As ``ImageDecoder.teacher_forced``, without columns that are padding in every row."""
        pads = int((~valid.bool()).all(0).sum())
        return super().teacher_forced(prefix[:, pads:], valid[:, pads:], tokens)

    def rotary_table(self, prompt: int) -> Tensor:
        return self.rope[self.config.prefix - prompt :]


def clean(caption: str) -> str:
    """Return a caption like those that LlamaGen was trained on: in lower case, with plain quotes
    and dashes, without addresses or symbols.
    """
    text = html.unescape(caption).strip().lower()
    for pattern, replacement in _CLEANED:
        text = re.sub(pattern, replacement, text)
    if len(re.findall(r"[-_]", text)) > 3:
        text = re.sub(r"[-_]", " ", text)
    text = re.sub(r"(\D[,.])\b", r"\1 ", text)
    return re.sub(r"\s+", " ", text).strip().strip("'_,-:;+ ")


@dataclass(eq=False)
class T5Features:
    """Captions -> Flan-T5-XL's features [B, length, 2048] and mask [B, length], right-padded.

    Features are stored in the home folder, by the content of encoder and tokeniser, the dtype and
    the length.  The encoder is loaded for the first caption without stored features, and unloaded
    before decoding begins.  Its seconds per caption, without loading, are stored too, so that
    end-to-end times can count them.
    """

    folder: Path
    length: int
    device: str
    dtype: torch.dtype
    width: int  # of the features that the decoder reads
    layers: int = FLAN_T5_XL["num_layers"]

    @cached_property
    def store(self) -> Path:
        """The folder of this encoder's features, by dtype, length and device.

        Another device rounds differently and takes another time.
        """
        dtype = str(self.dtype).removeprefix("torch.")
        made_on = re.sub(r"\W+", "-", hardware(self.device))
        name = f"{fingerprint(self.folder)}-{dtype}-{self.length}-{made_on}"
        return cache_dir() / "text-features" / name

    def prepare(self, captions: list[str]) -> list[Path]:
        """Return the files of the captions' features; missing ones are computed together."""
        texts = [clean(caption) for caption in captions]
        paths = [self.path(text) for text in texts]
        new = {}
        for path, text in zip(paths, texts, strict=True):
            if self._seconds(path) is None:
                new[path] = text
        if new:
            self._encode(new)
        return paths

    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        features = torch.zeros(len(captions), self.length, self.width, dtype=self.dtype)
        mask = torch.zeros(len(captions), self.length, dtype=torch.long)
        for i, path in enumerate(self.prepare(captions)):
            words = load_file(path)["features"]  # [words, 2048]
            features[i, : len(words)] = words
            mask[i, : len(words)] = 1
        return features.to(self.device), mask.to(self.device)

    def encode_seconds(self, captions: list[str]) -> float:
        """Return the seconds that the encoder took for these captions, one by one."""
        return sum(self._seconds(path) or 0.0 for path in self.prepare(captions))

    @property
    def encoder_weights(self) -> int:
        """The weights of the encoder, which is in memory while captions are encoded."""
        sizes = FLAN_T5_XL
        attention = 4 * sizes["num_heads"] * sizes["d_kv"]
        gated = 3 * sizes["d_ff"]
        layers = self.layers * (attention + gated + 2)  # two norms
        return self.width * (sizes["vocab_size"] + layers + 1)

    def path(self, caption: str) -> Path:
        """Return the file of a cleaned caption's features."""
        digest = hashlib.sha256(caption.encode()).hexdigest()[:32]
        return self.store / f"{digest}.safetensors"

    def notes(self, captions: list[str]) -> list[str]:
        """Return notes on prepared captions of which nothing is read, or all ``length`` tokens."""
        empty = 0
        full = 0
        for text in map(clean, captions):
            if not text:
                empty += 1
            with safe_open(self.path(text), "pt") as file:
                rows, _ = file.get_slice("features").get_shape()
            if rows == self.length:
                full += 1
        notes = []
        if empty:
            notes.append(
                f"{empty:,} captions have no text that the target reads: their images show anything."
            )
        if full:
            notes.append(
                f"{full:,} captions have {self.length} tokens or more: the target reads "
                f"{self.length}."
            )
        return notes

    def _seconds(self, path: Path) -> float | None:
        """Return the seconds that the encoder took for these features; None if they are missing or
        damaged.
        """
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
        make_folder(self.store, HOME)

        def encode(caption: str) -> Tensor:
            ids = tokens(caption).to(self.device)
            state = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            return state[0].cpu().contiguous()  # this waits for the device

        encode(next(iter(captions.values())))  # first calls allocate and choose kernels
        for path, caption in captions.items():
            began = perf_counter()
            features = encode(caption)
            seconds = perf_counter() - began
            content = save({"features": features}, {SECONDS: repr(seconds)})
            write_file(path, content, HOME, shared=True)

    def _encoder(self) -> tuple[nn.Module, Callable[[str], Tensor]]:
        """Return the encoder on its device, and the function of a caption that gives its tokens
        [1, n].

        Raises UserError.
        """
        from transformers import AutoTokenizer, T5EncoderModel

        for file in self.folder.glob("*"):
            wrong = damage(file) if file.suffix in DIGESTED else None
            if wrong:
                raise UserError(f"the text encoder's {file} {wrong}")
        reason = f"cannot read the text encoder in {self.folder}"
        with explain_errors(reason, "fetch the target again"), quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
            encoder = T5EncoderModel.from_pretrained(
                self.folder, local_files_only=True, dtype=self.dtype
            )
        if encoder.config.d_model != self.width:
            raise UserError(
                f"the text encoder in {self.folder} gives features {encoder.config.d_model} wide "
                f"but this target reads {self.width}: it has to be Flan-T5-XL"
            )
        pieces = len(tokenizer)
        rows = encoder.config.vocab_size
        # transformers may build a tokeniser without a file
        if not rows - TABLE_MULTIPLE <= pieces <= rows:
            raise UserError(
                f"{self.folder} has no tokeniser of its text encoder ({pieces:,} pieces for an "
                f"embedding table of {rows:,}): put tokenizer.json or spiece.model there"
            )

        def tokens(caption: str) -> Tensor:
            return torch.tensor(
                [tokenizer(caption, max_length=self.length, truncation=True).input_ids]
            )

        encoder.to(self.device).eval()  # type: ignore[arg-type]
        return encoder, tokens


class RandomT5Features(T5Features):
    """An encoder of Flan-T5-XL's size with random weights, so that end-to-end times count it.

    Its features last as long as itself.
    """

    def __init__(self, length: int, device: str, dtype: torch.dtype, width: int, layers: int):
        self._home = TemporaryDirectory(prefix="lanternbench-t5-")
        super().__init__(Path(), length, device, dtype, width)
        self.store = Path(self._home.name)
        self.layers = min(layers, self.layers)

    def _encoder(self) -> tuple[nn.Module, Callable[[str], Tensor]]:
        from transformers import T5Config, T5EncoderModel

        config = T5Config(**FLAN_T5_XL | {"d_model": self.width, "num_layers": self.layers})
        encoder = random_net(lambda: T5EncoderModel(config), self.device, self.dtype)
        encoder.set_input_embeddings(encoder.shared)  # one table under two names

        def tokens(caption: str) -> Tensor:
            ids = [1 + word_id(word) for word in words(caption)[: self.length - 1]]
            return torch.tensor([[*ids, 1]])  # 0 is padding, 1 the end

        return encoder, tokens


class LlamaGenCheckpoint(Checkpoint[LlamaGenConfig]):
    network = LlamaGen
    configuration = LlamaGenConfig
    # LANTERN trained its drafters on hidden states whose pads see the caption
    eagle_pads = "uniform"

    @cached_property
    def text(self) -> TextEncoder:
        """Flan-T5-XL, or class labels as they are."""
        config = self.config
        if config.model_type == "c2i":
            return partial(class_labels, device=self.device)
        sizes = (config.cls_token_num, self.device, self.dtype, config.caption_dim)
        if self.is_random:
            return RandomT5Features(*sizes, config.n_layer)
        return T5Features(self.files.get("text"), *sizes)

    def complete(self, target: Target) -> None:
        target.labels = self.config.model_type == "c2i"

    def decoder(self) -> ImageDecoder:
        """Raises UserError also for the files of another target of the family."""
        if not self.is_random:
            check_published_name(self.row, self.weights)
            table = read_state(self.weights).get("freqs_cis")
            positions = self.config.prefix + size(self.config.grid)
            if table is not None and table.ndim == 3 and len(table) != positions:
                raise UserError(
                    f"{self.weights} has {len(table)} positions, this target {positions}: "
                    "it is of another image size"
                )
        return super().decoder()


@register("target", "llamagen")
class LlamaGenFamily(Family):
    checkpoint = LlamaGenCheckpoint
    needs = ("model", "vq", "text")
    # LANTERN++'s tree, and ADT-Tree's bounds for LlamaGen
    defaults: ClassVar[Options] = {
        "static": "naive_extend_57",
        "l_k": 10,
        "width_range": (3, 40),
    }


def check_published_name(row: Entry, where: Path) -> None:
    """Raise UserError for a file that is published as another target's of the family.

    The two stages of one model have equal shapes, and their files need not hold a rotary table.
    """
    names = {path.name for path in (where.iterdir() if where.is_dir() else [where])}
    if names.intersection(row.published("model")):
        return
    for other in catalogue().values():
        if other.family != row.family:
            continue
        for name in sorted(names.intersection(other.published("model"))):
            raise UserError(
                f"{where / name} is published as the model of {other.name}, not of {row.name}: "
                f"use --target {other.name}, or rename the file if it is another"
            )


def class_labels(captions: list[str], device: str) -> tuple[Tensor, Tensor]:
    """ImageNet classes, as prompts "0" … "999" -> labels [B, 1] and a mask of ones.

    Raises UserError for any other prompt.
    """
    for caption in captions:
        if not (caption.isascii() and caption.isdigit() and int(caption) < 1000):
            raise UserError(
                f"'{caption[:60]}' is no ImageNet class: use --prompts imagenet, or give numbers "
                "from 0 to 999, one per line"
            )
    labels = torch.tensor(list(map(int, captions)), device=device)[:, None]
    return labels, torch.ones_like(labels)
