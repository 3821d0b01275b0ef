"""Images that the embedded target draws itself, with its hidden states: what its drafters learn
from.

Drafters are asked about sampled images, and those are not quite real scenes: an EAGLE drafter that
learnt from scenes alone accepts 0.57 of its first tokens on scenes, 0.53 on samples.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lanternbench.engine import decode as engine
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.target import Target
from lanternbench.models.tiny.checkpoint import words_read
from lanternbench.training import loop
from lanternbench.training.losses import target_states
from tools.train_tiny.target import caption

SEED = 777  # of the captions; those of the training scenes and of the evaluations are others
SHARD, BATCH = 640, 64  # images a file, images decoded together


class Rollouts(NamedTuple):
    """n images: their captions, tokens and the target's hidden states, conditional row first."""

    captions: list[str]
    tokens: Tensor  # int16 [n, L]
    hidden: Tensor  # float16 [n, 2, P + L − 1, (1 + aux) · dim], those after the final norm first


def sample(
    folder: Path,
    target: Target,
    count: int,
    log: Callable[[str], None] = print,
    aux_layers: tuple[int, ...] = (),
) -> Rollouts:
    """``count`` images at the target's default settings, kept in ``folder`` shard by shard.

    ``aux_layers``: after how many layers states are wanted beside the last ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards = []
    for start in range(0, count, SHARD):
        path = folder / f"rollouts-{start // SHARD:02d}.pt"
        if not path.exists():
            loop.save_atomically(
                tuple(_shard(target, start, min(SHARD, count - start), aux_layers)), path
            )
            log(f"rollouts {min(start + SHARD, count)}/{count}")
        shards.append(Rollouts(*loop.load_saved(path)))
    captions, tokens, hidden = zip(*shards, strict=True)
    return Rollouts([c for part in captions for c in part], torch.cat(tokens), torch.cat(hidden))


def _shard(target: Target, start: int, count: int, aux_layers: tuple[int, ...]) -> Rollouts:
    rng = np.random.default_rng([SEED, start])
    captions = [caption(i, rng, SEED) for i in range(start, start + count)]
    captions.sort(key=lambda c: len(words_read(c)))  # batches of about one length
    decoder = build(target, method("ar"))
    tokens, hidden = [], []
    for i in range(0, count, BATCH):
        batch = captions[i : i + BATCH]
        made = engine.generate(
            decoder, batch, keys=[f"{start + i + j}" for j in range(len(batch))], seed=SEED
        )
        tokens.append(torch.stack([g.tokens for g in made]))
        states = target_states(
            target, target.prefix(batch, target.guidance), tokens[-1], aux_layers
        )
        hidden.append(states.unflatten(0, (2, -1)).transpose(0, 1).half())
    return Rollouts(captions, torch.cat(tokens).short(), torch.cat(hidden))
