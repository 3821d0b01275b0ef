"""Noise of every image position and token: a hash of seed, prompt, position and token alone.

Shared noise: with Gumbel noise g(n, v) of position n and token v, argmax_v(log q + g) has the law
q (the Gumbel-max trick).  If everything that drafts or draws at a position reads the same g, an
image depends on the noise and the target alone, whatever method draws it (drafter-invariant
speculative decoding, arXiv 2408.07978): a lossless one gives ``ar``'s very tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

BITS = 52  # of a uniform
# constants of SplitMix64 as signed 64-bit integers, whose products wrap around
POSITION_STEP = 0x9E3779B97F4A7C15 - 2**64
TOKEN_STEP = 0xD1B54A32D192ED03 - 2**64
FIRST_FACTOR = 0xBF58476D1CE4E5B9 - 2**64
SECOND_FACTOR = 0x94D049BB133111EB - 2**64
# g of keys [B], positions [B, …], p [B, …, V]
NoiseAt = Callable[[Tensor, Tensor, Tensor], Tensor]


def uniform_noise(
    key: Tensor,
    position: Tensor,
    vocab: int,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return uniforms of every token, the same in every step: int64 keys [B] of images, positions
    [B, …] -> [B, …, V].  Counters are hashed by SplitMix64.
    """
    inner_dims = [1] * (position.ndim - 1)
    of_position = _mixed(key.view(-1, *inner_dims) + position * POSITION_STEP)
    token = torch.arange(1, vocab + 1, device=key.device)
    hashed = _mixed(of_position[..., None] + token * TOKEN_STEP)
    mantissa = _shifted(hashed, 64 - BITS)
    # in float32 small values keep their precision
    uniforms: Tensor = (mantissa.to(dtype) + 0.5) / 2**BITS
    return uniforms


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Return z >> bits, which fills up with zeros as a shift of an unsigned integer does."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(z: Tensor) -> Tensor:
    """Return SplitMix64's finaliser of z."""
    z = (z ^ _shifted(z, 30)) * FIRST_FACTOR
    z = (z ^ _shifted(z, 27)) * SECOND_FACTOR
    return z ^ _shifted(z, 31)


def gumbel_noise(key: Tensor, position: Tensor, p: Tensor) -> Tensor:
    """Return g of the shape and type of p [B, …, V]; see ``uniform_noise``."""
    below_one = 1 - torch.finfo(p.dtype).eps
    u = uniform_noise(key, position, p.shape[-1], p.dtype)
    # the winner has the least exponential, so that of a small u
    exponential = -torch.log1p(-u.clamp_(max=below_one))
    return -exponential.log()


def perturbed(p: Tensor, g: Tensor) -> Tensor:
    """Return the distribution ∝ p·e^g [..., V], whose argmax is a token drawn from p."""
    return (p.log() + g).softmax(-1)
