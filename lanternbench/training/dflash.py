"""Losses of a DFlash drafter: blocks after random anchors, all packed behind the context of a whole image.

Source: DFlash (arXiv 2602.06036), section on training; what it learns is the target's distribution q, not its sample.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.address import raster
from lanternbench.models.drafters.dflash import DFlash
from lanternbench.models.target import Prefix, Target
from lanternbench.training.eagle import DEEPER, VARIATION, Logits, Losses, distances, target_states


class Feed(NamedTuple):
    """What a DFlash drafter reads of images of L tokens: one entry per prefix position but the last, then per token."""

    context: Tensor  # [R, P − 1 + L, (1 + depths) · dim] the target's states; a token's are those that predict it
    anchors: Tensor  # [R, L, dim] the target's embeddings of the tokens
    rope: Tensor  # [P − 1 + L + L + B, 1, d/2] of the context, and of tokens 0 … L + B − 1
    seen: Tensor | None  # [R, P − 1] bool: which prefix entries may be attended to; None: all


def read(target: Target, net: DFlash, prefix: Prefix, tokens: Tensor) -> tuple[Feed, Tensor]:
    """What the drafter reads of images, and the target's last states that predict tokens 1 … L − 1 [R, L − 1, dim]."""
    states = target_states(target, prefix, tokens, net.depths)
    device, length, width = tokens.device, tokens.shape[1], target.row_width
    end = target.image_slots + net.block * (1 + bool(width))
    before = states.shape[1] + 1 - target.image_slots + bool(width)  # P
    slots = raster(length, width, before, 0, before + end, device).slot_of[1 : length + net.block + 1]
    places = torch.cat([torch.arange(before - 1, device=device), slots[:length] - 1])
    rope, anchors = target.model.rope, target.model.tok_embeddings(tokens).repeat(len(states) // len(tokens), 1, 1)
    rope = rope[torch.cat([places, slots]).clamp(max=len(rope) - 1), None]
    seen = None if prefix.seen.all() else prefix.seen
    fed = Feed(states[:, places].float(), anchors.float(), rope, seen)
    return fed, fed.context[:, 1 - tokens.shape[1] :, : target.model.config.dim].to(target.dtype)


def first(net: DFlash, fed: Feed) -> Tensor:
    """The states [R, L − 1, dim] of what decoding drafts first for tokens 1 … L − 1."""
    anchors = torch.arange(fed.anchors.shape[1] - 1, device=fed.anchors.device)
    return torch.cat([drafts(net, fed, at)[:, :, 0] for at in anchors.split(DEEPER)], 1)


def drafts(net: DFlash, fed: Feed, at: Tensor) -> Tensor:
    """The states [R, m, B − 1, dim] that draft the tokens after the anchors ``at`` [m].

    A block attends to the context before its anchor and to itself, as in decoding.
    """
    n, m, b, length = fed.context.shape[1], len(at), net.block, fed.anchors.shape[1]
    x = torch.cat([net.read(fed.context), net.blocks(fed.anchors[:, at]).flatten(1, 2)], 1)
    inside = torch.ones(b, b, device=at.device)
    itself = torch.kron(torch.eye(m, device=at.device), inside.tril() if net.causal else inside).bool()
    before = torch.arange(n, device=at.device) - (n - length) <= at[:, None]  # [m, n]
    mask = torch.cat([before.repeat_interleave(b, 0), itself], -1)[None, None]
    if fed.seen is not None:
        mask = mask & F.pad(fed.seen, (0, mask.shape[-1] - fed.seen.shape[1]), value=True)[:, None, None]
    tokens = (n + at[:, None] + torch.arange(b, device=at.device)).flatten()
    rope = torch.cat([fed.rope[:n], fed.rope[tokens]])
    return net(x, rope[None], mask, None, False, m * b).unflatten(1, (m, b))[:, :, 1:]


def losses(net: DFlash, fed: Feed, rng: np.random.Generator, logits: Logits, wanted: Tensor) -> Losses:
    """Cross entropy to q and total variation at every slot k, weighted exp(−(k − 1)/γ), γ = B/2.

    ``wanted`` [B, L − 1, V]: q of tokens 1 … L − 1.
    """
    count, device = wanted.shape[1], wanted.device
    at = torch.from_numpy(rng.choice(count, min(DEEPER, count), replace=False)).to(device)
    slot = torch.arange(net.block - 1, device=device)  # k − 1
    token = at[:, None] + slot  # less 1: of ``wanted``
    weight = torch.where(token < count, torch.exp(-2 * slot / net.block), 0.0)
    pairs = distances(logits(drafts(net, fed, at)), wanted[:, token.clamp(max=count - 1)])
    cross, accepted = (x.mean(0) for x in pairs)  # [m, B − 1]
    loss = (weight * (cross + VARIATION * (1 - accepted))).sum() / weight.sum()
    rates = ((weight > 0) * accepted.detach()).sum(0) / (weight > 0).sum(0)
    return {"loss": loss} | {f"accept-{k + 1}": rate for k, rate in enumerate(rates)}
