"""SJD-PAC (arXiv 2603.18599): a Jacobi window with K siblings a column down to depth D, then a chain.

Column c is the position c after the last committed token, which is column 0.  Columns 1 … D − 1 hold K siblings, drawn
without replacement from one law; every node of column c − 1 has the same ones.  From column D on the chain of first
siblings goes on alone.  An accepted path therefore needs one law a column, and is verified as any static tree is:
sibling by sibling, by recursive residuals, the first accepted one leading on.

After a step every column is redrawn from the forward's distribution there.  The first sibling is coupled to the old one
(maximal coupling), so that its law is the target's new one; the others are drawn from that law without it.

B batch, W window columns (the root not counted), N nodes, K siblings, T columns with siblings, V vocabulary.
"""

from __future__ import annotations

from itertools import product
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.component import Choices, Prepared, option
from lanternbench.engine.plain import WindowSpec
from lanternbench.engine.proposal import Proposal, TreePolicy
from lanternbench.engine.sampling import draw_distinct
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft, StaticTree, from_paths
from lanternbench.engine.verify import AcceptanceRule, Forms, Residual, VerifyResult, rows_at
from lanternbench.errors import UserError
from lanternbench.methods.proposals.longest_path import PublicStep, RowTree, longest_path_step
from lanternbench.methods.proposals.scd import maximal
from lanternbench.models.target import Target
from lanternbench.registry import register


