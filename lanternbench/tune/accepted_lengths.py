"""Expected accepted lengths: acceptance by depth and rank from the drafts of a few decodes, and
the best trees for it.

A decode is recorded with one tree: the drafted tokens of each step, the drafter's p, and the
target's q at every node, accepted or not.  The engine's verification then judges each recorded
draft repeatedly, with new uniforms.  This is unbiased for any rule, residual and temperature:
drafts are samples of the proposal at the start of a step, and accepted nodes are drawn as in a
decode.

- A **chain** of D levels, cut to D' of them, gives P(accepted ≥ i) for every D'.
- A **static tree** also needs the acceptance of children of rank k > 0: at every node of the chain,
  K children are drafted from its p and judged against its q.  Weighted with the probability that
  the node is reached, their shares estimate P(the child of rank k is accepted | the node is
  reached), at each depth.  Subtrees of all siblings are assumed to have the same acceptance
  (Sequoia's assumption).
- In a **dynamic tree** the scores tell which nodes a tree with fewer nodes or levels has, and
  dropping the others does not change their acceptance: the acceptance of each recorded node gives
  the accepted length of every smaller tree.

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
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lanternbench.engine.decode import Speculation, SpeculativeDecoder, begin, step
from lanternbench.engine.opening import row_seed
from lanternbench.engine.proposal import AnyTreeGrower, Expand
from lanternbench.engine.sampling import BELOW_ONE, draw_distinct, likeliest
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.tree import Draft, Paths, StaticTree, VerifyResult, chain, from_paths
from lanternbench.engine.verify import RatioTest, Uniforms
from lanternbench.methods.acceptance.exact import Annealed
from lanternbench.methods.build import build_rule
from lanternbench.methods.trees.dynamic import Bounds, DynamicTree, candidates, keep_best
from lanternbench.methods.trees.fixed import FixedTree

JUDGEMENTS = 8  # of each recorded draft
PRIOR = 20.0  # reached nodes that the shares of the level above count for at a deeper level
Floats = NDArray[np.float64]
Record = Mapping[str, Floats]  # the arrays of one recording


@dataclass(frozen=True, eq=False)
class RecordingTree(FixedTree):
    """A static tree that stores the distributions that it drafts from."""

    distributions: list[Tensor] = field(default_factory=list)  # p [B, m, V] of each level's nodes

    def grow(self, state: DecodeState, own: None, expand: Expand, u: Tensor) -> Draft:
        self.distributions.clear()

        def recording_expand(
            tokens: Tensor,
            parent: Tensor | None,
            visible: Tensor | None,
            depth: int,
        ) -> Tensor:
            logits = expand(tokens, parent, visible, depth)
            self.distributions.append(state.drawn_after(state.warp(logits), depth))
            return logits

        return super().grow(state, own, recording_expand, u)


@dataclass(frozen=True, eq=False)
class ScoredTree(DynamicTree):
    """A dynamic tree that stores the scores of its nodes."""

    # [N − 1] of each prompt: Σ log p, in the order of the nodes
    scores: list[Tensor] = field(default_factory=list)

    def grow(self, state: DecodeState, own: None, expand: Expand, u: Tensor) -> Draft:
        bounds = self.bounds._replace(top_k=min(self.bounds.top_k, state.target.vocab))
        pool = candidates(state, expand, bounds)
        last = pool.scores.shape[1] - 1
        score, kept = likeliest(pool.scores, min(bounds.total - 1, last + 1))
        kept = kept.masked_fill(score == -torch.inf, last).sort(-1).values  # unused nodes last
        self.scores[:] = pool.scores.gather(1, kept)
        return keep_best(pool, state.now.root, bounds)


def with_tree(decoder: SpeculativeDecoder, tree: AnyTreeGrower) -> SpeculativeDecoder:
    """Return the decoder with another tree and a rule for its depth; without CUDA graphs."""
    target = replace(decoder.target, graphs=None)
    method = decoder.method.resolve(target.options)
    proposer = method.proposal.drafting(target, tree)
    rule = build_rule(target, method, proposer)
    speculation = Speculation(proposer, rule, decoder.residual)
    return replace(decoder, target=target, strategy=speculation)


@torch.inference_mode()
def recorded_steps(
    decoder: SpeculativeDecoder,
    caption: str,
    key: str,
    seed: int,
) -> Iterator[StepResult]:
    """Yield the steps of one decode, without those whose drafts extend beyond the image."""
    state, proposer_state = begin(decoder, [caption], [row_seed(seed, key, "recorded")])
    while state.active:
        length = max(state.now.length.host or (0,))
        proposer_state, result = step(decoder, state, proposer_state)
        if length + decoder.proposer.size.max_depth < state.limit:
            yield result


class Judge:
    """Verifies drafts of a decoder again, with new uniforms."""

    def __init__(self, decoder: SpeculativeDecoder, seed: int):
        self.decoder = decoder
        self.generator = torch.Generator().manual_seed(seed)

    def uniforms(self, *shape: int) -> Tensor:
        u = torch.rand(*shape, generator=self.generator).clamp_(max=BELOW_ONE)
        return u.to(self.decoder.target.device)

    def again(self, rule: RatioTest, draft: Draft, q: Tensor) -> VerifyResult:
        """Judge one draft, q [1, N, V], ``JUDGEMENTS`` times, as a batch."""
        p = None if draft.p is None else draft.p.expand(JUDGEMENTS, -1, -1)
        draft = draft._replace(tokens=draft.tokens.expand(JUDGEMENTS, -1), p=p)
        u = self.uniforms(*draft.tokens.shape)
        return self.verify(rule, draft, q.expand(JUDGEMENTS, -1, -1), u)

    def verify(self, rule: RatioTest, draft: Draft, q: Tensor, u: Tensor) -> VerifyResult:
        """q [B, N, V], u [B, N]."""
        no_draft_uniforms = q[:, :0, 0]
        uniforms = Uniforms(u, no_draft_uniforms)
        greedy = self.decoder.warp.greedy
        return rule.verify(draft, q, uniforms, self.decoder.residual, greedy)


class ChainJudge(Judge):
    """Sums up the acceptance in chains of 1 … D levels and of their nodes' children.

    ``ranks`` K: 1 if the method supports chains only.
    """

    def __init__(self, decoder: SpeculativeDecoder, levels: int, ranks: int, seed: int):
        super().__init__(decoder, seed)
        target, method = decoder.target, decoder.method
        acceptance = method.resolve(target.options).acceptance
        depths = range(1, levels + 1)
        self.sampled = method.proposal.samples and not decoder.warp.greedy
        self.chains = [chain(depth).to(target.device) for depth in depths]
        self.rules = [acceptance.build(target, depth) for depth in depths]
        self.every_depth = isinstance(method.acceptance, Annealed)  # or the rules are the same
        self.star = from_paths(tuple((rank,) for rank in range(ranks))).to(target.device)
        self.steps = 0
        self.reached = np.zeros((levels, levels + 1))
        self.children = np.zeros((levels, levels, ranks + 1))

    def add(self, tokens: Tensor, p: Tensor, q: Tensor) -> None:
        """Add one step: tokens [1, D + 1] and q [1, D + 1, V] of a chain, p [1, D, V]."""
        self.steps += 1
        levels = len(self.chains)
        for depth in range(1, levels + 1):
            passed = self.passed(tokens, p, q, depth)
            self.reached[depth - 1] += passed
            if self.star.tree.width > 1 and (depth == levels or self.every_depth):
                shares = self.rank_shares(p[0, :depth], q[0, :depth])
                self.children[depth - 1, :depth] += passed[:depth, None] * shares

    def passed(self, tokens: Tensor, p: Tensor, q: Tensor, depth: int) -> Floats:
        """Return P(accepted ≥ i), i = 0 … D, of the chain cut to ``depth`` levels."""
        nodes = depth + 1
        drafted_from = p[:, :depth] if self.sampled else None
        draft = Draft(tokens[:, :nodes], drafted_from, self.chains[depth - 1])
        verified = self.again(self.rules[depth - 1], draft, q[:, :nodes])
        lengths = torch.arange(len(self.chains) + 1)
        is_reached = verified.accepted.cpu()[:, None] >= lengths
        return is_reached.double().mean(0).numpy()

    def rank_shares(self, p: Tensor, q: Tensor) -> Floats:
        """Return how often each child of ``star``, or none, is accepted at nodes of depth 0 …, in
        a draft of d levels: p, q [d, V] -> [d, K + 1].
        """
        levels = len(p)
        ranks = self.star.tree.width
        p = p.repeat_interleave(JUDGEMENTS, 0)
        if self.sampled:
            children = draw_distinct(p, self.uniforms(len(p), ranks))
        else:
            children = likeliest(p, ranks).indices
        any_root = children[:, :1]
        tokens = torch.cat([any_root, children], 1).unflatten(0, (levels, JUDGEMENTS))
        p = p.unflatten(0, (levels, JUDGEMENTS))
        u = self.uniforms(*tokens.shape)
        shares = []
        for level in range(levels):
            drafted_from = p[level, :, None] if self.sampled else None
            draft = Draft(tokens[level], drafted_from, lowered(self.star, level, levels))
            q_at_nodes = q[level].expand(JUDGEMENTS, ranks + 1, -1)
            verified = self.verify(self.rules[levels - 1], draft, q_at_nodes, u[level])
            child = verified.path[:, 1]
            outcome = F.one_hot(torch.where(child > 0, child - 1, ranks), ranks + 1)
            shares.append(outcome.double().mean(0))
        return torch.stack(shares).cpu().numpy()


def lowered(star: StaticTree, level: int, levels: int) -> StaticTree:
    """Return the tree of one level with its root at depth ``level`` of ``levels``."""
    tree = star.tree._replace(depth=star.tree.depth + level, max_depth=levels)
    later = tuple(rank._replace(depth=rank.depth + level) for rank in star.siblings.later)
    siblings = star.siblings._replace(depth=star.siblings.depth + level, later=later)
    return replace(star, tree=tree, siblings=siblings)


def record_chains(
    decoder: SpeculativeDecoder,
    tree: RecordingTree,
    ranks: int,
    steps: Iterable[StepResult],
    seed: int = 0,
) -> Record:
    """Return the acceptance in chains of D' = 1 … D levels and of their nodes' children, summed
    over ``steps``; ``decoder`` drafts chains by ``tree``.

    "reached" [D, D + 1]: steps with i or more accepted in a chain of D'.  "children" [D, D, K +
    1]: nodes that a chain of D' reached at a depth and whose child of rank k is accepted; in the
    last column, none is.  "steps": how many.
    """
    judge = ChainJudge(decoder, tree.size.max_depth, ranks, seed)
    for result in steps:
        judge.add(result.draft.tokens, torch.cat(tree.distributions, 1), result.drawn)
    count = np.array(float(judge.steps))
    return {"reached": judge.reached, "children": judge.children, "steps": count}


def chain_lengths(reached: Floats, steps: float, depth: int) -> Floats:
    """Return P(accepted ≥ i), i = 1 … depth, of a chain; ``reached`` of ``record_chains``."""
    return reached[depth - 1, 1 : depth + 1] / max(steps, 1)


def child_table(children: Floats, depth: int) -> Floats:
    """Return P [depth, K] for static trees; ``children`` of ``record_chains``."""
    counts = children[depth - 1, :depth]
    if not counts.any():  # the rule does not depend on the depth of drafts
        counts = children[-1, :depth]
    table = np.zeros((depth, counts.shape[1] - 1))
    table[0] = counts[0, :-1] / max(counts[0].sum(), 1e-9)
    for d in range(1, depth):
        table[d] = (counts[d, :-1] + PRIOR * table[d - 1]) / (counts[d].sum() + PRIOR)
    return table


def record_growth(
    decoder: SpeculativeDecoder,
    tree: ScoredTree,
    steps: Iterable[StepResult],
    seed: int = 0,
) -> Record:
    """Return the acceptance in dynamic trees, and so in those with fewer nodes or levels and as
    many children per node.

    For each step, by falling score [S, N − 1]: "seen", the share of judgements that accept a node;
    "level", its depth, −1 for an unused one.
    """
    judge = Judge(decoder, seed)
    seen: list[Floats] = []
    level: list[Floats] = []
    for result in steps:
        nodes = result.draft.tree
        path = judge.again(decoder.rule, result.draft, result.drawn).path
        accepted = torch.zeros(JUDGEMENTS, nodes.nodes, device=path.device)
        shares = accepted.scatter_(1, path, 1.0).mean(0)[1:]
        depth = nodes.depth[0, 1:]
        scores = torch.where(depth > 0, tree.scores[0], -torch.inf)
        order = likeliest(scores, len(scores)).indices
        seen.append(shares[order].double().cpu().numpy())
        level.append(depth[order].double().cpu().numpy())
    return {"seen": np.stack(seen), "level": np.stack(level)}


def lengths(accepted: Floats, level: Floats, nodes: int, depth: int) -> Floats:
    """Return P(accepted ≥ i), i = 1 … ``depth``, in each recorded step of a tree with ``nodes``,
    the root included: accepted, level [S, N − 1] of ``record_growth`` -> [S, depth].
    """
    inside = (level >= 1) & (level <= depth)
    kept = inside & (inside.cumsum(1) <= nodes - 1)
    passed = np.empty((len(level), depth))
    for i in range(1, depth + 1):
        of_level = np.where(kept & (level == i), accepted, 0.0)
        passed[:, i - 1] = of_level.sum(1)
    return passed


def grown_lengths(records: Mapping[int, Record], tree: Bounds) -> Floats:
    """Return P(accepted ≥ i) in each recorded step [S, depth] of trees of this size, from the
    records of ``record_growth`` by width.

    A tree of n nodes has at most n − 1 children per node: all recordings of that width or more are
    used together.
    """
    depth, top_k, nodes = tree
    widths = [min(records, key=lambda width: abs(width - top_k))]
    if top_k >= nodes - 1:
        widths = [width for width in records if width >= nodes - 1] or widths
    found = [lengths(records[k]["seen"], records[k]["level"], nodes, depth) for k in widths]
    return np.concatenate(found)


def bounds(depth: int, top_k: int, nodes: int) -> Bounds:
    """Return a dynamic tree's bounds, with no more nodes than there are candidates."""
    count = 0
    if depth > 0:
        count = top_k + top_k * top_k * (depth - 1)
    return Bounds(depth, top_k, min(nodes, 1 + count))


