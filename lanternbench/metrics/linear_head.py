"""The head of ImageReward and of LAION's aesthetic predictor."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def linear_head(width: int) -> nn.Sequential:
    """[B, width] -> [B, 1]: five linear layers.

    There is no activation between them; identities stand where training had dropout, so that the published keys fit.
    """
    sizes = (width, 1024, 128, 64, 16, 1)
    layers: list[nn.Module] = []
    for i, (into, out) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(into, out)] + ([nn.Identity()] if i < 3 else [])
    return nn.Sequential(*layers)
