"""SJD-PAC (arXiv 2603.18599): a Jacobi window whose first columns hold K siblings each.

Column c is the position c after the last committed token.  Columns 1 … D − 1 hold K siblings,
drawn without replacement from one law; every node of column c − 1 has the same ones.  From column
D on, the chain of first siblings continues alone.  So a path needs one law per column; it is
verified like any static tree, and the first accepted sibling leads on.

After a step every column is redrawn from the target's distribution there.  The first sibling is
coupled to the old one (maximal coupling), so that its law is the target's new one; the others are
drawn from that law without it.

B batch, W window columns (the root not counted), N nodes, K siblings, T columns with siblings, V
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from lanternbench.component import Choices, option
from lanternbench.engine.chosen import longest_path
from lanternbench.engine.proposal import DraftSize, Proposal, TreePolicy
from lanternbench.engine.relaxed import Residual
from lanternbench.engine.sampling import at, draw, draw_distinct, likeliest, normalised, rows_at
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft, StaticTree, VerifyResult, from_paths, numbers
from lanternbench.engine.verify import AcceptanceRule, ExactTest, RatioTest, SampledDraft
from lanternbench.errors import UserError
from lanternbench.methods.proposals.jacobi import Window, WindowProposer, uniform_tokens
from lanternbench.methods.proposals.redraws import maximal
from lanternbench.models.target import Target
from lanternbench.registry import register

NEVER_EMPTY = 1e-20  # added to token 0 of what the public code redraws a column from


def sibling_paths(k: int, depth: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Return the child paths (sibling ranks from the root) of a tree of so many columns."""
    paths: list[tuple[int, ...]] = []
    for column in range(1, columns):
        siblings = k if column < depth else 1
        paths.extend(product(range(siblings), repeat=column))
    return tuple(paths)


