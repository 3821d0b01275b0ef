"""Are neighbouring codes interchangeable?  LANTERN's premise (arXiv 2410.03355, section 3), on
  images of one target.

It accepts a drafted token for the probability of its k nearest codes: harmless as far as no image
changes when a token gives way to a neighbour, helpful as far as those neighbours are likely where
the token is.
"""

from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio

from lanternbench.engine import decode as engine
from lanternbench.errors import UserError
from lanternbench.methods.acceptance.lantern import nearest
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.target import Target

PAIRS = 4096  # random pairs of codes whose median distance is the unit


class Likeness(NamedTuple):
    """Figures of the k nearest codes of a token, itself included."""

    k: int
    # to the k-th, a median over the codebook, in median distances of two random codes
    distance: float
    mass: float  # of the target's distribution that lies on them, a mean over drawn tokens
    # dB, images with every token replaced by another of the k; None where that changes nothing
    psnr: float | None


class Codebook(NamedTuple):
    """A codebook of ``codes`` vectors of ``width``, and the images with codes swapped."""

    codes: int
    width: int
    twins: int  # codes that coincide with another
    likenesses: list[Likeness]
    images: list[list[Image.Image]]  # per prompt: as it was drawn, then swapped within each k


def study_codebook(
    target: Target, captions: list[str], ks: list[int], proximity: str = "l2", seed: int = 0
) -> Codebook:
    """A target's codebook, and what ``ar``'s images lose within ``ks`` neighbours.  Raises
    UserError for a wrong k.
    """
    codes = target.codebook
    if wrong := [k for k in ks if not 2 <= k <= len(codes)]:
        raise UserError(
            f"k = {wrong[0]} is no neighbourhood here: a token and its neighbours are 2 to {len(codes)}"
        )
    table = nearest(codes, max(ks), proximity)
    generations = engine.generate(build(target, method("ar")), captions, seed=seed, trace=True)
    tokens, trace = torch.stack([g.tokens for g in generations]), generations[0].trace
    assert trace is not None
    generator = torch.Generator().manual_seed(seed)
    mass = trace.q.gather(-1, table[tokens]).cumsum(-1).mean((0, 1))  # [K]
    drawn = target.images(tokens)
    one, other = torch.randint(len(codes), (2, PAIRS), generator=generator).to(codes.device)
    unit = (codes[one].float() - codes[other].float()).norm(dim=-1)[one != other].median()
    pixels, likenesses, rows = _pixels(drawn), [], [[image] for image in drawn]
    for k in ks:
        images = target.images(swap_codes(tokens, table, k, generator))
        for row, image in zip(rows, images, strict=True):
            row.append(image)
        apart = (codes.float() - codes[table[:, k - 1]].float()).norm(dim=-1).median()
        noise = float(peak_signal_noise_ratio(_pixels(images), pixels, data_range=255.0))
        likenesses.append(
            Likeness(
                k, float(apart / unit), float(mass[k - 1]), noise if isfinite(noise) else None
            )
        )
    return Codebook(
        len(codes), codes.shape[1], len(codes) - len(codes.unique(dim=0)), likenesses, rows
    )


def swap_codes(tokens: Tensor, table: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Every token [B, L] replaced by one of its k nearest other than itself, drawn evenly: table
    [V, ≥ k].
    """
    return table[tokens, torch.randint(1, k, tokens.shape, generator=generator).to(tokens.device)]


def _pixels(images: list[Image.Image]) -> Tensor:
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])).float()
