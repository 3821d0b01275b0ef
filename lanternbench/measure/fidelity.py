"""Fidelity loss: what a decode did to the target's distribution, by the distributions that it met;
no images needed.

Cool-SD (arXiv 2601.09212), Theorem 2: every image token was decided at one node of a draft tree
and drawn there from K, which may differ from the target's q.  The expectation of Σ TV(q, K) over
the tokens bounds the total variation between generated and target images, and the nodes that one
decode visits give an unbiased estimate of it.

A node tries its children in order.  Let q_j, p_j be target and drafter after j rejections at this
node, f(y) what the rule accepts y with (min(1, q̃_j(y)/p_j(y)), q̃ the relaxed target), G the
residual.  If later stages drew exactly from G:

    K_j = p_j·f + Σ_x p_j(x)·(1 − f(x))·G_x        (= p_j·f + (1 − Σ p_j f)·G where G does not
      depend on x)

What they miss of G is their own loss, met only if they are reached: a node's share is Σ_j TV(q_j,
K_j) over the tried children, a bound by the triangle inequality; on a chain it is TV(q, K).  A
child that was chosen, not sampled, has p = 1 there: K_j = f(x)·δ_x + (1 − f(x))·G_x.

B batch, L image tokens, V vocabulary, W widest family, n nodes of one chunk.
"""

import torch
from torch import Tensor

from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.relaxed import Residual
from lanternbench.engine.sampling import at, likeliest, normalised
from lanternbench.engine.trace import Trace
from lanternbench.engine.verify import RatioTest
from lanternbench.methods.acceptance.lantern import NearbyTest
from lanternbench.methods.residuals import lantern

CHUNK = 1 << 24  # elements of the largest temporary
FLOOR = 1e-10  # log-probability of a token that the warped target excludes


