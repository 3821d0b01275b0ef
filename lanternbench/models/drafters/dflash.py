"""Drafters of several tokens per forward pass: DFlash's block, from the target's states at
several depths, and Medusa's heads.

Sources: DFlash (arXiv 2602.06036, ICML 2026); ``causal``: the head of JetSpec (arXiv 2606.18394).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.eagle import counted_layers, unread_states
from lanternbench.models.drafters.kinds import Sizes
from lanternbench.models.loading import (
    State,
    count_layers,
    explain_errors,
    load_into,
    read_state,
)
from lanternbench.models.transformer import (
    DecoderConfig,
    Depths,
    Direct,
    Layer,
    Mask,
    Put,
    RMSNorm,
    mask_of_heads,
)

if TYPE_CHECKING:
    from lanternbench.models.target import Target

MAX_BLOCK = 65  # the anchor and as many drafts as a tree may be deep


class BlockLayer(Layer):
    """A layer with queries of the block alone, and keys and values of context and block."""

    def forward(  # type: ignore[override]
        self, x: Tensor, context: Tensor, rope: Tensor, mask: Mask, put: Put | None
    ) -> Tensor:
        both = torch.cat([context, self.attention_norm(x)], 1)
        x = x + self.attention(both, rope, mask, put, x.shape[1])
        return x + self.feed_forward(self.ffn_norm(x))


class DFlash(Direct):
    """``block``: B, the anchor and B − 1 masks; ``depths``: the target's layers that it reads;
    ``causal``: a slot sees those up to itself.
    """

    kind = "dflash"

    def __init__(self, config: DecoderConfig, block: int, depths: Depths, causal: bool = False):
        super().__init__()
        self.config = config
        self.block = block
        self.depths = depths
        self.causal = causal
        self.group = config.n_head // config.kv_heads
        self.fc = nn.Linear((1 + len(depths)) * config.dim, config.dim, bias=False)
        self.hidden_norm = RMSNorm(config.dim, config.norm_eps)
        # the embedding of a token to be drafted
        self.mask = nn.Parameter(0.02 * torch.randn(config.dim))
        self.layers = nn.ModuleList(BlockLayer(config, i) for i in range(config.n_layer))
        self.norm = RMSNorm(config.dim, config.norm_eps)

    def aux_layers(self, model: ImageDecoder) -> Depths:
        """The numbers of the target's layers after which it reads states in addition to the last
        ones.
        """
        return self.depths

    def read(self, states: Tensor) -> Tensor:
        """The target's last states and those at ``depths`` [..., (1 + depths) · dim] -> context
        [..., dim].
        """
        return self.hidden_norm(self.fc(states))

    def blocks(self, anchors: Tensor) -> Tensor:
        """Embeddings of anchors [..., dim] -> those of their blocks [..., B, dim]."""
        masks = self.mask.expand(*anchors.shape[:-1], self.block - 1, -1)
        return torch.cat([anchors[..., None, :], masks.to(anchors.dtype)], -2)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Mask,
        put: Put | None = None,
        last: bool = False,
        inputs: int = 0,
    ) -> Tensor:
        """x [R, N, dim], which is context and then ``inputs`` positions of blocks (0: one block)
        -> the blocks' states.

        ``rope`` [R|1, N, 1, d/2] complex; ``mask`` additive or bool [R|1, 1, ≥ inputs, S], whose
        last rows are the blocks'.
        """
        count = inputs or self.block
        context = x[:, :-count]
        x = x[:, -count:]
        if self.group > 1 or x.is_cuda:
            mask = mask_of_heads(mask, self.group)
        for layer in self.layers:
            x = layer(x, context, rope, mask, put)
        return self.norm(x)

    @property
    def about(self) -> str:
        kind = "JetSpec's causal head" if self.causal else "DFlash"
        return f"{kind}, {counted_layers(len(self.layers))}, blocks of {self.block}"

    def misfit(self, target: Target) -> str | None:
        """Return why it cannot draft for ``target``, as a clause; None if it can."""
        return unread_states(target, self.config.dim, self.depths)


class Medusa(nn.Module):
    """A head for each future token d in front of the target's output head (Cai et al. 2024):
    h + SiLU(W_d h + b_d).
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, dim, dim))
        self.bias = nn.Parameter(torch.zeros(heads, dim))

    @property
    def heads(self) -> int:
        return len(self.weight)

    @property
    def about(self) -> str:
        return f"Medusa, {self.heads} heads"

    def misfit(self, target: Target) -> str | None:
        """Return why it cannot draft for ``target``, as a clause; None if it can."""
        return unread_states(target, self.weight.shape[-1])

    def forward(self, hidden: Tensor) -> Tensor:
        """The target's last hidden states [..., dim] -> inputs of the output head [..., heads,
        dim].
        """
        projected = torch.einsum("...d,hed->...he", hidden, self.weight) + self.bias
        return hidden[..., None, :] + F.silu(projected)


