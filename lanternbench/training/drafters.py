"""Train the embedded target's drafters, EAGLE, Medusa heads and a small model, each on the target's own samples.

All learn the distribution that they will be verified against: guided and cut to the top k.  The loss is its cross
entropy and, for the acceptance rate Σ min(p, q) itself, the total variation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.decoding.sampling import Warp, guide
from lanternbench.models.eagle import Eagle
from lanternbench.models.llamagen import LlamaGen
from lanternbench.models.medusa import Medusa
from lanternbench.models.target import Target, blank
from lanternbench.training import loop
from lanternbench.training.rollouts import Rollouts
from lanternbench.training.target import CONFIG

SMALL = replace(CONFIG, n_layer=2)
HEADS = 4
BATCH = 6
DEPTHS = 3  # levels of drafting that EAGLE trains on
DEEPER = 96  # positions of an image at which it trains on the levels past the first
WIDER = 2  # EAGLE's MLP, in the target's: at this size a layer's operations cost time, its width hardly any
VARIATION = 5.0  # weight of the total variation beside the cross entropy

Losses = dict[str, Tensor]


class Drafters(nn.Module):
    """The three nets; the small model starts from the target's embeddings, head, first and last layer."""

    def __init__(self, target: LlamaGen):
        super().__init__()
        self.eagle = Eagle(replace(target.cfg, first_norm=False, hidden=WIDER * target.cfg.hidden))
        self.medusa = Medusa(target.cfg.dim, HEADS)
        self.model = LlamaGen(replace(SMALL, dim=target.cfg.dim))
        for name in ("tok_embeddings", "output", "cls_embedding", "norm"):
            self.model.get_submodule(name).load_state_dict(target.get_submodule(name).state_dict())
        for mine, theirs in ((0, 0), (1, -1)):
            self.model.layers[mine].load_state_dict(target.layers[theirs].state_dict())


