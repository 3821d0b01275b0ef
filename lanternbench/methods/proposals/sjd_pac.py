"""SJD-PAC (arXiv 2603.18599): a Jacobi window with K siblings a column down to depth D, then a
chain.

Column c is the position c after the last committed token.  Columns 1 … D − 1 hold K siblings,
drawn without replacement from one law; every node of column c − 1 has the same ones.  From column
D on the chain of first siblings goes on alone. So a path needs one law a column, and is verified
as any static tree is, the first accepted sibling leading on.

After a step every column is redrawn from the forward's distribution there.  The first sibling is
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
from lanternbench.engine.proposal import DraftSize, Proposal, Proposer, TreePolicy
from lanternbench.engine.relaxed import ResidualWeights
from lanternbench.engine.sampling import at, draw, draw_distinct, likeliest, normalised, rows_at
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft, StaticTree, VerifyResult, from_paths
from lanternbench.engine.verify import AcceptanceRule, ExactTest, RatioTest, SampledDraft
from lanternbench.errors import UserError
from lanternbench.methods.proposals.jacobi import Window, uniform_tokens
from lanternbench.methods.proposals.redraws import maximal
from lanternbench.models.target import Target
from lanternbench.registry import register

NEVER_EMPTY = 1e-20  # added to token 0 of what the public code redraws a column from


def sibling_paths(k: int, depth: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Child paths (sibling ranks from the root) of the tree with columns 0 … columns − 1."""
    tree_end = min(depth, columns)
    paths: list[tuple[int, ...]] = []
    for d in range(1, tree_end):
        paths.extend(product(range(k), repeat=d))
    for d in range(tree_end, columns):
        paths.append((0,) * d)
    return tuple(paths)


def context_nodes(
    children: Tensor,
    chain: Tensor,
    depth: int,
    path: Tensor,
    accepted: Tensor,
) -> Tensor:
    """The node after which the target's distribution is the new law of column c + 1, for every c:
    [B, W + 1].

    children [N, K], chain [W + 1] first siblings, path [B, ≥ accepted + 1].  Inside the tree the
    accepted path goes on with first siblings; beyond it only the chain has nodes.
    """
    nodes = [path[:, 0]]
    for c in range(1, len(chain)):
        if c >= depth:
            nodes.append(chain[c].expand_as(accepted))
        else:
            onward = children[nodes[-1], 0]
            nodes.append(torch.where(c <= accepted, path[:, min(c, path.shape[1] - 1)], onward))
    return torch.stack(nodes, 1)


@register("proposal", "sjd-pac")
class SjdPac(Proposal):
    """the target itself: a window that begins as a tree of siblings"""

    tree_names: ClassVar[tuple[str, ...] | None] = ("static",)
    tree_is_own: ClassVar[bool] = True
    inexact: ClassVar[tuple[str, ...]] = ("reference",)
    tuned: ClassVar[dict[str, tuple[int, ...]]] = {
        "window": (2, 3, 4, 6, 8, 12, 16, 24), "siblings": (1, 2, 3, 4), "depth": (1, 2, 3, 4)
    }  # fmt: skip

    siblings: int = option(3, "drafts of one position", symbol="K", small=2, ge=1, le=64)
    depth: int = option(
        3, "depth from which on the tree is a chain", symbol="D", small=3, also=2, ge=1, le=8
    )
    window: int = option(16, "drafted positions per step", symbol="L", small=2, ge=1, le=256)

    def small(self) -> Self:
        """The public window is no shorter than its tree."""
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
    depth: int  # D
    window: int  # W
    tree_columns: int  # T
    vocab: int
    static: StaticTree
    numbers: Tensor  # [W] 0 … W − 1
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
            depth=depth,
            window=window,
            tree_columns=min(depth - 1, window),
            vocab=target.vocab,
            static=static,
            numbers=torch.arange(window, device=device),
            column=column[1:] - 1,
            rank=torch.tensor([path[-1] for path in static.paths], device=device),
            law_column=column[static.inner_ids],
            chain=chain,
            chain_inner=static.inner_index[chain[:-1]],
        )

    def size(self, fresh: int, redraws: int) -> DraftSize:
        """``fresh`` and ``redraws``: how many uniforms they take."""
        tree = self.static.tree
        return DraftSize(tree.nodes, self.window, tree.width, fresh + redraws, redraws)

    def contexts(self, path: Tensor, accepted: Tensor) -> Tensor:
        """See ``context_nodes``."""
        children = self.static.tree.children[0]
        return context_nodes(children, self.chain, self.depth, path, accepted)


