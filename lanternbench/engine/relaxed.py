"""A drafted token under a relaxed target: its probability, and the group that lends it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lanternbench.engine.plain import PlainResidual
from lanternbench.engine.tree import Draft


class Group(NamedTuple):
    """Candidates for the tokens that could stand for a token x."""

    ids: Tensor  # [..., k]
    inside: Tensor  # [..., k] bool: the candidates that belong to the group
    # [..., k'] token ids that the residual of a public implementation sets to 0
    barred: Tensor | None = None

    def mass(self, p: Tensor) -> Tensor:
        """Σ p over the group: p [..., V] -> [...]."""
        p_of_candidates = p.gather(-1, self.ids)
        return torch.where(self.inside, p_of_candidates, 0.0).sum(-1)

    def struck_from(self, q: Tensor) -> Tensor:
        """Return q [..., V] with 0 for the members of the group."""
        left = torch.where(self.inside, 0.0, q.gather(-1, self.ids))
        return q.scatter(-1, self.ids, left)


class RelaxedProb(NamedTuple):
    """q̃(x) [...], and the group whose probability x takes, if the rule has groups."""

    value: Tensor
    group: Group | None = None


class TokenTest(Protocol):
    """The test of one drafted token; ``engine.verify.RatioTest`` says what each is."""

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb: ...

    def accepted_prob(self, q: Tensor, p: Tensor, depth: Tensor) -> Tensor: ...

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor: ...

    def order_greedily(self, draft: Draft) -> Tensor | None: ...


# (q, p, x, depth, test) -> weights [..., V] of the next token, see ``Residual``
Weights = Callable[[Tensor, Tensor | None, Tensor, Tensor, TokenTest], Tensor]


@dataclass(frozen=True, eq=False)
class Residual:
    """A row of the table of residuals, see ``methods.residuals``."""

    weights: Weights
    plain: PlainResidual | None = None  # the same in scalar Python
    lossless: bool = False  # under a rule with q̃ = q
    of_token: bool = True  # whether it depends on which sampled token was rejected
    public: str | None = None  # name of the row that the public code samples from

    def __call__(
        self,
        q: Tensor,
        p: Tensor | None,
        x: Tensor,
        depth: Tensor,
        rule: TokenTest,
    ) -> Tensor:
        """q [..., V] of the target, p [..., V] of the drafter (None: x was chosen), x [...]."""
        return self.weights(q, p, x, depth, rule)
