"""Decoders whose prompts are ids, in one sequence with the image at 1-D positions (Chameleon,
Janus, Emu3), and their prompts.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lanternbench.errors import UserError
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.grids import Grid, grid_of
from lanternbench.models.loading import Json, explain_errors
from lanternbench.models.target import Prefix, Target
from lanternbench.models.transformer import DecoderConfig, rope_1d
from lanternbench.utils.damage import damage

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")
BUCKETS = 4096  # ids of words without a tokeniser; the first is padding
# entries of a config.json that change Llama's architecture
VARIANTS = ("attention_bias", "mlp_bias", "tie_word_embeddings", "rope_scaling", "hidden_act")


@dataclass(frozen=True)
class TokenDecoderConfig(DecoderConfig):
    dim: int = 4096
    n_layer: int = 32
    n_head: int = 32
    hidden: int = 11008
    vocab_size: int = 65536
    # rows of the rotary table: prompt and image must fit; it costs nothing else
    positions: int = 8192
    rope_base: float = 10000.0
    grid: Grid = (32, 32)  # rows and columns of image tokens; a number for a square
    # 0: one table holds all ids; else prompts have a table of this size, and ``vocab_size`` counts
    # image tokens alone
    prompt_ids: int = 0
    # the prompt id of image token 0 if no tokeniser is available
    first_image_id: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grid", grid_of(self.grid))

    @classmethod
    def llama_fields(cls, text: Json, allowed: tuple[str, ...] = ()) -> Json:
        """A Llama-like part of a config.json, in transformers' names -> our fields, whose defaults
        fill gaps.

        ``allowed``: variants that make no difference.  Raises UserError for others of
        ``VARIANTS``, which no published model of this kind uses, and KeyError for a size that is
        absent.
        """
        rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
        for name in variants(text, rope):
            if name not in allowed:
                asked = f"{name} {text.get(name) or ''}".strip()
                family = cls.__name__.removesuffix("Config")
                raise UserError(
                    f"config.json asks for {asked}, which no {family} uses: "
                    "use the original checkpoint"
                )
        return {
            "dim": text["hidden_size"],
            "n_layer": text["num_hidden_layers"],
            "n_head": text["num_attention_heads"],
            "hidden": text["intermediate_size"],
            "n_kv_head": text.get("num_key_value_heads") or 0,
            "head_width": text.get("head_dim") or 0,
            "vocab_size": text["vocab_size"],
            "positions": max(text.get("max_position_embeddings", 0), cls.positions),
            "rope_base": rope.get("rope_theta") or text.get("rope_theta") or cls.rope_base,
            "norm_eps": text.get("rms_norm_eps", cls.norm_eps),
        }


def variants(text: Json, rope: Json) -> list[str]:
    """Return the names of ``VARIANTS`` that a config.json asks for; ``rope``: its rotary part."""
    asked = [name for name in VARIANTS[:3] if text.get(name)]
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        asked.append("rope_scaling")
    if text.get("hidden_act", "silu") != "silu":
        asked.append("hidden_act")
    return asked


class TokenDecoder(ImageDecoder):
    """A decoder of ids, whose ``output`` gives the logits of image tokens alone: no other token
    may be drawn inside an image.
    """

    fits = (*ImageDecoder.fits, ("prompt_ids", "prompt ids"))
    config: TokenDecoderConfig
    rotates_halves = True
    # ids of prompts [R, P] -> [R, P, dim]; only if ``prompt_ids`` is not 0
    cls_embedding: nn.Embedding

    def __init__(self, config: TokenDecoderConfig, image_ids: Tensor | None = None):
        """``image_ids`` [V]: by default in the order of the codebook from ``first_image_id``
        on.
        """
        super().__init__(config)
        if config.prompt_ids:
            self.cls_embedding = nn.Embedding(config.prompt_ids, config.dim)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        rope = rope_1d(config.positions, config.head_dim, config.rope_base, config.rotary_width)
        self.register_buffer("rope", rope, persistent=False)
        if image_ids is None:
            first = config.first_image_id if config.prompt_ids else 0
            image_ids = torch.arange(first, first + config.vocab_size)
        self.register_buffer("image_ids", image_ids, persistent=False)

    @property
    def prompt_embeddings(self) -> nn.Module:
        return self.cls_embedding if self.config.prompt_ids else self.tok_embeddings

    @property
    def eagle_tables(self) -> tuple[int, int]:
        return self.config.vocab_size, self.config.prompt_ids


def check_type(config: Json, name: str, *types: str) -> None:
    """Raise UserError unless ``model_type`` of a config.json is one of ``types``.

    ``name``: that of the model.
    """
    kind = config.get("model_type")
    if kind not in types:
        raise UserError(
            f"config.json describes a model of type '{kind}', not {name}: "
            "name the target it belongs to"
        )


class Prompt(NamedTuple):
    """The ids before the first image token, with the caption and without."""

    cond: list[int]
    uncond: list[int]


class IdTokeniser:
    """Captions in a template -> ids [B, T] and mask [B, T], right-padded.  No caption can write a
    reserved token.
    """

    def __init__(
        self, path: Path, named: Iterable[str] = (), template: tuple[str, str] = ("", "")
    ):
        """``path``: a tokenizer.json; ``named``: tokens whose ``ids`` are wanted.

        Raises UserError if one is absent.
        """
        if wrong := damage(path):
            raise UserError(f"the tokeniser {path} {wrong}")
        with explain_errors(f"cannot read the tokeniser {path}", "use the published one"):
            self.tokenizer = self.read(path)
        # a training or export may have left both in the file
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.names: dict[str, int] = self.tokenizer.get_vocab(with_added_tokens=True)
        self.ids: dict[str, int] = {}
        for name in named:
            if name not in self.names:
                raise UserError(
                    f"the tokeniser {path} has no token {name}: "
                    "use the one published with the model"
                )
            self.ids[name] = self.names[name]
        self.template = template
        added = self.tokenizer.get_added_tokens_decoder()
        special = {number for number, token in added.items() if token.special}
        self.reserved = special | set(self.ids.values())

    @staticmethod
    def read(path: Path) -> "Tokenizer":
        """Return the tokeniser of a file."""
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(path))

    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        return padded([self.encode(caption, *self.template) for caption in captions])

    def encode(self, caption: str, before: str = "", after: str = "") -> list[int]:
        """Return the ids of all three; only the template may write reserved tokens."""
        start = len(before)
        stop = start + len(caption)
        encoding = self.tokenizer.encode(f"{before}{caption}{after}", add_special_tokens=False)
        kept = []
        for number, (first, end) in zip(encoding.ids, encoding.offsets, strict=True):
            in_caption = start <= first and end <= stop
            if number not in self.reserved or not in_caption:
                kept.append(number)
        return kept


def words(caption: str) -> list[str]:
    """Return case-folded words; every other visible symbol, such as an emoji, is a word too."""
    return re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFKC", caption).casefold())


def word_id(word: str) -> int:
    """Return a stable id 1 … BUCKETS − 1; 0 is padding."""
    digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (BUCKETS - 1)


class WordIds(IdTokeniser):
    """An ``IdTokeniser`` without a file: an id per word."""

    def __init__(self, size: int, named: Mapping[str, int]):
        """``size``: ids of prompts, the last of which are those of words; ``named``: published
        ids.
        """
        self.size = size
        self.ids = {name: number % size for name, number in named.items()}
        self.template = ("", "")

    def encode(self, caption: str, before: str = "", after: str = "") -> list[int]:
        first = self.size - BUCKETS
        return [first + word_id(word) for word in words(f"{before}{caption}{after}")]


def image_ids(names: Mapping[str, int], image_name: re.Pattern[str]) -> Tensor:
    """Return the id of each image token in a vocabulary [V].

    ``image_name``: its names, with a group for its index, in digits or in letters from A for 0 to
    J for 9.  Raises UserError for gaps.
    """
    found: list[tuple[int, int]] = []
    for name, token_id in names.items():
        if match := image_name.fullmatch(name):
            digits = match[1].translate(_DIGITS)
            found.append((int(digits) if digits.isdigit() else -1, token_id))
    indices, ids = torch.tensor(sorted(found)).view(-1, 2).T
    if not found or not torch.equal(indices, torch.arange(len(found))):
        raise UserError(
            f"the tokeniser names {len(found)} image tokens but not every one once: "
            "use the original"
        )
    return ids


def padded(rows: Sequence[list[int]], pad: int = 0, side: str = "right") -> tuple[Tensor, Tensor]:
    """Ids of any lengths -> ids [B, T] padded on one ``side``, and mask [B, T] bool."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    seen = [torch.ones_like(row, dtype=torch.bool) for row in ids]
    return pad_sequence(ids, True, pad, side), pad_sequence(seen, True, False, side)