@register("proposal", "sjd-pac")
class SjdPac(Proposal):
    """the target itself: a window that begins as a tree of siblings"""

    tree_names = ("static",)
    tree_is_own = True
    inexact = ("reference",)
    tuned: ClassVar[dict[str, tuple[int, ...]]] = {
        "window": (2, 3, 4, 6, 8, 12, 16, 24), "siblings": (1, 2, 3, 4), "depth": (1, 2, 3, 4)
    }  # fmt: skip

    siblings: int = option(3, "drafts of one position", symbol="K", small=2, ge=1, le=64)
    depth: int = option(
        3, "depth from which on the tree is a chain", symbol="D", small=3, also=2, ge=1, le=8
    )
    window: int = option(16, "drafted positions per step", symbol="L", small=2, ge=1, le=256)

    def small(self) -> Self:
        """Return small options; the public window is no shorter than its tree."""
        small = super().small()
        if self.variant == "paper":
            return small
        return small.model_copy(update={"depth": small.window})

    def refuses(self, choices: Choices) -> str | None:
        if self.variant == "reference" and choices.acceptance != "exact":
            return (
                "the public code of SJD-PAC accepts as the rule 'exact' does; leave --acceptance "
                "or --variant out"
            )
        return super().refuses(choices)

    def build(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> SiblingWindow:
        columns = Columns.of(self.siblings, self.depth, self.window, target)
        if self.variant == "paper":
            return SiblingWindow.of(columns)
        if self.window < self.depth:
            raise UserError(
                "the public code's window is longer than its tree: "
                f"give --window {self.depth} or more"
            )
        return PublicSiblingWindow.of(columns)


@dataclass(frozen=True, eq=False)
class Columns:
    """The tree of a window, and where its columns and nodes are."""

    siblings: int  # K
    window: int  # W
    tree_columns: int  # T
    vocab: int
    static: StaticTree
    column: Tensor  # [N − 1] of each node but the root, column 1 counted as 0
    rank: Tensor  # [N − 1] among its siblings
    law_column: Tensor  # [M] the column whose law the children of an inner node are drawn from
    chain: Tensor  # [W + 1] the nodes of first siblings
    chain_inner: Tensor  # [W] numbers of all of these but the last among the inner nodes

    @classmethod
    def of(cls, siblings: int, depth: int, window: int, target: Target) -> Columns:
        device = target.device
        static = from_paths(sibling_paths(siblings, depth, window + 1)).to(device)
        column = static.tree.depth[0]
        first_siblings = [1 + static.paths.index((0,) * c) for c in range(1, window + 1)]
        chain = torch.tensor([0, *first_siblings], device=device)
        return cls(
            siblings=siblings,
            window=window,
            tree_columns=min(depth - 1, window),
            vocab=target.vocab,
            static=static,
            column=column[1:] - 1,
            rank=torch.tensor([path[-1] for path in static.paths], device=device),
            law_column=column[static.inner_ids],
            chain=chain,
            chain_inner=static.inner_index[chain[:-1]],
        )

    def size(self, fresh: int, redraws: int) -> DraftSize:
        """Return the size of drafts; ``fresh`` and ``redraws``: how many uniforms they take."""
        tree = self.static.tree
        return DraftSize(tree.nodes, self.window, tree.width, fresh + redraws, redraws)

    def contexts(self, path: Tensor, accepted: Tensor) -> Tensor:
        """Return, for every c, the node after which q is the new law of column c + 1: [B, W + 1].

        path [B, ≥ accepted + 1].  Inside the tree the accepted path continues with first siblings;
        beyond it only the chain has nodes.
        """
        first_child = self.static.tree.children[0, :, 0]
        nodes = [path[:, 0]]
        for c in range(1, self.tree_columns + 1):
            on_path = path[:, min(c, path.shape[1] - 1)]
            onward = first_child[nodes[-1]]
            nodes.append(torch.where(c <= accepted, on_path, onward))
        inside = torch.stack(nodes, 1)
        beyond = self.chain[len(nodes) :].expand(len(path), -1)
        return torch.cat([inside, beyond], 1)


@dataclass(frozen=True, eq=False)
class SiblingWindow(WindowProposer):
    """A window that begins as a tree of siblings."""

    size: DraftSize
    columns: Columns
    fresh_uniforms: int

    @classmethod
    def of(cls, columns: Columns) -> Self:
        k = columns.siblings
        t = columns.tree_columns
        w = columns.window
        fresh = t * k + w - t
        redraws = 2 * w + t * (k - 1)  # W to keep first siblings, W to draw them, other siblings
        return cls(columns.size(fresh, redraws), columns, fresh)

    def begin(self, state: DecodeState) -> Window:
        columns = self.columns
        drafts = state.now.root.new_zeros(state.batch, columns.window, columns.siblings)
        shape = (*drafts.shape[:2], columns.vocab)
        p = state.first.new_full(shape, 1.0 / columns.vocab)
        return Window(drafts, p, drafts[:, 0, 0])

    def draft(self, state: DecodeState, window: Window, u: Tensor) -> Draft:
        columns = self.columns
        carried = numbers(columns.window, u.device) < window.draft_count[:, None]
        carried = carried[..., None]
        fresh = self.fresh(u[:, : self.fresh_uniforms])
        tokens = torch.where(carried, window.drafts, fresh)
        p = torch.where(carried, window.p, 1.0 / columns.vocab)
        drafted = tokens[:, columns.column, columns.rank]
        nodes = torch.cat([state.now.root[:, None], drafted], 1)
        return Draft(nodes, p[:, columns.law_column], columns.static)

    def fresh(self, u: Tensor) -> Tensor:
        """Draw tokens [B, W, K] of the uniform law, as if every column were new."""
        b = len(u)
        k = self.columns.siblings
        t = self.columns.tree_columns
        vocab = self.columns.vocab
        uniform = u.new_ones(b, t, vocab)
        tokens = u.new_zeros(b, self.columns.window, k, dtype=torch.long)
        tokens[:, :t] = draw_distinct(uniform, u[:, : t * k].view(b, t, k))
        tokens[:, t:, 0] = uniform_tokens(u[:, t * k :], vocab)
        return tokens

    def update(self, state: DecodeState, window: Window, result: StepResult) -> Window:
        w = self.columns.window
        accepted = result.verified.accepted
        context = self.columns.contexts(result.verified.path, accepted)
        # number of the old column that moves to each place; W: there is none
        source = (accepted[:, None] + 1 + numbers(w, accepted.device)).clamp(max=w)
        p = rows_at(result.drawn, context.gather(1, source))
        if state.warp.greedy:
            tokens = self.likeliest(p)
        else:
            tokens = self.redrawn(result, p, source)
        return Window(tokens, p, w - accepted)

    def likeliest(self, p: Tensor) -> Tensor:
        """Return the K likeliest tokens of each column: p [B, W, V] -> [B, W, K]."""
        k = self.columns.siblings
        t = self.columns.tree_columns
        tokens = torch.zeros(*p.shape[:2], k, dtype=torch.long, device=p.device)
        best = likeliest(p, min(k, p.shape[-1])).indices
        tokens[..., 0] = best[..., 0]
        tokens[:, :t, : best.shape[-1]] = best[:, :t]
        return tokens

    def redrawn(self, result: StepResult, p: Tensor, source: Tensor) -> Tensor:
        """Draw the next drafts [B, W, K] from p [B, W, V]; ``source``: see ``update``."""
        columns = self.columns
        w = columns.window
        k = columns.siblings
        t = columns.tree_columns
        draft = SampledDraft.of(result.draft)
        u = result.u.draft[:, self.fresh_uniforms :]
        exists = source < w
        source = source.clamp(max=w - 1)
        old = draft.tokens[:, columns.chain[1:]].gather(1, source)
        law = rows_at(draft.p[:, columns.chain_inner], source)
        # a law of 0 keeps nothing, and draws from all of p
        law = torch.where(exists[..., None], law, 0.0)
        coupled = maximal(old, law, p, u[:, :w], u[:, w : 2 * w])
        tokens = old.new_zeros(len(p), w, k)
        tokens[..., 0] = coupled.tokens
        if t and k > 1:
            others = p[:, :t].scatter(-1, tokens[:, :t, :1], 0.0)
            tokens[:, :t, 1:] = draw_distinct(others, u[:, 2 * w :].view(-1, t, k - 1))
        return tokens


class Stages(NamedTuple):
    """The laws that each sibling is tested with after those before it were rejected.

    [..., K + 1, V] each; the last ones are for a token after all siblings were rejected.
    """

    targets: Tensor
    drafts: Tensor

    def residual_at(self, index: Tensor) -> Tensor:
        """Return [target − draft]₊ of the sibling ``index`` [...]: [..., V]."""
        rows = index[..., None, None].expand(*index.shape, 1, self.targets.shape[-1])
        target = self.targets.gather(-2, rows)
        draft = self.drafts.gather(-2, rows)
        return (target - draft).clamp(min=0)[..., 0, :]


def recursive_residuals(target: Tensor, law: Tensor, siblings: Tensor) -> Stages:
    """Return what each sibling is tested with: target, law [..., V] at a node, siblings [..., K].

    After each rejection the target becomes [target − draft]₊, normalised, and the draft law loses
    the token.  The target stays if nothing is left.
    """
    targets = [target]
    drafts = [law]
    for x in siblings.unbind(-1):
        left = drafts[-1].scatter(-1, x[..., None], 0.0)
        total = left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
        residual = (targets[-1] - drafts[-1]).clamp(min=0)
        targets.append(normalised(residual, targets[-1]))
        drafts.append(left / total)
    return Stages(torch.stack(targets, -2), torch.stack(drafts, -2))


def sibling_tests(stages: Stages, siblings: Tensor, u: Tensor) -> Tensor:
    """Return the siblings that would be accepted if tried: u·draft(x) < target(x).

    siblings, u [..., K] -> bool [..., K]
    """
    target = at(stages.targets[..., :-1, :], siblings)
    draft = at(stages.drafts[..., :-1, :], siblings)
    return (u * draft < target) & (draft > 0)


class Redrawn(NamedTuple):
    """The columns 1 … W after the accepted path."""

    stays: Tensor  # [B, W] bool: the draft there stays
    weights: Tensor  # [B, W, V] unnormalised: what it is redrawn from
    law: Tensor  # [B, W, V] recorded for it
    drafts: Tensor  # [B, W]


@dataclass(frozen=True, eq=False)
class PublicSiblingWindow(SiblingWindow):
    """As the public code decodes; every column is full after the first step, with K drafts.

    Not exact (total variation 0.07 to 0.11 on tiny vocabularies): siblings are tested
    independently and the longest path counts; a rejected column of the tree is redrawn from what
    all K siblings left, while the target's law is recorded for it; the first siblings are drawn
    with replacement; a fully accepted window ends with a uniform token.
    """

    fresh_law: Tensor  # [V] of columns past the old window

    @classmethod
    def of(cls, columns: Columns) -> Self:
        w = columns.window
        k = columns.siblings
        uniform = torch.full((columns.vocab,), 1.0 / columns.vocab, device=columns.chain.device)
        return cls(columns.size(w * k, (w + 1) * k), columns, w * k, uniform)

    def verification(self, rule: RatioTest) -> RatioTest:
        return LongestPathTest(self)

    def fresh(self, u: Tensor) -> Tensor:
        """Draw tokens [B, W, K] with replacement."""
        columns = self.columns
        return uniform_tokens(u, columns.vocab).view(len(u), columns.window, columns.siblings)

    def judge(self, draft: SampledDraft, q: Tensor, u: Tensor) -> Tensor:
        """Return the nodes that would be accepted after their parents: bool [B, N].

        q [B, N, V], u [B, N]
        """
        columns = self.columns
        tree = columns.static
        t = columns.tree_columns
        passed = torch.zeros_like(u, dtype=torch.bool)
        # inner nodes of the tree, before those of the chain
        families = sum(columns.siblings**d for d in range(t))
        parents = tree.inner_ids[:families]
        children = tree.tree.children[0, parents]  # [families, K]
        tokens = draft.tokens[:, children]
        stages = recursive_residuals(q[:, parents], draft.p[:, :families], tokens)
        passed[:, children] = sibling_tests(stages, tokens, u[:, children])
        chain = columns.chain[t + 1 :]
        x = draft.tokens[:, chain]
        p_x = at(draft.p[:, families:], x)
        passed[:, chain] = u[:, chain] * p_x < at(q[:, columns.chain[t:-1]], x)
        return passed

    def redraw(
        self,
        draft: SampledDraft,
        q: Tensor,
        passed: Tensor,
        path: Tensor,
        accepted: Tensor,
    ) -> Redrawn:
        """Return the columns after the accepted path; ``passed`` [B, N]: see ``judge``."""
        columns = self.columns
        t = columns.tree_columns
        nodes = columns.contexts(path, accepted)
        parent = nodes[:, :-1]
        node = nodes[:, 1:]
        stays = passed.gather(1, node)
        target = rows_at(q, parent)
        law = draft.p[:, columns.chain_inner]
        # beyond the tree, a path that left the chain ends with a bonus token
        ended = parent != columns.chain[:-1]
        ended[:, :t] = False
        weights = (target - torch.where(ended[..., None], 0.0, law)).clamp(min=0)
        if t:
            children = columns.static.tree.children[0, parent[:, :t]]
            family = draft.tokens.gather(1, children.flatten(1)).view_as(children)
            stages = recursive_residuals(target[:, :t], law[:, :t], family)
            rank = columns.rank[node[:, :t] - 1]
            tested = torch.where(stays[:, :t], rank, columns.siblings - 1)  # all K if rejected
            weights[:, :t] = stages.residual_at(tested)
        weights[..., 0] += NEVER_EMPTY
        return Redrawn(stays & ~ended, weights, target, draft.tokens.gather(1, node))

    def update(self, state: DecodeState, window: Window, result: StepResult) -> Window:
        if state.warp.greedy:
            return super().update(state, window, result)
        w = self.columns.window
        verified = result.verified
        draft = SampledDraft.of(result.draft)
        passed = self.judge(draft, result.q, result.u.verify)
        redrawn = self.redraw(draft, result.q, passed, verified.path, verified.accepted)
        source = verified.accepted[:, None] + 1 + numbers(w, result.q.device)
        known = (source < w)[..., None]
        source = source.clamp(max=w - 1)
        weights = torch.where(known, rows_at(redrawn.weights, source), self.fresh_law)
        law = torch.where(known, rows_at(redrawn.law, source), self.fresh_law)
        u = result.u.draft[:, self.fresh_uniforms :]
        u = u.view(-1, w + 1, self.columns.siblings)
        drawn = draw_distinct(weights, u[:, 1:])  # [B, W, K]
        stays = redrawn.stays.gather(1, source)
        old = redrawn.drafts.gather(1, source)
        old_first = torch.cat([old[..., None], drawn[..., :-1]], -1)
        drafts = torch.where(stays[..., None] & known, old_first, drawn)
        return Window(drafts, law, torch.full_like(window.draft_count, w))


@dataclass(frozen=True, eq=False)
class LongestPathTest(ExactTest):
    """Choose the longest accepted path; a window accepted whole ends with a uniform token."""

    window: PublicSiblingWindow

    def verify_sampled(
        self,
        draft: SampledDraft,
        q: Tensor,
        u: Tensor,
        residual: Residual,
    ) -> VerifyResult:
        window = self.window
        passed = window.judge(draft, q, u)
        path, accepted, _ = longest_path(draft.static.tree, passed)
        redrawn = window.redraw(draft, q, passed, path, accepted)
        fresh = window.fresh_law.expand(len(u), 1, -1)
        weights = torch.cat([redrawn.weights, fresh], 1)
        token = draw(rows_at(weights, accepted), u[:, 0])
        tried = draft.static.sizes.expand_as(draft.tokens)
        return VerifyResult(path, accepted, token, tried)
