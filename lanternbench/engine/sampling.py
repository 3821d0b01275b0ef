"""From logits to distributions to tokens.

A warp makes distributions of logits; a draw is a function of explicit uniforms.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.return_types import topk

from lanternbench.settings import Sampling


class Warp(NamedTuple):
    """Temperature, top-k, top-p and min-p, applied in this order; ``temperature`` 0 means greedy."""

    sampling: Sampling

    @property
    def shares_noise(self) -> bool:
        """Return whether draws share noise, of which there is none at temperature 0."""
        return self.sampling.noise == "shared" and self.sampling.temperature > 0

    @property
    def greedy(self) -> bool:
        """Return whether a token is the argmax: at temperature 0, and of perturbed distributions
        (``engine.noise``).
        """
        return self.sampling.temperature == 0.0 or self.sampling.noise == "shared"

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits [..., V] -> probabilities [..., V].

        A greedy warp leaves temperature 1: verification takes the argmax.  Top-k keeps ties of the
        k-th logit; top-p keeps the fewest tokens whose mass reaches p, at least one, and of equal
        ones the lower ids; min-p keeps tokens with q ≥ p·max q (Nguyen et al. 2024, arXiv 2407.01082).
        """
        sampling = self.sampling
        x = logits
        if x.dtype not in (torch.float32, torch.float64):
            x = x.float()
        if sampling.temperature == 0.0:
            return x.softmax(-1)
        if sampling.temperature != 1.0:
            x = x / sampling.temperature
        if 0 < sampling.top_k < x.shape[-1]:
            least = kth_largest(x, sampling.top_k)
            x = x.masked_fill(x < least, -torch.inf)
        if sampling.top_p < 1.0:
            outside = outside_nucleus(x, sampling.top_p)
            x = x.masked_fill(outside, -torch.inf)
        if sampling.min_p > 0.0:
            least = x.amax(-1, keepdim=True) + math.log(sampling.min_p)
            x = x.masked_fill(x < least, -torch.inf)
        return x.softmax(-1)

    def draw(self, q: Tensor, u: Tensor) -> Tensor:
        """Draw tokens from q [..., V], with uniforms u [...] unless it is ``greedy``: [...]."""
        if self.greedy:
            return q.argmax(-1)
        return draw(q, u)


def outside_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Return the tokens that top-p drops, because the mass before them suffices: bool [..., V]."""
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    mass = ordered.softmax(-1)
    mass_before = mass.cumsum(-1) - mass
    outside = mass_before >= top_p
    return torch.zeros_like(outside).scatter(-1, index, outside)


def on_host(x: Tensor) -> bool:
    """Return whether the host can read x without waiting for a device."""
    return x.is_cpu


def kth_largest(x: Tensor, k: int) -> Tensor:
    """[..., V] -> [..., 1].  On a CPU, numpy's selection is faster for many rows."""
    if not on_host(x):
        return x.topk(k).values[..., -1:]
    place = x.shape[-1] - k
    values = x.numpy(force=x.requires_grad).copy()
    values.partition(place)
    return torch.from_numpy(values[..., place : place + 1])


def likeliest(x: Tensor, k: int) -> topk:
    """Return the k largest of x [..., V], k ≤ V, and their ids; of equal ones the lower id comes
    first.

    ``topk`` orders equal values as it likes.  A CPU can see whether there are any and sorts only
    then.  A GPU always sorts, because the host cannot look without waiting for it: one operator
    as well, but where ``topk`` selects and sorts k values in two kernels, torch copies each row,
    numbers it and sorts it whole: in one kernel up to 4,096 values, in several radix passes
    above.  An only child needs neither.
    """
    if k == 1:
        first = x.argmax(-1, keepdim=True)
        largest = x.gather(-1, first)
        return topk((largest, first))
    if on_host(x) and x.dtype != torch.bfloat16:  # which numpy lacks
        one_more = min(k + 1, x.shape[-1])  # shows a tie of the last
        found = x.topk(one_more)
        on_cpu = found.values.numpy(force=x.requires_grad)
        equal = on_cpu[..., 1:] == on_cpu[..., :-1]
        if True not in equal:
            return topk((found.values[..., :k], found.indices[..., :k]))
    ordered = x.sort(dim=-1, descending=True, stable=True)
    values = ordered.values[..., :k]
    ids = ordered.indices[..., :k]
    return topk((values, ids))


def at(q: Tensor, x: Tensor) -> Tensor:
    """q(x): [..., V], [...] -> [...]."""
    return q.gather(-1, x.unsqueeze(-1)).squeeze(-1)


def normalised(weights: Tensor, fallback: Tensor) -> Tensor:
    """Return a residual as a distribution.

    One that is 0 everywhere becomes ``fallback`` [..., V], the distribution it came from.
    """
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, fallback)


def rows_at(x: Tensor, index: Tensor) -> Tensor:
    """x [B, M, V], index [B] or [B, n] -> [B, V] or [B, n, V].

    It copies whole rows, which a gather would copy item by item.
    """
    b, m, v = x.shape
    if b > 1:
        first_row = torch.arange(0, b * m, m, device=x.device)
        if index.ndim == 2:
            first_row = first_row[:, None]
        index = index + first_row
        x = x.reshape(1, b * m, v)
    rows = x.index_select(1, index.flatten())
    return rows.view(*index.shape, v)


# the largest uniform in use: its product with a total must not round up to the total
BELOW_ONE = 1 - 1e-6


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Invert the CDF: weights [..., V] ≥ 0 of any scale, u [...] in 0 … BELOW_ONE -> tokens [...].

    A token of weight 0 is never drawn, unless all weights are 0 (then the last token is).
    """
    return draw_each(weights, u.unsqueeze(-1)).squeeze(-1)


def draw_each(weights: Tensor, u: Tensor) -> Tensor:
    """Draw independently from the same weights: [..., V], u [..., m] -> tokens [..., m]."""
    # in float32, a GPU's is not monotone
    cdf = weights.cumsum(-1, dtype=torch.float64)
    last = weights.shape[-1] - 1
    total = cdf.narrow(-1, last, 1)
    # the smallest index whose cumulative weight exceeds u·total
    return torch.searchsorted(cdf, u * total, right=True).clamp_(max=last)


def draw_distinct(weights: Tensor, u: Tensor) -> Tensor:
    """Draw without replacement: weights [..., V], u [..., m] -> tokens [..., m] in draft order."""
    if u.shape[-1] == 1:
        return draw_each(weights, u)
    tokens: list[Tensor] = []
    for uniform in u.split_with_sizes([1] * u.shape[-1], -1):
        if tokens:
            weights = weights.scatter(-1, tokens[-1], 0.0)
        tokens.append(draw_each(weights, uniform))
    return torch.cat(tokens, -1)
