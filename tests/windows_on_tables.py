"""The engine's enumerated output beside the plain definition's, on the same random tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lanternbench.lossless.exact import output_distribution
from lanternbench.lossless.tables import Tables
from lanternbench.methods.method import method


@torch.inference_mode()
def enumerated(tables: Tables, name: str, **options: Any) -> Tensor:
    return output_distribution(tables, method(name, **options))[0]


def tv(a: Tensor, b: Tensor) -> float:
    return 0.5 * float((a - b).abs().sum())
