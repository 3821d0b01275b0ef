"""The decoder core that every target and drafter shares: RMSNorm, rotary attention over a static
cache, SwiGLU.

Parameter names are LlamaGen's, with w1 and w3 fused into ``w13``; loaders rename those of other
checkpoints.  Shapes: R rows (batch × CFG), N new positions, S cache slots, H heads, K heads of
keys and values, g = H / K, d head width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A layer's number and its new keys and values [R, 2K, N, d] -> all to attend to [R, 2K, S, d],
# keys' heads first
Put = Callable[[int, Tensor], Tensor]
# In compiled code: a layer's number, its new keys and its new values -> all keys and all values
PutParts = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
QKV = tuple[Tensor, Tensor, Tensor]  # [R, H, N, d], and keys and values [R, K, S, d]
# Additive or bool [R|1, 1, N, S]; "causal": each input attends to itself and those before; None:
# all keys may be attended to
Mask = Tensor | Literal["causal"] | None
Depths = tuple[int, ...]  # numbers of layers

# Attention's kernels on a GPU take head widths and rows of a mask that are multiples of this, and
# copy or refuse others
ALIGNMENT = 8


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder stack; by default norms are on the inputs of attention and MLP."""

    dim: int
    n_layer: int
    n_head: int
    hidden: int
    vocab_size: int
    n_kv_head: int = 0
    norm_eps: float = 1e-5
    head_width: int = 0  # if heads are not as wide together as the stack; 0: dim / n_head
    # LayerNorm per head on q and k (Chameleon), or RMSNorm with weights by head (rms, Emu3.5) or
    # shared (DFlash)
    qk_norm: bool | Literal["rms", "shared"] = False
    swin_norm: bool = False  # norms on outputs (Chameleon-34B)
    sandwich_norm: bool = False  # norms on both (GLM)
    first_norm: bool = True  # False for LANTERN's LlamaGen drafter, whose layer has no input norm
    qkv_bias: bool = False  # in attention's projections (GLM's, some drafters')
    out_bias: bool = False
    rotary_width: int = 0  # width of the part of a head that turns with the position; 0: all of it

    def __post_init__(self) -> None:
        """Raises ValueError or TypeError for sizes of which no decoder can be built."""
        uneven_heads = not self.head_width and self.dim % self.n_head
        uneven_groups = self.n_head % self.kv_heads
        odd_pairs = self.head_dim % 2 or self.rotary_width % 2
        too_wide = not 0 <= self.rotary_width <= self.head_dim
        empty = min(self.dim, self.n_layer) < 1
        if uneven_heads or uneven_groups or odd_pairs or too_wide or empty:
            raise ValueError(
                f"{self.n_layer} layers, {self.dim} wide, {self.n_head} and {self.kv_heads} heads"
            )
        if not 0 < self.norm_eps < 1:
            raise ValueError(f"an epsilon of {self.norm_eps} in norms")

    @property
    def decoder(self) -> Self:
        """The shape of the stack itself: an image decoder's configuration may extend it."""
        return self

    @property
    def head_dim(self) -> int:
        return self.head_width or self.dim // self.n_head

    @property
    def kv_heads(self) -> int:
        return self.n_kv_head or self.n_head

    @property
    def cache_width(self) -> int:
        """The width at which a cache holds heads: zeros fill it up to a multiple of ALIGNMENT."""
        return self.head_dim + -self.head_dim % ALIGNMENT


