"""Temperature, top-k and top-p at the edges: a mass that is reached exactly, and logits that are equal."""

from __future__ import annotations

import torch

from lanternbench.engine.sampling import Warp
from lanternbench.lossless.plain import warp
from lanternbench.settings import Sampling


def test_top_p_ends_at_the_token_that_reaches_p():
    """Four equal logits, each with probability 1/4, of which two reach 1/2; the lower ids stay."""
    sampling = Sampling(top_p=0.5)
    expected = [0.5, 0.5, 0.0, 0.0]
    assert Warp(sampling)(torch.zeros(4)).tolist() == expected
    assert warp([0.0] * 4, sampling) == expected