def divergence(drafted: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy plus VARIATION · TV, and the acceptance rate 1 − TV: logits and probabilities [..., V]."""
    log_p = drafted.log_softmax(-1)
    cross = -(wanted * log_p).sum(-1).mean()
    accepted = torch.minimum(log_p.exp(), wanted).sum(-1).mean()
    return cross + VARIATION * (1 - accepted), accepted.detach()


class History:
    """Keys and values of one layer over successive calls, in place of a cache: differentiable."""

    def __init__(self) -> None:
        self.kv: list[Tensor] = []

    def __getitem__(self, layer: int) -> History:
        return self

    def put(self, kv: Tensor) -> Tensor:
        self.kv.append(kv)
        return torch.cat(self.kv, 2)


class Batches:
    """What a step learns from, drawn from the rollouts by (salt, step)."""

    def __init__(self, target: Target, rollouts: Rollouts):
        self.target, self.rollouts = target, rollouts
        self.warp = Warp(1.0, target.top_k)
        self.prefix = rollouts.hidden.shape[2] - target.length + 1  # P

    def __call__(self, step: int, salt: int) -> tuple[np.random.Generator, Tensor, Tensor, Tensor, Tensor]:
        """A generator, which images [B], tokens [B, L], hidden [2B, P + L − 1, dim], wanted [B, L − 1, V]."""
        rng = np.random.default_rng([salt, step])
        picked = torch.from_numpy(rng.integers(len(self.rollouts.tokens), size=BATCH))
        hidden = self.rollouts.hidden[picked].float().transpose(0, 1).flatten(0, 1)
        with torch.no_grad():
            wanted = self.warp(self.logits(hidden[:, self.prefix :]))
        return rng, picked, self.rollouts.tokens[picked].long(), hidden, wanted

    def logits(self, hidden: Tensor) -> Tensor:
        return guide(self.target.model.output(hidden), self.target.guidance)


def levels(net: Eagle, embedding: Tensor, features: Tensor, rope: Tensor, at: Tensor) -> list[Tensor]:
    """What EAGLE drafts: level 1 at all n positions from the target's ``features``, deeper ones in the branches ``at``.

    embedding, features [R, n, dim]; rope [n, 1, d/2]; at [m] -> [R, n, dim], then [R, m, dim] at ``at``, at + 1 …
    Level d reads level d − 1's feature; it attends, as in decoding, to level 1's keys before the branch and to its own
    branch's keys since.
    """
    n, history = embedding.shape[1], History()
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    found = [net(net.fuse(embedding, features), rope[None], causal, history)]  # type: ignore[arg-type]
    earlier, own = torch.arange(n) < at[:, None], torch.eye(len(at), dtype=torch.bool)
    feature = found[0][:, at - 1]
    for level in range(1, DEPTHS):
        here = at + level - 1
        visible = torch.cat([earlier, *[own] * level], 1)
        feature = net(net.fuse(embedding[:, here], feature), rope[None, here], visible, history)  # type: ignore[arg-type]
        found.append(feature)
    return found


def eagle_losses(net: Eagle, batches: Batches, step: int) -> Losses:
    """Cross entropy and total variation at every level; level 1 also learns the target's hidden states."""
    rng, _, tokens, hidden, wanted = batches(step, 13)
    words, p = batches.target.model.tok_embeddings, batches.prefix
    embedding = torch.cat(
        [blank(words.weight, hidden[:, :p]), words(tokens[:, :-1]).repeat(2, 1, 1)], 1
    )  # of the tokens after positions 0 …
    n = embedding.shape[1]
    at = torch.from_numpy(rng.choice(n - p - DEPTHS + 2, DEEPER, replace=False) + p)
    rope = cast(LlamaGen, batches.target.model).rope[1 : n + 1, None]
    first, *deeper = levels(net, embedding, hidden[:, :n], rope, at)
    drafted = first[:, p - 1 :]
    loss, accepted = divergence(batches.logits(drafted), wanted)
    loss = loss + 0.1 * F.smooth_l1_loss(drafted, hidden[:, p:])
    losses = {"accept-1": accepted}
    for level, feature in enumerate(deeper, start=1):
        more, accepted = divergence(batches.logits(feature), wanted[:, at + level - p])
        loss = loss + 0.7**level * more
        losses[f"accept-{level + 1}"] = accepted
    return {"loss": loss, **losses}


def medusa_losses(net: Medusa, batches: Batches, step: int) -> Losses:
    """Head d at the hidden state before token t against the target's distribution of token t + d + 1."""
    rng, _, _, hidden, wanted = batches(step, 14)
    at = torch.from_numpy(rng.choice(wanted.shape[1] - HEADS, DEEPER, replace=False))
    logits = batches.logits(net(hidden[:, batches.prefix - 1 + at]))
    found = [divergence(logits[:, :, d], wanted[:, at + d]) for d in range(HEADS)]
    return {"loss": torch.stack([loss for loss, _ in found]).sum(), "accept-1": found[0][1]}


def model_losses(net: LlamaGen, batches: Batches, step: int) -> Losses:
    """The small model reads captions and tokens as the target does."""
    _, picked, tokens, _, wanted = batches(step, 15)
    captions = [batches.rollouts.captions[i] for i in picked.tolist()]
    prefix = batches.target.prefix(captions, batches.target.guidance)
    hidden = net.teacher_forced(net.cls_embedding(prefix.features), prefix.valid, tokens.repeat(2, 1))
    loss, accepted = divergence(guide(net.output(hidden[:, 1:]), batches.target.guidance), wanted)
    return {"loss": loss, "accept-1": accepted}


_LOSSES: dict[str, Callable[..., Losses]] = {"eagle": eagle_losses, "medusa": medusa_losses, "model": model_losses}


def train(
    folder: Path,
    target: Target,
    rollouts: Rollouts,
    steps: dict[str, int],
    log: Callable[[str], None] = print,
    start: Drafters | None = None,
) -> Drafters:
    """The drafters named in ``steps``, one after the other; the others stay as they start.

    ``start``: those of an earlier target, to go on from.
    """
    torch.manual_seed(3)
    drafters = Drafters(cast(LlamaGen, target.model))
    if start is not None:
        drafters.load_state_dict(start.state_dict())
    batches = Batches(target, rollouts)
    for kind, count in steps.items():
        net = drafters.get_submodule(kind)
        optims = loop.optimizers(net, 1e-3, 0.006)

        def step_fn(step: int, net: nn.Module = net, losses: Callable[..., Losses] = _LOSSES[kind]) -> Losses:
            return losses(net, batches, step)

        loop.fit(kind, net, optims, step_fn, count, folder, warmup=50, decay=1.0, log=log)
    return drafters
