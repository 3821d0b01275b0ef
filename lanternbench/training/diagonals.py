"""Training of FlashAR's vertical branch and gates on a frozen target, with the published losses.

Source: the first stage of FlashAR (arXiv 2605.09430) and of its public code.  The target's samples
are drawn with guidance, so the losses are those of guided logits.
"""

from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.opening import predicting_states
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.drafters.flashar import FlashAR
from lanternbench.models.grids import Grid, size
from lanternbench.models.target import Prefix, Target
from lanternbench.models.transformer import guide
from lanternbench.training.losses import Logits, Losses

MaskName = Literal["published", "raster", "both"]
VERTICAL = 0.05  # weight of the vertical head's own cross entropy
DISTILLED = 0.2  # weight of the distance from what the target says in raster order
TEMPERATURE = 2.0  # of that distance


class DiagonalFeed(NamedTuple):
    """The states of images of L tokens under one mask; R rows, conditional ones first."""

    target: Target
    tokens: Tensor  # [B, L]
    final: Tensor  # [R, 1 + L, dim] of the prompt's last position, and of each token
    inner: Tensor  # the same after ``start`` layers
    rope: Tensor  # [L, 1, d/2]
    seen: Tensor  # [L, L] bool: the tokens that each one sees
    teacher: Tensor  # [B, L, V] guided logits in raster order


class Predictions(NamedTuple):
    """Guided logits [B, L, V] of every token, where the part has any."""

    mixed: Tensor
    horizontal: Tensor  # of tokens that are not in the first column
    vertical: Tensor  # of tokens that are not in the first row
    gate: Tensor  # [R, L, 1]


def visible(grid: Grid, causal: bool, device: torch.device) -> Tensor:
    """Return the image tokens that each of them sees, as in decoding: bool [L, L]."""
    index = torch.arange(size(grid), device=device)
    row = index // grid[1]
    number = row + index % grid[1]
    seen = number <= number[:, None]
    if causal:
        seen = seen & (row <= row[:, None])
    return seen


@torch.no_grad()
def read(
    target: Target, net: FlashAR, prefix: Prefix, tokens: Tensor, causal: bool = False
) -> tuple[DiagonalFeed, Tensor]:
    """Return what the branch reads of images, and the target's last states that predict tokens 1
    … L − 1 [R, L − 1, dim].
    """
    model = target.model
    valid = prefix.valid
    prompt = valid.shape[1]
    rows = tokens.repeat(len(valid) // len(tokens), 1)
    x = torch.cat([prefix.embeddings, model.tok_embeddings(rows)], 1)
    n = x.shape[1]
    seen = visible(target.grid, causal, tokens.device)
    mask = prefix_mask(valid, n, target.pad_rows).clone()
    mask[..., prompt:, prompt:] = seen
    rope = model.position_table(prompt)[:n, None]
    states = model(x, rope[None], mask, None, False, net.aux_layers(model))
    final, inner = states[:, prompt - 1 :].split(model.config.dim, -1)
    predicting = predicting_states(target, prefix.embeddings, valid, rows)
    teacher = model.logits(predicting, target.guidance)
    fed = DiagonalFeed(
        target=target,
        tokens=tokens,
        final=final.float(),
        inner=inner.float(),
        rope=rope[prompt:],
        seen=seen,
        teacher=teacher.float(),
    )
    return fed, predicting[:, 1:]


def predictions(net: FlashAR, fed: DiagonalFeed) -> Predictions:
    """Return what the branch and the target's head predict of every token."""
    target = fed.target
    model = target.model
    height, width = target.grid
    below = net(fed.inner[:, 1:], fed.rope[None], fed.seen[None, None])
    index = torch.arange(height * width, device=below.device)
    in_first = (index < width, index % width == 0)
    left = fed.final[:, :-1]
    place_above = (index - width).clamp(min=0)
    above = below[:, place_above]
    corner = net.corner(model, fed.final[:, :1], fed.inner[:, :1])
    mixed = net.mixed(model, left, above, in_first)
    with_corner = torch.cat([corner, mixed[:, 1:]], 1)
    guided = partial(guide, scale=target.guidance)
    return Predictions(
        mixed=guided(with_corner.float()),
        horizontal=model.logits(left, target.guidance).float(),
        vertical=guided(net.vertical_head(above)),
        gate=net.gate(left, above),
    )


def first(net: FlashAR, fed: DiagonalFeed, logits: Logits) -> Tensor:
    """Return the guided logits [B, L − 1, V] from which tokens 1 … L − 1 are drawn."""
    return predictions(net, fed).mixed[:, 1:]


def losses(
    net: FlashAR, fed: DiagonalFeed, rng: np.random.Generator, logits: Logits, wanted: Tensor
) -> Losses:
    """Return the sum of three losses, its parts, and the share of distributions that agrees with
    ``wanted``, q of tokens 1 … L − 1 [B, L − 1, V].
    """
    width = fed.target.grid[1]
    predicted = predictions(net, fed)
    tokens = fed.tokens
    mixed = F.cross_entropy(predicted.mixed.flatten(0, 1), tokens.flatten())
    found = {"loss": mixed}
    if len(tokens[0]) > width:
        below = predicted.vertical[:, width:].flatten(0, 1)
        in_raster_order = fed.teacher[:, width:].flatten(0, 1)
        vertical = F.cross_entropy(below, tokens[:, width:].flatten())
        student = (below / TEMPERATURE).log_softmax(-1)
        teacher = (in_raster_order / TEMPERATURE).log_softmax(-1)
        distance = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
        distilled = TEMPERATURE**2 * distance
        found["loss"] = mixed + VERTICAL * vertical + DISTILLED * distilled
        found |= {"vertical": vertical.detach(), "distilled": distilled.detach()}
    p = predicted.mixed[:, 1:].softmax(-1)
    agreed = torch.minimum(p, wanted).sum(-1).mean()
    return found | {"mixed": mixed.detach(), "accept-1": agreed.detach()}
