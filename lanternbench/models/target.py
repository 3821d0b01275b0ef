"""A target as the engine sees it: its decoder, its prefix of a caption, and its images of
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from PIL import Image
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.grids import Grid, size
from lanternbench.models.vq import ImageTokeniser
from lanternbench.settings import Sampling
from lanternbench.utils.memory import BatchLimit

if TYPE_CHECKING:
    from lanternbench.utils.graph_capture import Graphs

Pads = Literal["alone", "uniform"]
Options = dict[str, Any]  # of methods, by name
DECODED = 4096  # tokens that the image tokeniser decodes at once


class Prefix(NamedTuple):
    """The inputs of a target before the first image token; R = B, or 2B with guidance, conditional
    rows first.
    """

    embeddings: Tensor  # [R, P, dim]
    valid: Tensor  # [R, P] bool, False on padding
    # the inputs of ``cls_embedding``, for independent drafters: [R, P, c], labels [R, 1] or ids
    # [R, P]
    features: Tensor
    # [R, P − 1] for an EAGLE drafter: the id of the next token, see ``Eagle.embed_prompt``
    ahead_ids: Tensor
    seen: Tensor  # [R, P − 1] bool, for an EAGLE drafter: positions that may be attended to


class TextEncoder(Protocol):
    """Captions -> features [B, T, c] or ids [B, T], and mask [B, T], right-padded; or class labels
    [B, 1] and ones.
    """

    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]: ...


@runtime_checkable
class StoredFeatures(TextEncoder, Protocol):
    """A text encoder that stores the features of captions."""

    @property
    def encoder_weights(self) -> int:
        """Weights that are in memory while captions are encoded."""

    def prepare(self, captions: list[str]) -> object:
        """Encode captions ahead of time."""

    def encode_seconds(self, captions: list[str]) -> float:
        """Return the seconds that the encoder took for captions."""

    def notes(self, captions: list[str]) -> list[str]:
        """Return notes on prepared captions that are not read, or not to their end."""


def rounded(images: Tensor) -> Tensor:
    """Decoded images [B, 3, H, W] in −1…1 -> uint8 [B, H, W, 3]."""
    return ((images.clamp(-1, 1).permute(0, 2, 3, 1) + 1) * 127.5).round().byte()


def truncated(images: Tensor) -> Tensor:
    """As ``rounded``, but truncated, like the official code of Chameleon, Emu3 and Janus."""
    return (((images.clamp(-1, 1) + 1) / 2) * 255).to(torch.uint8).permute(0, 2, 3, 1)


@dataclass
class Target:
    """A loaded text-to-image model."""

    name: str
    model: ImageDecoder
    vq: ImageTokeniser | None  # None: no images
    text: TextEncoder
    sampling: Sampling = field(default_factory=Sampling)  # its defaults
    evaluators: Literal["tiny", "full", "none"] = "full"  # which networks score its images
    options: Options = field(default_factory=dict)  # its default trees and neighbourhood size
    # by kind of proposal: eagle, eagle-3, model, medusa, dflash
    drafters: dict[str, Any] = field(default_factory=dict)
    pad_rows: Pads = "alone"  # what padded prefix positions attend to, see ``prefix_mask``
    # with an EAGLE drafter of the user's: those for LANTERN's class expect ``uniform``
    eagle_pads: Pads = "alone"
    # (target, captions, with unconditional rows) -> prefix, if it is not the model's of the
    # encoded captions
    condition: Callable[[Target, list[str], bool], Prefix] | None = None
    # what the tokeniser decodes -> uint8 [B, H, W, 3]
    pixels: Callable[[Tensor], Tensor] = rounded
    # (tokens of the last grid [B, h, w], captions) -> RGB images, in place of a ``vq``
    render: Callable[[Tensor, Sequence[str]], list[Image.Image]] | None = None
    labels: bool = False  # whether prompts are classes
    # the prompt id that the model writes after each row of an image, if it does
    row_end: int | None = None
    prompt_template: str = "{caption}"  # the text around a caption
    remark: str = ""  # a note for readers of its figures
    # digests of its files by part, see ``fingerprints``
    weights: dict[str, str] = field(default_factory=dict)
    graphs: Graphs | None = None  # if set, the phases of a step are replayed as CUDA graphs
    # nearest codes by kind of proximity, cached on first use
    near: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.vq is None and self.render is None:
            self.evaluators = "none"

    @property
    def guidance(self) -> float:
        return self.sampling.guidance

    @property
    def grids(self) -> tuple[Grid, ...]:
        return self.model.grids

    @property
    def grid(self) -> Grid:
        """Rows and columns of the last grid, the image."""
        return self.model.config.grid

    @property
    def length(self) -> int:
        """Image tokens, of all grids."""
        return sum(map(size, self.grids))

    @property
    def row_width(self) -> int:
        """Image tokens a row if the model writes a token after each row, else 0."""
        return 0 if self.row_end is None else self.grid[1]

    @property
    def image_slots(self) -> int:
        """Image tokens and the row ends between them, and one after the last."""
        return self.length + (0 if self.row_end is None else self.length // self.grid[1])

    @property
    def vocab(self) -> int:
        return self.model.config.vocab_size

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def codebook(self) -> Tensor:
        """The codes as the tokeniser compares them [V, d].  Raises UserError without one."""
        if self.vq is None:
            raise UserError(
                f"target '{self.name}' has no image tokeniser, whose codes say which tokens look "
                "alike, as LANTERN and GSD ask: put one into its folder 'vq', or leave these "
                "methods out"
            )
        return self.vq.quantize.codes()

    def prefix(self, captions: list[str], guidance: float) -> Prefix:
        """Captions -> prefix, with the unconditional rows below with guidance (scale ≠ 1)."""
        is_guided = guidance != 1.0
        if self.condition is not None:
            return self.condition(self, captions, is_guided)
        return self.model.prefix(*self.text(captions), is_guided)

    def prepare(self, captions: list[str]) -> None:
        """Encode captions ahead of time if the text encoder stores their features."""
        if isinstance(self.text, StoredFeatures):
            self.text.prepare(captions)

    def caption_notes(self, captions: list[str]) -> list[str]:
        """Return notes on prepared captions that the text encoder does not read, or cuts."""
        if isinstance(self.text, StoredFeatures):
            return self.text.notes(captions)
        return []

    def encode_seconds(self, captions: list[str]) -> float:
        """Return the seconds that the text encoder took for captions with stored features; 0 if it
        runs for every image.
        """
        if isinstance(self.text, StoredFeatures):
            return self.text.encode_seconds(captions)
        return 0.0

    def images(self, tokens: Tensor, captions: Sequence[str] = ()) -> list[Any]:
        """Return RGB images of tokens [B, L], or as many None without a tokeniser.

        Each takes up to 3 GB, so few are decoded at a time, and half as many when memory runs out.
        """
        last = tokens[:, self.length - size(self.grid) :].reshape(-1, *self.grid)
        if self.render is not None:
            return self.render(last, captions)
        if self.vq is None:
            return [None] * len(tokens)
        at_once = max(1, DECODED // self.length)
        return BatchLimit(at_once).results(partial(self._decoded, self.vq), list(last))

    def _decoded(self, vq: ImageTokeniser, tokens: list[Tensor]) -> list[Image.Image]:
        """Return the tokeniser's images of grids of tokens [h, w]."""
        pixels = self.pixels(vq.decode(torch.stack(tokens)))
        return [Image.fromarray(array) for array in pixels.cpu().numpy()]
