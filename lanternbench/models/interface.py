"""What drafters, and loaders of drafters, read of a target and of its decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from torch import Tensor, nn

from lanternbench.models.grids import Grid
from lanternbench.models.transformer import DecoderConfig, RMSNorm

Embedding = Callable[[Tensor], Tensor]  # ids [...] -> [..., dim]


class ImageConfig(Protocol):
    """What the configuration of every decoder of image tokens says."""

    @property
    def decoder(self) -> DecoderConfig:
        """The shape of its stack."""

    @property
    def dim(self) -> int:
        """The width of hidden states."""

    @property
    def n_layer(self) -> int:
        """Layers of the stack."""

    @property
    def vocab_size(self) -> int:
        """Image tokens to choose from."""

    @property
    def grid(self) -> Grid:
        """Rows and columns of the last grid of image tokens, the image."""


class TargetDecoder(Protocol):
    """A target's decoder; see ``decoder.ImageDecoder``."""

    rotates_halves: ClassVar[bool]
    norm: RMSNorm
    image_ids: Tensor

    @property
    def config(self) -> ImageConfig: ...

    @property
    def tok_embeddings(self) -> Embedding: ...

    @property
    def prompt_embeddings(self) -> nn.Module: ...

    @property
    def eagle_config(self) -> DecoderConfig: ...

    @property
    def eagle_tables(self) -> tuple[int, int]: ...

    def new_eagle(self, fused: bool = False) -> nn.Module: ...


class HasDecoder(Protocol):
    """A target."""

    @property
    def model(self) -> TargetDecoder: ...


def wrong_width(dim: int, target: HasDecoder) -> str | None:
    """Return what keeps a drafter that reads hidden states ``dim`` wide from drafting for
    ``target``; None if nothing does.
    """
    width = target.model.config.decoder.dim
    if dim == width:
        return None
    return f"it is made for hidden states {dim} wide, the target's are {width} wide"


def counted_layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"
