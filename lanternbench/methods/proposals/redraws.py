"""Redraws: what becomes of the drafts of a Jacobi window that were not committed.

SJD (arXiv 2410.01699) draws them anew.  SCD (arXiv 2510.24211): ``maximal`` coupling redraws a
draft only if it fails a test against the new distribution, which is recorded for it in either
case; the public code records the old one for a token that was kept, which is not exact.
``gumbel``: every image position is redrawn with the same noise of its own in every step.

SJD++ (arXiv 2512.07503) keeps drafts after the first rejection if they are likely enough.  A kept
draft's law is the old distribution restricted to the tokens that pass, which no later test
corrects: no loss of its tests bounds it.

Coupling functions work on any leading shape [...].  B batch, W window positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.noise import uniform_noise
from lanternbench.engine.sampling import at, draw
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import numbers
from lanternbench.engine.verify import SampledDraft

PUBLIC_EPSILON = 1e-9  # inside the logarithms of the public Gumbel draw

Laws = tuple[Tensor, Tensor]  # a token [B, W + 1] for each q [B, W + 1, V], and its recorded law
# (state, result, uniforms of redraws [B, ·]) -> new drafts
Redraw = Callable[[DecodeState, StepResult, Tensor], Laws]


def independent(state: DecodeState, result: StepResult, u: Tensor) -> Laws:
    """Draw from q anew (SJD); u [B, W + 1]."""
    return draw(result.q, u), result.q


def fixed_noise(state: DecodeState, result: StepResult, u: Tensor) -> Laws:
    """Draw from q by the position's own uniform (plain Jacobi decoding)."""
    return draw(result.q, result.u.of_positions), result.q


def keep_likely(state: DecodeState, result: StepResult, u: Tensor, theta: float) -> Laws:
    """Draw as SJD, but a draft x with p_new(x)/p_old(x) > θ stays with its old law (SJD++)."""
    q = result.q
    drawn = draw(q, u)
    draft = SampledDraft.of(result.draft)
    x = draft.tokens[:, 1:]
    stays = at(q[:, :-1], x) > theta * at(draft.p, x)
    tokens = torch.where(stays, x, drawn[:, :-1])
    p = torch.where(stays[..., None], draft.p, q[:, :-1])
    return torch.cat([tokens, drawn[:, -1:]], 1), torch.cat([p, q[:, -1:]], 1)


class Coupled(NamedTuple):
    """A coupled redraw."""

    tokens: Tensor  # [...]
    accepted: Tensor  # [...] bool: it is the old token
    residual: Tensor  # [..., V] unnormalised: what a token that is not accepted is drawn from


def maximal(x: Tensor, p_old: Tensor, p_new: Tensor, u_keep: Tensor, u_draw: Tensor) -> Coupled:
    """Keep x ~ p_old with min(1, p_new(x)/p_old(x)), else draw from [p_new − p_old]₊.

    x, u_keep, u_draw [...]; p_old, p_new [..., V].  The token's law is p_new, and it is x with the
    largest probability that a coupling allows, 1 − TV(p_old, p_new).  A token that p_old excludes
    is not kept.
    """
    old = at(p_old, x)
    accepted = (u_keep * old < at(p_new, x)) & (old > 0)
    residual = (p_new - p_old).clamp(min=0)
    any_left = residual.sum(-1, keepdim=True) > 0  # else the two differ only by rounding
    residual = torch.where(any_left, residual, p_new)
    tokens = torch.where(accepted, x, draw(residual, u_draw))
    return Coupled(tokens, accepted, residual)


def gumbel(p: Tensor, u: Tensor, epsilon: float = 0.0) -> Tensor:
    """Return argmax(log p + g), g = −log(−log u), with uniforms u that belong to the position.

    p, u [..., V] -> tokens [...].  The public code adds ``epsilon`` (1e-9) inside both logarithms.
    """
    # in float32 a uniform near 1 rounds to it and wins for sure
    tiny = torch.finfo(torch.float64).tiny
    exponential = -(u.double() + epsilon).clamp(min=tiny).log()
    g = -(exponential + epsilon).clamp(min=tiny).log()
    return (p.double().log() + g).argmax(-1)


def coupled(result: StepResult, u: Tensor) -> tuple[Tensor, Coupled]:
    """Return tokens [B, W + 1] coupled maximally with the drafts, and the coupling of all but the
    last; u [B, 2 · W + 1]: W keep drafts, W + 1 draw tokens.
    """
    q = result.q
    window = q.shape[1] - 1
    u_draw = u[:, window:]
    draft = SampledDraft.of(result.draft)
    pairs = maximal(draft.tokens[:, 1:], draft.p, q[:, :-1], u[:, :window], u_draw[:, :-1])
    last = draw(q[:, -1:], u_draw[:, -1:])
    return torch.cat([pairs.tokens, last], 1), pairs


def couple(state: DecodeState, result: StepResult, u: Tensor) -> Laws:
    """Couple maximally with the draft before (SCD)."""
    tokens, _ = coupled(result, u)
    return tokens, result.q


def couple_with_old_law(state: DecodeState, result: StepResult, u: Tensor) -> Laws:
    """Couple maximally; a kept token keeps its old law (SCD's public code; not exact)."""
    tokens, pairs = coupled(result, u)
    q = result.q
    p = SampledDraft.of(result.draft).p
    recorded = torch.where(pairs.accepted[..., None], p, q[:, :-1])
    return tokens, torch.cat([recorded, q[:, -1:]], 1)


def couple_by_gumbel(state: DecodeState, result: StepResult, u: Tensor, epsilon: float) -> Laws:
    """Draw with noise of the position's own, the same in every step (SCD); see ``gumbel``."""
    q = result.q
    position = result.start[:, None] + numbers(q.shape[1], q.device)
    noise = uniform_noise(state.now.noise, position, q.shape[-1])
    return gumbel(q, noise, epsilon), q