def sibling_paths(k: int, depth: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Child paths (sibling ranks from the root) of the tree with columns 0 … columns − 1."""
    tree = tuple(ranks for d in range(1, min(depth, columns)) for ranks in product(range(k), repeat=d))
    return tree + tuple((0,) * d for d in range(min(depth, columns), columns))


def context_nodes(children: Tensor, chain: Tensor, depth: int, path: Tensor, accepted: Tensor) -> Tensor:
    """The node after which the target's distribution is the new law of column c + 1, for every c: [B, W + 1].

    children [N, K] node ids, chain [W + 1] the nodes of first siblings, path [B, ≥ accepted + 1] the accepted nodes
    from the root.  Inside the tree the accepted path goes on with first siblings; beyond it only the chain has nodes.
    """
    nodes = [path[:, 0]]
    for c in range(1, len(chain)):
        if c >= depth:
            nodes.append(chain[c].expand_as(accepted))
        else:
            onward = children[nodes[-1], 0]
            nodes.append(torch.where(c <= accepted, path[:, min(c, path.shape[1] - 1)], onward))
    return torch.stack(nodes, 1)


class SiblingWindow(NamedTuple):
    """The drafts after the committed prefix; the first ``in_use`` columns carry over from the last step."""

    tokens: Tensor  # [B, W, K] siblings, first siblings first; a column of the chain has one, and zeros
    p: Tensor  # [B, W, V] the law that they were drawn from, without replacement
    in_use: Tensor  # [B]


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
    depth: int = option(3, "depth from which on the tree is a chain", symbol="D", small=3, also=2, ge=1, le=8)
    window: int = option(16, "drafted positions per step", symbol="L", small=2, ge=1, le=256)

    tree_columns = Prepared[int]()  # T
    paths = Prepared[tuple[tuple[int, ...], ...]]()  # of every node, sibling ranks from the root
    static = Prepared[StaticTree]()
    column = Prepared[Tensor]()  # [N − 1] of each node but the root, column 1 counted as 0
    rank = Prepared[Tensor]()  # [N − 1] among its siblings
    law_column = Prepared[Tensor]()  # [M] the column whose law the children of an inner node are drawn from
    chain = Prepared[Tensor]()  # [W + 1] the nodes of first siblings
    columns = Prepared[Tensor]()  # [W] 0 … W − 1
    fresh_uniforms = Prepared[int]()

    def small(self) -> Self:
        """The public window is no shorter than its tree."""
        small = super().small()
        return small if self.variant == "paper" else small.model_copy(update={"depth": small.window})

    def refuses(self, choices: Choices) -> str | None:
        if self.variant == "reference" and choices.acceptance != "exact":
            return "the public code of SJD-PAC accepts as the rule 'exact' does; leave --acceptance or --variant out"
        return super().refuses(choices)

    def prepare(self, target: Target, tree: TreePolicy, rule: AcceptanceRule) -> SjdPac:
        if self.variant == "paper":
            return self.drafting(target)
        if self.window < self.depth:
            raise UserError(f"the public code's window is longer than its tree: give --window {self.depth} or more")
        return PublicSjdPac(**dict(self)).drafting(target)

    def drafting(self, target: Target) -> Self:
        """The proposal, ready to draft."""
        k, w, device = self.siblings, self.window, target.device
        t = min(self.depth - 1, w)
        paths = ((), *sorted(sibling_paths(k, self.depth, w + 1), key=lambda path: (len(path), path)))
        static = from_paths(paths[1:]).to(device)
        node_column = static.tree.depth[0]
        fresh, redraws = t * k + w - t, 2 * w + t * (k - 1)  # keep W, draw W, siblings
        return self.ready(
            tree_columns=t, paths=paths, static=static, law_column=node_column[static.inner_ids],
            column=node_column[1:] - 1, rank=torch.tensor([path[-1] for path in paths[1:]], device=device),
            chain=torch.tensor([paths.index((0,) * c) for c in range(w + 1)], device=device),
            columns=torch.arange(w, device=device), fresh_uniforms=fresh, update_uniforms=redraws,
            uniforms=fresh + redraws, nodes=len(paths), max_step_slots=len(paths), max_depth=w, width=static.tree.width,
        )  # fmt: skip

    def plain(self, tree: TreePolicy) -> WindowSpec | None:
        if self.variant == "reference":
            return None
        return WindowSpec(self.window, redraw="maximal", siblings=self.siblings, tree_depth=self.depth)

    def begin(self, state: DecodeState) -> SiblingWindow:
        b, v = state.batch, state.target.vocab
        p = torch.full((b, self.window, v), 1.0 / v, device=state.device, dtype=state.first.dtype)
        zeros = torch.zeros(b, self.window, self.siblings, dtype=torch.long, device=state.device)
        return SiblingWindow(zeros, p, zeros[:, 0, 0])

    def draft(self, state: DecodeState, window: SiblingWindow, u: Tensor) -> Draft:
        carried = (self.columns < window.in_use[:, None])[..., None]
        tokens = torch.where(carried, window.tokens, self.fresh(state, window, u[:, : self.fresh_uniforms]))
        p = torch.where(carried, window.p, 1.0 / state.target.vocab)
        nodes = torch.cat([state.now.root[:, None], tokens[:, self.column, self.rank]], 1)
        return Draft(nodes, p[:, self.law_column], self.static)

    def fresh(self, state: DecodeState, window: SiblingWindow, u: Tensor) -> Tensor:
        """Tokens [B, W, K] of the uniform law, as if every column were new."""
        b, t, k, v = len(u), self.tree_columns, self.siblings, state.target.vocab
        uniform = torch.ones(b, t, v, device=u.device, dtype=window.p.dtype)
        tokens = torch.zeros(b, self.window, k, dtype=torch.long, device=u.device)
        tokens[:, :t] = draw_distinct(uniform, u[:, : t * k].view(b, t, k))
        tokens[:, t:, 0] = (u[:, t * k :] * v).long().clamp(max=v - 1)
        return tokens

    def update(self, state: DecodeState, window: SiblingWindow, result: StepResult) -> SiblingWindow:
        w, t, k, verified = self.window, self.tree_columns, self.siblings, result.verified
        accepted = verified.accepted
        context = context_nodes(self.static.tree.children[0], self.chain, self.depth, verified.path, accepted)
        source = (accepted[:, None] + 1 + self.columns).clamp(max=w)  # the old column before the one that moves here
        p = rows_at(result.q, context.gather(1, source))
        tokens = torch.zeros(len(p), w, k, dtype=torch.long, device=p.device)
        if state.warp.greedy:
            best = p.topk(min(k, p.shape[-1])).indices
            tokens[..., 0] = best[..., 0]
            tokens[:, :t, : best.shape[-1]] = best[:, :t]
            return SiblingWindow(tokens, p, w - accepted)
        assert result.draft.p is not None
        u = result.u.draft[:, self.fresh_uniforms :]
        inside, at = source < w, source.clamp(max=w - 1)
        old = result.draft.tokens[:, self.chain[1:]].gather(1, at)
        law = rows_at(result.draft.p[:, self.static.inner_index[self.chain[:-1]]], at)
        law = torch.where(inside[..., None], law, 0.0)  # which keeps nothing, and draws from all of p
        tokens[..., 0] = maximal(old, law, p, u[:, :w], u[:, w : 2 * w]).tokens
        if t and k > 1:
            others = p[:, :t].scatter(-1, tokens[:, :t, :1], 0.0)
            tokens[:, :t, 1:] = draw_distinct(others, u[:, 2 * w :].view(-1, t, k - 1))
        return SiblingWindow(tokens, p, w - accepted)

    def canonical(self, window: SiblingWindow) -> SiblingWindow:
        unused = (self.columns >= window.in_use[:, None])[..., None]
        return window._replace(tokens=window.tokens.masked_fill(unused, 0), p=window.p.masked_fill(unused, 0.0))


class PublicSjdPac(SjdPac):
    """As the public code decodes, see ``longest_path``: every column is full after the first step, with K drafts."""

    rows = Prepared[RowTree]()
    node = Prepared[Tensor]()  # [N] the engine's node of each node of ``rows``

    def drafting(self, target: Target) -> Self:
        columns = super().drafting(target)
        rows, k, w = RowTree.of(columns.nodes, self.siblings, self.depth, target.device), self.siblings, self.window
        node = torch.tensor([columns.paths.index(path) for path in rows.paths], device=target.device)
        uniforms = {"fresh_uniforms": w * k, "update_uniforms": (w + 1) * k, "uniforms": (2 * w + 1) * k}
        return columns.ready(rows=rows, node=node, **uniforms)

    def verification(self, rule: AcceptanceRule) -> AcceptanceRule:
        return LongestPathRule().ready(proposal=self)

    def fresh(self, state: DecodeState, window: SiblingWindow, u: Tensor) -> Tensor:
        """Drawn with replacement."""
        v = state.target.vocab
        return (u * v).long().clamp(max=v - 1).view(len(u), self.window, self.siblings)

    def update(self, state: DecodeState, window: SiblingWindow, result: StepResult) -> SiblingWindow:
        if state.warp.greedy:
            return super().update(state, window, result)
        u = result.u.draft[:, self.fresh_uniforms :].view(-1, self.window + 1, self.siblings)
        step = self.step(result.draft, result.q, result.u.verify, u)
        return SiblingWindow(step.sampled[..., 1:].mT, step.law[:, 1:], torch.full_like(window.in_use, self.window))

    def step(self, draft: Draft, q: Tensor, u: Tensor, sample_u: Tensor) -> PublicStep:
        """``longest_path_step`` on the engine's nodes: u [B, N], of which a node's judges it."""
        assert draft.p is not None
        law = F.pad(draft.p[:, self.static.inner_index[self.chain[:-1]]], (0, 0, 1, 0))
        accept_u = u[:, self.node[self.rows.retrieve[:, 1:].clamp(min=0)]]
        tokens, q = draft.tokens[:, self.node], q[:, self.node]
        return longest_path_step(self.rows, tokens, law, q, accept_u, sample_u, self.fresh_law(q[0, 0]))

    def fresh_law(self, like: Tensor) -> Tensor:
        """[V] of columns that nothing is known of."""
        return torch.full_like(like, 1.0 / len(like))


class LongestPathRule(AcceptanceRule):
    """Of all accepted paths the longest counts, and a full window ends with a uniform token."""

    proposal = Prepared[PublicSjdPac]()

    def _longest(self, draft: Draft, q: Tensor, u: Tensor, residual: Residual) -> VerifyResult:
        columns = self.proposal
        sample_u = u.new_zeros(len(u), columns.window + 1, columns.siblings)
        sample_u[:, 0, 0] = u[:, 0]
        step = columns.step(draft, q, u, sample_u)
        accepted = step.committed - 1
        at = torch.minimum(torch.arange(columns.window + 1, device=u.device), accepted[:, None])
        path = columns.node[columns.rows.retrieve[step.row].gather(1, at)]
        assert draft.static is not None
        return VerifyResult(path, accepted, step.sampled[:, 0, 0], draft.static.sizes.expand_as(draft.tokens))

    forms: ClassVar[Forms] = AcceptanceRule.forms._replace(verify_sampled=_longest)
