"""SJD-PAC's window (arXiv 2603.18599): K siblings a column down to depth D, then a chain.

Column c is the position c after the last committed token, which is column 0.  Columns 1 … D − 1 hold K siblings, drawn
without replacement from one law; every node of column c − 1 has the same ones.  From column D on the chain of first
siblings goes on alone.  An accepted path therefore needs one law a column, and is verified as any static tree is:
sibling by sibling, by recursive residuals, the first accepted one leading on.

B batch, W window columns (the root not counted), N nodes, K siblings, T columns with siblings, V vocabulary.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.proposal import Proposer
from lanternbench.engine.sampling import draw_distinct
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft, from_paths
from lanternbench.engine.verify import rows_at
from lanternbench.methods.proposals.scd import maximal
from lanternbench.models.target import Target


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
    """The drafts after the committed prefix; the first ``kept`` columns carry over from the last step."""

    tokens: Tensor  # [B, W, K] siblings, first siblings first; a column of the chain has one, and zeros
    p: Tensor  # [B, W, V] the law that they were drawn from, without replacement
    kept: Tensor  # [B]


class SiblingColumns(Proposer):
    """After a step every column is redrawn from what the forward says of it.

    The first sibling is coupled to the old one (maximal coupling), so that its law is the target's new one; the others
    are drawn from that law without it.
    """

    def __init__(self, target: Target, siblings: int, depth: int, window: int):
        self.window, self.k, self.depth = window, siblings, depth
        self.tree_columns = min(depth - 1, window)
        paths = ((), *sorted(sibling_paths(siblings, depth, window + 1), key=lambda path: (len(path), path)))
        self.paths = paths  # of every node
        self.static = from_paths(paths[1:]).to(target.device)
        node_column = self.static.tree.depth[0]
        self.column, self.rank = node_column[1:] - 1, torch.tensor([p[-1] for p in paths[1:]], device=target.device)
        self.law_column = node_column[self.static.inner_ids]
        self.chain = torch.tensor([paths.index((0,) * c) for c in range(window + 1)], device=target.device)
        self.columns = torch.arange(window, device=target.device)
        self.nodes = self.max_step_slots = self.static.tree.nodes
        self.max_depth, self.width = window, self.static.tree.width
        self.fresh_uniforms = self.tree_columns * siblings + window - self.tree_columns
        self.update_uniforms = 2 * window + self.tree_columns * (siblings - 1)  # keep W, draw W, siblings
        self.uniforms = self.fresh_uniforms + self.update_uniforms

    def init(self, state: DecodeState) -> SiblingWindow:
        b, v = state.batch, state.target.vocab
        p = torch.full((b, self.window, v), 1.0 / v, device=state.device, dtype=state.first.dtype)
        none = torch.zeros(b, self.window, self.k, dtype=torch.long, device=state.device)
        return SiblingWindow(none, p, none[:, 0, 0])

    def draft(self, state: DecodeState, own: SiblingWindow, u: Tensor) -> Draft:
        carried = (self.columns < own.kept[:, None])[..., None]
        tokens = torch.where(carried, own.tokens, self.fresh(state, own, u[:, : self.fresh_uniforms]))
        p = torch.where(carried, own.p, 1.0 / state.target.vocab)
        nodes = torch.cat([state.now.root[:, None], tokens[:, self.column, self.rank]], 1)
        return Draft(nodes, p[:, self.law_column], self.static)

    def fresh(self, state: DecodeState, own: SiblingWindow, u: Tensor) -> Tensor:
        """Tokens [B, W, K] of the uniform law, as if every column were new."""
        b, t, k, v = len(u), self.tree_columns, self.k, state.target.vocab
        uniform = torch.ones(b, t, v, device=u.device, dtype=own.p.dtype)
        tokens = torch.zeros(b, self.window, k, dtype=torch.long, device=u.device)
        tokens[:, :t] = draw_distinct(uniform, u[:, : t * k].view(b, t, k))
        tokens[:, t:, 0] = (u[:, t * k :] * v).long().clamp(max=v - 1)
        return tokens

    def update(self, state: DecodeState, own: SiblingWindow, result: StepResult) -> SiblingWindow:
        w, t, k, verified = self.window, self.tree_columns, self.k, result.verified
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

    def canonical(self, own: SiblingWindow) -> SiblingWindow:
        void = (self.columns >= own.kept[:, None])[..., None]
        return own._replace(tokens=own.tokens.masked_fill(void, 0), p=own.p.masked_fill(void, 0.0))