def rope_1d(
    positions: int,
    head_dim: int,
    base: float = 10000.0,
    rotary_width: int = 0,
) -> Tensor:
    """Return a table of rotary factors, complex64 [positions, head_dim / 2].

    ``rotary_width``: that of the part of a head that turns; other factors are 1.
    """
    width = rotary_width or head_dim
    freqs = base ** (-torch.arange(0, width, 2).float() / width)
    freqs = F.pad(freqs, (0, (head_dim - width) // 2))
    angles = torch.arange(positions).float()[:, None] * freqs
    return torch.polar(torch.ones(()), angles)


def rope_2d(height: int, width: int, head_dim: int, prefix: int) -> Tensor:
    """Return LlamaGen's table: zeros for the ``prefix`` conditioning positions, then the grid in
    raster order, complex64 [prefix + height · width, head_dim / 2].

    Half of a head's pairs turn with the row, half with the column.  The zeros make prefix queries
    and keys vanish, so every position attends to the conditioning uniformly.
    """
    half = head_dim // 2
    of_rows = rope_1d(height, half)[:, None].expand(-1, width, -1)
    of_columns = rope_1d(width, half).expand(height, -1, -1)
    grid = torch.cat([of_rows, of_columns], -1).flatten(0, 1)
    return torch.cat([grid.new_zeros(prefix, half), grid])


def rotated(x: Tensor, rope: Tensor) -> Tensor:
    """Rotary embedding on interleaved pairs, without complex numbers: x [R, N, H, d], ``rope``
    [R|1, N, 1, d/2, 2] of cosines and sines.
    """
    cos, sin = rope.unbind(-1)
    pairs = x.float().unflatten(-1, (-1, 2))
    first, second = pairs.unbind(-1)
    turned_first = first * cos - second * sin
    turned_second = first * sin + second * cos
    turned = torch.stack([turned_first, turned_second], -1)
    return turned.flatten(-2).to(x.dtype)


def mask_of_heads(mask: Mask, group: int) -> Mask:
    """Return a mask [R|1, 1, N, S] with a row for each of the ``group`` query heads that share a
    key: [R|1, 1, N · g, S].

    On a GPU its rows are aligned.  Both are done once for all layers.
    """
    if not isinstance(mask, Tensor):
        return mask
    if group > 1:
        mask = mask.repeat_interleave(group, -2)
    if mask.is_cuda:
        mask = aligned(mask)
    return mask


def aligned(mask: Tensor) -> Tensor:
    """Return ``mask`` in memory whose rows begin at multiples of ALIGNMENT.

    Attention's kernel would otherwise copy it in every layer.
    """
    if all(stride % ALIGNMENT == 0 for stride in mask.stride()[:-1]):
        return mask
    span = mask.shape[-1]
    padded = F.pad(mask, (0, -span % ALIGNMENT))
    return padded[..., :span]


def additive(visible: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bool mask -> 0 for visible keys, −∞ for others."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, -torch.inf
    )


def guide(logits: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: rows [2B, …], conditional ones first -> [B, …], uncond + scale ·
    (cond − uncond).
    """
    if scale == 1.0:
        return logits
    cond, uncond = logits.chunk(2)
    return torch.lerp(uncond, cond, scale)


class Direct(nn.Module):
    """A module whose parts are plain attributes; calls go straight to ``forward`` while it has no
    forward hooks.

    ``nn.Module`` searches for each part and prepares each call: on a CPU a fifth of a small
    decoder's time.
    """

    compiles: ClassVar[bool] = True  # whether ``models.compiled`` can compile it

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
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
    """LayerNorm over each head's width, with weights and biases by head (Chameleon's); with
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


def head_norm(config: DecoderConfig, heads: int) -> RMSNorm | HeadNorm:
    """Return the norm of queries or keys that ``config.qk_norm`` names."""
    if config.qk_norm == "shared":
        return RMSNorm(config.head_dim, config.norm_eps)
    if config.qk_norm == "rms":
        return HeadNorm(heads, config.head_dim, config.norm_eps)
    return HeadNorm(heads, config.head_dim)


class Attention(Direct):
    """Grouped-query attention with rotary positions; q, k and v are one matrix, and k and v one
    block of the cache.
    """

    def __init__(self, config: DecoderConfig, layer: int):
        """``layer``: its number, by which a cache knows its keys and values."""
        super().__init__()
        self.layer = layer
        self.n_head = config.n_head
        self.n_kv = config.kv_heads
        self.group = self.n_head // self.n_kv
        self.head_dim = config.head_dim
        self.scale = 1 / config.head_dim**0.5
        self.padding = config.cache_width - config.head_dim
        heads = self.n_head + 2 * self.n_kv
        self.wqkv = nn.Linear(config.dim, heads * self.head_dim, bias=config.qkv_bias)
        self.wo = nn.Linear(self.n_head * self.head_dim, config.dim, bias=config.out_bias)
        self.normed = bool(config.qk_norm)
        if self.normed:
            self.q_norm = head_norm(config, self.n_head)
            self.k_norm = head_norm(config, self.n_kv)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Mask,
        put: Put | None,
        last: int = 0,
    ) -> Tensor:
        """x [R, N, dim] -> [R, N, dim]; ``mask`` as ``mask_of_heads`` returns it.

        ``last``: only so many positions at the end have queries; 0: all have.
        """
        rows, n, _ = x.shape
        qkv = self.wqkv(x).view(rows, n, self.n_head + 2 * self.n_kv, self.head_dim)
        if rope.is_complex():
            q, k, v = self.in_place(qkv, rope, put)
        else:
            q, k, v = self.in_fused_kernels(qkv, rope, cast(PutParts, put))
        if last:
            q = q[:, :, -last:]
            if isinstance(mask, Tensor):
                mask = mask[..., -last * self.group :, :]
        if self.group > 1:
            y = self.attend_in_groups(q, k, v, mask)
        elif isinstance(mask, str):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, scale=self.scale)
        if self.padding:
            y = y[..., : self.head_dim]
        return self.wo(y.transpose(1, 2).reshape(rows, last or n, -1))

    def in_place(self, qkv: Tensor, rope: Tensor, put: Put | None) -> QKV:
        """Return rotated queries, and all keys and values, from qkv [R, N, H + 2K, d]."""
        qk = qkv.narrow(2, 0, self.n_head + self.n_kv)
        if self.normed:
            self.normalise(qk)
        pairs = qk.float().view(*qk.shape[:-1], -1, 2)
        pairs = torch.view_as_complex(pairs).mul_(rope)
        if qk.dtype != torch.float32:  # else the pairs are qk itself
            qk.copy_(torch.view_as_real(pairs).flatten(-2))
        if self.padding:
            qkv = F.pad(qkv, (0, self.padding))
        kv = qkv.narrow(2, self.n_head, 2 * self.n_kv).transpose(1, 2)
        if put is not None:
            kv = put(self.layer, kv)
        k, v = kv.chunk(2, 1)
        return qkv.narrow(2, 0, self.n_head).transpose(1, 2), k, v

    def in_fused_kernels(self, qkv: Tensor, rope: Tensor, put: PutParts) -> QKV:
        """Compute the tensors of ``in_place`` for a compiler, which knows no complex numbers.

        Queries, keys and values of one size become one kernel, which writes the cache too.
        """
        q, k, v = qkv.split((self.n_head, self.n_kv, self.n_kv), 2)
        if self.normed:
            q = self.q_norm(q)
            k = self.k_norm(k)
        q = rotated(q, rope)
        k = rotated(k, rope)
        if self.padding:
            q = F.pad(q, (0, self.padding))
            k = F.pad(k, (0, self.padding))
            v = F.pad(v, (0, self.padding))
        k, v = put(self.layer, k.transpose(1, 2), v.transpose(1, 2))
        return q.transpose(1, 2), k, v

    def attend_in_groups(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Return softmax(q kᵀ / √d + mask) v [R, H, N, d] of q [R, H, N, d], k and v [R, K, S, d].

        The query heads of a group are further positions of one head, [R, K, N · g, d], which reads
        each key once.  torch has groups of its own, but no kernel that takes a mask with them.
        """
        rows, heads, n, width = q.shape
        if isinstance(mask, str):
            k = k.repeat_interleave(self.group, 1)
            v = v.repeat_interleave(self.group, 1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        q = q.unflatten(1, (self.n_kv, self.group)).transpose(2, 3).flatten(2, 3)
        y = F.scaled_dot_product_attention(q, k, v, mask, scale=self.scale)
        y = y.view(rows, self.n_kv, n, self.group, width)
        return y.transpose(2, 3).reshape(rows, heads, n, width)

    def normalise(self, qk: Tensor) -> None:
        """Apply the norms to queries and keys [R, N, H + K, d], in place."""
        source = qk.clone() if qk.requires_grad else qk
        q = self.q_norm(source[:, :, : self.n_head])
        k = self.k_norm(source[:, :, self.n_head :])
        qk.copy_(torch.cat([q, k], 2))


class FeedForward(Direct):
    """SwiGLU: w2(silu(w1 x) · w3 x), with w1 and w3 in one matrix."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.w13 = nn.Linear(config.dim, 2 * config.hidden, bias=False)
        self.w2 = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w13(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)


class Layer(Direct):
    """Attention and feed-forward with norms before each, with ``swin_norm`` after each, or with
    ``sandwich_norm`` both.
    """

    attention_norm: nn.Module

    def __init__(self, config: DecoderConfig, layer: int = 0):
        super().__init__()
        self.attention = Attention(config, layer)
        self.feed_forward = FeedForward(config)
        self.attention_norm = nn.Identity()
        if config.first_norm:
            self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.swin = config.swin_norm
        self.sandwich = config.sandwich_norm
        if config.sandwich_norm:
            self.attention_out_norm = RMSNorm(config.dim, config.norm_eps)
            self.ffn_out_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Mask,
        put: Put | None = None,
        last: bool = False,
    ) -> Tensor:
        """``last``: only the last position has an output; all have keys and values."""
        residual = x[:, -1:] if last else x
        if self.swin:
            attended = self.attention(x, rope, mask, put, last)
            residual = residual + self.attention_norm(attended)
            return residual + self.ffn_norm(self.feed_forward(residual))
        attended = self.attention(self.attention_norm(x), rope, mask, put, last)
        if self.sandwich:
            residual = residual + self.attention_out_norm(attended)
            return residual + self.ffn_out_norm(self.feed_forward(self.ffn_norm(residual)))
        residual = residual + attended
        return residual + self.feed_forward(self.ffn_norm(residual))


