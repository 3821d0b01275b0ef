"""Tables too large to be enumerated, with every method's published sizes: thousands of decodes, and their ranks tested.

Where a model's images are few, these are many tokens: a total variation of 0.02 at a step is found 9 times in 10.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.sampling import BELOW_ONE, draw
from lanternbench.lossless.exact import World
from lanternbench.lossless.statistical import Finding, favoured_tokens, powers, rank_test, uniforms
from lanternbench.lossless.tables import Sampling, Tables
from lanternbench.methods.method import Method

VOCAB, LENGTH = 12, 6
SAMPLING = Sampling(guidance=1.5, temperature=1.2, top_k=8, top_p=0.95)
DECODES, BATCH = 6000, 1500  # of LENGTH − 1 tokens each, the first of which needs no draft


class SampledTables(NamedTuple):
    ranks: Finding
    powers: tuple[float, ...]  # see ``statistical.powers``
    tokens: int


@torch.inference_mode()
def sampled_tables(method: Method, seed: int, decodes: int = DECODES) -> SampledTables:
    """The rank test on ``decodes`` images of large tables, against the target's plain definition."""
    tables = Tables(VOCAB, LENGTH, seed, "dense", SAMPLING)
    world, laws = World(tables, method, published=True), tables.world()
    generator = torch.Generator().manual_seed(seed)
    ranks: list[Tensor] = []
    chances: tuple[float, ...] = ()
    for start in range(0, decodes, BATCH):
        count = min(BATCH, decodes - start)
        u = torch.rand(count, LENGTH + 1, world.uniforms, generator=generator, dtype=torch.float64)
        u = u.clamp_(max=BELOW_ONE)
        state = world.decode(draw(world.first.expand(count, -1), u[:, -1, 0])[:, None], u, trace=True)
        tokens, trace = state.now.tokens[:, :LENGTH], state.trace
        assert trace is not None
        q = torch.tensor([[laws.q(tuple(image[:t])) for t in range(1, LENGTH)] for image in tokens.tolist()])
        for name, store in vars(trace).items():
            setattr(trace, name, store[:, 1:LENGTH])
        ranks.append(uniforms(q, tokens[:, 1:], favoured_tokens(trace, q), seed + start))
        chances = chances or powers(trace, q, world.decoder, decodes * (LENGTH - 1))
    f = torch.cat(ranks)
    return SampledTables(rank_test(f), chances, f.numel())
