"""What published targets have in common: a folder per role, a dtype per device, and random weights at full size.

Each family has a module of its own (``published_llamagen``, ``published_chameleon``) with ``NEEDS`` (roles without
which nothing can be decoded), ``load`` and ``random_target``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from lanternbench.models.checkpoints import empty_parameters

Net = TypeVar("Net", bound=nn.Module)


def present(folder: Path, role: str) -> bool:
    """Is a role's folder there with weights, and no download of it unfinished?"""
    here = folder / role
    weights = [p for pattern in ("*.pt", "*.bin", "*.safetensors", "*.ckpt") for p in here.glob(pattern)]
    return bool(weights) and not (here / ".incomplete").exists()


def dtype_for(device: str) -> torch.dtype:
    """bfloat16 on a GPU, as the papers run; float32 on a CPU."""
    return torch.float32 if device == "cpu" else torch.bfloat16


def random_net(make: Callable[[], Net], device: str, dtype: torch.dtype) -> Net:
    """A module filled in place, on its device: nothing is held twice."""
    with empty_parameters():
        net = make()
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in list(net.named_parameters()):
        parent, _, leaf = name.rpartition(".")
        value = torch.empty(parameter.shape, device=device, dtype=dtype)
        if "norm" in name:
            value.fill_(float(leaf == "weight"))
        else:
            value.normal_(std=0.02, generator=generator)
        setattr(net.get_submodule(parent), leaf, nn.Parameter(value, requires_grad=False))
    for name, buffer in list(net.named_buffers()):
        parent, _, leaf = name.rpartition(".")
        setattr(net.get_submodule(parent), leaf, buffer.to(device))
    return net.eval()
