"""A world small enough to enumerate: target and drafter are functions of the prefix; guidance and warping."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import cache

Prefix = tuple[int, ...]
Logits = Callable[[Prefix], list[float]]
Conditional = Callable[[Prefix], list[float]]  # probabilities


@dataclass
class World:
    """Target and drafter on images of ``length`` tokens out of ``vocab``.

    ``target``, ``drafter`` and their unconditional twins map a prefix to V logits (log-probabilities will do; −∞ bans a
    token).  They are asked beyond the last token too, as drafts may reach further than the image.  ``q``, ``p``: the
    distributions of target and drafter after a prefix.
    """

    vocab: int
    length: int
    target: Logits
    drafter: Logits | None = None
    target_uncond: Logits | None = None
    drafter_uncond: Logits | None = None
    guidance: float = 1.0
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    grid_width: int = 2
    codebook: list[list[float]] = field(default_factory=list)  # V rows

    def __post_init__(self) -> None:
        self.q: Conditional = cache(lambda prefix: self._warped(self.target, self.target_uncond, prefix))
        self.p: Conditional = cache(lambda prefix: self._warped(self.drafter, self.drafter_uncond, prefix))

    def drafting_after(self, committed: int) -> World:
        """This world, with a drafter for which whatever comes after so many tokens is token 0."""
        other = copy(self)
        other.p = lambda prefix: self.p(prefix[:committed] + (0,) * len(prefix[committed:]))
        return other

    def _warped(self, cond: Logits | None, uncond: Logits | None, prefix: Prefix) -> list[float]:
        assert cond is not None, "this world has no drafter"
        logits = cond(prefix)
        if uncond is not None:
            logits = guide(logits, uncond(prefix), self.guidance)
        return warp(logits, self.temperature, self.top_k, self.top_p)

    def joint(self) -> dict[Prefix, float]:
        """P(image) under the target: Π_t q(x_t | x_<t)."""
        images: dict[Prefix, float] = {(): 1.0}
        for _ in range(self.length):
            images = {(*s, x): w * qx for s, w in images.items() for x, qx in enumerate(self.q(s)) if qx > 0}
        return images


def guide(cond: list[float], uncond: list[float], scale: float) -> list[float]:
    """Classifier-free guidance: uncond + s·(cond − uncond).  A token banned on either side stays banned."""
    return [-math.inf if math.inf in (-c, -u) else u + scale * (c - u) for c, u in zip(cond, uncond, strict=True)]


def warp(logits: list[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> list[float]:
    """Temperature, then top-k (ties of the k-th stay), then top-p (the fewest tokens whose mass reaches p).

    At temperature 0 the distribution is that of temperature 1, and decoding takes its argmax.
    """
    if temperature == 0:
        return softmax(logits)
    logits = [x / temperature for x in logits]
    if 0 < top_k < len(logits):
        kth = sorted(logits, reverse=True)[top_k - 1]
        logits = [x if x >= kth else -math.inf for x in logits]
    probs = softmax(logits)
    if top_p < 1:
        mass = 0.0
        for x in sorted(range(len(probs)), key=lambda x: -probs[x]):
            if mass >= top_p:
                logits[x] = -math.inf
            mass += probs[x]
        probs = softmax(logits)
    return probs


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def normalise(weights: list[float], otherwise: list[float] | None = None) -> list[float]:
    """Weights as a distribution; ``otherwise`` (all zero if not given) where nothing is left to normalise."""
    total = math.fsum(weights)
    if total > 0:
        return [w / total for w in weights]
    return otherwise if otherwise is not None else [0.0] * len(weights)


def one_hot(x: int, vocab: int) -> list[float]:
    return [float(y == x) for y in range(vocab)]