@dataclass(frozen=True, eq=False)
class SiblingWindow(Proposer[Window]):
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
        redraws = 2 * w + t * (k - 1)  # keep W, draw W, siblings
        return cls(columns.size(fresh, redraws), columns, fresh)

    def begin(self, state: DecodeState) -> Window:
        columns = self.columns
        shape = (state.batch, columns.window)
        p = state.first.new_full((*shape, columns.vocab), 1.0 / columns.vocab)
        drafts = torch.zeros(*shape, columns.siblings, dtype=torch.long, device=state.device)
        return Window(drafts, p, drafts[:, 0, 0])

    def draft(self, state: DecodeState, window: Window, u: Tensor) -> Draft:
        columns = self.columns
        carried = (columns.numbers < window.draft_count[:, None])[..., None]
        fresh = self.fresh(u[:, : self.fresh_uniforms], window.p.dtype)
        tokens = torch.where(carried, window.drafts, fresh)
        p = torch.where(carried, window.p, 1.0 / columns.vocab)
        nodes = torch.cat([state.now.root[:, None], tokens[:, columns.column, columns.rank]], 1)
        return Draft(nodes, p[:, columns.law_column], columns.static)

    def fresh(self, u: Tensor, dtype: torch.dtype) -> Tensor:
        """Tokens [B, W, K] of the uniform law, as if every column were new."""
        b = len(u)
        k = self.columns.siblings
        t = self.columns.tree_columns
        vocab = self.columns.vocab
        uniform = torch.ones(b, t, vocab, device=u.device, dtype=dtype)
        tokens = torch.zeros(b, self.columns.window, k, dtype=torch.long, device=u.device)
        tokens[:, :t] = draw_distinct(uniform, u[:, : t * k].view(b, t, k))
        tokens[:, t:, 0] = uniform_tokens(u[:, t * k :], vocab)
        return tokens

    def update(self, state: DecodeState, window: Window, result: StepResult) -> Window:
        w = self.columns.window
        accepted = result.verified.accepted
        context = self.columns.contexts(result.verified.path, accepted)
        # the old column before the one that moves here
        source = (accepted[:, None] + 1 + self.columns.numbers).clamp(max=w)
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
        best = likeliest(p, min(k, p.shape[-1])).ids
        tokens[..., 0] = best[..., 0]
        tokens[:, :t, : best.shape[-1]] = best[:, :t]
        return tokens

    def redrawn(self, result: StepResult, p: Tensor, source: Tensor) -> Tensor:
        """Return the next drafts [B, W, K] from p [B, W, V]; ``source`` [B, W] old columns, W
        beyond the last.
        """
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
        tokens = torch.zeros(len(p), w, k, dtype=torch.long, device=p.device)
        tokens[..., 0] = maximal(old, law, p, u[:, :w], u[:, w : 2 * w]).tokens
        if t and k > 1:
            others = p[:, :t].scatter(-1, tokens[:, :t, :1], 0.0)
            tokens[:, :t, 1:] = draw_distinct(others, u[:, 2 * w :].view(-1, t, k - 1))
        return tokens

    def canonical(self, window: Window) -> Window:
        return window.canonical()


class Stages(NamedTuple):
    """The laws that each sibling is tested with, after those before it were rejected: [..., K + 1, V] each,
    the last for a token after all are.
    """

    targets: Tensor
    drafts: Tensor

    def at(self, index: Tensor) -> Stages:
        """Those of the sibling ``index`` [...]: [..., V] each."""
        rows = index[..., None, None].expand(*index.shape, 1, self.targets.shape[-1])
        return Stages(*[stage.gather(-2, rows)[..., 0, :] for stage in self])


def recursive_residuals(target: Tensor, law: Tensor, siblings: Tensor) -> Stages:
    """target, law [..., V] at one node, its children's tokens [..., K] -> the two that each
    sibling is tested with.

    After each rejection the target becomes [target − draft]₊, normalised, and the draft law loses
    the token.  The target stays if nothing is left.
    """
    targets = [target]
    drafts = [law]
    for x in siblings.unbind(-1):
        targets.append(normalised((targets[-1] - drafts[-1]).clamp(min=0), targets[-1]))
        left = drafts[-1].scatter(-1, x[..., None], 0.0)
        drafts.append(left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny))
    return Stages(torch.stack(targets, -2), torch.stack(drafts, -2))