@dataclass(frozen=True)
class PromptFrame:
    """The ids around those of a caption; it serves a target as ``condition``."""

    before: list[int]
    after: list[int]
    # None: the conditional prompt with padding in place of the caption, which is attended to
    uncond: list[int] | None
    pad: int = 0  # the id in front of prompts that are shorter than others
    template: str = "{caption}"  # the text that a caption stands in

    def prompt(self, text: list[int]) -> Prompt:
        """Return the prompt of a caption's ids."""
        cond = [*self.before, *text, *self.after]
        if self.uncond is not None:
            return Prompt(cond, self.uncond)
        return Prompt(cond, [*self.before, *[self.pad] * len(text), *self.after])

    def __call__(self, target: Target, captions: list[str], guided: bool) -> Prefix:
        """Return prompts left-padded to the longest, whose ids EAGLE reads one ahead.

        Raises UserError for one that is too long.
        """
        texts, mask = target.text([self.template.replace("{caption}", x) for x in captions])
        cond = []
        uncond = []
        for caption, ids, seen in zip(captions, texts, mask, strict=True):
            prompt = self.prompt(ids[seen].tolist())
            check_length(prompt, target, caption)
            cond.append(prompt.cond)
            uncond.append(prompt.uncond)
        rows = cond + uncond if guided else cond
        prompt_ids, valid = padded(rows, self.pad, "left")
        prompt_ids = prompt_ids.to(target.device)
        valid = valid.to(target.device)
        embeddings = target.model.cls_embedding(prompt_ids)
        return Prefix(embeddings, valid, prompt_ids, prompt_ids[:, 1:], valid[:, :-1])


def check_length(prompt: Prompt, target: Target, caption: str) -> None:
    """Raise UserError if the prompt leaves no room for the image."""
    config = cast(TokenDecoderConfig, target.model.config)
    longest = config.positions - target.image_slots
    if len(prompt.cond) > longest:
        raise UserError(
            f"the prompt '{caption[:60]}…' is {len(prompt.cond)} ids long, but before the image "
            f"there is room for {longest}: shorten it"
        )
