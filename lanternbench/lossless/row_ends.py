"""A small random model that writes row ends, so that every method is checked on their slots, positions and caches."""

from dataclasses import asdict
from functools import cache
from typing import Any

import torch

from lanternbench.models.chameleon.checkpoint import ChameleonConfig, ChameleonFamily
from lanternbench.models.family import Entry
from lanternbench.models.target import Target
from lanternbench.models.vq import VQConfig

CODES = 96
CONFIG = ChameleonConfig(32, 2, 2, 48, vocab_size=CODES, prompt_ids=16384, positions=128, grid=(4, 4))
VQ = VQConfig(32, (1, 2), 1, z_channels=16, codebook_size=CODES, codebook_dim=8, attention=False)
SMALL: dict[str, Any] = {"static": "twig-8", "chain": "chain-3", "depth": 3, "draft_top_k": 3, "total_nodes": 8}
SMALL |= {"width_range": (1, 9), "l_k": 1, "near": 8}


@cache
def row_end_target() -> Target:
    """Lumina-mGPT's layout in 4 × 4 tokens; weights so large that every token depends on all before it."""
    family = ChameleonFamily()
    shape = asdict(CONFIG) | {"dialect": "lumina", "vq": asdict(VQ)}
    row = Entry(name="row ends", family="chameleon", about="", shape=shape, guidance=2.0)
    target = family.random_target(row, "cpu", torch.float32)
    target.drafters["model"] = family.decoder(row, None, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for net in (target.model, *target.drafters.values()):
            for name, p in net.named_parameters():
                p.normal_(std=0.3, generator=generator)
                p += float("norm" in name and name.endswith("weight"))
    target.options = SMALL
    return target
