"""A target as the engine sees it: its decoder, how captions become a prefix, and how tokens become
images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.grids import Grid, size
from lanternbench.settings import Sampling
from lanternbench.utils.memory import BatchLimit

if TYPE_CHECKING:
    from lanternbench.utils.graph_capture import Graphs

Pads = Literal["alone", "uniform"]
DECODED = 4096  # tokens that the image tokeniser decodes at once


class Prefix(NamedTuple):
    """What a target reads before the first image token; R = B, or 2B with guidance (conditional
    rows first).
    """

    embeddings: Tensor  # [R, P, dim]
    valid: Tensor  # [R, P] bool, False on padding
    # [R, P, c], labels [R, 1] or ids [R, P]: what ``cls_embedding`` reads, for independent
    # drafters
    features: Tensor
    # [R, P − 1] for an EAGLE drafter: the id of the next token, see ``Eagle.embed_prompt``
    ahead_ids: Tensor
    seen: Tensor  # [R, P − 1] bool, for an EAGLE drafter: may the position be attended to?


def rounded(images: Tensor) -> Tensor:
    """Decoded images [B, 3, H, W] in −1…1 -> uint8 [B, H, W, 3]."""
    return ((images.clamp(-1, 1).permute(0, 2, 3, 1) + 1) * 127.5).round().byte()


def truncated(images: Tensor) -> Tensor:
    """As ``rounded``, but truncated, as the official code of Chameleon, Emu3 and Janus does."""
    return (((images.clamp(-1, 1) + 1) / 2) * 255).to(torch.uint8).permute(0, 2, 3, 1)


@dataclass
class Target:
    """A loaded text-to-image model."""

    name: str
    model: ImageDecoder
    # an image tokeniser: ``decode`` [B, h, w] -> what ``pixels`` reads, ``quantize.codes()`` ->
    # [V, d]; None: no images
    vq: Any
    # captions -> features [B, T, c] or ids [B, T], and mask [B, T], right-padded; or class labels
    # [B, 1] and ones
    text: Callable[[list[str]], tuple[Tensor, Tensor]]
    sampling: Sampling = field(default_factory=Sampling)  # its defaults
    evaluators: Literal["tiny", "full", "none"] = "full"  # which networks score its images
    options: dict = field(default_factory=dict)  # its default trees and neighbourhood size
    # by kind of proposal: eagle, eagle-3, model, medusa, dflash
    drafters: dict[str, Any] = field(default_factory=dict)
    pad_rows: Pads = "alone"  # what padded prefix positions attend to, see ``prefix_mask``
    # with an EAGLE drafter of the user's: those for LANTERN's class expect ``uniform``
    eagle_pads: Pads = "alone"
    # (target, captions, with unconditional rows?) -> prefix, where it is not the model's of the
    # encoded captions
    condition: Callable[[Target, list[str], bool], Prefix] | None = None
    # what the tokeniser decodes -> uint8 [B, H, W, 3]
    pixels: Callable[[Tensor], Tensor] = rounded
    # (tokens of the last grid [B, h, w], captions) -> RGB images, in place of ``vq`` where it
    # takes captions
    render: Callable[[Tensor, Sequence[str]], list[Any]] | None = None
    labels: bool = False  # are prompts classes?
    # the prompt id that the model writes after each row of an image, if it does
    row_end: int | None = None
    prompt_template: str = "{caption}"  # the text around a caption
    remark: str = ""  # a note for readers of its figures
    # digests of its files by part, see ``fingerprints``
    weights: dict[str, str] = field(default_factory=dict)
    graphs: Graphs | None = None  # where set, the phases of a step are replayed as CUDA graphs
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
        """Image tokens a row where the model writes a token after each, else 0."""
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
    def codebook(self) -> Tensor:
        """[V, d], as the tokeniser compares codes.  Raises UserError where there is no tokeniser."""
        if self.vq is None:
            raise UserError(
                f"target '{self.name}' has no image tokeniser, whose codes say which tokens look alike, as LANTERN and "
                "GSD ask: put one into its folder 'vq', or leave these methods out"
            )
        return self.vq.quantize.codes()

    def prefix(self, captions: list[str], guidance: float) -> Prefix:
        """Captions -> prefix, with the unconditional rows below when guidance is on (scale ≠ 1)."""
        if self.condition is not None:
            return self.condition(self, captions, guidance != 1.0)
        return self.model.prefix(*self.text(captions), guidance != 1.0)

    def prepare(self, captions: list[str]) -> None:
        """Encode captions ahead of time, where the text encoder keeps their features."""
        if hasattr(self.text, "prepare"):
            self.text.prepare(captions)

    def encode_seconds(self, captions: list[str]) -> float:
        """Seconds that the text encoder took for captions with stored features; 0 where it runs
        for every image.
        """
        return self.text.encode_seconds(captions) if hasattr(self.text, "encode_seconds") else 0.0

    def images(self, tokens: Tensor, captions: Sequence[str] = ()) -> list[Any]:
        """Return RGB images of tokens [B, L], or as many None without a tokeniser.

        Each takes up to 3 GB, so few are decoded at a time: half as many when memory runs out.
        """
        last = tokens[:, self.length - size(self.grid) :].reshape(-1, *self.grid)
        if self.render is not None:
            return self.render(last, captions)
        if self.vq is None:
            return [None] * len(tokens)
        at_once = max(1, DECODED // self.length)
        return BatchLimit(at_once).results(self._decoded, list(last))

    def _decoded(self, tokens: list[Tensor]) -> list[Image.Image]:
        """Return the tokeniser's images of tokens [h, w] each."""
        pixels = self.pixels(self.vq.decode(torch.stack(tokens)))
        return [Image.fromarray(array) for array in pixels.cpu().numpy()]
