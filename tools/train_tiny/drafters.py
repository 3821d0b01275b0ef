"""Train the embedded target's drafters, EAGLE, Medusa heads and a small model, each on the
target's own samples.

All learn the distribution that they will be verified against: guided and cut to the top k.  The
loss is its cross entropy and, for the acceptance rate Σ min(p, q) itself, the total variation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from lanternbench.engine.sampling import Warp
from lanternbench.models.drafters.dflash import Medusa
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.llamagen.checkpoint import LlamaGen
from lanternbench.models.target import Target
from lanternbench.settings import Sampling
from lanternbench.training import loop, losses
from lanternbench.training.losses import DEEPER, Losses, divergence
from tools.train_tiny.rollouts import Rollouts
from tools.train_tiny.target import CONFIG

SMALL = replace(CONFIG, n_layer=2)
HEADS = 4
BATCH = 6
# EAGLE's MLP, in the target's: at this size a layer's operations cost time, its width hardly any
WIDER = 2


class Drafters(nn.Module):
    """The four nets; the small model starts from the target's embeddings, head, first and last
    layer.
    """

    def __init__(self, target: LlamaGen):
        super().__init__()
        shape = target.config.decoder
        self.eagle = Eagle(replace(shape, first_norm=False, hidden=WIDER * shape.hidden))
        self.eagle3 = self.eagle.fused()
        self.medusa = Medusa(shape.dim, HEADS)
        self.model = LlamaGen(replace(SMALL, dim=shape.dim))
        for name in ("tok_embeddings", "output", "cls_embedding", "norm"):
            self.model.get_submodule(name).load_state_dict(target.get_submodule(name).state_dict())
        for mine, theirs in ((0, 0), (1, -1)):
            self.model.layers[mine].load_state_dict(target.layers[theirs].state_dict())


class Batches:
    """What a step learns from, drawn from the rollouts by (salt, step)."""

    def __init__(self, target: Target, rollouts: Rollouts):
        self.target, self.rollouts = target, rollouts
        self.warp = Warp(Sampling(top_k=target.sampling.top_k))
        self.prefix = rollouts.hidden.shape[2] - target.length + 1  # P

    def __call__(
        self, step: int, salt: int
    ) -> tuple[np.random.Generator, Tensor, Tensor, Tensor, Tensor]:
        """A generator, which images [B], tokens [B, L], target's states [2B, P + L − 1, …], wanted
        [B, L − 1, V].
        """
        rng = np.random.default_rng([salt, step])
        picked = torch.from_numpy(rng.integers(len(self.rollouts.tokens), size=BATCH))
        hidden = self.rollouts.hidden[picked].float().transpose(0, 1).flatten(0, 1)
        with torch.no_grad():
            wanted = self.warp(self.logits(self.last(hidden)[:, self.prefix :]))
        return rng, picked, self.rollouts.tokens[picked].long(), hidden, wanted

    def last(self, states: Tensor) -> Tensor:
        """States [R, n, (1 + aux) · dim] -> those after the final norm [R, n, dim]."""
        return states[..., : self.target.model.config.dim]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.target.model.logits(hidden, self.target.guidance)


def eagle_losses(net: Eagle, batches: Batches, step: int) -> Losses:
    """What ``losses.losses`` says, of stored states."""
    rng, _, tokens, states, wanted = batches(step, 13)
    if net.kind == "eagle":
        states = batches.last(states)
    ahead = torch.zeros(len(states), batches.prefix - 1, dtype=torch.long)
    fed = losses.feed(batches.target, net, ahead, None, tokens, states)
    return losses.losses(net, fed, rng, batches.logits, wanted)


def medusa_losses(net: Medusa, batches: Batches, step: int) -> Losses:
    """Head d at the hidden state before token t against the target's distribution of token t + d +
    1.
    """
    rng, _, _, states, wanted = batches(step, 14)
    at = torch.from_numpy(rng.choice(wanted.shape[1] - HEADS, DEEPER, replace=False))
    logits = batches.logits(net(batches.last(states)[:, batches.prefix - 1 + at]))
    found = [divergence(logits[:, :, d], wanted[:, at + d]) for d in range(HEADS)]
    return {"loss": torch.stack([loss for loss, _ in found]).sum(), "accept-1": found[0][1]}


def model_losses(net: LlamaGen, batches: Batches, step: int) -> Losses:
    """The small model reads captions and tokens as the target does."""
    _, picked, tokens, _, wanted = batches(step, 15)
    captions = [batches.rollouts.captions[i] for i in picked.tolist()]
    prefix = batches.target.prefix(captions, batches.target.guidance)
    hidden = net.teacher_forced(
        net.cls_embedding(prefix.features), prefix.valid, tokens.repeat(2, 1)
    )
    loss, accepted = divergence(net.logits(hidden[:, 1:], batches.target.guidance), wanted)
    return {"loss": loss, "accept-1": accepted}


LOSSES: dict[str, Callable[..., Losses]] = {
    "eagle": eagle_losses, "eagle3": eagle_losses, "medusa": medusa_losses, "model": model_losses,
}  # fmt: skip
# AdamW's, where it is not 1e-3: EAGLE-3 starts from what EAGLE has learnt
RATES = {"eagle3": 2e-4}


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
        if kind == "eagle3":
            drafters.eagle3 = drafters.eagle.fused()
        net, lr = drafters.get_submodule(kind), RATES.get(kind, 1e-3)
        optims = loop.optimizers(net, lr, 6 * lr)

        def step_fn(
            step: int, net: nn.Module = net, losses: Callable[..., Losses] = LOSSES[kind]
        ) -> Losses:
            return losses(net, batches, step)

        loop.fit(kind, net, optims, step_fn, count, folder, plan=loop.Plan(50, 1.0), log=log)
    return drafters
