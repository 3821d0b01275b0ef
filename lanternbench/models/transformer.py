"""The decoder core that every target and drafter shares: RMSNorm, rotary attention over a static
cache, SwiGLU.

Parameter names are LlamaGen's, with w1 and w3 fused into ``w13``; loaders rename what other
checkpoints call them. Shapes: R rows (batch × CFG), N new positions, S cache slots, H heads, d
head width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A layer's number and its new keys and values [R, 2H, N, d] -> all that is attended to [R, 2H, S,
# d], keys' heads first
Put = Callable[[int, Tensor], Tensor]
Mask = Tensor | None  # additive or bool; None: all keys may be attended to
Depths = tuple[int, ...]  # numbers of layers


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder stack, whose norms are by default on the inputs of attention and MLP."""

    dim: int
    n_layer: int
    n_head: int
    hidden: int
    vocab_size: int
    n_kv_head: int = 0
    norm_eps: float = 1e-5
    head_width: int = 0  # where heads are not as wide together as the stack; 0: dim / n_head
    # LayerNorm per head on q and k (Chameleon), or RMSNorm, its weights each head's (rms, Emu3.5)
    # or shared (DFlash)
    qk_norm: bool | Literal["rms", "shared"] = False
    swin_norm: bool = False  # norms on outputs (Chameleon-34B)
    sandwich_norm: bool = False  # norms on both (GLM)
    first_norm: bool = True  # False for LANTERN's LlamaGen drafter, whose layer has no input norm
    qkv_bias: bool = False  # of attention's projections (GLM's, some drafters')
    out_bias: bool = False
    rotary_width: int = 0  # of the part of a head that turns with the position; 0: all of it

    def __post_init__(self) -> None:
        """Raises ValueError or TypeError for sizes of which no decoder can be built."""
        uneven = (not self.head_width and self.dim % self.n_head) or self.n_head % self.kv_heads
        odd = (
            self.head_dim % 2
            or self.rotary_width % 2
            or not 0 <= self.rotary_width <= self.head_dim
        )
        if uneven or odd or min(self.dim, self.n_layer) < 1:
            raise ValueError(
                f"{self.n_layer} layers, {self.dim} wide, {self.n_head} and {self.kv_heads} heads"
            )
        if not 0 < self.norm_eps < 1:
            raise ValueError(f"an epsilon of {self.norm_eps} in norms")

    @property
    def decoder(self) -> Self:
        """Itself, where an image decoder's configuration extends its stack's."""
        return self

    @property
    def head_dim(self) -> int:
        return self.head_width or self.dim // self.n_head

    @property
    def kv_heads(self) -> int:
        return self.n_kv_head or self.n_head


def rope_1d(positions: int, head_dim: int, base: float = 10000.0, rotary_width: int = 0) -> Tensor:
    """complex64 [positions, head_dim / 2].  ``rotary_width``: of the rotated part of a head; other
    factors are 1.
    """
    width = rotary_width or head_dim
    freqs = F.pad(
        base ** (-torch.arange(0, width, 2).float() / width), (0, (head_dim - width) // 2)
    )
    return torch.polar(torch.ones(()), torch.arange(positions).float()[:, None] * freqs)


def rope_2d(height: int, width: int, head_dim: int, prefix: int) -> Tensor:
    """LlamaGen's table: zeros for the ``prefix`` conditioning positions, then the grid in raster
    order.

    Half of a head's pairs turn with the row, half with the column.  The zeros make prefix queries
    and keys vanish, so every position attends to the conditioning uniformly.  complex64 [prefix +
    height · width, head_dim / 2].
    """
    half = head_dim // 2
    freqs = 10000.0 ** (-torch.arange(0, half, 2).float() / half)  # [head_dim / 4]
    rows = (torch.arange(height).float()[:, None] * freqs)[:, None].expand(-1, width, -1)
    cols = (torch.arange(width).float()[:, None] * freqs)[None].expand(height, -1, -1)
    grid = torch.polar(
        torch.ones(()), torch.cat([rows, cols], dim=-1).reshape(height * width, half)
    )
    return torch.cat([torch.zeros(prefix, half, dtype=grid.dtype), grid])


def rotate(x: Tensor, rope: Tensor) -> None:
    """Rotary embedding on interleaved pairs, in place: x [R, N, H, d], rope [R|1, N, 1, d/2]
    complex.
    """
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2)).mul_(rope)
    if x.dtype != torch.float32:  # else the pairs are x itself
        x.copy_(torch.view_as_real(pairs).flatten(-2))


class Direct(nn.Module):
    """A module whose parts are plain attributes; calls go straight to ``forward`` while it has no
    forward hooks.

    ``nn.Module`` searches for each part and prepares each call: on a CPU a fifth of a small
    decoder's time.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, nn.Module):
            self.__dict__[name] = value

    def __call__(self, *args: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks:
            return super().__call__(*args)
        return self.forward(*args)


class RMSNorm(Direct):
    """x · w / √(mean x² + ε)."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class HeadNorm(Direct):
    """LayerNorm over each head's width, with a weight and bias per head (Chameleon's); where
    ``eps``, RMSNorm.
    """

    def __init__(self, heads: int, width: int, eps: float = 0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, width))
        self.eps = eps
        if not eps:
            self.bias = nn.Parameter(torch.zeros(heads, width))

    def forward(self, x: Tensor) -> Tensor:
        if self.eps:
            return F.rms_norm(x, (x.shape[-1],), eps=self.eps) * self.weight
        return F.layer_norm(x, (x.shape[-1],), eps=1e-5) * self.weight + self.bias


