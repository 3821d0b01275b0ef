"""Expected accepted lengths: acceptance by depth and rank from the drafts of a few decodes, and
the best trees for it.

A decode is recorded with one tree: the drafted tokens of each step, the drafter's p, and the
target's q at every node, accepted or not.  The engine's verification then judges each recorded
draft repeatedly, with new uniforms.  This is unbiased for any rule, residual and temperature:
drafts are samples of the proposal at the start of a step, and accepted nodes are drawn as in a
decode.

- A **chain** of D levels, cut to D' of them, gives P(accepted ≥ i) for every D'.
- A **static tree** also needs the acceptance of children of rank k > 0: at every node of the chain
  K children are
  drafted from its p and judged against its q.  Weighted with the probability that the node is
  reached, their shares estimate P(the child of rank k is accepted | the node is reached), at each
  depth.  Subtrees of all siblings are assumed to have the same acceptance (Sequoia's assumption).
- In a **dynamic tree** the scores tell which nodes a tree with fewer nodes or levels has, and
  dropping the others does
  not change their acceptance: the acceptance of each recorded node gives the accepted length of
  every smaller tree.

The static tree with the greatest expected accepted length follows by dynamic programming (Sequoia,
arXiv 2402.12374) from a table P[d − 1, k] [D, K]: the probability that, at a node of depth d − 1
on the accepted path, the child of rank k (from 0) is accepted after its earlier siblings were
rejected.  Sequoia assumes that this depends on the rank alone; in this table it may depend on the
depth too.  A node is accepted with the product of P along its path, so the expected accepted
length of a tree is a sum over its nodes, and the best tree of n nodes splits into the best trees
below its root's children.  Lengths count drafted tokens: a step commits one more.

S steps, N nodes, D levels, K ranks, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lanternbench.component import Prepared
from lanternbench.engine.decode import Speculation, SpeculativeDecoder, begin, step
from lanternbench.engine.draft import Draft, StaticTree, VerifyResult
from lanternbench.engine.opening import row_seed
from lanternbench.engine.proposal import Expand, TreePolicy
from lanternbench.engine.sampling import BELOW_ONE, draw_distinct
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Paths, chain, from_paths
from lanternbench.engine.verify import RatioTest, Uniforms
from lanternbench.methods.acceptance.exact import Annealed
from lanternbench.methods.build import prepared_proposal, prepared_rule
from lanternbench.methods.trees.dynamic import Bounds, Dynamic, candidates, keep_best
from lanternbench.methods.trees.static import FixedTree

JUDGEMENTS = 8  # judgements of each recorded draft
# weight, in reached nodes, of the shares of the level above as a prior: deep nodes are rarely
# reached
PRIOR = 20.0
Floats = NDArray[np.float64]
Record = Mapping[str, Floats]  # the arrays of one recording


class RecordingTree(FixedTree):
    """A static tree that stores the distributions that it drafts from."""

    distributions = Prepared[list[Tensor]]()  # p [B, m, V] of each level's nodes

    def drafting(self, static: StaticTree, sampled: bool, device: torch.device) -> Self:
        return super().drafting(static, sampled, device).ready(distributions=[])

    def grow(
        self, state: DecodeState, tree_state: Any, logits: Tensor, expand: Expand, u: Tensor
    ) -> Draft:
        self.distributions[:] = [state.warp(logits)[:, None]]

        def recording_expand(*inputs: Any) -> Tensor:
            logits = expand(*inputs)
            self.distributions.append(state.warp(logits))
            return logits

        return super().grow(state, tree_state, logits, recording_expand, u)


class ScoredTree(Dynamic):
    """A dynamic tree that stores the scores of its nodes."""

    scores = Prepared[list[Tensor]]()  # [N − 1] of each prompt: Σ log p, in the order of the nodes

    def growing(self, bounds: Bounds) -> Self:
        return super().growing(bounds).ready(scores=[])

    def grow(
        self, state: DecodeState, tree_state: Any, logits: Tensor, expand: Expand, u: Tensor
    ) -> Draft:
        bounds = self.bounds._replace(top_k=min(self.bounds.top_k, logits.shape[-1]))
        pool = candidates(state, logits, expand, bounds)
        best = (
            pool.scores.topk(min(bounds.total - 1, pool.scores.shape[1])).indices.sort(-1).values
        )
        self.scores[:] = pool.scores.gather(1, best)
        return keep_best(pool, state.now.root, bounds)


def with_tree_policy(decoder: SpeculativeDecoder, policy: TreePolicy) -> SpeculativeDecoder:
    """The decoder with another, prepared tree policy and a rule prepared for its depth; without
    CUDA graphs.
    """
    target = replace(decoder.target, graphs=None)
    proposal = prepared_proposal(target, decoder.method, policy)
    rule = prepared_rule(target, decoder.method, proposal)
    speculation = Speculation(proposal, rule, decoder.residual)
    return replace(decoder, target=target, strategy=speculation)


@torch.inference_mode()
def recorded_steps(
    decoder: SpeculativeDecoder, caption: str, key: str, seed: int
) -> Iterator[StepResult]:
    """The steps of one decode, without those whose drafts extend beyond the image."""
    state, proposer_state = begin(decoder, [caption], [row_seed(seed, key, "recorded")])
    while state.active:
        length = max(state.now.length.host or (0,))
        proposer_state, result = step(decoder, state, proposer_state)
        if length + decoder.proposer.max_depth < state.limit:
            yield result


class Judge:
    """Verifies drafts of a decoder again, with new uniforms."""

    def __init__(self, decoder: SpeculativeDecoder, seed: int):
        self.decoder, self.generator = decoder, torch.Generator().manual_seed(seed)

    def uniforms(self, *shape: int) -> Tensor:
        return (
            torch.rand(*shape, generator=self.generator)
            .clamp_(max=BELOW_ONE)
            .to(self.decoder.target.device)
        )

    def verify(self, rule: RatioTest, draft: Draft, q: Tensor) -> VerifyResult:
        """Drafts and q [B, N, V]; a single draft is judged ``JUDGEMENTS`` times, as a batch."""
        times = JUDGEMENTS if len(q) == 1 else -1
        q = q.expand(times, -1, -1)
        p = None if draft.p is None else draft.p.expand(times, -1, -1)
        draft = draft._replace(tokens=draft.tokens.expand(times, -1), p=p)
        return self.verify_with(rule, draft, q, self.uniforms(*draft.tokens.shape))

    def verify_with(self, rule: RatioTest, draft: Draft, q: Tensor, u: Tensor) -> VerifyResult:
        """u [B, N]."""
        uniforms = Uniforms(u, q[:, :0, 0])
        greedy = self.decoder.warp.greedy
        return rule.verify(draft, q, uniforms, self.decoder.residual, greedy)

    def ranks(
        self, rule: RatioTest, p: Tensor, q: Tensor, star: StaticTree, sampled: bool
    ) -> Floats:
        """How often each child of ``star``, a root with K children, or none, is accepted at nodes
        of depth 0 …: p, q [d, V] -> shares [d, K + 1]."""
        levels, k = len(p), star.tree.width
        p, q = (x.repeat_interleave(JUDGEMENTS, 0) for x in (p, q))
        tokens = draw_distinct(p, self.uniforms(len(p), k)) if sampled else p.topk(k).indices
        tokens = torch.cat([tokens[:, :1], tokens], 1)
        u = self.uniforms(*tokens.shape)
        shares = []
        for level in range(levels):
            rows = slice(level * JUDGEMENTS, (level + 1) * JUDGEMENTS)
            draft = Draft(
                tokens[rows], p[rows, None] if sampled else None, below(star, level, levels)
            )
            everywhere = q[rows, None].expand(-1, k + 1, -1)
            child = self.verify_with(rule, draft, everywhere, u[rows]).path[:, 1]
            which = torch.where(child > 0, child - 1, k)
            shares.append(torch.nn.functional.one_hot(which, k + 1).double().mean(0))
        return torch.stack(shares).cpu().numpy()


def below(star: StaticTree, level: int, levels: int) -> StaticTree:
    """The tree of one level with its root at depth ``level`` of ``levels``."""
    siblings = star.siblings
    later = tuple(rank._replace(depth=rank.depth + level) for rank in siblings.later)
    tree = star.tree._replace(depth=star.tree.depth + level, max_depth=levels)
    order = siblings._replace(depth=siblings.depth + level, later=later)
    return replace(star, tree=tree, siblings=order)


def record_chains(
    decoder: SpeculativeDecoder,
    tree: RecordingTree,
    ranks: int,
    steps: Iterable[StepResult],
    seed: int = 0,
) -> Record:
    """Acceptance in chains of D' = 1 … D levels and of their nodes' children, summed over
    ``steps``.

    ``decoder`` drafts chains by ``tree``; ``ranks`` K: 1 where the method supports chains only.
    "reached" [D, D + 1]: steps with i or more accepted in a chain of D'.  "children" [D, D, K +
    1]: nodes that a chain of D' reached at a depth whose child of rank k is accepted; the last
    column: none is.  "steps": how many.
    """
    judge, method, target, levels = (
        Judge(decoder, seed),
        decoder.method,
        decoder.target,
        tree.max_depth,
    )
    sampled = method.proposal.samples and not decoder.warp.greedy
    acceptance = method.resolve(target.options).acceptance
    rules = [acceptance.build(target, d) for d in range(1, levels + 1)]
    chains = [chain(d).to(target.device) for d in range(1, levels + 1)]
    star = from_paths(tuple((k,) for k in range(ranks))).to(target.device)
    reached, children, count = (
        np.zeros((levels, levels + 1)),
        np.zeros((levels, levels, ranks + 1)),
        0.0,
    )
    for result in steps:
        draft, q = result.draft, result.q
        p = torch.cat(tree.distributions, 1)  # [1, D, V]
        count += 1
        for d, (rule, static) in enumerate(zip(rules, chains, strict=True), 1):
            cut = Draft(draft.tokens[:, : d + 1], p[:, :d] if sampled else None, static)
            accepted = judge.verify(rule, cut, q[:, : d + 1]).accepted.cpu()
            shares = (accepted[:, None] >= torch.arange(levels + 1)).double().mean(0).numpy()
            reached[d - 1] += shares
            if ranks > 1 and (d == levels or isinstance(method.acceptance, Annealed)):
                children[d - 1, :d] += shares[:d, None] * judge.ranks(
                    rule, p[0, :d], q[0, :d], star, sampled
                )
    return {"reached": reached, "children": children, "steps": np.array(count)}


def chain_lengths(reached: Floats, steps: float, depth: int) -> Floats:
    """P(accepted ≥ i) of a chain of ``depth`` levels, i = 1 … depth; ``reached`` as
    ``record_chains`` gives it.
    """
    return reached[depth - 1, 1 : depth + 1] / max(steps, 1)


def child_table(children: Floats, depth: int) -> Floats:
    """P [depth, K] for static trees of ``depth`` levels; ``children`` of ``record_chains``."""
    counts = children[depth - 1, :depth]
    if not counts.any():  # the rule does not depend on the depth of drafts
        counts = children[-1, :depth]
    table = np.zeros((depth, counts.shape[1] - 1))
    for d in range(depth):
        prior = PRIOR if d else 0.0
        table[d] = (counts[d, :-1] + prior * table[d - 1]) / max(counts[d].sum() + prior, 1e-9)
    return table


def record_growth(
    decoder: SpeculativeDecoder, tree: ScoredTree, steps: Iterable[StepResult], seed: int = 0
) -> Record:
    """Acceptance in dynamic trees, hence in those with fewer nodes or levels and equal children a
    node.

    Of each step, by falling score [S, N − 1]: "seen", the shares of judgements that accept a node;
    "level", its depth, −1 for an unused one.
    """
    judge, seen, level = Judge(decoder, seed), list[Floats](), list[Floats]()
    for result in steps:
        draft = result.draft
        path = judge.verify(decoder.rule, draft, result.q).path
        accepted = (
            torch.zeros(JUDGEMENTS, draft.tree.nodes, device=path.device)
            .scatter_(1, path, 1.0)
            .mean(0)[1:]
        )
        depth, scores = draft.tree.depth[0, 1:], tree.scores[0]
        order = torch.where(depth > 0, scores, -torch.inf).sort(descending=True).indices
        seen.append(accepted[order].double().cpu().numpy())
        level.append(depth[order].double().cpu().numpy())
    return {"seen": np.stack(seen), "level": np.stack(level)}


def lengths(accepted: Floats, level: Floats, nodes: int, depth: int) -> Floats:
    """P(accepted ≥ i), i = 1 … ``depth``, in each recorded step of a tree with ``nodes``, the root
    included.

    accepted, level [S, N − 1] of ``record_growth`` -> [S, depth].
    """
    inside = (level >= 1) & (level <= depth)
    selected = inside & (inside.cumsum(1) <= nodes - 1)
    return np.stack(
        [np.where(selected & (level == i), accepted, 0.0).sum(1) for i in range(1, depth + 1)], 1
    )


def grown_lengths(
    steps: Mapping[int, tuple[Floats, Floats]], top_k: int, nodes: int, depth: int
) -> Floats:
    """P(accepted ≥ i) in each recorded step [S, depth] of trees with these sizes, from recordings
    by width.

    A tree of n nodes has at most n − 1 children a node: all recordings of that width or more are
    used together.
    """
    widths = [k for k in steps if k >= nodes - 1] if top_k >= nodes - 1 else []
    widths = widths or [min(steps, key=lambda k: abs(k - top_k))]
    return np.concatenate([lengths(*steps[k], nodes, depth) for k in widths])


def bounds(depth: int, top_k: int, nodes: int) -> Bounds:
    """A dynamic tree's bounds, with no more nodes than there are candidates."""
    return Bounds(depth, top_k, min(nodes, 1 + top_k + top_k * top_k * (depth - 1)))


