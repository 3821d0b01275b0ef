"""Block verification (Sun et al. 2024, arXiv 2403.10444): a chain is verified as a whole, not token by token."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lanternbench.component import Choices
from lanternbench.engine.plain import Probs
from lanternbench.engine.sampling import draw
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule, Forms, Residual, VerifyResult, at, rows_at
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


@register("acceptance", "block")
class BlockVerification(AcceptanceRule):
    """accept the longest chain whose tokens pass together"""

    def refuses(self, choices: Choices) -> str | None:
        if choices.tree != "chain":
            return f"block verification judges a chain, and the tree is '{choices.tree}'; use --tree chain"
        if choices.residual != "standard":
            return "block verification has a residual of its own; leave --residual out"
        return component("proposal", choices.proposal).no_joint_sample

    def _verify_chain(self, draft: Draft, q: Tensor, u: Tensor, residual: Residual) -> VerifyResult:
        """Keep the longest chain whose uniform is below its h_i; what follows comes from [w_i q − p]₊.

        Node 1's uniform decides on the whole chain, node L's on its first token: in the order in which they matter.
        """
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

    forms: ClassVar[Forms] = AcceptanceRule.forms._replace(verify_sampled=_verify_chain)

    @staticmethod
    def plain_chain(qs: list[Probs], ps: list[Probs], xs: tuple[int, ...]) -> list[tuple[float, int, Probs]]:
        """q_1 … q_{L+1} and p_1 … p_L along x_1 … x_L -> (probability, accepted length i, weights of the next token).

        Weights that are 0 everywhere stand for q_{i+1}.
        """
        length, w = len(xs), [1.0]
        for q, p, x in zip(qs, ps, xs, strict=False):
            w.append(min(1.0, w[-1] * q[x] / p[x]))
        rest = [[max(0.0, w[i] * qy - py) for qy, py in zip(qs[i], ps[i], strict=True)] for i in range(length)]
        left = [math.fsum(weights) for weights in rest]
        h = [left[i] / (left[i] + 1 - w[i]) if left[i] > 0 else 0.0 for i in range(length)] + [w[length]]
        outcomes, longer = [], 1.0
        for i in range(length, -1, -1):  # the longest i whose uniform is at most h_i
            stop = h[i] if i else 1.0
            outcomes.append((longer * stop, i, qs[length] if i == length else rest[i]))
            longer *= 1 - stop
        return outcomes