class Stack(Direct):
    """Layers and final norm; embeddings and head belong to the model around it."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.group = config.n_head // config.kv_heads
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.n_layer))
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
        ``last`` position alone.

        ``rope`` [R|1, N|1, 1, d/2] complex.  ``put`` stores keys and values in a cache; None:
        there are none but those of x.  The states after so many ``aux_layers``, which drafters
        read, follow the final ones: [R, N, (1 + aux) · dim].
        """
        if self.group > 1 or x.is_cuda:
            mask = mask_of_heads(mask, self.group)
        inner: dict[int, Tensor] = {}
        for number, layer in enumerate(self.layers, 1):
            x = layer(x, rope, mask, put, last and number == len(self.layers))
            if number in aux_layers:
                inner[number] = x
        final = self.norm(x)
        if not aux_layers:
            return final
        return torch.cat([final, *[inner[number] for number in aux_layers]], -1)


class TokenStack(Stack):
    """A stack with a table of tokens, and a head."""

    tok_embeddings: nn.Embedding  # image tokens [...] -> [..., dim]
    output: nn.Module  # hidden states [..., dim] -> logits [..., V]

    @property
    def dtype(self) -> torch.dtype:
        return self.tok_embeddings.weight.dtype

    def logits(self, hidden: Tensor, guidance: float = 1.0) -> Tensor:
        """Hidden states [R, …, dim] -> guided logits [B, …, V].  A linear head may be applied to
        the guided state.
        """
        return self.output(guide(hidden, guidance).to(self.dtype))