def expected_length(paths: Iterable[tuple[int, ...]], table: Floats) -> float:
    """Expected accepted drafted tokens of a tree in child paths: Σ over nodes of Π P along the
    path.
    """
    return float(sum(np.prod([table[d, rank] for d, rank in enumerate(path)]) for path in paths))


def best_trees(table: Floats, nodes: int) -> list[Paths]:
    """The best trees of 1 … ``nodes`` nodes below the root, of at most D levels and K children a
    node, as child paths; fewer than ``nodes`` where no larger tree fits."""
    depths, ranks = table.shape

    @cache
    def below(depth: int, rank: int, n: int) -> tuple[float, int]:
        """Of n nodes among the children ``rank``, ``rank`` + 1, … of a node at ``depth``, and
        their subtrees: the expected length, and how many are in the first child's subtree, itself
        included (0: no further child)."""
        best = (-np.inf if n else 0.0, 0)
        for m in range(1, n + 1) if depth < depths and rank < ranks else ():
            value = (
                float(table[depth, rank]) * (1 + below(depth + 1, 0, m - 1)[0])
                + below(depth, rank + 1, n - m)[0]
            )
            best = (value, m) if value > best[0] else best
        return best

    def paths(depth: int, rank: int, n: int, above: tuple[int, ...]) -> Paths:
        if n == 0:
            return ()
        m, child = below(depth, rank, n)[1], (*above, rank)
        return (child, *paths(depth + 1, 0, m - 1, child), *paths(depth, rank + 1, n - m, above))

    sizes = [n for n in range(1, nodes + 1) if below(0, 0, n)[0] >= 0]
    return [tuple(sorted(paths(0, 0, n, ()), key=lambda path: (len(path), path))) for n in sizes]
