"""Which device and how many threads."""

from __future__ import annotations

from lanternbench.errors import UserError


def choose(device: str, threads: int | None = None) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` -> a device torch can use.  Raises UserError if it cannot."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    kind, _, index = device.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise UserError(f"unknown device '{device}': use auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise UserError(f"device '{device}' was asked for but torch sees no GPU here: use --device cpu")
    if index and int(index) >= torch.cuda.device_count():
        raise UserError(f"there is no {device}: torch sees {torch.cuda.device_count()} GPU(s), counted from 0")
    return device
