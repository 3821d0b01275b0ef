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
from typing import ClassVar, Self

import torch
from torch import Tensor

from lanternbench.component import Choices, Prepared, option
from lanternbench.engine.chosen import longest_path
from lanternbench.engine.draft import Draft, StaticTree, VerifyResult
from lanternbench.engine.plain import WindowSpec
from lanternbench.engine.proposal import Proposal, TreePolicy
from lanternbench.engine.relaxed import ResidualWeights
from lanternbench.engine.sampling import at, draw, draw_distinct, normalised, rows_at
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import from_paths
from lanternbench.engine.verify import AcceptanceRule, ExactTest, RatioTest, SampledDraft
from lanternbench.errors import UserError
from lanternbench.methods.proposals.jacobi import Window, maximal
from lanternbench.models.target import Target
from lanternbench.registry import register

NEVER_EMPTY = 1e-20  # added to token 0 of what the public code redraws a column from


def sibling_paths(k: int, depth: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Child paths (sibling ranks from the root) of the tree with columns 0 … columns − 1."""
    tree = tuple(
        ranks for d in range(1, min(depth, columns)) for ranks in product(range(k), repeat=d)
    )
    return tree + tuple((0,) * d for d in range(min(depth, columns), columns))


def context_nodes(
    children: Tensor, chain: Tensor, depth: int, path: Tensor, accepted: Tensor
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
    reference_lossless: ClassVar[bool] = False
    tuned: ClassVar[dict[str, tuple[int, ...]]] = {
        "window": (2, 3, 4, 6, 8, 12, 16, 24), "siblings": (1, 2, 3, 4), "depth": (1, 2, 3, 4)
    }  # fmt: skip

    siblings: int = option(3, "drafts of one position", symbol="K", small=2, ge=1, le=64)
    depth: int = option(
        3, "depth from which on the tree is a chain", symbol="D", small=3, also=2, ge=1, le=8
    )
    window: int = option(16, "drafted positions per step", symbol="L", small=2, ge=1, le=256)

    tree_columns = Prepared[int]()  # T
    static = Prepared[StaticTree]()
    column = Prepared[Tensor]()  # [N − 1] of each node but the root, column 1 counted as 0
    rank = Prepared[Tensor]()  # [N − 1] among its siblings
    # [M] the column whose law the children of an inner node are drawn from
    law_column = Prepared[Tensor]()
    chain = Prepared[Tensor]()  # [W + 1] the nodes of first siblings
    columns = Prepared[Tensor]()  # [W] 0 … W − 1
    fresh_uniforms = Prepared[int]()

    def small(self) -> Self:
        """The public window is no shorter than its tree."""
        small = super().small()
        return (
            small if self.variant == "paper" else small.model_copy(update={"depth": small.window})
        )

    def refuses(self, choices: Choices) -> str | None:
        if self.variant == "reference" and choices.acceptance != "exact":
            return "the public code of SJD-PAC accepts as the rule 'exact' does; leave --acceptance or --variant out"
        return super().refuses(choices)

    def prepare(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> SjdPac:
        if self.variant == "paper":
            return self.drafting(target)
        if self.window < self.depth:
            raise UserError(
                f"the public code's window is longer than its tree: give --window {self.depth} or more"
            )
        return PublicSjdPac(**dict(self)).drafting(target)

    def drafting(self, target: Target) -> Self:
        """The proposal, ready to draft."""
        k, w, device = self.siblings, self.window, target.device
        t, static = (
            min(self.depth - 1, w),
            from_paths(sibling_paths(k, self.depth, w + 1)).to(device),
        )
        column, n = static.tree.depth[0], static.tree.nodes
        chain = [0, *(1 + static.paths.index((0,) * c) for c in range(1, w + 1))]
        fresh, redraws = t * k + w - t, 2 * w + t * (k - 1)  # keep W, draw W, siblings
        return self.ready(
            tree_columns=t, static=static, law_column=column[static.inner_ids], column=column[1:] - 1,
            rank=torch.tensor([path[-1] for path in static.paths], device=device),
            chain=torch.tensor(chain, device=device), columns=torch.arange(w, device=device),
            fresh_uniforms=fresh, update_uniforms=redraws, uniforms=fresh + redraws,
            nodes=n, max_step_slots=n, max_depth=w, width=static.tree.width,
        )  # fmt: skip

    def plain(self, tree: TreePolicy) -> WindowSpec | None:
        if self.variant == "reference":
            return None
        return WindowSpec(
            self.window, redraw="maximal", siblings=self.siblings, tree_depth=self.depth
        )

    def begin(self, state: DecodeState) -> Window:
        b, v = state.batch, state.target.vocab
        p = torch.full((b, self.window, v), 1.0 / v, device=state.device, dtype=state.first.dtype)
        zeros = torch.zeros(b, self.window, self.siblings, dtype=torch.long, device=state.device)
        return Window(zeros, p, zeros[:, 0, 0])

    def draft(self, state: DecodeState, window: Window, u: Tensor) -> Draft:
        carried = (self.columns < window.draft_count[:, None])[..., None]
        tokens = torch.where(
            carried, window.drafts, self.fresh(state, window, u[:, : self.fresh_uniforms])
        )
        p = torch.where(carried, window.p, 1.0 / state.target.vocab)
        nodes = torch.cat([state.now.root[:, None], tokens[:, self.column, self.rank]], 1)
        return Draft(nodes, p[:, self.law_column], self.static)

    def fresh(self, state: DecodeState, window: Window, u: Tensor) -> Tensor:
        """Tokens [B, W, K] of the uniform law, as if every column were new."""
        b, t, k, v = len(u), self.tree_columns, self.siblings, state.target.vocab
        uniform = torch.ones(b, t, v, device=u.device, dtype=window.p.dtype)
        tokens = torch.zeros(b, self.window, k, dtype=torch.long, device=u.device)
        tokens[:, :t] = draw_distinct(uniform, u[:, : t * k].view(b, t, k))
        tokens[:, t:, 0] = (u[:, t * k :] * v).long().clamp(max=v - 1)
        return tokens

    def update(self, state: DecodeState, window: Window, result: StepResult) -> Window:
        w, t, k, verified = self.window, self.tree_columns, self.siblings, result.verified
        accepted = verified.accepted
        context = context_nodes(
            self.static.tree.children[0], self.chain, self.depth, verified.path, accepted
        )
        # the old column before the one that moves here
        source = (accepted[:, None] + 1 + self.columns).clamp(max=w)
        p = rows_at(result.q, context.gather(1, source))
        tokens = torch.zeros(len(p), w, k, dtype=torch.long, device=p.device)
        if state.warp.greedy:
            best = p.topk(min(k, p.shape[-1])).indices
            tokens[..., 0] = best[..., 0]
            tokens[:, :t, : best.shape[-1]] = best[:, :t]
            return Window(tokens, p, w - accepted)
        assert result.draft.p is not None
        u = result.u.draft[:, self.fresh_uniforms :]
        inside, source = source < w, source.clamp(max=w - 1)
        old = result.draft.tokens[:, self.chain[1:]].gather(1, source)
        law = rows_at(result.draft.p[:, self.static.inner_index[self.chain[:-1]]], source)
        # which keeps nothing, and draws from all of p
        law = torch.where(inside[..., None], law, 0.0)
        tokens[..., 0] = maximal(old, law, p, u[:, :w], u[:, w : 2 * w]).tokens
        if t and k > 1:
            others = p[:, :t].scatter(-1, tokens[:, :t, :1], 0.0)
            tokens[:, :t, 1:] = draw_distinct(others, u[:, 2 * w :].view(-1, t, k - 1))
        return Window(tokens, p, w - accepted)

    def canonical(self, window: Window) -> Window:
        return window.canonical()


def recursive_residuals(target: Tensor, law: Tensor, siblings: Tensor) -> tuple[Tensor, Tensor]:
    """target, law [..., V] at one node, its children's tokens [..., K] -> the two that each
    sibling is tested with.

    [..., K + 1, V] each, the last for a token after all are rejected.  After each rejection the
    target becomes [target − draft]₊, normalised, and the draft law loses the token.  Where nothing
    is left the target stays.
    """
    targets, drafts = [target], [law]
    for x in siblings.unbind(-1):
        targets.append(normalised((targets[-1] - drafts[-1]).clamp(min=0), targets[-1]))
        left = drafts[-1].scatter(-1, x[..., None], 0.0)
        drafts.append(left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny))
    return torch.stack(targets, -2), torch.stack(drafts, -2)


def sibling_tests(stages: tuple[Tensor, Tensor], siblings: Tensor, u: Tensor) -> Tensor:
    """Which siblings would be accepted if tried: u·draft(x) < target(x).  siblings, u [..., K] ->
    bool [..., K].
    """
    target, draft = (s[..., :-1, :].gather(-1, siblings[..., None])[..., 0] for s in stages)
    return (u * draft < target) & (draft > 0)


class PublicSjdPac(SjdPac):
    """As the public code decodes; every column is full after the first step, with K drafts.

    Not exact (total variation 0.07 to 0.11 on tiny vocabularies): siblings are tested
    independently and the longest path counts; a rejected column of the tree is redrawn from what
    all K siblings left, while the target's law is recorded for it; the first siblings are drawn
    with replacement; a fully accepted window ends with a uniform token.
    """

    def drafting(self, target: Target) -> Self:
        w, k = self.window, self.siblings
        uniforms = {
            "fresh_uniforms": w * k,
            "update_uniforms": (w + 1) * k,
            "uniforms": (2 * w + 1) * k,
        }
        return super().drafting(target).ready(**uniforms)

    def verification(self, rule: RatioTest) -> RatioTest:
        return LongestPathTest(self)

    def fresh(self, state: DecodeState, window: Window, u: Tensor) -> Tensor:
        """Drawn with replacement."""
        v = state.target.vocab
        return (u * v).long().clamp(max=v - 1).view(len(u), self.window, self.siblings)

    def fresh_law(self, like: Tensor) -> Tensor:
        """[V] of columns that nothing is known of."""
        return torch.full_like(like, 1.0 / len(like))

    def judge(self, draft: SampledDraft, q: Tensor, u: Tensor) -> Tensor:
        """Would a node be accepted after its parent?  q [B, N, V], u [B, N] -> bool [B, N]."""
        static, t, ok = self.static, self.tree_columns, torch.zeros_like(u, dtype=torch.bool)
        # inner nodes of the tree, before those of the chain
        families = sum(self.siblings**d for d in range(t))
        parents = static.inner_ids[:families]
        children = static.tree.children[0, parents]  # [families, K]
        tokens = draft.tokens[:, children]
        stages = recursive_residuals(q[:, parents], draft.p[:, :families], tokens)
        ok[:, children] = sibling_tests(stages, tokens, u[:, children])
        chain, p = self.chain[t + 1 :], draft.p[:, families:]
        x = draft.tokens[:, chain]
        ok[:, chain] = u[:, chain] * at(p, x) < at(q[:, self.chain[t:-1]], x)
        return ok

    def redraw(
        self, draft: SampledDraft, q: Tensor, ok: Tensor, path: Tensor, accepted: Tensor
    ) -> tuple[Tensor, ...]:
        """What becomes of the columns 1 … W after the accepted path, by ``ok`` [B, N] of
        ``judge``.

        -> bool [B, W]: does the draft there stay?; [B, W, V] unnormalised: what it is redrawn
        from; [B, W, V]: the law recorded for it; [B, W]: the draft.
        """
        static, t, tokens = self.static, self.tree_columns, draft.tokens
        nodes = context_nodes(static.tree.children[0], self.chain, self.depth, path, accepted)
        parent, node = nodes[:, :-1], nodes[:, 1:]
        target, law = rows_at(q, parent), draft.p[:, static.inner_index[self.chain[:-1]]]
        passed, ended = ok.gather(1, node), parent != self.chain[:-1]
        ended[:, :t] = False  # elsewhere, where a path that left the chain ends: a bonus token
        wanted, drawn = target.clone(), torch.where(ended[..., None], 0.0, law)
        if t:
            children = static.tree.children[0, parent[:, :t]]
            family = tokens.gather(1, children.flatten(1)).view_as(children)
            stages = recursive_residuals(target[:, :t], law[:, :t], family)
            # if rejected: after all K
            used = torch.where(passed[:, :t], self.rank[node[:, :t] - 1], self.siblings - 1)
            index = used[..., None, None].expand(-1, -1, 1, q.shape[-1])
            wanted[:, :t], drawn[:, :t] = (stage.gather(-2, index)[..., 0, :] for stage in stages)
        weights = (wanted - drawn).clamp(min=0)
        weights[..., 0] += NEVER_EMPTY
        return passed & ~ended, weights, target, tokens.gather(1, node)

    def update(self, state: DecodeState, window: Window, result: StepResult) -> Window:
        if state.warp.greedy:
            return super().update(state, window, result)
        w, accepted = self.window, result.verified.accepted
        draft = SampledDraft.of(result.draft)
        ok = self.judge(draft, result.q, result.u.verify)
        stays, weights, law, drafts = self.redraw(
            draft, result.q, ok, result.verified.path, accepted
        )
        source = accepted[:, None] + 1 + self.columns
        known, source = (source < w)[..., None], source.clamp(max=w - 1)
        fresh = self.fresh_law(result.q[0, 0])
        u = result.u.draft[:, self.fresh_uniforms :].view(-1, w + 1, self.siblings)[:, 1:]
        drawn = draw_distinct(torch.where(known, rows_at(weights, source), fresh), u)  # [B, W, K]
        keep, old = stays.gather(1, source)[..., None] & known, drafts.gather(1, source)[..., None]
        drawn = torch.where(keep, torch.cat([old, drawn[..., :-1]], -1), drawn)
        law = torch.where(known, rows_at(law, source), fresh)
        return Window(drawn, law, torch.full_like(window.draft_count, w))


@dataclass(frozen=True, eq=False)
class LongestPathTest(ExactTest):
    """Of all accepted paths the longest counts, and a full window ends with a uniform token."""

    proposal: PublicSjdPac

    def verify_sampled(
        self, draft: SampledDraft, q: Tensor, u: Tensor, residual: ResidualWeights
    ) -> VerifyResult:
        columns = self.proposal
        passed = columns.judge(draft, q, u)
        path, accepted, _ = longest_path(draft.static.tree, passed)
        weights = columns.redraw(draft, q, passed, path, accepted)[1]
        fresh = columns.fresh_law(q[0, 0]).expand(len(u), 1, -1)
        token = draw(rows_at(torch.cat([weights, fresh], 1), accepted), u[:, 0])
        return VerifyResult(path, accepted, token, draft.static.sizes.expand_as(draft.tokens))
