"""What published targets have in common: a folder per role, a dtype per device, and random weights at full size.

Each family has a module of its own (``published_llamagen``, ``published_chameleon``) with ``NEEDS`` (roles without
which nothing can be decoded), ``load`` and ``random_target``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.loading import empty_parameters, placed

Net = TypeVar("Net", bound=nn.Module)
UNFINISHED = ".incomplete"  # lies in a role's folder while it is being fetched


def present(folder: Path, role: str) -> bool:
    """Is a role's folder there with weights, and no download of it unfinished?"""
    here = folder / role
    weights = [p for pattern in ("*.pt", "*.pth", "*.bin", "*.safetensors", "*.ckpt") for p in here.rglob(pattern)]
    return bool(weights) and not (here / UNFINISHED).exists()


def dtype_for(device: str) -> torch.dtype:
    """bfloat16 on a GPU, as the papers run; float32 on a CPU."""
    return torch.float32 if device == "cpu" else torch.bfloat16


def dtype_named(name: str) -> torch.dtype:
    """The dtype of a name.  Raises UserError for any but float32 and bfloat16."""
    if name not in ("float32", "bfloat16"):
        raise UserError(f"unknown dtype '{name}': use float32 or bfloat16")
    return getattr(torch, name)


def random_net(make: Callable[[], Net], device: str, dtype: torch.dtype) -> Net:
    """A module filled in place, on its device: nothing is held twice."""
    with empty_parameters():
        net = make()
    generator = torch.Generator(device).manual_seed(0)

    def drawn(name: str, empty: Tensor) -> Tensor:
        value = torch.empty(empty.shape, device=device, dtype=dtype)
        if "norm" in name:
            return value.fill_(float(name.rpartition(".")[2] == "weight"))
        return value.normal_(std=0.02, generator=generator)

    return placed(net, drawn, lambda name, buffer: buffer.to(device))