def shape(config: DecoderConfig, layers: int) -> DecoderConfig:
    """Return the shape of a drafter's layers: the target's width and heads, DFlash's norms."""
    return replace(
        config,
        n_layer=layers,
        qkv_bias=False,
        out_bias=False,
        qk_norm="shared",
        swin_norm=False,
        sandwich_norm=False,
        first_norm=True,
    )


def spread(n_layer: int) -> Depths:
    """Return the numbers of the target's layers to read: the five with the ids
    round(1 + i(N − 4)/4); fewer for a small target.
    """
    if n_layer <= 4:
        return tuple(range(1, n_layer))
    ids = {round(1 + i * (n_layer - 4) / 4) for i in range(5)}
    return tuple(sorted(1 + i for i in ids))


def to_file(net: DFlash, model: ImageDecoder) -> State:
    """Return its weights, and three tensors of integers for what the weights do not show."""
    return net.state_dict() | {
        "block_size": torch.tensor(net.block),
        "target_layers": torch.tensor(net.depths, dtype=torch.long),
        "causal": torch.tensor(int(net.causal)),
    }


def of_width(config: DecoderConfig, sizes: Sizes) -> DFlash:
    """Return a drafter for a target decoder of this shape, with nothing copied from it."""
    depths = spread(config.n_layer)
    return DFlash(shape(config, sizes.layers), sizes.block, depths, sizes.causal)


def untrained(model: ImageDecoder, kind: str, sizes: Sizes) -> DFlash:
    """Return an untrained drafter of these sizes: layers of the width of a target's decoder, and a
    copy of its last norm.
    """
    net = of_width(model.config.decoder, sizes)
    with torch.no_grad():
        net.norm.weight.copy_(model.norm.weight)
    return net


def load(path: Path, model: ImageDecoder, device: str, dtype: torch.dtype) -> DFlash:
    """Return the drafter at ``path``, in the layout of ``to_file``, for a target's decoder.

    Raises UserError.
    """
    state = read_state(path)
    decoder = model.config.decoder
    with explain_errors(f"{path} holds no DFlash drafter of this target"):
        block = int(state.pop("block_size"))
        causal = bool(state.pop("causal"))
        depths = tuple(state.pop("target_layers").tolist())
        layers = count_layers(state)
        heads = len(state["layers.0.attention.wqkv.weight"]) // decoder.head_dim
        config = replace(
            shape(decoder, layers),
            hidden=state["layers.0.feed_forward.w2.weight"].shape[1],
            n_kv_head=(heads - decoder.n_head) // 2,
        )
    if not 2 <= block <= MAX_BLOCK or min(depths, default=1) < 1:
        raise UserError(
            f"{path} holds no DFlash drafter: blocks of {block} after target layers {depths}"
        )
    return load_into(lambda: DFlash(config, block, depths, causal), state, path, device, dtype)
