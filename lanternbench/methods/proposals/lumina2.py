"""SJD as Lumina-mGPT 2.0's public code has it (Alpha-VLLM/Lumina-mGPT-2.0, ``sjds.py``), which is
not exact.

Its target's distribution is cut by top-nσ.  A rejected draft is redrawn from that distribution, not
from a residual, after the same filters have been applied to it once more.
"""

import torch
from torch import Tensor

from lanternbench.engine.relaxed import Residual, TokenTest
from lanternbench.engine.sampling import Warp, kth_largest


def top_n_sigma(logits: Tensor) -> Tensor:
    """Exclude logits [..., V] of more than σ below the largest, −∞ ones left out.

    σ is their root mean square: the public code subtracts a mean of 0 as soon as one is −∞.
    """
    finite = logits.isfinite()
    squares = torch.where(finite, logits, 0.0).square().sum(-1, keepdim=True)
    sigma = (squares / finite.sum(-1, keepdim=True)).sqrt()
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) - sigma, -torch.inf)


class PublicWarp(Warp):
    """Top-k and top-nσ, then temperature."""

    def __call__(self, logits: Tensor) -> Tensor:
        x = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        if 0 < self.sampling.top_k < x.shape[-1]:
            x = x.masked_fill(x < kth_largest(x, self.sampling.top_k), -torch.inf)
        return super().__call__(top_n_sigma(x))

    def redraw(self) -> Residual:
        """Return what a rejected draft is drawn from."""

        def processed_twice(
            q: Tensor, p: Tensor | None, x: Tensor, depth: Tensor, rule: TokenTest
        ) -> Tensor:
            return self(q.log())

        return Residual(processed_twice, of_token=False)
