"""Block verification (Sun et al. 2024, arXiv 2403.10444): a chain is verified as a whole, not token by token."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.sampling import draw
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import ExactRule, Residual, VerifyResult, at, rows_at
from lanternbench.methods.component import Acceptance, Choices
from lanternbench.models.target import Target
from lanternbench.registry import component, register


class Block(NamedTuple):
    """The quantities that decide on a chain x_1 … x_L."""

    stop: Tensor  # [B, L] h_1 … h_L: the probability that a chain of i tokens is accepted if no longer one is
    rest: Tensor  # [B, L, V] unnormalised: what follows an accepted chain of 0 … L − 1 tokens


def block(q: Tensor, p: Tensor, x: Tensor) -> Block:
    """q [B, L + 1, V] after 0 … L tokens, p [B, L, V] that they were drawn from, x [B, L] (algorithm 2)."""
    px = at(p, x)
    ratio = torch.where(px > 0, at(q[:, :-1], x) / px, 0.0)
    weights = [torch.ones_like(ratio[:, 0])]
    for r in ratio.unbind(1):
        weights.append((weights[-1] * r).clamp(max=1))  # w_i = min(1, w_{i−1}·q_i(x_i)/p_i(x_i))
    w = torch.stack(weights, 1)  # [B, L + 1]
    rest = (w[:, :-1, None] * q[:, :-1] - p).clamp_(min=0)
    left = rest.sum(-1)
    h = torch.where(left > 0, left / (left + 1 - w[:, :-1]), 0.0)  # h_i = Σ(w_i q − p)₊ / (Σ(w_i q − p)₊ + 1 − w_i)
    return Block(torch.cat([h[:, 1:], w[:, -1:]], 1), rest)  # h_L = w_L


class BlockRule(ExactRule):
    """Keeps the longest chain whose uniform is below its h_i; what follows comes from [w_i q − p]₊.

    Node 1's uniform decides on the whole chain, node L's on its first token: in the order in which they matter.
    """

    def verify_sampled(self, draft: Draft, q: Tensor, u: Tensor, residual: Residual) -> VerifyResult:
        assert draft.static is not None
        assert draft.p is not None
        x = draft.tokens[:, 1:]
        length = x.shape[1]
        judged = block(q, draft.p, x)
        lengths = torch.arange(1, length + 1, device=q.device)
        accepted = torch.where(u[:, 1:].flip(1) < judged.stop, lengths, 0).amax(1)
        q_stop, rest = rows_at(q, accepted), rows_at(judged.rest, accepted.clamp(max=length - 1))
        whole = (accepted == length) | (rest.sum(-1) == 0)  # the bonus token; or nothing is left
        path = torch.minimum(draft.static.tree.depth, accepted[:, None])  # in a chain a node's id is its depth
        token = draw(torch.where(whole[:, None], q_stop, rest), u[:, 0])
        return VerifyResult(path, accepted, token, draft.static.sizes.expand_as(draft.tokens))


@register("acceptance", "block")
class BlockVerification(Acceptance):
    """accept the longest chain whose tokens pass together"""

    by_draft: ClassVar[bool] = False

    def build(self, target: Target, max_depth: int) -> BlockRule:
        return BlockRule()

    def refuses(self, choices: Choices) -> str | None:
        if choices.tree != "chain":
            return f"block verification judges a chain, and the tree is '{choices.tree}'; use --tree chain"
        if choices.residual != "standard":
            return "block verification has a residual of its own; leave --residual out"
        return component("proposal", choices.proposal).no_joint_sample
