"""Statistical verification on a loaded target, or on large tables: do tokens follow the target's
own distributions?

A lossless method draws token t from q_t, whatever came before; q_t is known exactly, from a plain
forward pass over the finished image.  So no second sample is needed:

``ranks``    F_t, the randomised cumulative probability of token t under q_t, is uniform on 0 … 1
  and independent from
             token to token.  Tokens are put in the order in which a faulty decoder would favour
             them (by p/q, or the drafted children first), which is known before the token is
             drawn.  χ² over ``BINS`` bins.
``log q``    Σ_t log q_t(x_t) + H(q_t) has mean 0 and variance Σ_t Var(log q_t): a z-test.
``forward``  the distributions that the engine saw while it decoded are those of the plain forward
  pass: catches errors
             of masks, positions and cache commits that both tests above would be told lies by.

N images, L tokens each, V vocabulary.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2, norm
from torch import Tensor

from lanternbench.engine import decode as engine
from lanternbench.engine.opening import teacher_forced
from lanternbench.engine.relaxed import RelaxedProb
from lanternbench.engine.sampling import at
from lanternbench.engine.trace import Trace
from lanternbench.engine.verify import RatioTest
from lanternbench.lossless.exact import TableDecoder
from lanternbench.lossless.tables import Tables
from lanternbench.measure.fidelity import kernel
from lanternbench.methods.build import build
from lanternbench.methods.method import Method
from lanternbench.models.target import Target
from lanternbench.settings import GREEDY, Sampling

ALPHA = 1e-3  # chance that one test of a lossless method fails
BINS = 16
TIE = 1e-4  # of two probabilities, by which rounding may part them
# by how much the rules are too generous that the tests' power is stated for
FACTORS = (1.1, 1.2, 1.5)
NODES = 4096  # of which it is computed
VOCAB, LENGTH = 12, 6  # of large tables
SAMPLING = Sampling(guidance=1.5, temperature=1.2, top_k=8, top_p=0.95)
DECODES, BATCH = 6000, 1500  # of LENGTH − 1 tokens each, the first of which needs no draft
CAPTIONS = (
    "a large red circle on the left on a plain blue background",
    "a small green star in the center on a noisy white background",
    "a yellow square above a purple triangle on a striped gray background",
    "two orange circles on a checkered black background",
    "a cyan ring at the bottom right on a gradient background",
    "a photo of a dog in the snow",
    "a tiny white cross at the top on a noisy red background",
    "a large pink heart and a small blue square on a plain green background",
)


class Finding(NamedTuple):
    """Outcome of one test: it fails where ``p_value`` < ALPHA; ``effect`` is found 9 times in 10."""

    p_value: float
    effect: float

    def about(self, sample: str, unit: str, powers: tuple[float, ...] = ()) -> str:
        """``powers``: the chances that the test would have found deliberately wrong rules."""
        text = f"−log10 p-value; {sample}; finds {self.effect:.2g} {unit} 9 times in 10"
        each = (
            f"{factor}×: {100 * chance:.0f} %"
            for factor, chance in zip(FACTORS, powers, strict=True)
        )
        return f"{text}; a rule too generous by {', '.join(each)}" if powers else text


def favoured_tokens(trace: Trace, q: Tensor) -> Tensor:
    """[N, L, V] tokens as a faulty decoder might favour them, the most first: by p/q; chosen
    children; else by q.
    """
    known = trace.p.sum(-1, keepdim=True) > 0
    ratio = trace.p / q.clamp(min=1e-12)
    children = torch.nn.functional.pad(torch.zeros_like(q), (0, 1))
    spare = torch.where(trace.children >= 0, trace.children, q.shape[-1])
    rank = torch.arange(spare.shape[-1], 0, -1, device=q.device, dtype=q.dtype)
    children = children.scatter(-1, spare, rank.expand(spare.shape))[..., :-1]
    return (
        torch.where(known, ratio, q + children).sort(dim=-1, descending=True, stable=True).indices
    )


def uniforms(q: Tensor, tokens: Tensor, order: Tensor, seed: int) -> Tensor:
    """F_t [N, L]: mass of the tokens before x_t in ``order``, plus a random share of its own."""
    mass = q.gather(-1, order)
    place = (order == tokens[..., None]).int().argmax(-1)
    q_x = at(q, tokens)
    before = at(mass.cumsum(-1), place) - q_x
    u = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)).to(q.device)
    return ((before + u * q_x) / mass.sum(-1)).clamp(0, 1)


def rank_test(f: Tensor) -> Finding:
    """χ² of F_t against the uniform law; the effect is the TV between the two that is found with
    power 0.9.
    """
    n = f.numel()
    counts = torch.histc(f.flatten().double().cpu(), BINS, 0, 1)
    statistic = float(((counts - n / BINS) ** 2).sum() / (n / BINS))
    threshold = chi2.isf(ALPHA, BINS - 1)
    needed = brentq(lambda nc: ncx2.sf(threshold, BINS - 1, nc) - 0.9, 1e-3, 1e3)
    return Finding(float(chi2.sf(statistic, BINS - 1)), 0.5 * (needed / n) ** 0.5)


def log_q_test(q: Tensor, tokens: Tensor) -> Finding:
    """z of Σ log q(x) + H(q); the effect is the shift of the mean log-probability, in nats, found
    with power 0.9.
    """
    q = q.double()
    log_q = q.clamp(min=1e-30).log()
    entropy = -(q * log_q).sum(-1)
    variance = ((q * log_q**2).sum(-1) - entropy**2).clamp(min=0).sum()
    surplus = (at(log_q, tokens) + entropy).sum()
    spread = float(variance.sqrt())
    z = (
        float(surplus) / spread
        if spread > 0
        else (0.0 if abs(float(surplus)) < 1e-6 else float("inf"))
    )
    return Finding(
        float(2 * norm.sf(abs(z))), (norm.isf(ALPHA / 2) + norm.isf(0.1)) * spread / tokens.numel()
    )


@dataclass(frozen=True, eq=False)
class TooGenerous(RatioTest):
    """A rule made wrong on purpose: q̃ is ``factor`` times what it should be."""

    rule: RatioTest
    factor: float

    def relax(self, q: Tensor, x: Tensor, depth: Tensor) -> RelaxedProb:
        relaxed = self.rule.relax(q, x, depth)
        return relaxed._replace(value=self.factor * relaxed.value)

    def everywhere(self, q: Tensor, depth: Tensor) -> Tensor:
        return self.factor * self.rule.everywhere(q, depth)


def powers(
    trace: Trace, q: Tensor, order: Tensor, decoder: engine.SpeculativeDecoder
) -> tuple[float, ...]:
    """With what probability would the rank test find a rule that is 1.1×, 1.2×, 1.5× too generous?
      () without drafts.

    The distribution K that the wrong rule draws its first child's token from, on up to ``NODES``
    of the decode's own nodes, puts more or less than 1/BINS into each bin of F_t.
    """
    at_drafts = (trace.tried.flatten() > 0).nonzero()[:, 0]
    if not len(at_drafts) or decoder.rule.by_position:
        return ()
    nodes = at_drafts[torch.linspace(0, len(at_drafts) - 1, min(NODES, len(at_drafts))).long()]
    rows, order = q.flatten(0, 1)[nodes], order.flatten(0, 1)[nodes]
    p = trace.p.flatten(0, 1)[nodes] if bool(trace.sampled.flatten()[nodes].all()) else None
    x, depth = trace.children[..., 0].flatten()[nodes].clamp(min=0), trace.depth.flatten()[nodes]
    chances, share = [], len(at_drafts) / trace.tried.numel()
    for factor in FACTORS:
        drawn = kernel(
            rows,
            p,
            x,
            depth,
            TooGenerous(decoder.rule, factor),
            decoder.residual,
        )
        extra = mass_per_bin(rows.gather(-1, order), drawn.gather(-1, order)).mean(0) - 1 / BINS
        nc = float((share * extra).square().sum() * trace.tried.numel() * BINS)
        chances.append(
            float(ncx2.sf(chi2.isf(ALPHA, BINS - 1), BINS - 1, nc)) if nc > 0 else ALPHA
        )
    return tuple(chances)


def mass_per_bin(q: Tensor, drawn: Tensor) -> Tensor:
    """Mass of ``drawn`` [n, V] in each of BINS equal parts of q [n, V], tokens in the order of the
    test: [n, BINS].
    """
    q, drawn = q.double(), drawn.double()
    below, drawn_below = q.cumsum(-1), drawn.cumsum(-1)
    edges = below[:, -1:] * torch.arange(1, BINS, device=q.device) / BINS
    token = torch.searchsorted(below, edges).clamp(max=q.shape[-1] - 1)
    # of the token that an edge cuts
    left = (below.gather(-1, token) - edges) / q.gather(-1, token).clamp(min=1e-30)
    mass = drawn_below.gather(-1, token) - left.clamp(0, 1) * drawn.gather(-1, token)
    ends = torch.zeros_like(mass[:, :1])
    return torch.cat([ends, mass, drawn_below[:, -1:]], -1).diff(dim=-1)


class Sampled(NamedTuple):
    """The tests of the tokens of decodes."""

    ranks: Finding
    log_q: Finding
    forward: float  # largest |q in the loop − q of a plain forward|
    overlap: float  # mean Σ min(p, q) of first drafted tokens; NaN where children are not sampled
    # chances that a rule 1.1×, 1.2×, 1.5× too generous would have been found by its ranks
    powers: tuple[float, ...]
    tokens: int
    alike: int = 0  # pairs of images of one caption, but of other keys, that are equal


def tested(
    trace: Trace, q: Tensor, tokens: Tensor, decoder: engine.SpeculativeDecoder, seed: int
) -> Sampled:
    """The tests of tokens [N, L], which are to follow q [N, L, V]."""
    order = favoured_tokens(trace, q)
    ranks = rank_test(uniforms(q, tokens, order, seed))
    first = (trace.p.sum(-1) > 0) & (trace.depth == 1)
    overlap = float(torch.minimum(trace.p, trace.q).sum(-1)[first].mean())
    forward, chances = float((trace.q - q).abs().max()), powers(trace, q, order, decoder)
    return Sampled(ranks, log_q_test(q, tokens), forward, overlap, chances, tokens.numel())


@torch.inference_mode()
def sampled_tests(target: Target, method: Method, count: int, seed: int) -> Sampled:
    """Generate ``count`` images in one batch, two a caption, and test their tokens.

    Raises UserError if the target cannot run the method.
    """
    decoder = build(target, method)
    captions = [CAPTIONS[i // 2 % len(CAPTIONS)] for i in range(count)]
    generated = engine.generate(
        decoder, captions, [f"verify-{i}" for i in range(count)], seed, trace=True
    )
    tokens, trace = torch.stack([g.tokens for g in generated]), generated[0].trace
    assert trace is not None
    q = teacher_forced(
        target, target.prefix(captions, target.guidance), tokens, target.guidance, decoder.warp
    )
    alike = int((tokens[: count // 2 * 2 : 2] == tokens[1::2]).all(-1).sum())
    return tested(trace, q, tokens, decoder, seed)._replace(alike=alike)


@torch.inference_mode()
def greedy_difference(target: Target, method: Method, count: int, seed: int) -> int:
    """How many of ``count`` greedy images are not what greedy autoregressive decoding gives.

    They are if every token is the argmax of q in a plain forward over the image; within ``TIE`` of
    it is rounding.
    """
    decoder = build(target, method, GREEDY)
    captions = [CAPTIONS[i % len(CAPTIONS)] for i in range(count)]
    tokens = torch.stack([g.tokens for g in engine.generate(decoder, captions, seed=seed)])
    q = teacher_forced(
        target, target.prefix(captions, target.guidance), tokens, target.guidance, decoder.warp
    )
    return int((q.amax(-1) - at(q, tokens) >= TIE).any(1).sum())


@torch.inference_mode()
def sampled_tables(method: Method, seed: int, decodes: int = DECODES) -> Sampled:
    """The tests of ``decodes`` images of tables too large to be enumerated, against the target's
    plain definition.

    A TV of 0.02 at a step is found 9 times in 10.
    """
    tables = Tables(VOCAB, LENGTH, seed, "dense", SAMPLING)
    decoder, world = TableDecoder(tables, method, published=True), tables.world()
    generator, traces, images = torch.Generator().manual_seed(seed), list[Trace](), list[Tensor]()
    for start in range(0, decodes, BATCH):
        state, _ = decoder.sample(min(BATCH, decodes - start), generator, trace=True)
        assert state.trace is not None
        traces.append(state.trace)
        images.append(state.now.tokens[:, :LENGTH])
    trace, tokens = traces[0], torch.cat(images)
    for name in vars(trace):
        setattr(trace, name, torch.cat([getattr(one, name)[:, 1:LENGTH] for one in traces]))
    q = torch.tensor(
        [[world.q(tuple(image[:t])) for t in range(1, LENGTH)] for image in tokens.tolist()]
    )
    return tested(trace, q, tokens[:, 1:], decoder.decoder, seed)
