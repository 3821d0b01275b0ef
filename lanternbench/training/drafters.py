"""Train the embedded target's drafters together, on one pass of the target: EAGLE, Medusa heads, a small model.

All three learn the *guided* distribution that they will be verified against: rows with and without the caption go
through target and drafter alike, and the loss compares uncond + s·(cond − uncond) of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_upper_left

from lanternbench.decoding.sampling import guide
from lanternbench.models.eagle import Eagle
from lanternbench.models.llamagen import LlamaGen, LlamaGenConfig, prefix_mask
from lanternbench.models.medusa import Medusa
from lanternbench.training import loop
from lanternbench.training.target import CONFIG, TextToImage, caption

GUIDANCE = 3.0
SMALL = replace(CONFIG, n_layer=2)
HEADS = 4
BATCH = 6


class Drafters(nn.Module):
    def __init__(self, target: LlamaGenConfig = CONFIG):
        super().__init__()
        self.eagle = Eagle(replace(target.decoder, first_norm=False))
        self.medusa = Medusa(target.dim, HEADS)
        self.model = LlamaGen(SMALL)
        for module in self.model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)


def soft_cross_entropy(drafted: Tensor, wanted: Tensor) -> Tensor:
    """−Σ q log p, mean over positions: guided logits of drafter and target [B, N, V]."""
    return -(wanted.softmax(-1) * drafted.log_softmax(-1)).sum(-1).mean()


class _Step:
    def __init__(self, teacher: TextToImage, drafters: Drafters, grid: Tensor):
        self.teacher, self.drafters, self.grid = teacher.eval().requires_grad_(False), drafters, grid

    def __call__(self, step: int) -> dict[str, Tensor]:
        rng = np.random.default_rng([13, step])
        target = self.teacher.target
        picked = rng.integers(len(self.grid), size=BATCH)
        tokens = self.grid[picked].long()
        with torch.no_grad():
            wordings = 2 * [caption(int(i), rng) for i in picked]
            features, valid = self.teacher.features(wordings, torch.arange(2 * BATCH) >= BATCH)
            prefix, rows = target.cls_embedding(features), tokens.repeat(2, 1)
            embedded = target.tok_embeddings(rows[:, :-1])
            x = torch.cat([prefix, embedded], 1)
            mask = torch.zeros(len(x), 1, x.shape[1], x.shape[1])
            mask.masked_fill_(~prefix_mask(valid, x.shape[1]), -torch.inf)
            hidden = target(x, target.rope[None, : x.shape[1], None], mask)  # [2B, P + L − 1, dim]
            p = prefix.shape[1]
            wanted = guide(target.output(hidden[:, p:]), GUIDANCE)  # of tokens 1 … L − 1
        losses = {
            "eagle": self._eagle(hidden, embedded, wanted, p, rng),
            "medusa": self._medusa(hidden, wanted, p, rng),
            "model": self._model(features, valid, rows, wanted),
        }
        return {"loss": torch.stack(list(losses.values())).sum(), **{k: v.detach() for k, v in losses.items()}}

    def _eagle(self, hidden: Tensor, embedded: Tensor, wanted: Tensor, p: int, rng: np.random.Generator) -> Tensor:
        """True features first, then a second pass in which half of them are the drafter's own, as in deeper levels."""
        target, net = self.teacher.target, self.drafters.eagle
        blank = target.tok_embeddings(torch.zeros(len(hidden), p - 1, dtype=torch.long))
        embedding = torch.cat([blank, embedded], 1)
        n = embedding.shape[1]
        rope = target.rope[None, 1 : n + 1, None]
        features, loss = hidden[:, :n], torch.zeros(())
        for _ in range(2):
            made = net(net.fuse(embedding, features), rope, causal_upper_left(n, n))[
                :, p - 1 :
            ]  # for positions P … P + L − 2
            loss = loss + soft_cross_entropy(guide(target.output(made), GUIDANCE), wanted)
            loss = loss + 0.2 * F.smooth_l1_loss(made, hidden[:, p:])
            own = torch.from_numpy(rng.random((made.shape[0], made.shape[1] - 1, 1)) < 0.5)
            later = torch.where(own, made[:, :-1].detach(), hidden[:, p:-1])
            features = torch.cat([hidden[:, :p], later], 1)
        return loss

    def _medusa(self, hidden: Tensor, wanted: Tensor, p: int, rng: np.random.Generator) -> Tensor:
        """Head d at the hidden state of position t against the target at t + d, on a sample of positions."""
        heads = self.drafters.medusa.heads
        length = wanted.shape[1]
        at = torch.from_numpy(rng.choice(length - heads, 48, replace=False))
        logits = guide(self.teacher.target.output(self.drafters.medusa(hidden[:, p - 1 + at])), GUIDANCE)
        return sum((soft_cross_entropy(logits[:, :, d], wanted[:, at + d]) for d in range(heads)), torch.zeros(()))

    def _model(self, features: Tensor, valid: Tensor, rows: Tensor, wanted: Tensor) -> Tensor:
        net = self.drafters.model
        hidden = net.teacher_forced(net.cls_embedding(features), valid, rows)
        return soft_cross_entropy(guide(net.output(hidden[:, 1:]), GUIDANCE), wanted)


def train(
    folder: Path, teacher: TextToImage, grid: Tensor, steps: int = 1200, log: Callable[[str], None] = print
) -> Drafters:
    """All drafters of ``teacher``'s target; ``grid``: tokens of the training scenes [n, 256]."""
    torch.manual_seed(3)
    drafters = Drafters()
    with torch.no_grad():  # the small model starts from the target's embeddings, head and outer layers
        target, small = teacher.target, drafters.model
        small.tok_embeddings.load_state_dict(target.tok_embeddings.state_dict())
        small.output.load_state_dict(target.output.state_dict())
        small.cls_embedding.load_state_dict(target.cls_embedding.state_dict())
        small.norm.load_state_dict(target.norm.state_dict())
        for mine, theirs in ((0, 0), (1, -1)):
            small.layers[mine].load_state_dict(target.layers[theirs].state_dict())
    step_fn = _Step(teacher, drafters, grid)
    optims = loop.optimizers(drafters, 1e-3, 0.006)
    loop.fit("drafters", drafters, optims, step_fn, steps, folder, warmup=50, decay=1.0, log=log)
    return drafters