def fidelity_loss(
    trace: Trace, rule: RatioTest, residual: Residual, total: bool = False
) -> Tensor:
    """Return the mean over the image's tokens of the local TV, 0 … 1: [B].  0 up to float error for a
    lossless method.

    ``trace.sampled``: where children were drawn from p; elsewhere they were chosen (Medusa,
    dynamic, adaptive trees). ``total``: the sum, Theorem 2's bound on the TV of whole images,
    which says nothing above 1.
    """
    batch, length, vocab = trace.q.shape
    losses = torch.zeros(batch * length, device=trace.q.device, dtype=trace.q.dtype)
    q = trace.q.flatten(0, 1)
    p = trace.p.flatten(0, 1)
    children = trace.children.flatten(0, 1)
    tried = trace.tried.flatten()
    depth = trace.depth.flatten()
    for sampled in (True, False):
        nodes = ((trace.tried > 0) & (trace.sampled == sampled)).flatten().nonzero()[:, 0]
        width = rule.group_size if sampled else 1
        for part in nodes.split(max(1, CHUNK // (vocab * width))):
            stages = node_losses(
                q[part],
                p[part] if sampled else None,
                children[part],
                tried[part],
                depth[part],
                rule,
                residual,
            )
            losses[part] = stages.sum(-1)
    sums = losses.view(batch, length).sum(1)
    return sums if total else sums / length


def decode_loss(
    decoder: SpeculativeDecoder, trace: Trace, tokens: Tensor, total: bool = False
) -> Tensor:
    """Return the fidelity loss that ``run`` reports: tokens [B, L] -> [B]; NaN for a method whose tests
    bound nothing, such as those of several rows whose drafts share noise with what they wait for.
    """
    if not decoder.method.bounded:
        return torch.full((len(tokens),), torch.nan)
    # q and K are one-hot: the share of tokens that are not the target's argmax
    if decoder.warp.greedy and not decoder.warp.shares_noise:
        others = (tokens != trace.q.argmax(-1)).to(trace.q.dtype)
        return others.sum(1) if total else others.mean(1)
    rows_tested = trace.seen is not None and bool(trace.tried.any())
    if rows_tested and decoder.warp.shares_noise:
        return torch.full((len(tokens),), torch.nan)
    if trace.seen is not None:
        losses = row_losses(trace, decoder.rule, decoder.residual)
        return losses.sum(1) if total else losses.mean(1)
    return fidelity_loss(trace, decoder.rule, decoder.residual, total)


def row_losses(trace: Trace, rule: RatioTest, residual: Residual) -> Tensor:
    """Return TV(r_i, q_i) of every token of a decode in the order ``rows``: [B, L].

    Their sum bounds the TV of whole images: a draw depends on raster-earlier tokens alone, so the
    images' law is Π r_i(x_i | seen_i), that of an autoregressive model with context left out
    (docs/fidelity.md).
    """
    return 0.5 * (row_laws(trace, rule, residual) - trace.q).abs().sum(-1)


def row_laws(trace: Trace, rule: RatioTest, residual: Residual) -> Tensor:
    """Return r_i [B, L, V], the distribution that each token was drawn from, given what its row saw and
    the step.

    Without a draft it is the target's.  A draft x ~ ℓ (p, unless the draft outlived a test) is
    accepted with f(x): r is K with ℓ in place of p where a rejection gives a token, and ∝ ℓ·f
    where it gives none and the place waits.
    """
    assert trace.seen is not None
    laws = trace.seen.flatten(0, 1).clone()
    drafter = trace.p.flatten(0, 1)
    drafts_law = trace.law.flatten(0, 1)
    depths = trace.depth.flatten()
    first_child = trace.children[..., 0].flatten()
    final = trace.final.flatten()
    drafted = (trace.tried > 0).flatten().nonzero()[:, 0]
    row = laws.shape[-1] * rule.group_size
    for part in drafted.split(max(1, CHUNK // row)):
        q = laws[part]
        p = drafter[part]
        law = drafts_law[part] if drafts_law.shape == laws.shape else p
        drawn = kernel(q, p, first_child[part], depths[part], rule, residual, law)
        # any token would have been drafted with p = 1: exact, x by x
        is_certain = ((law > 0) & (p == 0)).any(-1)
        drawn = torch.where(is_certain[:, None], q, drawn)
        waiting = normalised(accepted_mass(q, p, depths[part], rule, law), q)
        laws[part] = torch.where(final[part, None], drawn, waiting)
    return laws.view_as(trace.seen)


def accepted_mass(
    q: Tensor, p: Tensor, depth: Tensor, rule: RatioTest, law: Tensor | None
) -> Tensor:
    """Return ℓ·f, the probability of drafting each token and accepting it; drafts come from
    ``law`` (None: p).
    """
    accepted = rule.accepted_prob(q, p, depth)
    if law is None or law is p:
        return accepted
    f = torch.where(p > 0, accepted / p, q)
    return law * f


def node_losses(
    q: Tensor,
    p: Tensor | None,
    children: Tensor,
    tried: Tensor,
    depth: Tensor,
    rule: RatioTest,
    residual: Residual,
) -> Tensor:
    """Return TV(q_j, K_j) of stages reached, else 0, [n, W]: q, p [n, V] (None: chosen), children [n, W],
    tried, depth [n].
    """
    losses = q.new_zeros(children.shape)
    for j in range(int(tried.max()) if len(tried) else 0):
        x = children[:, j].clamp(min=0)
        reached = tried > j
        if p is not None:
            reached = reached & (at(p, x) > 0)  # a child that p cannot draw changes nothing
        drawn = kernel(q, p, x, depth, rule, residual)
        distance = 0.5 * (q - drawn).abs().sum(-1)
        losses[:, j] = torch.where(reached, distance, 0.0)
        rest = normalised(residual(q, p, x, depth, rule), q)
        q = torch.where(reached[:, None], rest, q)
        if p is not None:
            left = p.scatter(-1, x[:, None], 0.0)
            p = normalised(left, torch.zeros_like(left))
    return losses


def kernel(
    q: Tensor,
    p: Tensor | None,
    x: Tensor,
    depth: Tensor,
    rule: RatioTest,
    residual: Residual,
    law: Tensor | None = None,
) -> Tensor:
    """Return K_j, which this stage draws from: q, p, ``law`` (of drafts, if not p) [n, V], chosen
    children x [n] -> [n, V].
    """
    if p is None:
        f = rule.relax(q, x, depth).value.clamp(max=1)[:, None]
        rest = normalised(residual(q, None, x, depth, rule), q)
        rejected = (1 - f) * rest
        return rejected.scatter_add(-1, x[:, None], f)
    accepted = accepted_mass(q, p, depth, rule, law)
    if not residual.of_token:
        rest = normalised(residual(q, p, x, depth, rule), q)
        rejection = 1 - accepted.sum(-1, keepdim=True)
        return accepted + rejection.clamp(min=0) * rest
    drawn = p if law is None else law
    rejected = (drawn - accepted).clamp(min=0)
    if residual is lantern and isinstance(rule, NearbyTest):
        return accepted + _lantern_rest(q, p, rejected, rule)
    return accepted + _any_rest(q, p, rejected, depth, rule, residual)


def _lantern_rest(q: Tensor, p: Tensor, rejected: Tensor, rule: NearbyTest) -> Tensor:
    """Return Σ_x rejected(x)·G_x in O(V·k): if x can be rejected, q̃(x) < p(x), so G_x ∝ [q − p]₊ with
    A_x struck out.
    """
    tokens = torch.arange(q.shape[-1], device=q.device)
    near = rule.near[tokens.expand(q.shape)]

    def of_neighbours(values: Tensor) -> Tensor:
        return values[:, None].expand(*q.shape, -1).gather(-1, near)

    inside = rule.inside(of_neighbours(q))
    base = (q - p).clamp(min=0)
    total = base.sum(-1, keepdim=True)
    struck = of_neighbours(base) * inside
    left = total - struck.sum(-1)  # [n, V] normaliser of each G_x
    # all struck out, but for rounding: the rejection falls back to q
    lost = left <= 1e-6 * total
    weight = torch.where(lost, 0.0, rejected / left)
    barred = (weight[..., None] * inside).flatten(1)
    barred_of_token = torch.zeros_like(q).scatter_add(-1, near.flatten(1), barred)
    of_token = weight.sum(-1, keepdim=True) - barred_of_token
    fallback = (rejected * lost).sum(-1, keepdim=True)
    return base * of_token.clamp(min=0) + fallback * q


def _any_rest(
    q: Tensor, p: Tensor, rejected: Tensor, depth: Tensor, rule: RatioTest, residual: Residual
) -> Tensor:
    """Return Σ_x rejected(x)·G_x for any residual, one G_x per token that can be rejected."""
    out = torch.zeros_like(q)
    for pairs in (rejected > 0).nonzero().split(max(1, CHUNK // q.shape[-1])):
        row, x = pairs.unbind(1)
        rest = normalised(residual(q[row], p[row], x, depth[row], rule), q[row])
        out.index_add_(0, row, rejected[row, x][:, None] * rest)
    return out


def drafter_figures(trace: Trace) -> dict[str, Tensor]:
    """Return how well the drafter knew the target, a mean over tokens with drafted children: [B]
    each, NaN without any.

    ``top1``: the drafter's likeliest token is the target's; ``top3``: that is among its three
    likeliest; ``tv``: TV(p, q).  Where children were chosen, and p not kept, the first ones stand
    for the likeliest, and ``tv`` is NaN.
    """
    drafted = trace.children[..., 0] >= 0
    with_p = drafted & (trace.p.sum(-1) > 0)
    if bool(with_p.any()):
        first = likeliest(trace.p, min(3, trace.p.shape[-1])).indices
        has_three = drafted
    else:
        first = trace.children[..., :3]
        has_three = torch.zeros_like(drafted)
        if first.shape[-1] == 3:
            has_three = first[..., -1] >= 0
    best = trace.q.argmax(-1, keepdim=True)
    hits = first == best
    tv = 0.5 * (trace.p - trace.q).abs().sum(-1)
    return {
        "top1": _mean(hits[..., 0].to(tv.dtype), drafted),
        "top3": _mean(hits.any(-1).to(tv.dtype), has_three),
        "tv": _mean(tv, with_p),
    }


def target_figures(trace: Trace, tokens: Tensor) -> dict[str, Tensor]:
    """Return the target's view of an image's tokens [B, L], after guidance and warping, mean over them:
    [B] each.

    ``log_prob`` of the tokens in nats (at least log 1e-10), ``outside_support``: the share of
    tokens with q(x) = 0, ``top1_prob`` of its likeliest token, ``entropy`` in nats.
    """
    q_x = at(trace.q, tokens)
    return {
        "log_prob": q_x.clamp(min=FLOOR).log().mean(1),
        "outside_support": (q_x == 0).to(q_x.dtype).mean(1),
        "top1_prob": trace.q.amax(-1).mean(1),
        "entropy": torch.special.entr(trace.q).sum(-1).mean(1),
    }


def _mean(values: Tensor, where: Tensor) -> Tensor:
    """Return the mean of values [B, L] ``where`` it holds, NaN if nowhere."""
    return torch.where(where, values, 0.0).sum(1) / where.sum(1)