def expected_length(paths: Iterable[tuple[int, ...]], table: Floats) -> float:
    """Return the expected number of accepted drafted tokens of a tree in child paths: Σ over nodes
    of Π P along the path.
    """
    return float(sum(np.prod(table[range(len(path)), path]) for path in paths))


def best_trees(table: Floats, nodes: int) -> list[Paths]:
    """Return the best trees of 1 … ``nodes`` nodes below the root, of at most D levels and K
    children per node, as child paths; fewer than ``nodes`` if no larger tree fits.
    """
    depths, ranks = table.shape

    @cache
    def below(depth: int, rank: int, n: int) -> tuple[float, Paths]:
        """Return the best of n nodes among the children ``rank``, ``rank`` + 1, … of a node at
        ``depth`` and their subtrees: the expected length, −∞ if they do not fit, and the paths
        from that node.
        """
        if n == 0:
            return 0.0, ()
        if depth == depths or rank == ranks:
            return -np.inf, ()
        p = float(table[depth, rank])

        def expected(m: int) -> float:
            """Return the length if m of the nodes are the first child and its subtree."""
            return p * (1 + below(depth + 1, 0, m - 1)[0]) + below(depth, rank + 1, n - m)[0]

        m = max(range(1, n + 1), key=expected)
        inside = [(rank, *path) for path in below(depth + 1, 0, m - 1)[1]]
        later = below(depth, rank + 1, n - m)[1]
        return expected(m), ((rank,), *inside, *later)

    trees: list[Paths] = []
    for n in range(1, nodes + 1):
        length, paths = below(0, 0, n)
        if length >= 0:
            trees.append(tuple(sorted(paths, key=lambda path: (len(path), path))))
    return trees
