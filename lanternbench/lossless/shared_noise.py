"""Verification of draws that share noise: on tables exactly, on a loaded target token by token.

With g(n, v) the noise of position n and token v, E = e^−g is exponential, token v arrives at
E(n, v)/q(v), and the first to arrive is drawn.  So the space of all noise falls into one part per
image x, in which every x_n arrives first: its probability is Π q(x_n | x_<n), the target's, and
only the image matters to whether a method draws it.  Inside a part, the first arrives after a time
of law Exp(1), whichever it is, and token v after a further Exp(q(v)), as exponentials have no
memory.

The engine decodes noise of every part.  The probability of the parts whose image it misses bounds
the total variation of its images from the target's.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.decode import Generation, generate
from lanternbench.engine.noise import gumbel_noise, perturbed
from lanternbench.engine.opening import row_seed
from lanternbench.lossless.exact import TableDecoder
from lanternbench.lossless.statistical import CAPTIONS
from lanternbench.lossless.tables import Tables
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, named
from lanternbench.models.target import Target
from lanternbench.settings import Sampling

DRAWS = 32  # tables of noise per image
SUMMATION_ERROR = 1e-4  # of float32 sums in another order, as a share of the largest logit
SHARED = Sampling(noise="shared")


class NoiseTables(NamedTuple):
    """Noise of every image that the target can draw."""

    images: Tensor  # [R, L] the image that ``ar`` draws
    weight: Tensor  # [R] probabilities, 1 in all
    noise: Tensor  # [R, L, V] g


def noise_tables(tables: Tables, seed: int) -> NoiseTables:
    """Return ``DRAWS`` tables of noise for every image, by the target's plain definition."""
    world = tables.world()
    joint = world.joint()
    laws = []
    for image in joint:
        laws.append([world.q(image[:n]) for n in range(tables.length)])
    q = torch.tensor(laws, dtype=torch.float64).repeat_interleave(DRAWS, 0)
    images = torch.tensor(list(joint)).repeat_interleave(DRAWS, 0)
    weight = torch.tensor(list(joint.values()), dtype=torch.float64) / DRAWS
    generator = torch.Generator().manual_seed(seed)
    first = torch.empty_like(q[..., :1]).exponential_(generator=generator)
    later = torch.empty_like(q).exponential_(generator=generator)
    after_first = later.scatter(-1, images[..., None], 0.0)
    # of a token with q = 0, which never arrives, E is any exponential
    exponentials = q * first + after_first
    return NoiseTables(images, weight.repeat_interleave(DRAWS), -exponentials.log())


class Missed(NamedTuple):
    """The noise with which a method does not draw the image of ``ar``."""

    probability: float
    tables: int  # of noise that were decoded


def missed(tables: Tables, method: Method, seed: int) -> Missed:
    """Decode noise of every image; see above."""
    tables.sampling = tables.sampling.updated(SHARED)
    family = noise_tables(tables, seed)
    drawn = TableDecoder(tables, method).images_of(family.noise)
    right = (drawn == family.images).all(1)
    return Missed(abs(1 - float(family.weight[right].sum())), len(right))


class Differing(NamedTuple):
    """Images that are not the ones of ``ar`` with the same noise."""

    images: int
    ties: int  # further ones, whose first other token was as good but for rounding


@torch.inference_mode()
def tokens_of_ar(target: Target, method: Method, count: int, seed: int) -> Differing:
    """Compare ``count`` images with those of ``ar``.  Raises UserError if the target cannot run the
    method.
    """
    captions = [CAPTIONS[i % len(CAPTIONS)] for i in range(count)]
    keys = [f"verify-{i}" for i in range(count)]
    decoder = build(target, method, SHARED)
    drawn = generate(decoder, captions, keys, seed)
    plain = generate(build(target, named("ar"), SHARED), captions, keys, seed, trace=True)
    ties = 0
    differ = 0
    for i, (image, of_ar) in enumerate(zip(drawn, plain, strict=True)):
        others = (image.tokens != of_ar.tokens).nonzero()
        if not len(others):
            continue
        gap = gap_of_scores(
            of_ar, image.tokens, i, int(others[0]), row_seed(seed, keys[i], "noise")
        )
        if gap <= rounding_error(target) * decoder.guidance:
            ties += 1
        else:
            differ += 1
    return Differing(differ, ties)


def gap_of_scores(of_ar: Generation, tokens: Tensor, i: int, position: int, key: int) -> float:
    """Return how far apart log q + g of ``ar``'s token and of another are, as a share of the
    largest |log q|.
    """
    if of_ar.trace is None:
        raise TypeError("the distributions were not kept")
    q = of_ar.trace.q[i, position]
    keys = torch.tensor([key], device=q.device)
    place = torch.tensor([[position]], device=q.device)
    g = gumbel_noise(keys, place, q[None, None])
    scores = perturbed(q, g[0, 0]).log()
    of_ar_token = scores[of_ar.tokens[position]]
    gap = (of_ar_token - scores[tokens[position]]).abs()
    largest = q[q > 0].log().abs().amax()
    return float(gap / largest.clamp(min=1.0))


def rounding_error(target: Target) -> float:
    """Return by how much two correct logits may differ, as a share of the largest logit.

    A layer adds twice to its input and rounds both sums to the dtype.  Errors of 2 · layers
    roundings add up like a random walk.
    """
    roundings = sqrt(2 * len(target.model.layers))
    return max(roundings * torch.finfo(target.dtype).eps, SUMMATION_ERROR)
