"""Verification of a draft tree: all nodes at once, on the device, no synchronisation.

One rule for every tree: speculative sampling over siblings, in draft order.  At a node, child j is
accepted with probability min(1, q̃(x_j)/p(x_j)), or as the rule's ``accept`` decides; after a
rejection q becomes the residual and p loses x_j.  If none is accepted the step ends with a token
of the last residual; at a leaf, with a bonus token.

A rule's options are an ``AcceptanceRule``; ``build`` makes a ``RatioTest`` of them, which decides.

B batch, N nodes, C = N − 1 children, M inner nodes, V vocabulary, D depth of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Component
from lanternbench.engine.chosen import closed_form, lone_root, rank_by_rank, verify_greedy
from lanternbench.engine.plain import standard_residual
from lanternbench.engine.relaxed import RelaxedProb, Residual, TokenTest
from lanternbench.engine.sampling import at, draw_each, rows_at
from lanternbench.engine.tree import Draft, SiblingOrder, StaticTree, VerifyResult, numbers
from lanternbench.models.target import Target

PIECE = 1 << 24  # probabilities that ``everywhere`` reads at once
TINY = torch.finfo(torch.float32).tiny


class Uniforms(NamedTuple):
    """The uniforms of one step."""

    verify: Tensor  # [B, N]: one per node; the root's draws the last token
    draft: Tensor  # [B, U] those of the proposal
    # [B, N] one per image token from the root's successor on, the same in every step
    position: Tensor | None = None

    @property
    def of_positions(self) -> Tensor:
        """Return ``position``.  Raises TypeError for a rule that is not ``by_position``."""
        if self.position is None:
            raise TypeError("only a rule that is ``by_position`` has uniforms of image positions")
        return self.position


class SampledDraft(NamedTuple):
    """A draft whose children were sampled without replacement from p, in a static tree."""

    tokens: Tensor  # [B, N]
    p: Tensor  # [B, M, V]
    static: StaticTree

    @classmethod
    def of(cls, draft: Draft) -> SampledDraft:
        """Raise TypeError for a draft without p, or in a tree that grew."""
        if draft.p is None or draft.static is None:
            raise TypeError("a sampled draft has p, and a static tree")
        return cls(draft.tokens, draft.p, draft.static)


class AcceptanceRule(Component):
    """The options of an acceptance rule: what users set, and nothing else.

    A rule defines ``relax``, or ``build`` if it needs tensors of the target.
    """

    usual_residual: ClassVar[str] = "standard"  # if the rule replaces a preset's
    # whether it needs one uniform per image token, the same in every step
    by_position: ClassVar[bool] = False
    by_draft: ClassVar[bool] = True  # whether it judges each draft by itself

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        inherits_build = cls.build is not AcceptanceRule.build and "build" not in vars(cls)
        if "relax" in vars(cls) and inherits_build:
            raise TypeError(
                f"{cls.__name__} defines relax, which the build that it inherits does not read: "
                "derive from AcceptanceRule, or define build too"
            )

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        """q [..., V] at the parent, drafted x [...], its depth 1 … D (broadcast) -> q̃(x) [...]."""
        raise NotImplementedError

    def build(self, target: Target, depth: int) -> RatioTest:
        """Return the rule for drafts of at most ``depth`` levels, ready to decode."""
        return RuleTest(self)


@dataclass(frozen=True, eq=False)
class RatioTest:
    """Accept a drafted token x with probability min(1, q̃(x)/p(x)).

    ``relax`` gives q̃, and everything else derives from it.
    """

    by_position: ClassVar[bool] = False  # see ``AcceptanceRule``

    @property
    def group_size(self) -> int:
        """Return the number of values of q that are read for one token."""
        return 1

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        """See ``AcceptanceRule.relax``."""
        raise NotImplementedError

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        """Return q̃(y) for every token y: [..., V].

        This general form takes O(V²) time, in pieces of bounded memory.
        """
        shape = q.shape[:-1]
        tokens = torch.arange(q.shape[-1], device=q.device)
        at_once = max(1, PIECE // q.numel())
        depth = depth[..., None]
        values = []
        for x in torch.split(tokens, at_once):
            rows = q[..., None, :].expand(*shape, len(x), -1)
            relaxed = self.relax(rows, x.expand(*shape, -1), depth)
            values.append(relaxed.value)
        return torch.cat(values, -1)

    def accept(self, q: Tensor, p: Tensor, x: Tensor, depth: Tensor, u: Tensor) -> Tensor:
        """Return whether x, sampled from p [..., V], is accepted: q [..., V]; x, u [...] -> [...].

        u < min(1, q̃(x)/p(x)), written without the division; p(x) = 0 never accepts.
        """
        p_x = at(p, x)
        relaxed = self.relax(q, x, depth)
        return (u * p_x < relaxed.value) & (p_x > 0)

    def accepted_prob(self, q: Tensor, p: Tensor, depth: Tensor) -> Tensor:
        """Return p(y)·f(y) for every token y; f is the probability that ``accept`` accepts it.

        q, p [..., V] -> [..., V]
        """
        return torch.minimum(p, self.everywhere(q, depth))

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor:
        """Return whether x is the argmax of q̃(·|x), for temperature 0.

        q [B, N, V], best = argmax q [B, N], parent [B, N] -> [B, N]
        """
        rows = rows_at(q, parent)
        depth = draft.tree.depth.expand_as(draft.tokens)
        relaxed = self.relax(rows, draft.tokens, depth)
        rivals = self.rivals(rows, relaxed)
        rivals = rivals.scatter(-1, draft.tokens[..., None], 0.0)
        return relaxed.value >= rivals.amax(-1)

    def rivals(self, q: Tensor, relaxed: RelaxedProb) -> Tensor:
        """Return q̃(·|x) for all tokens but x: [..., V]."""
        return q if relaxed.group is None else relaxed.group.struck_from(q)

    def order_greedily(self, draft: Draft) -> Tensor | None:
        """Return [b, N] priorities among accepted paths of equal length, the lowest value first.

        None: node order.
        """
        return None

    def verify_chosen(
        self,
        draft: Draft,
        q: Tensor,
        u: Tensor,
        residual: Residual,
    ) -> VerifyResult:
        """Verify children that were chosen (top-k), so that p counts as 1."""
        return rank_by_rank(self, draft, q, u, residual)

    def verify_sampled(
        self,
        draft: SampledDraft,
        q: Tensor,
        u: Tensor,
        residual: Residual,
    ) -> VerifyResult:
        """Verify children that were sampled without replacement from p."""
        if draft.static.is_chain:
            return verify_chain(self, draft, q, u, residual)
        return verify_tree(self, draft, q, u, residual)

    def verify(
        self,
        draft: Draft,
        q: Tensor,
        u: Uniforms,
        residual: Residual,
        greedy: bool,
    ) -> VerifyResult:
        """Choose a path through the tree and the token that ends it; q [B, N, V]."""
        if draft.tokens.shape[1] == 1:
            return lone_root(draft, q, u.verify, greedy)
        if greedy:
            return verify_greedy(self, draft, q)
        if draft.p is None:
            return self.verify_chosen(draft, q, u.verify, residual)
        return self.verify_sampled(SampledDraft.of(draft), q, u.verify, residual)


@dataclass(frozen=True, eq=False)
class RuleTest(RatioTest):
    """The test of a rule that defines ``relax`` itself."""

    rule: AcceptanceRule

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        return self.rule.relax(q, x, depth)


@dataclass(frozen=True, eq=False)
class OrderedTest(RatioTest):
    """A test that accepts the argmax of q at temperature 0, as the target would choose it."""

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor:
        return draft.tokens == best.gather(1, parent)


@dataclass(frozen=True, eq=False)
class ExactTest(OrderedTest):
    """q̃ = q (Leviathan et al. 2023)."""

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        return RelaxedProb(at(q, x))

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return q

    def verify_chosen(
        self,
        draft: Draft,
        q: Tensor,
        u: Tensor,
        residual: Residual,
    ) -> VerifyResult:
        if residual is standard:
            return closed_form(draft, q, u)
        return super().verify_chosen(draft, q, u, residual)


def _standard(q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: TokenTest) -> Tensor:
    """∝ [q − p]₊ (Leviathan et al. 2023, eq. 2)."""
    if p is None:
        return q.scatter(-1, x[..., None], 0.0)
    return (q - p).clamp_(min=0)


standard = Residual(_standard, standard_residual, lossless=True, of_token=False)


def left_over(
    test: TokenTest,
    residual: Residual,
    q: Tensor,
    p: Tensor,
    x: Tensor,
    depth: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights that a token may be sampled from after a rejection, unnormalised [..., V];
    their sum [..., 1]; and whether they count, because p can draw x and weights are left, bool
    [..., 1]: else q stays as it is.

    q, p [..., V], x rejected [...] at depth 1 … D (broadcast)
    """
    weights = residual.weights(q, p, x, depth, test)
    total = weights.sum(-1, keepdim=True)
    p_x = p.gather(-1, x.unsqueeze(-1))
    return weights, total, torch.minimum(p_x, total) > 0


