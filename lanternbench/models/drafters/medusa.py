"""Medusa heads (Cai et al. 2024): a residual block per future token, in front of the target's output head."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.models.drafters.eagle import wrong_width


class Medusa(nn.Module):
    """h + SiLU(W_d h + b_d) for every head d."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, dim, dim))
        self.bias = nn.Parameter(torch.zeros(heads, dim))

    @property
    def heads(self) -> int:
        return len(self.weight)

    @property
    def about(self) -> str:
        return f"Medusa, {self.heads} heads"

    def misfit(self, target: Any) -> str | None:
        """Why it cannot draft for ``target``; None where it can."""
        return wrong_width(self.weight.shape[-1], target)

    def forward(self, hidden: Tensor) -> Tensor:
        """The target's last hidden states [..., dim] -> what each head hands to the output head [..., heads, dim]."""
        return hidden[..., None, :] + F.silu(torch.einsum("...d,hed->...he", hidden, self.weight) + self.bias)
