"""Targets of small shapes, through their families as the catalogue would make them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lanternbench.models.chameleon.checkpoint import ChameleonFamily
from lanternbench.models.entries import Entry
from lanternbench.models.llamagen.checkpoint import LlamaGenFamily
from lanternbench.models.target import Target
from lanternbench.models.vq import VQConfig

# an image tokeniser that costs nothing; without it a small target gets one of the published size
SMALL_VQ = asdict(
    VQConfig(32, (1, 2), 1, z_channels=16, codebook_size=64, codebook_dim=8, attention=False)
)


def small_row(
    shape: dict[str, Any],
    guidance: float = 3.0,
    top_k: int = 0,
    name: str = "small",
    family: str = "",
) -> Entry:
    return Entry(
        name=name, family=family, about="small", shape=shape, guidance=guidance, top_k=top_k
    )


def random_llamagen(shape: dict[str, Any], guidance: float, top_k: int) -> Target:
    return LlamaGenFamily().random_target(small_row(shape, guidance, top_k), "cpu")


def random_chameleon(
    shape: dict[str, Any], guidance: float, vq: VQConfig, name: str = "small"
) -> Target:
    return ChameleonFamily().random_target(
        small_row(shape | {"vq": asdict(vq)}, guidance, name=name), "cpu"
    )
