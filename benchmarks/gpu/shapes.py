"""The targets that the pieces measure: published shapes with random weights, or small ones for a
rehearsal.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from benchmarks.gpu.machine import Machine
from lanternbench.models.catalogue import load_target
from lanternbench.models.chameleon.checkpoint import ChameleonFamily
from lanternbench.models.drafters.dflash import Medusa
from lanternbench.models.entries import Entry, entry, family
from lanternbench.models.janus.checkpoint import JanusFamily
from lanternbench.models.loading import random_net
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny

# a drafter of 111 M for ``sd``
XL, SMALLER = "llamagen-xl-stage1", {"dim": 768, "n_layer": 12, "n_head": 12}
HEADS = 4  # of Medusa
_VQ = {
    "ch": 32,
    "ch_mult": [1, 2],
    "num_res_blocks": 1,
    "z_channels": 16,
    "codebook_size": 64,
    "codebook_dim": 8,
}
_SMALL = {
    "dim": 32,
    "n_layer": 2,
    "n_head": 2,
    "hidden": 48,
    "grid": 4,
    "vocab_size": 64,
    "prompt_ids": 16384,
}


def exact(machine: Machine) -> Target:
    """The embedded target in float64, where no draw hangs on how a sum was rounded."""
    return _embedded(machine, torch.float64)


def xl(machine: Machine) -> Target:
    """LlamaGen-XL, text to image, with a drafter of every kind."""
    if machine.small:
        return _embedded(machine, torch.float32)
    return with_all_drafters(load_target(XL, machine.device, random_weights=True))


def with_all_drafters(target: Target) -> Target:
    """A random LlamaGen target, with a random independent drafter and Medusa heads beside its
    EAGLE drafter.
    """
    row, config, device = entry(XL), target.model.config, str(target.device)
    smaller = row.model_copy(update={"shape": {**vars(config), **SMALLER}})
    nets: dict[str, nn.Module] = {
        "model": family(row.family).decoder(smaller, None, device, target.dtype)
    }
    nets["medusa"] = random_net(lambda: Medusa(config.dim, HEADS), device, target.dtype)
    return replace(target, drafters=target.drafters | nets)


def published(machine: Machine, name: str) -> Target:
    """Any target of the catalogue with random weights."""
    if not machine.small:
        return load_target(name, machine.device, random_weights=True)
    if entry(name).family == "janus":
        shape = {k: v for k, v in _SMALL.items() if k != "vocab_size"} | {"vq": _VQ}
        row = Entry(name=name, family="janus", about="", shape=shape, guidance=5.0)
        return _moved(JanusFamily().random_target(row, "cpu", torch.float32), machine)
    return row_ends(machine, torch.float32, "anole")


def row_ends(
    machine: Machine, dtype: torch.dtype = torch.float64, dialect: str = "lumina"
) -> Target:
    """A small Chameleon, by default one that writes row ends (Lumina-mGPT's)."""
    heads = {"n_kv_head": 2, "positions": 256, "dialect": dialect}
    row = Entry(
        name=f"{dialect}-small",
        family="chameleon",
        about="",
        shape=_SMALL | heads | {"vq": _VQ},
        guidance=3.0,
    )
    return _moved(ChameleonFamily().random_target(row, "cpu", dtype), machine)


def _embedded(machine: Machine, dtype: torch.dtype) -> Target:
    target = tiny.load(device=machine.device, dtype=dtype)
    if machine.small:
        target.model.layers = target.model.layers[:2]
        target.model.config = replace(target.model.config, n_layer=2)
    return target


def _moved(target: Target, machine: Machine) -> Target:
    for net in (target.model, target.vq, *target.drafters.values()):
        net.to(machine.device)
    return target


def weights(target: Target) -> int:
    """Bytes of all that is loaded: target, drafters, image tokeniser, tables of near codes."""
    nets = [target.model, target.vq, *target.drafters.values()]
    held = [x for net in nets for x in (*net.parameters(), *net.buffers())] + list(
        target.near.values()
    )
    return sum({id(x): x.numel() * x.element_size() for x in held}.values())


def cache_bytes(target: Target, tokens: float) -> float:
    """Bytes of keys and values that a guided forward of one prompt reads after so many tokens."""
    c = target.model.config.decoder
    return (
        tokens * 2 * c.n_layer * 2 * c.kv_heads * c.head_dim * torch.finfo(target.dtype).bits / 8
    )