def sibling_tests(stages: Stages, siblings: Tensor, u: Tensor) -> Tensor:
    """Return which siblings would be accepted if tried: u·draft(x) < target(x).  siblings, u [...,
    K] -> bool [..., K].
    """
    of_siblings = siblings[..., None]
    target = stages.targets[..., :-1, :].gather(-1, of_siblings)[..., 0]
    draft = stages.drafts[..., :-1, :].gather(-1, of_siblings)[..., 0]
    return (u * draft < target) & (draft > 0)


class Redrawn(NamedTuple):
    """The columns 1 … W after the accepted path."""

    stays: Tensor  # [B, W] bool: the draft there
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

    fresh_law: Tensor  # [V] of columns that nothing is known of

    @classmethod
    def of(cls, columns: Columns) -> Self:
        w = columns.window
        k = columns.siblings
        uniform = torch.full((columns.vocab,), 1.0 / columns.vocab, device=columns.chain.device)
        return cls(columns.size(w * k, (w + 1) * k), columns, w * k, uniform)

    def verification(self, rule: RatioTest) -> RatioTest:
        return LongestPathTest(self)

    def fresh(self, u: Tensor, dtype: torch.dtype) -> Tensor:
        """Drawn with replacement."""
        columns = self.columns
        return uniform_tokens(u, columns.vocab).view(len(u), columns.window, columns.siblings)

    def judge(self, draft: SampledDraft, q: Tensor, u: Tensor) -> Tensor:
        """Return which nodes would be accepted after their parents.  q [B, N, V], u [B, N] -> bool
        [B, N].
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
        q_x = at(q[:, columns.chain[t:-1]], x)
        passed[:, chain] = u[:, chain] * at(draft.p[:, families:], x) < q_x
        return passed

    def redraw(
        self,
        draft: SampledDraft,
        q: Tensor,
        passed: Tensor,
        path: Tensor,
        accepted: Tensor,
    ) -> Redrawn:
        """``passed`` [B, N]: see ``judge``."""
        columns = self.columns
        t = columns.tree_columns
        nodes = columns.contexts(path, accepted)
        parent = nodes[:, :-1]
        node = nodes[:, 1:]
        stays = passed.gather(1, node)
        target = rows_at(q, parent)
        law = draft.p[:, columns.chain_inner]
        ended = parent != columns.chain[:-1]
        # elsewhere, where a path that left the chain ends: a bonus token
        ended[:, :t] = False
        stages = Stages(target.clone(), torch.where(ended[..., None], 0.0, law))
        if t:
            children = columns.static.tree.children[0, parent[:, :t]]
            family = draft.tokens.gather(1, children.flatten(1)).view_as(children)
            tests = recursive_residuals(target[:, :t], law[:, :t], family)
            rank = columns.rank[node[:, :t] - 1]
            # if rejected: after all K
            tests = tests.at(torch.where(stays[:, :t], rank, columns.siblings - 1))
            stages.targets[:, :t] = tests.targets
            stages.drafts[:, :t] = tests.drafts
        weights = (stages.targets - stages.drafts).clamp(min=0)
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
        source = verified.accepted[:, None] + 1 + self.columns.numbers
        known = (source < w)[..., None]
        source = source.clamp(max=w - 1)
        weights = torch.where(known, rows_at(redrawn.weights, source), self.fresh_law)
        u = result.u.draft[:, self.fresh_uniforms :].view(-1, w + 1, self.columns.siblings)
        drawn = draw_distinct(weights, u[:, 1:])  # [B, W, K]
        stays = redrawn.stays.gather(1, source)[..., None] & known
        old = redrawn.drafts.gather(1, source)[..., None]
        drawn = torch.where(stays, torch.cat([old, drawn[..., :-1]], -1), drawn)
        law = torch.where(known, rows_at(redrawn.law, source), self.fresh_law)
        return Window(drawn, law, torch.full_like(window.draft_count, w))


@dataclass(frozen=True, eq=False)
class LongestPathTest(ExactTest):
    """Of all accepted paths the longest counts, and a full window ends with a uniform token."""

    window: PublicSiblingWindow

    def verify_sampled(
        self,
        draft: SampledDraft,
        q: Tensor,
        u: Tensor,
        residual: ResidualWeights,
    ) -> VerifyResult:
        window = self.window
        passed = window.judge(draft, q, u)
        path, accepted, _ = longest_path(draft.static.tree, passed)
        weights = window.redraw(draft, q, passed, path, accepted).weights
        fresh = window.fresh_law.expand(len(u), 1, -1)
        token = draw(rows_at(torch.cat([weights, fresh], 1), accepted), u[:, 0])
        return VerifyResult(path, accepted, token, draft.static.sizes.expand_as(draft.tokens))