class Attention(Direct):
    """Grouped-query attention with rotary positions; q, k and v are one matrix, k and v one block
    of the cache.
    """

    def __init__(self, cfg: DecoderConfig):
        super().__init__()
        self.n_head, self.n_kv, self.head_dim = cfg.n_head, cfg.kv_heads, cfg.head_dim
        self.wqkv = nn.Linear(
            cfg.dim, (self.n_head + 2 * self.n_kv) * self.head_dim, bias=cfg.qkv_bias
        )
        self.wo = nn.Linear(self.n_head * self.head_dim, cfg.dim, bias=cfg.out_bias)
        self.normed = bool(cfg.qk_norm)
        if cfg.qk_norm:
            eps = cfg.norm_eps if cfg.qk_norm == "rms" else 0.0
            self.q_norm, self.k_norm = (
                RMSNorm(cfg.head_dim, cfg.norm_eps)
                if cfg.qk_norm == "shared"
                else HeadNorm(heads, cfg.head_dim, eps)
                for heads in (self.n_head, self.n_kv)
            )

    def forward(
        self, x: Tensor, rope: Tensor, mask: Mask, put: Put | None, layer: int, last: int = 0
    ) -> Tensor:
        heads, n_kv = self.n_head, self.n_kv
        qkv = self.wqkv(x).view(*x.shape[:2], heads + 2 * n_kv, self.head_dim)
        qk = qkv.narrow(2, 0, heads + n_kv)
        if self.normed:
            plain = qk.clone() if qk.requires_grad else qk
            qk.copy_(
                torch.cat([self.q_norm(plain[:, :, :heads]), self.k_norm(plain[:, :, heads:])], 2)
            )
        rotate(qk, rope)
        kv = qkv.narrow(2, heads, 2 * n_kv).transpose(1, 2)
        k, v = (kv if put is None else put(layer, kv)).chunk(2, 1)
        if last:  # of so many positions at the end there are queries; 0: of all
            qkv, mask = qkv[:, -last:], None if mask is None else mask[..., -last:, :]
        q = qkv.narrow(2, 0, heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=n_kv != heads)
        return self.wo(y.transpose(1, 2).reshape(*x.shape[:1], y.shape[2], -1))


class FeedForward(Direct):
    """SwiGLU: w2(silu(w1 x) · w3 x), with w1 and w3 in one matrix."""

    def __init__(self, cfg: DecoderConfig):
        super().__init__()
        self.w13 = nn.Linear(cfg.dim, 2 * cfg.hidden, bias=False)
        self.w2 = nn.Linear(cfg.hidden, cfg.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w13(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)


class Layer(Direct):
    """Attention and feed-forward with their norms: before each; after where ``swin_norm``; both:
    ``sandwich_norm``.
    """

    def __init__(self, cfg: DecoderConfig):
        super().__init__()
        self.attention, self.feed_forward = Attention(cfg), FeedForward(cfg)
        self.attention_norm = RMSNorm(cfg.dim, cfg.norm_eps) if cfg.first_norm else nn.Identity()
        self.ffn_norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.swin, self.sandwich = cfg.swin_norm, cfg.sandwich_norm
        if cfg.sandwich_norm:
            self.attention_out_norm = RMSNorm(cfg.dim, cfg.norm_eps)
            self.ffn_out_norm = RMSNorm(cfg.dim, cfg.norm_eps)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Mask,
        put: Put | None = None,
        layer: int = 0,
        last: bool = False,
    ) -> Tensor:
        """``last``: compute the output of the last position only; keys and values are computed for
        all.
        """
        out = x[:, -1:] if last else x
        if self.swin:
            out = out + self.attention_norm(self.attention(x, rope, mask, put, layer, last))
            return out + self.ffn_norm(self.feed_forward(out))
        if self.sandwich:
            out = out + self.attention_out_norm(
                self.attention(self.attention_norm(x), rope, mask, put, layer, last)
            )
            return out + self.ffn_out_norm(self.feed_forward(self.ffn_norm(out)))
        out = out + self.attention(self.attention_norm(x), rope, mask, put, layer, last)
        return out + self.feed_forward(self.ffn_norm(out))


class Stack(Direct):
    """Layers and final norm; embeddings and head belong to the model around it."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.norm = RMSNorm(config.dim, config.norm_eps)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Mask,
        put: Put | None = None,
        last: bool = False,
        aux_layers: Depths = (),
    ) -> Tensor:
        """x [R, N, dim] -> hidden states after the final norm [R, N, dim], or [R, 1, dim] of the
        ``last`` alone.

        ``rope`` [R|1, N|1, 1, d/2] complex; ``mask`` additive or bool [R|1, 1, N, S], None for
        attending to all keys. ``put`` stores keys and values in a cache; None: there are none but
        those of x. ``aux_layers``: after how many layers the states are wanted too, beside the
        final ones: [R, N, (1 + aux) · dim].
        """
        seen = {}
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, mask, put, i, last and i == len(self.layers) - 1)
            if i + 1 in aux_layers:
                seen[i + 1] = x
        x = self.norm(x)
        return torch.cat([x, *(seen[n] for n in aux_layers)], -1) if aux_layers else x
