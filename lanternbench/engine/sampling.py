"""From logits to distributions to tokens: warping, and draws that are functions of explicit
uniforms.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.settings import Sampling


class Warp(NamedTuple):
    """Temperature, top-k, top-p and min-p, applied in this order; ``temperature`` 0 means greedy."""

    sampling: Sampling

    @property
    def greedy(self) -> bool:
        return self.sampling.temperature == 0.0

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits [..., V] -> probabilities [..., V]; greedy leaves temperature 1, the rules take
        the argmax.

        Top-k keeps ties of the k-th logit; top-p keeps the fewest tokens whose mass reaches p, at
        least one; min-p keeps tokens with q ≥ p·max q (Nguyen et al. 2024, arXiv 2407.01082).
        """
        sampling = self.sampling
        x = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        if sampling.temperature == 0.0:
            return x.softmax(-1)
        if sampling.temperature != 1.0:
            x = x / sampling.temperature
        if 0 < sampling.top_k < x.shape[-1]:
            x = x.masked_fill(x < kth_largest(x, sampling.top_k), -torch.inf)
        if sampling.top_p < 1.0:
            ordered, index = x.sort(-1, descending=True)
            mass = ordered.softmax(-1)
            # the mass before a token already suffices
            outside = mass.cumsum(-1) - mass >= sampling.top_p
            x = x.masked_fill(torch.zeros_like(outside).scatter(-1, index, outside), -torch.inf)
        if sampling.min_p > 0.0:
            least = x.amax(-1, keepdim=True) + math.log(sampling.min_p)
            x = x.masked_fill(x < least, -torch.inf)
        return x.softmax(-1)


def on_host(x: Tensor) -> bool:
    """Return whether the host can read x without waiting for a device."""
    return x.is_cpu


def kth_largest(x: Tensor, k: int) -> Tensor:
    """[..., V] -> [..., 1].  On a CPU numpy's selection is the faster one for many rows."""
    if not on_host(x):
        return x.topk(k).values[..., -1:]
    place = x.shape[-1] - k
    values = x.numpy(force=x.requires_grad).copy()
    values.partition(place)
    return torch.from_numpy(values[..., place : place + 1])


def at(q: Tensor, x: Tensor) -> Tensor:
    """q(x): [..., V], [...] -> [...]."""
    return q.gather(-1, x.unsqueeze(-1)).squeeze(-1)


def normalised(weights: Tensor, fallback: Tensor) -> Tensor:
    """Return a residual as a distribution; one that is 0 everywhere becomes ``fallback`` [..., V],
    the distribution it came from.
    """
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, fallback)


def rows_at(x: Tensor, index: Tensor) -> Tensor:
    """x [B, M, V], index [B] or [B, n] -> [B, V] or [B, n, V]: whole rows, which a gather would
    copy item by item.
    """
    b, m, v = x.shape
    if b == 1:
        return x.index_select(1, index.flatten()).view(*index.shape, v)
    index = index + torch.arange(0, b * m, m, device=x.device).view(-1, *[1] * (index.ndim - 1))
    return x.flatten(0, 1).index_select(0, index.flatten()).view(*index.shape, v)


# the largest uniform in use: its product with a total must not round up to the total
BELOW_ONE = 1 - 1e-6


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Inverse CDF: weights [..., V] ≥ 0 of any scale, uniforms u [...] in 0 … BELOW_ONE -> tokens
    [...].

    Never draws a token of weight 0 unless all are 0 (then the last).
    """
    return draw_each(weights, u.unsqueeze(-1)).squeeze(-1)


def draw_each(weights: Tensor, u: Tensor) -> Tensor:
    """Independent draws from the same weights: [..., V], u [..., m] -> tokens [..., m]."""
    # in float32 a GPU's is not monotone
    cdf = weights.cumsum(-1, dtype=torch.float64)
    last = weights.shape[-1] - 1
    # the smallest index whose cumulative weight exceeds u·total is drawn
    level = u * cdf.narrow(-1, last, 1)
    return torch.searchsorted(cdf, level, right=True).clamp_(max=last)


def draw_distinct(weights: Tensor, u: Tensor) -> Tensor:
    """Successive draws without replacement: weights [..., V], u [..., m] -> tokens [..., m] in
    draft order.
    """
    if u.shape[-1] == 1:
        return draw_each(weights, u)
    tokens: list[Tensor] = []
    for uniform in u.split_with_sizes([1] * u.shape[-1], -1):
        if tokens:
            weights = weights.scatter(-1, tokens[-1], 0.0)
        tokens.append(draw_each(weights, uniform))
    return torch.cat(tokens, -1)
