"""Verification of a draft tree: all nodes at once, on the device, no synchronisation.

One rule for every tree: speculative sampling over siblings, in draft order.  At a node, child j is
accepted with probability min(1, q̃(x_j)/p(x_j)), or as the rule's ``accept`` decides; after a
rejection q becomes the residual and p loses x_j.  If none is accepted the step ends with a token
of the last residual; at a leaf, with a bonus token.

B batch, N nodes, M inner nodes, V vocabulary, W widest family, D depth of the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from lanternbench.component import Component, Prepared
from lanternbench.engine.chosen import (
    closed_form,
    is_argmax,
    lone_root,
    rank_by_rank,
    verify_greedy,
)
from lanternbench.engine.draft import Draft, VerifyResult, walk
from lanternbench.engine.plain import PlainRule, Probs
from lanternbench.engine.sampling import at, draw, normalised, on_host, rows_at
from lanternbench.models.target import Target

PIECE = 1 << 24  # probabilities that ``everywhere`` reads at once


class Uniforms(NamedTuple):
    """The uniforms of one step."""

    verify: Tensor  # [B, N]: one per node; the root's draws the last token
    draft: Tensor  # [B, U] those of the proposal
    # [B, N] one per image token from the root's successor on, the same in every step
    position: Tensor | None = None


class RelaxedProb(NamedTuple):
    """q̃(x) [...]; for neighbourhood rules also the tokens whose probability x takes, and which of
    them count.
    """

    value: Tensor
    group: Tensor | None = None  # [..., k] token ids, x first
    taken: Tensor | None = None  # [..., k] bool
    # [..., k'] token ids that the residual of a public implementation sets to 0
    barred: Tensor | None = None


# (q, p, x, depth, rule) -> what is sampled after x was rejected, unnormalised [..., V]; p None: a
# chosen child
Residual = Callable[[Tensor, Tensor | None, Tensor, Tensor, "AcceptanceRule"], Tensor]


class Forms(NamedTuple):
    """Forms, faster or the rule's own, of what ``AcceptanceRule`` derives from ``relax``:
    functions (rule, arguments).

    They hold for rules with this very ``relax``; one that inherits them with another ``relax`` has
    the general forms.
    """

    relax: Callable[..., RelaxedProb] | None = None
    everywhere: Callable[..., Tensor] | None = None
    accept: Callable[..., Tensor] | None = None
    accepted_prob: Callable[..., Tensor] | None = None
    accept_greedily: Callable[..., Tensor] | None = None
    verify_sampled: Callable[..., VerifyResult] | None = None
    verify_chosen: Callable[..., VerifyResult] | None = None
    residual: Residual | None = None  # the one that ``verify_chosen`` samples from


def standard(
    q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: AcceptanceRule
) -> Tensor:
    """∝ [q − p]₊ (Leviathan et al. 2023, eq. 2)."""
    return q.scatter(-1, x[..., None], 0.0) if p is None else (q - p).clamp_(min=0)


class AcceptanceRule(Component, PlainRule):
    """``relax`` gives the probability q̃(x̃) of a drafted token under the (relaxed) target; the
    rest derives from it.

    Here q̃ = q (Leviathan et al. 2023).  Where acceptance is no function of q̃(x̃)/p(x̃),
    ``forms`` has ``accept`` and ``accepted_prob``, which also get p.
    """

    # the residual to use when the rule replaces a preset's
    usual_residual: ClassVar[str] = "standard"
    # does it need one uniform per image token, the same in every step?
    by_position: ClassVar[bool] = False
    by_depth: ClassVar[bool] = False  # does the rule depend on how deep drafts are?
    by_draft: ClassVar[bool] = True  # does it judge each draft by itself?
    # block verification of a chain in scalar Python, see ``lossless.plain.drafts``
    plain_chain: ClassVar[Callable[..., list[tuple[float, int, Probs]]] | None] = None

    group_size = Prepared(1)  # values of q that are read for one token

    def prepare(self, target: Target, max_depth: int) -> Self:
        """The rule for drafts of at most ``max_depth`` levels, ready to decode."""
        return self

    @property
    def has_plain(self) -> bool:
        """Does ``plain`` define it?  Not where it decides otherwise than the exact rule and
        inherits ``plain``.
        """
        cls, base = type(self), AcceptanceRule
        exact = cls.relax is base.relax and cls.accept is base.accept and cls.verify is base.verify
        return self.variant == "paper" and (exact or cls.plain is not base.plain)

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        """q [..., V] at the parent, drafted x [...], its depth [...] or [], 1 … D -> q̃(x) [...]."""
        return RelaxedProb(at(q, x))

    forms: ClassVar[Forms] = Forms(
        relax,
        lambda rule, q, depth: q,
        accept_greedily=is_argmax,
        verify_chosen=closed_form,
        residual=standard,
    )

    @cached_property
    def own_forms(self) -> Forms:
        """Its ``forms``, where they hold for it."""
        return self.forms if self.forms.relax is type(self).relax else Forms()

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        """q̃(y) for every token y: [..., V].  The general form takes O(V²) time, in pieces of
        bounded memory.
        """
        if form := self.own_forms.everywhere:
            return form(self, q, depth)
        shape, tokens = q.shape[:-1], torch.arange(q.shape[-1], device=q.device)
        values = []
        for x in tokens.split(max(1, PIECE // q.numel())):
            rows = q[..., None, :].expand(*shape, len(x), -1)
            values.append(self.relax(rows, x.expand(*shape, -1), depth[..., None]).value)
        return torch.cat(values, -1)

    def accept(self, q: Tensor, p: Tensor, x: Tensor, depth: Tensor, u: Tensor) -> Tensor:
        """Is x, sampled from p [..., V], accepted?  q [..., V]; x, depth, u [...] -> bool [...].

        u < min(1, q̃(x)/p(x)), written without the division; p(x) = 0 never accepts.
        """
        if form := self.own_forms.accept:
            return form(self, q, p, x, depth, u)
        px = at(p, x)
        return (u * px < self.relax(q, x, depth).value) & (px > 0)

    def accepted_prob(self, q: Tensor, p: Tensor, depth: Tensor) -> Tensor:
        """p(y)·f(y) for every token y, f the probability that ``accept`` accepts it: q, p [..., V]
        -> [..., V].
        """
        if form := self.own_forms.accepted_prob:
            return form(self, q, p, depth)
        return torch.minimum(p, self.everywhere(q, depth))

    def accept_greedily(self, q: Tensor, best: Tensor, parent: Tensor, draft: Draft) -> Tensor:
        """Temperature 0: is x the argmax of q̃(·|x)?  q [B, N, V], best = argmax q [B, N], parent
        [B, N] -> [B, N].
        """
        if form := self.own_forms.accept_greedily:
            return form(self, q, best, parent, draft)
        rows, tokens = rows_at(q, parent), draft.tokens
        relaxed = self.relax(rows, tokens, draft.tree.depth.expand_as(tokens))
        if relaxed.group is not None and relaxed.taken is not None:
            rows = rows.scatter(
                -1, relaxed.group, torch.where(relaxed.taken, 0.0, rows.gather(-1, relaxed.group))
            )
        return relaxed.value >= rows.scatter(-1, tokens[..., None], 0.0).amax(-1)

    def order_greedily(self, draft: Draft) -> Tensor | None:
        """[b, N] priority among accepted paths of equal length, the lowest value first; None: node
        order.
        """
        return None

    def verify_chosen(
        self, draft: Draft, q: Tensor, u: Tensor, residual: Residual
    ) -> VerifyResult:
        """Children that were chosen (top-k), where p counts as 1: rank by rank, every node at
        once.
        """
        form = self.own_forms.verify_chosen
        if form is None or residual is not self.own_forms.residual:
            form = rank_by_rank
        return form(self, draft, q, u, residual)

    def verify_sampled(
        self, draft: Draft, q: Tensor, u: Tensor, residual: Residual
    ) -> VerifyResult:
        """Children that were sampled without replacement from p, in a static tree."""
        static: Any = draft.static
        form = self.own_forms.verify_sampled or (
            _sampled_chain if static.is_chain else _sampled_tree
        )
        return form(self, draft, q, u, residual)

    def verify(
        self, draft: Draft, q: Tensor, u: Uniforms, residual: Residual, greedy: bool
    ) -> VerifyResult:
        """Which path to take through the tree and which token to end it with; q [B, N, V]."""
        if draft.tree.nodes == 1:
            return lone_root(draft, q, u.verify, greedy)
        if greedy:
            return verify_greedy(self, draft, q)
        if draft.p is not None:
            return self.verify_sampled(draft, q, u.verify, residual)
        return self.verify_chosen(draft, q, u.verify, residual)


def end_of_chain(
    draft: Draft,
    q: Tensor,
    weights: Tensor,
    accepted: Tensor,
    u: Tensor,
    stays: Tensor | None = None,
) -> VerifyResult:
    """A chain of which ``accepted`` [B] drafts are: the next token comes from weights [B, V],
    unnormalised.

    It comes from q [B, V], the target's distribution there, where all are accepted, nothing is
    left, or q ``stays``.
    """
    assert draft.static is not None
    from_q = (accepted == draft.tokens.shape[1] - 1) | (weights.sum(-1) == 0)
    from_q = (from_q if stays is None else from_q | stays).unsqueeze(1)
    # in a chain a node's id is its depth
    path = torch.minimum(draft.static.tree.depth, accepted.unsqueeze(1))
    token = draw(torch.where(from_q, q, weights), u.select(1, 0))
    return VerifyResult(path, accepted, token, draft.static.sizes.expand_as(draft.tokens))


def _sampled_chain(
    rule: AcceptanceRule, draft: Draft, q: Tensor, u: Tensor, residual: Residual
) -> VerifyResult:
    """A tree of width 1: accept from the left until the first rejection."""
    static, p = draft.static, draft.p
    assert static is not None
    assert p is not None
    length = p.shape[1]
    x, depth = draft.tokens.narrow(1, 1, length), static.tree.depth.narrow(1, 1, length)
    ok = rule.accept(q.narrow(1, 0, length), p, x, depth.expand_as(x), u.narrow(1, 1, length))
    if len(ok) == 1 and on_host(ok):
        return _end_on_host(rule, draft, q, u, residual, [*ok[0].tolist(), False].index(False))
    accepted = ok.cumprod(1).sum(1)  # [B] 0 … L
    rejected = accepted.clamp(max=length - 1)  # index of the first rejection, if there is one
    q_stop, p_stop, x_stop = rows_at(q, accepted), rows_at(p, rejected), at(x, rejected)
    weights = residual(q_stop, p_stop, x_stop, rejected + 1, rule)
    # p cannot draw x: q stays
    return end_of_chain(draft, q_stop, weights, accepted, u, at(p_stop, x_stop) == 0)


def _end_on_host(
    rule: AcceptanceRule, draft: Draft, q: Tensor, u: Tensor, residual: Residual, accepted: int
) -> VerifyResult:
    """``end_of_chain`` for one prompt on a CPU: the host knows what was rejected and computes only
    what follows.
    """
    static, p, weights = draft.static, draft.p, q.select(1, accepted)
    assert static is not None
    assert p is not None
    if accepted < p.shape[1]:
        p_stop, x_stop = p.select(1, accepted), draft.tokens.select(1, accepted + 1)
        left = residual(weights, p_stop, x_stop, static.tree.depth.select(1, accepted + 1), rule)
        # else p cannot draw x, or nothing is left
        if p_stop.take(x_stop).item() != 0 and left.any().item():
            weights = left
    path = static.tree.depth.clamp(max=accepted)
    return VerifyResult(
        path, path.select(1, p.shape[1]), draw(weights, u.select(1, 0)), static.sizes
    )


def _sampled_tree(
    rule: AcceptanceRule, draft: Draft, q: Tensor, u: Tensor, residual: Residual
) -> VerifyResult:
    """First children everywhere, then second children, …; then the path from the root."""
    static, p = draft.static, draft.p
    assert static is not None
    assert p is not None
    tokens, tree, batch = draft.tokens, static.tree, len(draft.tokens)
    # the last cell: no such child
    ok = torch.zeros(batch, tree.nodes + 1, dtype=torch.bool, device=q.device)
    # after the loop: q and p before each node's last child
    q_now = q.index_select(1, static.inner_ids)
    p_now, last_child = p, tokens[:, static.ranks[0].nodes]
    for j, (families, nodes) in enumerate(static.ranks):
        depth = tree.depth[:, nodes].expand(batch, -1)
        x = tokens[:, nodes]
        q_j, p_j = q_now[:, families], p_now[:, families]
        if j:
            before = last_child[:, families]
            drawn = (at(p_j, before) > 0)[..., None]
            q_j = torch.where(drawn, normalised(residual(q_j, p_j, before, depth, rule), q_j), q_j)
            p_left = p_j.scatter(-1, before[..., None], 0.0)
            p_j = normalised(p_left, torch.zeros_like(p_left))
            p_now = p_now.clone() if j == 1 else p_now
            q_now[:, families], p_now[:, families], last_child[:, families] = q_j, p_j, x
        ok[:, nodes] = rule.accept(q_j, p_j, x, depth, u[:, nodes])
    exists = (tree.children >= 0).expand(batch, -1, -1)
    path, accepted, tried = walk(tree, exists, ok[:, tree.children[0]])
    stop = path[:, -1]
    index = static.inner_index[stop]
    leaf, index = index < 0, index.clamp(min=0)
    depth = (tree.depth.expand_as(tokens).gather(1, stop[:, None])[:, 0] + 1).clamp(
        max=tree.max_depth
    )
    x = last_child.gather(1, index[:, None])[:, 0]
    q_last, p_last = rows_at(q_now, index), rows_at(p_now, index)
    weights = residual(q_last, p_last, x, depth, rule)
    # p cannot draw the child; or nothing is left
    whole = (at(p_last, x) == 0) | (weights.sum(-1) == 0)
    weights = torch.where(whole[:, None], q_last, weights)
    final = torch.where(leaf[:, None], rows_at(q, stop), weights)
    return VerifyResult(path, accepted, draw(final, u[:, 0]), tried)
