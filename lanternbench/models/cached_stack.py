"""A decoder stack together with its static cache: the forward pass that targets and drafters share while decoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from lanternbench.engine.cuda_graphs import Graphs, Replay
from lanternbench.models.kv_cache import KVCache, Slots, StepCache
from lanternbench.models.transformer import DecoderConfig

SPAN = 512  # a recorded forward attends to a multiple of this many slots
ROOM = 512  # its cache has a multiple of this many, so that prompts and methods share caches of gigabytes
Stack = Callable[[Tensor, Tensor, Tensor | None, StepCache, bool], Tensor]


def additive(visible: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bool mask -> 0 where visible, −∞ elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


@cache
def causal(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive mask [1, n, n] under which each of n new positions sees itself and the earlier ones."""
    return additive(torch.ones(1, n, n, dtype=torch.bool, device=device).tril(), dtype)


class CachedStack:
    """Runs new positions ("nodes") against what is committed.

    Rows: B prompts, or 2B with guidance (conditional rows first); whatever is given per prompt is repeated for both
    halves.  Each prompt b has ``base[b]`` committed slots; nodes go to slots base[b] + first … and see all committed
    slots that are not padding plus the nodes that ``visible`` names.
    """

    def __init__(
        self,
        stack: Stack,
        cfg: DecoderConfig,
        rows: int,
        slots: int,
        rope: Tensor,
        like: Tensor,
        graphs: Graphs | None = None,
    ):
        """``like`` gives dtype and device.

        With ``graphs`` all forwards but the prefill are recorded and replayed, in the memory and with the recordings of
        the first such stack of about as many slots.
        """
        self.stack, self.graphs = stack, graphs
        self.dtype, self.device = like.dtype, like.device
        if graphs is not None:
            slots = -(-slots // ROOM) * ROOM
        beyond = rope[-1:].expand(max(0, slots + 1 - len(rope)), -1)  # nodes past the image need some position too
        self.rope = torch.cat([rope, beyond])[:, None]
        self.pads: Tensor | None = None  # additive [R, 1, 1, slots]
        self.replays: dict[tuple, Replay] = {}
        self.cache: KVCache
        first = self if graphs is None else graphs.stacks.setdefault((id(stack), rows, slots, like.dtype), self)
        if first is not self:
            assert first.pads is not None
            self.cache, self.pads, self.replays = first.cache, first.pads.zero_(), first.replays
            self.cache.store.zero_()
            return
        self.cache = KVCache(cfg.n_layer, rows, slots, cfg.kv_heads, cfg.head_dim, like)
        if graphs is not None:
            self.pads = torch.zeros(rows, 1, 1, slots, dtype=like.dtype, device=like.device)

    def hide_pads(self, valid: Tensor) -> None:
        """valid [R, P] bool: committed slots 0 … P − 1 that may be attended to."""
        if not bool(valid.all()):
            full = torch.nn.functional.pad(valid, (0, self.cache.slots - valid.shape[1]), value=True)
            pads = additive(full, self.dtype)[:, None, None]
            self.pads = pads if self.pads is None else self.pads.copy_(pads)  # recordings read it where it is

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows [R'] alone."""
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
        bases: list[int],
        base: Tensor | None = None,
        first: int = 0,
        visible: Tensor | None = None,
        last: bool = False,
    ) -> Tensor:
        """x [R, n, dim] -> hidden [R, n, dim], or [R, 1, dim] of the ``last`` alone.

        ``position``: rows of the rotary table, [b, n], or a range of n or 1 that all prompts share; ``bases`` the
        host's copy of ``base`` [B], which may be left out where they are alike; ``visible`` additive [b, n, first + n]
        (None: all nodes so far are visible).  While a phase is recorded, ``base`` alone counts.
        """
        visible = None if visible is None else visible.to(self.dtype)
        n = x.shape[1]
        if self.graphs is not None and self.graphs.span is None:
            return self._replayed(self.graphs, x, position, max(bases), first, visible, last)
        span = max(bases) + first + n if self.graphs is None else min(self.graphs.span or 0, self.cache.slots)
        if self.graphs is None and max(bases) == min(bases):
            slots: Slots = slice(bases[0] + first, span)
            mask = self._shared_mask(bases[0], first + n, n, visible)
        else:
            assert base is not None
            slots = self.cache.places(self.per_row(base[:, None] + torch.arange(first, first + n, device=self.device)))
            mask = self._ragged_mask(base, span, first + n, n, visible)
        if isinstance(position, range):
            rope = self.rope[None, position.start : position.stop]
        else:
            rope = self.per_row(self.rope[position])
        return self.stack(x, rope, mask, StepCache(self.cache, slots, span), last)

    def _replayed(
        self,
        graphs: Graphs,
        x: Tensor,
        position: Tensor | range,
        base: int,
        first: int,
        visible: Tensor | None,
        last: bool,
    ) -> Tensor:
        """One prompt's forward, recorded: slots and mask are made on the device, for whole multiples of SPAN slots."""
        n = x.shape[1]
        if isinstance(position, range):
            position = torch.arange(position.start, position.stop, device=self.device)[None]
        if visible is None:
            visible = torch.zeros(1, n, first + n, dtype=self.dtype, device=self.device)
        inputs = [x, position, torch.full((1,), base, device=self.device), visible]

        def at_span(span: int) -> Callable[..., Tensor]:
            def forward(x: Tensor, position: Tensor, base: Tensor, visible: Tensor) -> Tensor:
                with graphs.recording(span):
                    return self.forward(x, position, [], base, first, visible, last)

            return forward

        shape = (n, first, position.shape[1], last)
        spans = self.spans(base + first + n)
        if (*shape, spans[0]) not in self.replays:
            for span in spans:
                if (*shape, span) not in self.replays:
                    self.replays[(*shape, span)] = graphs.record(at_span(span), inputs)
        return self.replays[(*shape, spans[0])](inputs).clone()

    def spans(self, upto: int) -> list[int]:
        """To how many slots a recording that needs ``upto`` attends, first of all.

        The longer ones are to be recorded with it: a decode that is timed should record nothing.
        """
        return list(range(-(-upto // SPAN) * SPAN, self.cache.slots + SPAN, SPAN))

    def _shared_mask(self, base: int, width: int, n: int, visible: Tensor | None) -> Tensor | None:
        """All prompts have as many committed slots: [R|1, 1, n, base + width] or None."""
        if visible is None:
            return None if self.pads is None else self.pads[..., : base + width].expand(-1, -1, n, -1)
        nodes = self.per_row(visible)[:, None]
        if self.pads is None:
            return torch.nn.functional.pad(nodes, (base, 0))
        rows = self.pads.shape[0]
        return torch.cat([self.pads[..., :base].expand(-1, -1, n, -1), nodes.expand(rows, -1, -1, -1)], -1)

    def _ragged_mask(self, base: Tensor, span: int, width: int, n: int, visible: Tensor | None) -> Tensor:
        """Prompts at different lengths: [R, 1, n, span]."""
        column = torch.arange(span, device=self.device) - base[:, None]  # [B, span], node number where ≥ 0
        if visible is None:
            visible = torch.zeros(1, n, width, dtype=self.dtype, device=self.device)
        index = column.clamp(0, width - 1)[:, None].expand(-1, n, -1)
        nodes = visible.expand(len(base), -1, -1).gather(-1, index)
        nodes = nodes.masked_fill(column[:, None] >= width, -torch.inf)
        mask = self.per_row(torch.where(column[:, None] < 0, 0.0, nodes))[:, None]
        return mask if self.pads is None else mask + self.pads[..., :span]
