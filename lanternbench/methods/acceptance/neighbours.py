"""Which image tokens look alike: the codebook's nearest neighbours (proximity)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def nearest(codebook: Tensor, k: int, proximity: str = "l2", seed: int = 0) -> Tensor:
    """[V, k] nearest tokens of each token, itself first, by ``l2`` or ``cosine`` distance, or ``random``.

    Rows that coincide are 0 apart and rank by token id, after the token itself.  Built in blocks on the codebook's
    device; k is cut to V.
    """
    size = len(codebook)
    k = min(k, size)
    table = torch.empty(size, k, dtype=torch.long, device=codebook.device)
    rows = F.normalize(codebook.float(), dim=-1) if proximity == "cosine" else codebook.float()
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, size, 1024):
        block = torch.arange(start, min(start + 1024, size), device=codebook.device)
        if proximity == "random":
            distance = torch.rand(len(block), size, generator=generator).to(codebook.device)
        else:
            distance = torch.cdist(rows[block], rows, compute_mode="donot_use_mm_for_euclid_dist")
        distance[torch.arange(len(block), device=codebook.device), block] = -1.0
        table[block] = distance.sort(dim=-1, stable=True).indices[:, :k]
    return table


def plain_nearest(codebook: list[list[float]], k: int, proximity: str = "l2") -> list[list[int]]:
    """The same in scalar Python: B_k(x) of every token x (LANTERN, eq. 3)."""
    distance = math.dist if proximity == "l2" else _cosine_distance
    far = [[distance(a, b) for b in codebook] for a in codebook]
    return [sorted(range(len(row)), key=lambda y: (y != x, row[y], y))[:k] for x, row in enumerate(far)]


def _cosine_distance(a: list[float], b: list[float]) -> float:
    return 1 - math.fsum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))
