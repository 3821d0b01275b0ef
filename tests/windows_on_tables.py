"""Shared by tests that hold the engine against plain definitions on the same random tables."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lanternbench.lossless.exact import TableDecoder, enumerate_decodes
from lanternbench.lossless.tables import Tables
from lanternbench.methods.method import Method, method


def output_distribution(tables: Tables, method: Method) -> tuple[Tensor, float]:
    """P(image) of what the engine generates on tables [V ** L], and Theorem 2's bound on its TV
    from the target.
    """
    images, loss = enumerate_decodes(TableDecoder(tables, method))
    return images.sum(0), loss


@torch.inference_mode()
def enumerate_images(tables: Tables, name: str, **options: Any) -> Tensor:
    return output_distribution(tables, method(name, **options))[0]


def tv(a: Tensor, b: Tensor) -> float:
    return 0.5 * float((a - b).abs().sum())


def gumbel_token(p: list[float], g: list[float]) -> int:
    """Gumbel coupling (SCD): argmax(log p + g), g one standard Gumbel per token, the same for a
    position's every draw.

    With g independent over positions a draw has the law p, and so has the image the target's: the
    output distribution is ``World.joint``.
    """
    return max((x for x in range(len(p)) if p[x] > 0), key=lambda x: math.log(p[x]) + g[x])
