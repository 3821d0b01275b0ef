"""A test of whether neighbouring codes are interchangeable, LANTERN's premise (arXiv 2410.03355, section 3), on
images of one target.

LANTERN accepts a drafted token for the probability of its k nearest codes.  That is harmless as
far as no image changes when a token gives way to a neighbour, and helpful as far as those
neighbours are likely.
"""

from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio

from lanternbench.engine import decode as engine
from lanternbench.engine.trace import Trace
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
    """Return figures of a target's codebook, and what ``ar``'s images lose within ``ks``
    neighbours.  Raises UserError for a wrong k.
    """
    codes = target.codebook
    _check_sizes(ks, len(codes))
    table = nearest(codes, max(ks), proximity)
    decoder = build(target, method("ar"))
    generations = engine.generate(decoder, captions, seed=seed, trace=True)
    tokens = torch.stack([generation.tokens for generation in generations])
    generator = torch.Generator().manual_seed(seed)
    mass = _mass(generations[0].trace, table[tokens])
    unit = _random_distance(codes, generator)
    columns = [target.images(tokens)]
    likenesses = []
    for k in ks:
        swapped = target.images(swap_codes(tokens, table, k, generator))
        psnr = _psnr(swapped, columns[0])
        columns.append(swapped)
        distance = _distances(codes, codes[table[:, k - 1]]).median()
        likenesses.append(Likeness(k, float(distance / unit), float(mass[k - 1]), psnr))
    rows = [list(row) for row in zip(*columns, strict=True)]
    twins = len(codes) - len(codes.unique(dim=0))
    return Codebook(len(codes), codes.shape[1], twins, likenesses, rows)


def _check_sizes(ks: list[int], codes: int) -> None:
    """Raise UserError for a k that is no number of neighbours."""
    for k in ks:
        if not 2 <= k <= codes:
            raise UserError(
                f"k = {k} is no neighbourhood: a token and its neighbours are 2 to {codes}"
            )


def _mass(trace: Trace | None, neighbours: Tensor) -> Tensor:
    """Return the mean probability of the k nearest ``neighbours`` [B, L, K], for every k: [K]."""
    if trace is None:
        raise ValueError("the images were decoded without a trace")
    return trace.q.gather(-1, neighbours).cumsum(-1).mean((0, 1))


def _random_distance(codes: Tensor, generator: torch.Generator) -> Tensor:
    """Return the median distance of two random codes."""
    one, other = torch.randint(len(codes), (2, PAIRS), generator=generator).to(codes.device)
    return _distances(codes[one], codes[other])[one != other].median()


def _distances(one: Tensor, other: Tensor) -> Tensor:
    return (one.float() - other.float()).norm(dim=-1)


def swap_codes(tokens: Tensor, table: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Return tokens [B, L], each replaced by another of its k nearest, drawn evenly: table
    [V, ≥ k].
    """
    ranks = torch.randint(1, k, tokens.shape, generator=generator)
    return table[tokens, ranks.to(tokens.device)]


def _psnr(images: list[Image.Image], others: list[Image.Image]) -> float | None:
    """Return the peak signal-to-noise ratio in dB; None if the images are equal."""
    ratio = peak_signal_noise_ratio(_pixels(images), _pixels(others), data_range=255.0)
    return float(ratio) if isfinite(ratio) else None


def _pixels(images: list[Image.Image]) -> Tensor:
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])).float()
