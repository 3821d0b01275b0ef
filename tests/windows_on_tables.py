"""The engine's enumerated output beside the plain definition's, on the same random tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lanternbench.lossless.exact import output_distribution
from lanternbench.lossless.plain.world import Prefix, World
from lanternbench.lossless.tables import Tables
from lanternbench.methods.method import method


def world(tables: Tables) -> World:
    """The same tables, read by prefix."""

    def logits(rows: Tensor) -> Callable[[Prefix], list[float]]:
        def after(prefix: Prefix) -> list[float]:
            code = 0
            for x in prefix:
                code = code * tables.vocab + x
            return rows[tables.rows(torch.tensor(code), torch.tensor(len(prefix)))].log().tolist()

        return after

    codes = tables.codebook.double().tolist()
    return World(tables.vocab, tables.length, logits(tables.q), logits(tables.p), codebook=codes)


def on_all_images(tables: Tables, made: dict[Prefix, float]) -> Tensor:
    """[V ** L], images read as numbers in base V."""
    out = torch.zeros(tables.vocab**tables.length, dtype=torch.float64)
    for image, probability in made.items():
        out[sum(x * tables.vocab**i for i, x in enumerate(reversed(image)))] = probability
    return out


@torch.inference_mode()
def enumerated(tables: Tables, name: str, **options: Any) -> Tensor:
    return output_distribution(tables, method(name, **options))[0]


def tv(a: Tensor, b: Tensor) -> float:
    return 0.5 * float((a - b).abs().sum())