def end_of_chain(
    draft: SampledDraft,
    q: Tensor,
    weights: Tensor,
    counts: Tensor,
    accepted: Tensor,
    u: Tensor,
) -> VerifyResult:
    """Return the result for a chain of which ``accepted`` [B] drafts were accepted.

    The next token comes from ``weights`` [B, V], unnormalised, if they count [B, 1] and a draft
    was rejected, else from q [B, V] there.
    """
    length = draft.p.shape[1]
    accepted_column = accepted.unsqueeze(1)
    from_weights = counts & (accepted_column < length)
    law = torch.where(from_weights, weights, q)
    token = draw_each(law, u.narrow(1, 0, 1))
    # in a chain a node's id is its depth
    path = torch.minimum(draft.static.tree.depth, accepted_column)
    tried = draft.static.sizes.expand_as(draft.tokens)
    return VerifyResult(path, accepted, token.squeeze(1), tried)


def verify_chain(
    test: RatioTest,
    draft: SampledDraft,
    q: Tensor,
    u: Tensor,
    residual: Residual,
) -> VerifyResult:
    """Accept the drafts of a chain from the left until the first rejection."""
    length = draft.p.shape[1]
    tokens = draft.tokens.narrow(1, 1, length)
    uniforms = u.narrow(1, 1, length)
    depth = draft.static.siblings.depth
    passed = test.accept(q.narrow(1, 0, length), draft.p, tokens, depth, uniforms)
    accepted = passed.cumprod(1).sum(1)  # [B] 0 … L
    rejected = accepted.clamp(max=length - 1)  # index of the first rejection, if there is one
    prompts = numbers(q.shape[0], q.device)
    q_stop = q[prompts, accepted]
    p_stop = draft.p[prompts, rejected]
    x_stop = tokens[prompts, rejected]
    weights, _, counts = left_over(test, residual, q_stop, p_stop, x_stop, rejected + 1)
    return end_of_chain(draft, q_stop, weights, counts, accepted, u)


