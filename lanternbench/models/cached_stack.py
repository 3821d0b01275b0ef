"""A decoder stack together with its static cache: the forward pass that targets and drafters share while decoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.models.kv_cache import KVCache, Slots, StepCache
from lanternbench.models.transformer import DecoderConfig

SPAN = 512  # a recorded forward attends to a multiple of this many slots
ROOM = 512  # its cache has a multiple of this many slots, so that prompts and methods share large caches
Stack = Callable[..., Tensor]  # of inputs, rotary positions, mask, StepCache, ``last``; and ``aux_layers``, if any


class Lengths(NamedTuple):
    """A count per prompt (committed image tokens, say), on the device and on the host.

    While a CUDA graph is recorded the host does not know the lengths, only that ``span`` slots are attended to.
    """

    device: Tensor  # [B]
    host: tuple[int, ...] | None
    span: int | None = None

    @property
    def equal(self) -> bool:
        """Does the host know that all prompts have the same?  Then slots and positions are slices."""
        return self.host is not None and min(self.host) == max(self.host)


def additive(visible: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bool mask -> 0 where visible, −∞ elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


@cache
def causal(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive mask [1, n, n] under which each of n new positions attends to itself and the earlier ones."""
    return additive(torch.ones(1, n, n, dtype=torch.bool, device=device).tril(), dtype)


