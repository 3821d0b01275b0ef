"""The targets that the pieces decode: published shapes with random weights, and small exact ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch

from benchmarks.gpu.machine import Machine
from lanternbench.models.catalogue import load_unpacked
from lanternbench.models.chameleon.checkpoint import ChameleonFamily
from lanternbench.models.drafters.dflash import of_width
from lanternbench.models.drafters.flashar import FlashAR
from lanternbench.models.drafters.kinds import Sizes
from lanternbench.models.entries import Entry, entry
from lanternbench.models.janus.checkpoint import JanusFamily
from lanternbench.models.llamagen.checkpoint import LlamaGenConfig
from lanternbench.models.llamagen.random import (
    SMALL_VQ,
    small_target,
    with_all_drafters,
    without_encoder,
)
from lanternbench.models.loading import random_net
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny

XL = "llamagen-xl-stage1"
ANOLE = "anole-7b"
JANUS = "janus-pro-1b"
FULL_SIZE = (XL, ANOLE, JANUS)
# heads of 16 in groups of two: small enough for a CPU, and a width that fast attention takes
_SMALL = {
    "dim": 64,
    "n_layer": 2,
    "n_head": 4,
    "hidden": 96,
    "grid": 4,
    "vocab_size": 64,
    "prompt_ids": 16384,
}
# a caption of so many words, and an image: together more slots than a recorded forward pass
# attends to at first
LONG_CAPTION = 400
LONG_GRID = 12


def full_size(name: str, device: str) -> Target:
    """Return a published shape with random weights, on any device; without a text encoder."""
    target = load_unpacked(name, device, random_weights=True)
    if entry(name).family != "llamagen":
        return target
    return with_all_drafters(without_encoder(target))


def target_of(machine: Machine, name: str) -> Target:
    """Return a shape of ``FULL_SIZE``, or for a rehearsal a small target of its family."""
    if not machine.small:
        return full_size(name, machine.device)
    if name == XL:
        return without_encoder(_moved(small_target(), machine))
    if name == JANUS:
        shape = {key: value for key, value in _SMALL.items() if key != "vocab_size"}
        row = _row("janus", "janus", shape)
        return _moved(JanusFamily().random_target(row, "cpu", torch.float32), machine)
    return chameleon(machine, torch.float32, dialect="anole")


def bundled(machine: Machine, dtype: torch.dtype = torch.float64) -> Target:
    """Return the bundled target with its trained weights, so that drafts are accepted as in use,
    and the random drafters that it does not come with: DFlash's and FlashAR's.
    """
    target = tiny.load(device=machine.device, dtype=dtype)
    if machine.small:
        target.model.layers = target.model.layers[:2]
        config = cast(LlamaGenConfig, target.model.config)
        target.model.config = replace(config, n_layer=2)
    sizes = target.model.config.decoder
    dflash = random_net(lambda: of_width(sizes, Sizes()), "cpu", dtype)
    last = replace(sizes, n_layer=1)
    inner = target.model.config.n_layer - 1
    vocab = target.model.config.vocab_size
    flashar = random_net(lambda: FlashAR(last, inner, vocab), "cpu", dtype)
    more = {"dflash": dflash.to(machine.device), "flashar": flashar.to(machine.device)}
    return replace(target, drafters=target.drafters | more)


def row_ends(machine: Machine, dtype: torch.dtype = torch.float64) -> Target:
    """Return a small Lumina-mGPT, which writes a token after each row."""
    return chameleon(machine, dtype, dialect="lumina")


def grouped_queries(machine: Machine, dtype: torch.dtype = torch.float64) -> Target:
    """Return a small target whose heads share keys and values in pairs, for long captions."""
    return chameleon(machine, dtype, "anole", {"n_kv_head": 2, "grid": LONG_GRID})


def chameleon(
    machine: Machine,
    dtype: torch.dtype,
    dialect: str,
    sizes: dict[str, int] | None = None,
) -> Target:
    """Return a small random Chameleon; ``sizes``: other than the usual ones."""
    shape = _SMALL | {"n_kv_head": 4, "positions": 1024, "dialect": dialect} | (sizes or {})
    row = _row(f"{dialect}-small", "chameleon", shape)
    return _moved(ChameleonFamily().random_target(row, "cpu", dtype), machine)


def _row(name: str, family: str, shape: Mapping[str, object]) -> Entry:
    shape = {**shape, "vq": SMALL_VQ}
    return Entry(name=name, family=family, about="", shape=shape, guidance=3.0)


def _moved(target: Target, machine: Machine) -> Target:
    """Move a small target, whose weights are made on the CPU, to the device."""
    for net in (target.model, target.vq, *target.drafters.values()):
        net.to(machine.device)
    return target


def copy_weights(source: Target, target: Target) -> None:
    """Give a target and its drafters the weights of another of the same shape, rounded to their
    dtype.
    """
    target.model.load_state_dict(source.model.state_dict())
    for kind, drafter in target.drafters.items():
        drafter.load_state_dict(source.drafters[kind].state_dict())


def held_bytes(target: Target) -> int:
    """Return the bytes of all that is loaded: target, drafters, image tokeniser, tables of codes
    that look alike.
    """
    held = list(target.near.values())
    for net in (target.model, target.vq, *target.drafters.values()):
        held += [*net.parameters(), *net.buffers()]
    return sum({id(x): x.numel() * x.element_size() for x in held}.values())
