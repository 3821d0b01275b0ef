"""Muon in float32, matrices of one shape orthogonalised together: torch's own works in bfloat16, slow on most CPUs.

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
"""

from collections import defaultdict

import torch
from torch import Tensor


def orthogonalise(g: Tensor) -> Tensor:
    """Five quintic Newton–Schulz steps: g [n, a, b] -> nearly its polar factors, singular values in about 0.7 … 1.2."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    shapes[p.shape].append(p)
            for shape, params in shapes.items():
                updates = []
                for p in params:
                    speed = self.state[p].setdefault("speed", torch.zeros_like(p))
                    speed.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(speed, group["momentum"]))  # Nesterov
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                for p, update in zip(params, orthogonalise(torch.stack(updates)), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)
