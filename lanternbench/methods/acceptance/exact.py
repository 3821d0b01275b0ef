"""q̃ = q (Leviathan et al. 2023): speculative sampling that keeps the target's distribution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.sampling import draw
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import (
    AcceptanceRule,
    Families,
    RelaxedProb,
    Residual,
    VerifyResult,
    at,
    rows_at,
    walk,
)
from lanternbench.methods.component import Acceptance
from lanternbench.methods.residuals import standard
from lanternbench.models.target import Target
from lanternbench.registry import register


class ExactRule(AcceptanceRule):
    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        return RelaxedProb(at(q, x))

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return q

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor:
        return draft.tokens == best.gather(1, parent)

    def verify_chosen(self, draft: Draft, q: Tensor, u: Tensor, residual: Residual) -> VerifyResult:
        """In closed form: a_j = q(x_j) / (1 − Σ_{i<j} q(x_i)), with the standard residual."""
        if residual is not standard:
            return super().verify_chosen(draft, q, u, residual)
        tree, vocab = draft.tree, q.shape[-1]
        exists, x, u_child, _ = Families.of(tree.children.expand(len(q), -1, -1), draft, u)
        qx = torch.where(exists, q.gather(-1, x), 0.0)
        left = 1.0 - (qx.cumsum(-1) - qx)
        path, accepted, tried = walk(tree, exists, exists & (u_child * left < qx))
        stop = path[:, -1]
        q_stop = rows_at(q, stop)
        struck = rows_at(torch.where(exists, x, vocab), stop)  # [B, W]; absent children strike a spare cell
        rest = F.pad(q_stop, (0, 1)).scatter(-1, struck, 0.0)[:, :vocab]
        final = torch.where(rest.sum(-1, keepdim=True) > 0, rest, q_stop)
        return VerifyResult(path, accepted, draw(final, u[:, 0]), tried)


@register("acceptance", "exact")
class Exact(Acceptance):
    """accept with min(1, q(x)/p(x))"""

    def build(self, target: Target, max_depth: int) -> AcceptanceRule:
        return ExactRule()
