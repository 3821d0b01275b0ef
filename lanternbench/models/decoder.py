"""The interface of a decoder of image tokens: a target's, or an independent drafter's."""

from __future__ import annotations

from dataclasses import Field
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.models.grids import Grid, written
from lanternbench.models.transformer import DecoderConfig, Mask, TokenStack

if TYPE_CHECKING:
    from lanternbench.models.target import Prefix, Target


class ImageConfig(Protocol):
    """The configuration of a decoder of image tokens."""

    __dataclass_fields__: ClassVar[dict[str, Field]]

    @property
    def decoder(self) -> DecoderConfig: ...

    @property
    def dim(self) -> int: ...

    @property
    def n_layer(self) -> int: ...

    @property
    def vocab_size(self) -> int:
        """Image tokens to choose from."""

    @property
    def grid(self) -> Grid:
        """Rows and columns of the last grid of image tokens, the image."""


def causal_mask(valid: Tensor, n: int) -> Mask:
    """Return ``prefix_mask``, or "causal" if nothing is padded."""
    return "causal" if bool(valid.all()) else prefix_mask(valid, n)


def prefix_mask(valid: Tensor, n: int, pad_rows: str = "alone") -> Tensor:
    """Causal mask over prefix and image: valid [B, T], left-padded -> bool [B, 1, n, n]; no
    position attends to a pad.

    A pad itself sees only itself (``alone``, the official sampler), or earlier pads and the whole
    caption (``uniform``, LANTERN's class).  No logit depends on it, but an EAGLE drafter reads the
    pads' hidden states.
    """
    past_prefix = (0, n - valid.shape[1])
    keys = F.pad(valid.bool(), past_prefix, value=True)  # [B, n]
    causal = torch.ones(n, n, dtype=torch.bool, device=valid.device).tril()
    seen_by_pads = torch.eye(n, dtype=torch.bool, device=valid.device)
    if pad_rows == "uniform":
        caption = F.pad(valid.bool(), past_prefix)
        seen_by_pads = causal | caption[:, None]
    return torch.where(keys[..., None], causal & keys[:, None], seen_by_pads)[:, None]


class ImageDecoder(TokenStack):
    """A stack, prompt encoder, image tokens' table, and head."""

    # entries of ``config`` in which an independent drafter must equal its target, and their nouns
    fits: ClassVar[tuple[tuple[str, str], ...]] = (
        ("vocab_size", "image tokens to choose from"),
        ("grid", "image tokens"),
    )
    rotates_halves: ClassVar[bool] = False  # in published checkpoints, see ``rotary_pairs``
    rope: Tensor  # complex [positions, head_dim / 2]
    cls_embedding: nn.Module  # ``Prefix.features`` -> [R, P, dim]
    image_ids: Tensor  # [vocab_size] the prompt id of each image token, if it has one

    def __init__(self, config: ImageConfig):
        super().__init__(config.decoder)
        self.config = config

    @property
    def device(self) -> torch.device:
        return self.tok_embeddings.weight.device

    @property
    def grids(self) -> tuple[Grid, ...]:
        """The grids of image tokens, in the order in which they are drawn, the image's last."""
        return (self.config.grid,)

    def rotary_table(self, prompt: int) -> Tensor:
        """Rotary embeddings by position: complex [positions, head_dim / 2], of which ``prompt``
        come before the image.
        """
        return self.rope

    def position_table(self, prompt: int) -> Tensor:
        """The second argument of ``forward`` by position [positions, …]: rotary embeddings."""
        return self.rotary_table(prompt)

    @property
    def prompt_embeddings(self) -> nn.Module:
        """The embedding of ``Prefix.ahead_ids`` and row ends: ids [...] -> [..., dim]."""
        return self.tok_embeddings

    @property
    def prompt_positions(self) -> int:
        """Positions of a typical prompt, for cost models."""
        return 64

    def prefix(self, features: Tensor, mask: Tensor, guided: bool) -> Prefix:
        """The output of ``Target.text`` -> prefix; unused if the target sets ``condition``."""
        raise NotImplementedError

    def teacher_forced(self, prefix: Tensor, valid: Tensor, tokens: Tensor) -> Tensor:
        """Hidden states that predict ``tokens``: prefix [B, T, dim], valid [B, T], tokens [B, L]
        -> [B, L, dim].

        A left-padded row's positions start at its pads: only distances between positions count.
        """
        x = torch.cat([prefix, self.tok_embeddings(tokens[:, :-1])], dim=1)
        n = x.shape[1]
        prompt = prefix.shape[1]
        positions = self.position_table(prompt)[None, :n, None]
        return self(x, positions, causal_mask(valid, n))[:, prompt - 1 :]

    @property
    def about(self) -> str:
        return f"{type(self).__name__}, {len(self.layers)} layers"

    def misfit(self, target: Target) -> str | None:
        """Return why it cannot draft for ``target`` as an independent model, as a clause; None if
        it can.
        """
        other = target.model
        if type(self) is not type(other):
            return f"it is a {type(self).__name__} model, the target a {type(other).__name__}"
        for name, noun in self.fits:
            ours = getattr(self.config, name)
            theirs = getattr(other.config, name)
            if ours == theirs:
                continue
            if name == "grid":
                return f"it has {written(ours)} {noun}, the target {written(theirs)}"
            return f"it has {ours} {noun}, the target {theirs}"
        return None

    @property
    def eagle_config(self) -> DecoderConfig:
        """The shape of an EAGLE drafter's layers."""
        return self.config.decoder

    @property
    def eagle_tables(self) -> tuple[int, int]:
        """Rows of an EAGLE drafter's tables of image tokens and of prompt ids, if it has tables;
        0: none.
        """
        return self.config.vocab_size, 0
