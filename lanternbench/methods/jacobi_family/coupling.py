"""Coupled redraws of a Jacobi window (SCD, arXiv 2510.24211): a position keeps its token where it can.

B batch, W window positions, V vocabulary.  Every function works on any leading shape [...] in place of [B, W].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.sampling import draw


class Coupled(NamedTuple):
    """A coupled redraw."""

    tokens: Tensor  # [B, W]
    kept: Tensor  # [B, W] bool: is it the old token, accepted?
    rest: Tensor  # [B, W, V] unnormalised: what a token that is not kept is drawn from


def maximal(x: Tensor, p_old: Tensor, p_new: Tensor, u_keep: Tensor, u_draw: Tensor) -> Coupled:
    """Maximal coupling: keep x ~ p_old with min(1, p_new(x)/p_old(x)), else draw from [p_new − p_old]₊.

    x, u_keep, u_draw [B, W]; p_old, p_new [B, W, V].  The token's law is p_new, and it is x as often as any coupling
    allows: 1 − TV(p_old, p_new).  A token that p_old excludes is not kept.
    """
    old, new = (p.gather(-1, x[..., None])[..., 0] for p in (p_old, p_new))
    kept = (u_keep * old < new) & (old > 0)
    rest = (p_new - p_old).clamp(min=0)
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p_new)  # equal distributions: a rejection is rounding
    return Coupled(torch.where(kept, x, draw(rest, u_draw)), kept, rest)


def gumbel(p: Tensor, u: Tensor, epsilon: float = 0.0) -> Tensor:
    """Gumbel coupling: argmax(log p + g), g = −log(−log u), with uniforms u [..., V] that belong to the position.

    p [..., V] -> tokens [...].  Two draws with the same u agree unless p changed enough to move the maximum.
    ``epsilon`` is added inside both logarithms by the public code (1e-9).
    """
    u = u.to(p.dtype)
    tiny = torch.finfo(p.dtype).tiny
    g = -((-(u + epsilon).clamp(min=tiny).log() + epsilon).clamp(min=tiny).log())
    return (p.log() + g).argmax(-1)


def recorded(kept: Tensor, p_old: Tensor, p_new: Tensor, keeps_old: bool = False) -> Tensor:
    """The law of a redrawn token, which its next test divides by: p_new, whether it was kept or not.

    ``keeps_old``: the public code's maximal coupling records p_old for a token that was kept; its output is off by
    0.007 to 0.011 in total variation on tiny vocabularies.
    """
    return torch.where(kept[..., None], p_old, p_new) if keeps_old else p_new


def accepted(kept: Tensor) -> Tensor:
    """How many drafts are accepted: the leading kept ones.  kept [B, W] -> [B]."""
    return kept.long().cumprod(-1).sum(-1)
