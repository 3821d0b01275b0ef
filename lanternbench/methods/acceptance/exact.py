"""The rules that keep the target's distribution token by token: speculative sampling, and Jacobi's fixed point."""

from typing import ClassVar

import torch
from torch import Tensor

from lanternbench.component import Choices
from lanternbench.engine.sampling import draw
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule, Residual, Uniforms, VerifyResult
from lanternbench.registry import register


@register("acceptance", "exact")
class Exact(AcceptanceRule):
    """accept with min(1, q(x)/p(x))"""


@register("acceptance", "unchanged")
class Unchanged(AcceptanceRule):
    """accept while the redraw leaves the token unchanged"""

    by_position: ClassVar[bool] = True
    by_draft: ClassVar[bool] = False

    def refuses(self, choices: Choices) -> str | None:
        if choices.proposal == "jacobi":
            return None
        return "the rule 'unchanged' compares a Jacobi window with its redraw; use it with --method jacobi"

    def verify(self, draft: Draft, q: Tensor, u: Uniforms, residual: Residual, greedy: bool) -> VerifyResult:
        """Plain Jacobi decoding (Song et al. 2021): every image token is redrawn with a uniform of its own, so that
        the output is the autoregressive one for these."""
        assert u.position is not None
        again = q.argmax(-1) if greedy else draw(q, u.position)
        accepted = (again[:, :-1] == draft.tokens[:, 1:]).cumprod(1).sum(1)
        path = torch.minimum(torch.arange(draft.tree.nodes, device=q.device), accepted[:, None])
        token = again.gather(1, accepted[:, None])[:, 0]
        return VerifyResult(path, accepted, token, torch.ones_like(draft.tokens))
