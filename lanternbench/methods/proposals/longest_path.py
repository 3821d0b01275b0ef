"""SJD-PAC as its public code decodes: the longest accepted path wins, and laws are not always recorded.

Not exact, for four reasons (total variation 0.07 to 0.11 on tiny vocabularies): siblings are tested independently and
the longest path counts, not the first accepted sibling; a rejected column of the tree is redrawn from what all K
siblings left, though one was tested, and later siblings from that residual too, while the target's law is recorded for
all; the first siblings of all are drawn with replacement; and a fully accepted window ends with a uniform token.

R rows (paths from the root to a leaf of the tree), M columns, N nodes, K siblings, V vocabulary, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.sampling import draw_distinct

NEVER_EMPTY = 1e-20  # added to token 0 of what a column is redrawn from


class StageLaws(NamedTuple):
    """The laws that each sibling is tested with; the last pair is for a token after all are rejected."""

    target: Tensor  # [..., K + 1, V]
    draft: Tensor  # [..., K + 1, V]


def recursive_residuals(target: Tensor, law: Tensor, siblings: Tensor) -> StageLaws:
    """target, law [..., V] at one node, its children's tokens [..., K] in draft order.

    After each rejection the target becomes [target − draft]₊, normalised, and the draft law loses the token.  Where
    nothing is left the target stays.
    """
    targets, drafts = [target], [law]
    for x in siblings.unbind(-1):
        residual = (targets[-1] - drafts[-1]).clamp(min=0)
        total = residual.sum(-1, keepdim=True)
        targets.append(torch.where(total > 0, residual / total, targets[-1]))
        left = drafts[-1].scatter(-1, x[..., None], 0.0)
        drafts.append(left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny))
    return StageLaws(torch.stack(targets, -2), torch.stack(drafts, -2))


def sibling_tests(stages: StageLaws, siblings: Tensor, u: Tensor) -> Tensor:
    """Which siblings would be accepted if tried: u·draft(x) < target(x).  siblings, u [..., K] -> bool [..., K]."""
    target, draft = (s[..., :-1, :].gather(-1, siblings[..., None])[..., 0] for s in stages)
    return (u * draft < target) & (draft > 0)


@dataclass(frozen=True)
class RowTree:
    """The tree as rows of nodes.

    The first row, which goes on as a chain, is numbered first; then the nodes that leave it, the deepest first; then
    their children, generation after generation.
    """

    k: int
    depth: int
    retrieve: Tensor  # [R, M] node of each column of each row, −1 where a row has ended
    column: Tensor  # [N]
    rank: Tensor  # [N] among its siblings
    paths: list[tuple[int, ...]]  # of every node, ranks from the root

    @classmethod
    def of(cls, nodes: int, k: int, depth: int, device: torch.device | str = "cpu") -> RowTree:
        """``nodes`` with the root: a K-ary tree of columns 0 … depth − 1, and the rest as a chain."""
        columns = depth + nodes - sum(k**d for d in range(depth))
        main = [(0,) * c for c in range(columns)]
        others = [ranks for c in range(1, depth) for ranks in product(range(k), repeat=c) if any(ranks)]
        leaves = {ranks: next(c for c, rank in enumerate(ranks) if rank) for ranks in others}  # the chain, at column c
        others.sort(key=lambda ranks: (len(ranks) - leaves[ranks], -leaves[ranks]))
        ids = {ranks: i for i, ranks in enumerate(main + others)}
        ends = [main[-1], *(ranks for ranks in product(range(k), repeat=depth - 1) if any(ranks))]
        rows = [[ids[end[:c]] for c in range(len(end) + 1)] + [-1] * (columns - 1 - len(end)) for end in ends]
        column = torch.tensor([len(ranks) for ranks in ids], device=device)
        rank = torch.tensor([(0, *ranks)[-1] for ranks in ids], device=device)
        return cls(k, depth, torch.tensor(rows, device=device), column, rank, list(ids))

    @property
    def siblings(self) -> Tensor:
        """[R, D − 1, K] the nodes that share a row's parent in columns 1 … D − 1, by rank."""
        rows, k, device = len(self.retrieve), self.k, self.retrieve.device
        families = []
        for c in range(1, self.depth):
            below = k ** (self.depth - 1 - c)  # rows through one node of column c
            start = torch.arange(rows, device=device) // (below * k) * (below * k)
            families.append(self.retrieve[start[:, None] + below * torch.arange(k, device=device), c])
        return torch.stack(families, 1)

    @property
    def uniform_row(self) -> Tensor:
        """[R, D − 1] the first row through the same node: whose uniform judges it."""
        inner = self.retrieve[:, 1 : self.depth]
        return (inner[:, None] == inner[None]).long().argmax(1)

    def tokens(self, sampled: Tensor) -> Tensor:
        """Siblings [B, K, M] by column -> tokens [B, N]."""
        return sampled[:, self.rank, self.column]