class Children(NamedTuple):
    """The children of a tree in the order of ``SiblingOrder``, with what tests each of them after
    its elder siblings were rejected.
    """

    tokens: Tensor  # [B, C]
    depth: Tensor  # [C]
    q: Tensor  # [B, C, V]
    p: Tensor  # [B, C, V]


def stages(
    test: TokenTest,
    draft: SampledDraft,
    q: Tensor,
    residual: Residual,
) -> Children:
    """Take each rejected sibling out of q [B, N, V] and p, rank after rank."""
    siblings = draft.static.siblings
    target = q.index_select(1, draft.static.inner_ids)
    drafter = draft.p
    targets = [target]
    drafters = [drafter]
    for rank in siblings.later:
        target = target.index_select(1, rank.elder_places)
        drafter = drafter.index_select(1, rank.elder_places)
        rejected = draft.tokens.index_select(1, rank.elders)
        weights, total, counts = left_over(test, residual, target, drafter, rejected, rank.depth)
        target = torch.where(counts, weights / total, target)
        drafter.scatter_(-1, rejected.unsqueeze(-1), 0.0)
        drafter.div_(drafter.sum(-1, keepdim=True).clamp_(min=TINY))
        targets.append(target)
        drafters.append(drafter)
    return Children(
        tokens=draft.tokens.index_select(1, siblings.nodes),
        depth=siblings.depth,
        q=torch.cat(targets, 1),
        p=torch.cat(drafters, 1),
    )


def walk(siblings: SiblingOrder, passed: Tensor) -> tuple[Tensor, Tensor]:
    """Follow the first accepted children from the root.

    passed [B, C]: the children that are accepted if tried.  Returns the last node [B], and how
    many children of each node were examined if it was reached [B, N].
    """
    with_spare = F.pad(passed, (0, 1), value=True)
    decided = with_spare[:, siblings.tests]  # [B, N, W + 1]
    outcome = decided.int().argmax(-1)
    nodes = numbers(outcome.shape[1], outcome.device)
    onward = siblings.onward[nodes, outcome]
    depth = siblings.paths.shape[1] - 1
    for _ in range((depth - 1).bit_length()):  # doubles the number of steps onward
        onward = onward.gather(1, onward)
    return onward.select(1, 0), siblings.tried[nodes, outcome]


def verify_tree(
    test: RatioTest,
    draft: SampledDraft,
    q: Tensor,
    u: Tensor,
    residual: Residual,
) -> VerifyResult:
    """Test every child as if it were reached, then follow the first accepted ones from the root."""
    siblings = draft.static.siblings
    children = stages(test, draft, q, residual)
    uniforms = u.index_select(1, siblings.nodes)
    passed = test.accept(children.q, children.p, children.tokens, children.depth, uniforms)
    stop, tried = walk(siblings, passed)
    prompts = numbers(len(q), q.device)
    last = siblings.last_child.take(stop)  # place of the last rejected child, unless at a leaf
    after_children = after_rejection(test, residual, children, prompts, last)
    law = torch.where(siblings.is_leaf[stop], q[prompts, stop], after_children)
    token = draw_each(law, u.narrow(1, 0, 1))
    path = siblings.paths[stop]
    accepted = siblings.levels.take(stop)
    return VerifyResult(path, accepted, token.squeeze(1), tried)


def after_rejection(
    test: TokenTest,
    residual: Residual,
    children: Children,
    prompts: Tensor,
    place: Tensor,
) -> Tensor:
    """Return the weights [B, V] of the next token if the child at ``place`` [B] is rejected."""
    q = children.q[prompts, place]
    p = children.p[prompts, place]
    x = children.tokens[prompts, place]
    weights, _, counts = left_over(test, residual, q, p, x, children.depth.take(place))
    return torch.where(counts, weights, q)
