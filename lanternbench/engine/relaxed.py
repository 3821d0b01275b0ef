"""A drafted token under a relaxed target: its probability, and the group that lends it."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

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

    def accept(self, q: Tensor, p: Tensor, x: Tensor, depth: Tensor, u: Tensor) -> Tensor: ...

    def accepted_prob(self, q: Tensor, p: Tensor, depth: Tensor) -> Tensor: ...

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor: ...

    def order_greedily(self, draft: Draft) -> Tensor | None: ...


class ResidualWeights(Protocol):
    """Return the weights [..., V] of the token after x was rejected; p None: x was chosen."""

    def __call__(
        self,
        q: Tensor,
        p: Tensor | None,
        x: Tensor,
        depth: Tensor,
        rule: TokenTest,
        /,
    ) -> Tensor: ...