class PublicStep(NamedTuple):
    """The outcome of one forward in the public code."""

    committed: Tensor  # [B] tokens committed, the residual one included
    row: Tensor  # [B] the winning row
    sampled: Tensor  # [B, K, M]: [:, 0, 0] ends the step, column j ≥ 1 holds the next drafts of column j
    law: Tensor  # [B, M, V] recorded for them
    weights: Tensor  # [B, M, V] unnormalised, what each column was drawn from


class Judged(NamedTuple):
    """Every row's tests; column c judges the token of column c + 1."""

    ok: Tensor  # [B, R, M − 1]
    residual: Tensor  # [B, R, M − 1, V] what a column is redrawn from
    target: Tensor  # [B, R, M, V] the target after each column
    judging: Tensor  # [B, R, M, V] with the recursive residual in place of it where a later sibling was judged


def judge(tree: RowTree, tokens: Tensor, law: Tensor, q: Tensor, u: Tensor) -> Judged:
    """tokens [B, N], law [B, M, V] of each column's drafts, q [B, N, V] target after each node, u [B, R, M − 1]."""
    target = q[:, tree.retrieve]
    judging = target.clone()
    ok, residual = [], []
    for c in range(tree.retrieve.shape[1] - 1):
        draft = law[:, c + 1, None].expand_as(target[:, :, c])
        if c < tree.depth - 1:
            nodes = tree.siblings[:, c]  # [R, K]
            family = tokens[:, nodes]
            stages = recursive_residuals(target[:, :, c], draft, family)
            tests = sibling_tests(stages, family, u[:, tree.uniform_row[:, c], c, None].expand(-1, -1, tree.k))
            rank = tree.rank[tree.retrieve[:, c + 1]].expand(tests.shape[:2])[..., None]
            passed = tests.gather(-1, rank)[..., 0]
            used = torch.where(passed[..., None], rank, tree.k - 1)  # a rejected one is redrawn after all K
            wanted, drawn = (s.gather(-2, used[..., None].expand(-1, -1, -1, s.shape[-1]))[..., 0, :] for s in stages)
            judging[:, :, c] = stages.target.gather(-2, rank[..., None].expand(-1, -1, -1, q.shape[-1]))[..., 0, :]
        else:
            x = tokens[:, tree.retrieve[:, c + 1], None]
            wanted, drawn = target[:, :, c], draft
            passed = u[:, :, c] * draft.gather(-1, x)[..., 0] < wanted.gather(-1, x)[..., 0]
            chain = torch.arange(len(tree.retrieve), device=q.device) == 0
            passed = passed & chain
            drawn = torch.where(chain[:, None], draft, 0.0)  # where the others have ended: a bonus token
        ok.append(passed)
        residual.append((wanted - drawn).clamp(min=0))
    return Judged(torch.stack(ok, -1), torch.stack(residual, -2), target, judging)


def longest_path_step(
    tree: RowTree, tokens: Tensor, law: Tensor, q: Tensor, accept_u: Tensor, sample_u: Tensor, fresh: Tensor
) -> PublicStep:
    """One step of the public code.

    tokens [B, N]; law [B, M, V] (that of column 0 is not read); q [B, N, V]; accept_u [B, R, M − 1]; sample_u
    [B, M, K] by column of the next step; fresh [V], the law of drafts for columns that nothing is known of.
    """
    judged = judge(tree, tokens, law, q, accept_u)
    b, rows, tested = judged.ok.shape
    length = judged.ok.long().cumprod(-1).sum(-1)
    row = (length * rows - torch.arange(rows, device=q.device)).argmax(1)  # the longest, of equal ones the first
    accepted = length.gather(1, row[:, None])[:, 0]
    # inside the tree the winning row's columns, beyond it the first row's
    columns = torch.arange(tested, device=q.device)
    source = torch.where(columns < tree.depth, row[:, None], 0)
    batch = torch.arange(b, device=q.device)[:, None]
    shift = accepted[:, None] + torch.arange(tested + 1, device=q.device)
    known, at = (shift < tested)[..., None], shift.clamp(max=tested - 1)
    ok, residual, target = (x[batch, source, columns][batch, at] for x in (judged.ok, judged.residual, judged.target))
    residual[..., 0] += NEVER_EMPTY
    weights = torch.where(known, residual, fresh)
    drawn = draw_distinct(weights, sample_u)  # [B, M, K]
    old = tokens[:, tree.retrieve][batch, source, columns + 1][batch, at]
    keep = ok[..., None] & known
    keep[:, 0] = False  # the column that ended the step
    drawn = torch.where(keep, torch.cat([old[..., None], drawn[..., :-1]], -1), drawn)
    return PublicStep(accepted + 1, row, drawn.mT, torch.where(known, target, fresh), weights)