class CachedStack:
    """Runs new positions ("nodes") against the cached prefix.

    Rows: B prompts, or 2B with guidance (conditional rows first); whatever is given per prompt is repeated for both
    halves.  Prompt b has ``base[b]`` slots before its nodes; nodes go to slots base[b] + first … and attend to all
    slots before them that are not padding, and to the nodes that ``visible`` names.
    """

    def __init__(
        self,
        stack: Stack,
        config: DecoderConfig,
        rows: int,
        slots: int,
        rope: Tensor,
        like: Tensor,
        shared: dict[Any, CachedStack] | None = None,
        aux_layers: tuple[int, ...] = (),
    ):
        """``like`` gives dtype and device.  ``aux_layers``: see ``transformer.Stack``.

        ``shared``: the stacks whose memory CUDA graphs have recorded; one of the same network and size is used again.
        """
        self.dtype, self.device = like.dtype, like.device
        self.stack: Stack = (lambda *given: stack(*given, aux_layers)) if aux_layers else stack
        self.pads: Tensor | None = None  # additive [R, 1, 1, slots]
        self.cache: KVCache
        if shared is not None:
            slots = -(-slots // ROOM) * ROOM
        beyond = rope[-1:].expand(max(0, slots + 1 - len(rope)), -1)  # nodes past the image need some position too
        self.rope = torch.cat([rope, beyond])[:, None]
        if shared is not None:
            first = shared.setdefault((id(stack), rows, slots, like.dtype), self)
            if first is not self:
                assert first.pads is not None
                self.cache, self.pads, self.rope = first.cache, first.pads.zero_(), first.rope
                self.cache.store.zero_()
                return
            self.pads = torch.zeros(rows, 1, 1, slots, dtype=like.dtype, device=like.device)
        self.cache = KVCache(config.n_layer, rows, slots, config.kv_heads, config.head_dim, like)

    def hide_pads(self, valid: Tensor) -> None:
        """valid [R, P] bool: prefix slots 0 … P − 1 that may be attended to."""
        if not bool(valid.all()):
            full = F.pad(valid, (0, self.cache.slots - valid.shape[1]), value=True)
            pads = additive(full, self.dtype)[:, None, None]
            self.pads = pads if self.pads is None else self.pads.copy_(pads)  # recordings read it where it is

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these [R']."""
        self.cache.keep(rows)
        if self.pads is not None:
            self.pads = self.pads[rows]

    def per_row(self, x: Tensor) -> Tensor:
        """[B, …] -> [R, …]: repeat for the unconditional half; a single prompt broadcasts instead."""
        if x.shape[0] == 1 or x.shape[0] == self.cache.rows:
            return x
        return x.repeat(self.cache.rows // x.shape[0], *[1] * (x.ndim - 1))

    def all_rows(self, x: Tensor) -> Tensor:
        """[B, …] -> [R, …], a single prompt expanded as well."""
        return self.per_row(x).expand(self.cache.rows, *x.shape[1:])

    def prefill(self, x: Tensor, position: range, visible: Tensor) -> Tensor:
        """The prefix x [R, P, dim] under an additive mask [R, P, P] -> hidden [R, P, dim]."""
        n = x.shape[1]
        rope = self.rope[None, position.start : position.stop]
        return self.stack(x, rope, visible.to(self.dtype)[:, None], StepCache(self.cache, slice(0, n), n), False)

    def forward(
        self,
        x: Tensor,
        position: Tensor | range,
        base: Lengths,
        first: int = 0,
        visible: Tensor | None = None,
        last: bool = False,
    ) -> Tensor:
        """x [R, n, dim] -> hidden [R, n, dim], or [R, 1, dim] of the ``last`` alone.

        ``position``: rows of the rotary table, [b, n], or a range of n or 1 that all prompts share; ``base``: slots
        before the first node of this step; ``visible`` additive [b, n, first + n] (None: all nodes so far).
        """
        visible = None if visible is None else visible.to(self.dtype)
        n = x.shape[1]
        if base.host is None:
            assert base.span is not None
            span = min(base.span, self.cache.slots)
        else:
            span = max(base.host) + first + n
        if base.equal:
            assert base.host is not None
            slots: Slots = slice(base.host[0] + first, span)
            mask = self._shared_mask(base.host[0], first + n, n, visible)
        else:
            nodes = torch.arange(first, first + n, device=self.device)
            slots = self.cache.places(self.per_row(base.device[:, None] + nodes))
            mask = self._ragged_mask(base.device, span, first + n, n, visible)
        if isinstance(position, range):
            rope = self.rope[None, position.start : position.stop]
        else:
            rope = self.per_row(self.rope[position])
        return self.stack(x, rope, mask, StepCache(self.cache, slots, span), last)

    def spans(self, slots: int) -> list[int]:
        """The span of a recording that needs ``slots``, and all longer ones.

        These are recorded together, so that a timed decode records nothing.
        """
        return list(range(-(-slots // SPAN) * SPAN, self.cache.slots + SPAN, SPAN))

    def _shared_mask(self, base: int, width: int, n: int, visible: Tensor | None) -> Tensor | None:
        """All prompts have as many slots before their nodes: [R|1, 1, n, base + width] or None."""
        if visible is None:
            return None if self.pads is None else self.pads[..., : base + width].expand(-1, -1, n, -1)
        nodes = self.per_row(visible)[:, None]
        if self.pads is None:
            return F.pad(nodes, (base, 0))
        rows = self.pads.shape[0]
        return torch.cat([self.pads[..., :base].expand(-1, -1, n, -1), nodes.expand(rows, -1, -1, -1)], -1)

    def _ragged_mask(self, base: Tensor, span: int, width: int, n: int, visible: Tensor | None) -> Tensor:
        """Prompts of different lengths: [R, 1, n, span]."""
        column = torch.arange(span, device=self.device) - base[:, None]  # [B, span], node number where ≥ 0
        if visible is None:
            visible = torch.zeros(1, n, width, dtype=self.dtype, device=self.device)
        index = column.clamp(0, width - 1)[:, None].expand(-1, n, -1)
        nodes = visible.expand(len(base), -1, -1).gather(-1, index)
        nodes = nodes.masked_fill(column[:, None] >= width, -torch.inf)
        mask = self.per_row(torch.where(column[:, None] < 0, 0.0, nodes))[:, None]
        return mask if self.pads is None else mask + self.pads[..., :span]
