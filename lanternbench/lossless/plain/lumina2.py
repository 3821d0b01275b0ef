"""The windows of Lumina-mGPT 2.0's public code, see ``methods.proposals.lumina2``."""

import math
from dataclasses import replace

from lanternbench.engine.plain import PlainRule, Probs
from lanternbench.lossless.plain import Law, World, likely, warp
from lanternbench.lossless.plain.drafts import WindowMethod
from lanternbench.settings import Sampling


def processed(logits: list[float], sampling: Sampling) -> Law:
    """Top-k, top-nσ with n = 1 around a mean of 0, and the rest of ``warp``."""
    logits = likely(logits, sampling.top_k)
    squares = [x * x for x in logits if x > -math.inf]
    least = max(logits) - math.sqrt(math.fsum(squares) / len(squares))
    return warp([x if x >= least else -math.inf for x in logits], sampling)


def processed_again(
    sampling: Sampling, q: Probs, p: Probs, x: int, depth: int, rule: PlainRule
) -> Law:
    """Return the law after a rejection: the target's distribution, processed again."""
    logits = [math.log(q_y) if q_y > 0 else -math.inf for q_y in q]
    return processed(logits, sampling)


class PublicWindows(WindowMethod):
    def world(self, world: World) -> World:
        return replace(world, warp=processed)
