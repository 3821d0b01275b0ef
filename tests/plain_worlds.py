"""Random worlds for the plain definitions, and the distributions of their images."""

from __future__ import annotations

import math
import random
from collections import defaultdict

from lanternbench.lossless.plain import Logits, Prefix, World, decode_by_steps
from lanternbench.lossless.plain.drafts import TreeMethod, WindowMethod


def image_distribution(world: World, method: TreeMethod | WindowMethod) -> dict[Prefix, float]:
    """P(image) of every image the method can make on this world, by recursion over all that can be
    drawn.
    """
    return in_all(decode_by_steps(world, method)[0])


def in_all(by_steps: list[dict[Prefix, float]]) -> dict[Prefix, float]:
    """P(image), however many steps it took."""
    images: dict[Prefix, float] = defaultdict(float)
    for part in by_steps:
        for image, probability in part.items():
            images[image] += probability
    return dict(images)


def random_world(
    vocab: int, length: int, seed: int, zeros: float = 0.0, scale: float = 1.5, **options
) -> World:
    """Independent normal logits for every prefix; each is −∞ with probability ``zeros``, but never
    all of a row.
    """

    def table(name: str) -> Logits:
        def logits(prefix: Prefix) -> list[float]:
            rng = random.Random(f"{seed} {name} {prefix}")
            row = [scale * rng.gauss(0, 1) for _ in range(vocab)]
            banned = [rng.random() < zeros for _ in range(vocab)]
            banned[rng.randrange(vocab)] = False
            return [-math.inf if b else x for x, b in zip(row, banned, strict=True)]

        return logits

    rng = random.Random(f"{seed} codebook")
    codes = [[rng.gauss(0, 1), rng.gauss(0, 1)] for _ in range(vocab)]
    return World(vocab, length, table("target"), table("drafter"), codebook=codes, **options)


def total_variation(a: dict[Prefix, float], b: dict[Prefix, float]) -> float:
    """½ Σ |a − b| over all that either can produce."""
    return 0.5 * math.fsum(abs(a.get(s, 0.0) - b.get(s, 0.0)) for s in a.keys() | b.keys())
