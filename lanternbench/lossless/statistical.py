"""Statistical tests, on a loaded target or on large tables, that tokens follow the target's own
distributions.

A lossless method draws token t from q_t, whatever came before; q_t is known exactly, from a plain
forward pass over the finished image.  So no second sample is needed:

``ranks``    F_t, the randomised cumulative probability of token t under q_t, is uniform on 0 … 1
             and independent from token to token.  Tokens are put in the order in which a faulty
             decoder would favour them (by p/q, or the drafted children first), which is known
             before the token is drawn.  χ² over ``BINS`` bins.
``log q``    Σ_t log q_t(x_t) + H(q_t) has mean 0 and variance Σ_t Var(log q_t): a z-test.
``forward``  The distributions that the engine saw while it decoded are those of the plain forward
             pass.  This catches errors of masks, positions and cache commits, which would deceive
             both tests above.

N images, L tokens each, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import brentq
from scipy.stats import chi2, chisquare, ncx2, norm
from torch import Tensor

from lanternbench.engine.decode import SpeculativeDecoder, generate
from lanternbench.engine.opening import teacher_forced
from lanternbench.engine.relaxed import RelaxedProb
from lanternbench.engine.sampling import at
from lanternbench.engine.trace import Trace
from lanternbench.engine.verify import RatioTest
from lanternbench.lossless.exact import Sample, TableDecoder
from lanternbench.lossless.tables import Tables
from lanternbench.measure.fidelity import kernel
from lanternbench.methods.build import build
from lanternbench.methods.method import Method
from lanternbench.models.target import Target
from lanternbench.settings import GREEDY, Sampling

ALPHA = 1e-3  # chance that one test of a lossless method fails
BINS = 16
TIE = 1e-4  # of two probabilities, by which rounding may part them
# the tests' power is reported for rules that are too generous by these factors
FACTORS = (1.1, 1.2, 1.5)
NODES = 4096  # of which it is computed
VOCAB = 12  # of large tables
LENGTH = 6
SAMPLING = Sampling(guidance=1.5, temperature=1.2, top_k=8, top_p=0.95)
DECODES = 6000  # of LENGTH − 1 tokens each, because the first needs no draft
BATCH = 1500
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
    """Outcome of one test: it fails if ``p_value`` < ALPHA; ``effect`` is found 9 times in 10."""

    p_value: float
    effect: float

    def about(self, sample: str, unit: str, powers: tuple[float, ...] = ()) -> str:
        """``powers``: the chances that the test would have found deliberately wrong rules."""
        text = f"−log10 p-value; {sample}; finds {self.effect:.2g} {unit} 9 times in 10"
        if not powers:
            return text
        chances = [f"{a}×: {100 * b:.0f} %" for a, b in zip(FACTORS, powers, strict=True)]
        return f"{text}; a rule too generous by {', '.join(chances)}"


def favoured_tokens(trace: Trace, q: Tensor) -> Tensor:
    """[N, L, V] tokens as a faulty decoder might favour them, the most first: by p/q; chosen
    children; else by q.
    """
    vocab = q.shape[-1]
    tokens = torch.where(trace.children >= 0, trace.children, vocab)  # none: past the others
    rank = torch.arange(tokens.shape[-1], 0, -1, device=q.device, dtype=q.dtype)
    with_spare = q.new_zeros(*q.shape[:-1], vocab + 1)
    with_spare = with_spare.scatter(-1, tokens, rank.expand(tokens.shape))
    children = with_spare[..., :-1]
    has_p = trace.p.sum(-1, keepdim=True) > 0
    ratio = trace.p / q.clamp(min=1e-12)
    favour = torch.where(has_p, ratio, q + children)
    return favour.argsort(dim=-1, descending=True, stable=True)


def uniforms(q: Tensor, tokens: Tensor, order: Tensor, seed: int) -> Tensor:
    """F_t [N, L]: mass of the tokens before x_t in ``order``, plus a random share of its own."""
    mass = q.gather(-1, order)
    place = (order == tokens[..., None]).int().argmax(-1)
    q_x = at(q, tokens)
    before = at(mass.cumsum(-1), place) - q_x
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(tokens.shape, generator=generator).to(q.device)
    share = (before + u * q_x) / mass.sum(-1)
    return share.clamp(0, 1)


def rank_test(f: Tensor) -> Finding:
    """χ² of F_t against the uniform law; the effect is the TV between the two that is found with
    power 0.9.
    """
    counts = torch.histc(f.flatten().double().cpu(), BINS, 0, 1)
    needed = brentq(lambda noncentrality: chance_to_fail(noncentrality) - 0.9, 1e-3, 1e3)
    return Finding(float(chisquare(counts).pvalue), 0.5 * (needed / f.numel()) ** 0.5)


def chance_to_fail(noncentrality: float) -> float:
    """The power of the rank test."""
    threshold = chi2.isf(ALPHA, BINS - 1)
    return float(ncx2.sf(threshold, BINS - 1, noncentrality))


def log_q_test(q: Tensor, tokens: Tensor) -> Finding:
    """z of Σ log q(x) + H(q); the effect is the shift of the mean log-probability, in nats, found
    with power 0.9.
    """
    q = q.double()
    log_q = q.clamp(min=1e-30).log()
    entropy = -(q * log_q).sum(-1)
    mean_square = (q * log_q**2).sum(-1)
    variance = (mean_square - entropy**2).clamp(min=0)
    surplus = float((at(log_q, tokens) + entropy).sum())
    spread = float(variance.sum().sqrt())
    if spread > 0:
        z = abs(surplus) / spread
    else:
        z = 0.0 if abs(surplus) < 1e-6 else math.inf
    needed = (norm.isf(ALPHA / 2) + norm.isf(0.1)) * spread
    return Finding(float(2 * norm.sf(z)), needed / tokens.numel())


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
    trace: Trace, q: Tensor, order: Tensor, decoder: SpeculativeDecoder
) -> tuple[float, ...]:
    """The chances that the rank test finds a rule 1.1×, 1.2×, 1.5× too generous; () without
    drafts.

    The distribution K that the wrong rule draws its first child's token from, on up to ``NODES``
    of the decode's own nodes, puts more or less than 1/BINS into each bin of F_t.
    """
    drafted = trace.tried.flatten().nonzero()[:, 0]
    if not len(drafted) or decoder.rule.by_position:
        return ()
    spread = torch.linspace(0, len(drafted) - 1, min(NODES, len(drafted)))
    nodes = drafted[spread.long()]
    q = q.flatten(0, 1)[nodes]
    order = order.flatten(0, 1)[nodes]
    p = None
    if bool(trace.sampled.flatten()[nodes].all()):
        p = trace.p.flatten(0, 1)[nodes]
    x = trace.children[..., 0].flatten()[nodes].clamp(min=0)
    depth = trace.depth.flatten()[nodes]
    tokens = trace.tried.numel()
    chances = []
    for factor in FACTORS:
        wrong = TooGenerous(decoder.rule, factor)
        drawn = kernel(q, p, x, depth, wrong, decoder.residual)
        mass = mass_per_bin(q.gather(-1, order), drawn.gather(-1, order))
        extra = (mass.mean(0) - 1 / BINS) * len(drafted) / tokens
        chances.append(chance_to_fail(float(extra.square().sum()) * tokens * BINS))
    return tuple(chances)


def mass_per_bin(q: Tensor, drawn: Tensor) -> Tensor:
    """Mass of ``drawn`` [n, V] in each of BINS equal parts of q [n, V], tokens in the order of the
    test: [n, BINS].  An edge cuts a token's mass in both alike.
    """
    at_edges = []
    for rows in zip(q, drawn, strict=True):
        upto = F.pad(torch.stack(rows).double().cumsum(-1), (1, 0))
        q_upto, drawn_upto = upto.cpu().numpy()
        edges = np.linspace(0, q_upto[-1], BINS + 1)
        at_edges.append(np.interp(edges, q_upto, drawn_upto))
    return torch.tensor(np.diff(at_edges))


class Sampled(NamedTuple):
    """The tests of the tokens of decodes."""

    ranks: Finding
    log_q: Finding
    forward: float  # largest |q in the loop − q of a plain forward pass|
    overlap: float  # mean Σ min(p, q) of first drafted tokens; NaN if children are not sampled
    # chances that a rule 1.1×, 1.2×, 1.5× too generous would have been found by its ranks
    powers: tuple[float, ...]
    tokens: int
    alike: int = 0  # pairs of images of one caption, but of other keys, that are equal


def tested(
    trace: Trace, q: Tensor, tokens: Tensor, decoder: SpeculativeDecoder, seed: int
) -> Sampled:
    """The tests of tokens [N, L], which are to follow q [N, L, V]."""
    order = favoured_tokens(trace, q)
    first = (trace.p.sum(-1) > 0) & (trace.depth == 1)
    return Sampled(
        ranks=rank_test(uniforms(q, tokens, order, seed)),
        log_q=log_q_test(q, tokens),
        forward=float((trace.q - q).abs().max()),
        overlap=float(torch.minimum(trace.p, trace.q).sum(-1)[first].mean()),
        powers=powers(trace, q, order, decoder),
        tokens=tokens.numel(),
    )


def target_distributions(
    decoder: SpeculativeDecoder, captions: list[str], tokens: Tensor
) -> Tensor:
    """q [N, L, V] of every token [N, L], by plain forward passes over finished images."""
    target = decoder.target
    prefix = target.prefix(captions, target.guidance)
    return teacher_forced(target, prefix, tokens, target.guidance, decoder.warp)


@torch.inference_mode()
def sampled_tests(target: Target, method: Method, count: int, seed: int) -> Sampled:
    """Generate ``count`` images in one batch, two a caption, and test their tokens.

    Raises UserError if the target cannot run the method.
    """
    decoder = build(target, method)
    captions = [CAPTIONS[i // 2 % len(CAPTIONS)] for i in range(count)]
    keys = [f"verify-{i}" for i in range(count)]
    generated = generate(decoder, captions, keys, seed, trace=True)
    tokens = torch.stack([image.tokens for image in generated])
    trace = cast(Trace, generated[0].trace)
    q = target_distributions(decoder, captions, tokens)
    tests = tested(trace, q, tokens, decoder, seed)
    pairs = tokens[: count // 2 * 2].unflatten(0, (-1, 2))
    is_alike = (pairs[:, 0] == pairs[:, 1]).all(-1)
    return tests._replace(alike=int(is_alike.sum()))


@torch.inference_mode()
def greedy_difference(target: Target, method: Method, count: int, seed: int) -> int:
    """The number of greedy images, of ``count``, that greedy autoregressive decoding would not
    give.

    It gives those of which every token is the argmax of q in a plain forward pass over the image,
    or within ``TIE`` of it, which is rounding.
    """
    decoder = build(target, method, GREEDY)
    captions = [CAPTIONS[i % len(CAPTIONS)] for i in range(count)]
    generated = generate(decoder, captions, seed=seed)
    tokens = torch.stack([image.tokens for image in generated])
    q = target_distributions(decoder, captions, tokens)
    is_other = q.amax(-1) - at(q, tokens) >= TIE
    return int(is_other.any(1).sum())


@torch.inference_mode()
def sampled_tables(method: Method, seed: int, decodes: int = DECODES) -> Sampled:
    """The tests of ``decodes`` images of tables too large to be enumerated, against the target's
    plain definition.

    A TV of 0.02 at a step is found 9 times in 10.
    """
    tables = Tables(VOCAB, LENGTH, seed, "dense", SAMPLING)
    decoder = TableDecoder(tables, method, published=True)
    generator = torch.Generator().manual_seed(seed)
    samples: list[Sample] = []
    for start in range(0, decodes, BATCH):
        samples.append(decoder.sample(min(BATCH, decodes - start), generator))
    tokens = torch.cat([sample.tokens for sample in samples])
    trace = samples[0].trace
    for name in vars(trace):
        parts = [getattr(sample.trace, name)[:, 1:LENGTH] for sample in samples]
        setattr(trace, name, torch.cat(parts))
    world = tables.world()
    q = []
    for image in tokens.tolist():
        q.append([world.q(tuple(image[:t])) for t in range(1, LENGTH)])
    return tested(trace, torch.tensor(q), tokens[:, 1:], decoder.decoder, seed)
