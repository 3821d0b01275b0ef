"""LlamaGen targets at their published sizes: from official files, or with random weights to measure speed alone.

A folder holds one sub-folder per role: ``model`` (an official .pt, or LANTERN's Hugging Face conversion), ``vq``,
``text`` (Flan-T5-XL), and drafters such as ``eagle`` in LANTERN's layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.drafters import eagle
from lanternbench.models.llamagen import model as llamagen
from lanternbench.models.llamagen.model import LlamaGen, LlamaGenConfig
from lanternbench.models.loading import State, load_into, load_layers, read_state
from lanternbench.models.published import dtype_for, present, random_net
from lanternbench.models.target import Target
from lanternbench.models.tiny.text_encoder import words
from lanternbench.models.vq import VQConfig, VQModel

NEEDS = ("model", "vq", "text")
OPTIONS = {"l_k": 10, "width_range": (3, 40)}  # ADT-Tree's own for LlamaGen

EAGLE_PADS: Literal["uniform"] = "uniform"  # LANTERN trained its drafters on hidden states whose pads see the caption

Features = Callable[[list[str]], tuple[Tensor, Tensor]]


def load(
    name: str,
    shape: dict[str, Any],
    guidance: float,
    top_k: int,
    folder: Path,
    device: str,
    dtype: torch.dtype | None = None,
) -> Target:
    """A target from the files in ``folder``.  Raises UserError for what is missing, damaged or of another shape."""
    dtype, model = dtype or dtype_for(device), decoder(shape, folder, device, dtype)
    vq = load_into(lambda: VQModel(VQConfig()), read_state(folder / "vq"), folder / "vq", device, torch.float32)
    drafters: dict[str, nn.Module] = {}
    if present(folder, "eagle"):
        drafters["eagle"] = eagle_drafter(model, folder / "eagle", device)
    if model.config.model_type == "c2i":
        text: Features = lambda captions: class_labels(captions, device)  # noqa: E731
    else:
        from lanternbench.models.llamagen.t5 import T5Features

        text = T5Features(folder / "text", model.config.cls_token_num, device, dtype)
    pads = EAGLE_PADS if "eagle" in drafters else "alone"
    return Target(
        name,
        model,
        vq,
        text,
        guidance,
        top_k,
        options=dict(OPTIONS),
        drafters=drafters,
        pad_rows=pads,
    )


def decoder(shape: dict[str, Any], folder: Path, device: str, dtype: torch.dtype | None = None) -> LlamaGen:
    """The decoder alone, from its official file or LANTERN's conversion.  Raises UserError."""
    here = folder / "model"
    convert = llamagen.from_hf if "model.embed_tokens.weight" in read_state(here) else llamagen.from_official
    return load_layers(lambda: LlamaGen(LlamaGenConfig(**shape)), here, convert, device, dtype or dtype_for(device))


def random_decoder(shape: dict[str, Any], device: str, dtype: torch.dtype | None = None) -> LlamaGen:
    """The same with random weights."""
    return random_net(lambda: LlamaGen(LlamaGenConfig(**shape)), device, dtype or dtype_for(device))


def eagle_drafter(model: LlamaGen, path: Path, device: str, dtype: torch.dtype | None = None) -> eagle.Eagle:
    """LANTERN's layout -> a drafter for ``model``, in its dtype.

    Raises UserError, also for one of another width and for a tensor that has no place in it.
    """
    cfg, bias, layers, ids = eagle.shape_of(path, replace(model.cfg, first_norm=False))
    dtype, words = dtype or model.tok_embeddings.weight.dtype, ids and model.cfg.vocab_size
    return load_layers(
        lambda: eagle.Eagle(cfg, bias, layers=layers, words=words), path, eagle.from_published, device, dtype, True
    )


def new_eagle(model: LlamaGen) -> eagle.Eagle:
    """A drafter for ``model`` that has learnt nothing."""
    return eagle.Eagle(replace(model.cfg, first_norm=False))


def eagle_state(net: eagle.Eagle) -> State:
    """A drafter in LANTERN's layout."""
    return eagle.to_published(net.state_dict())


def random_target(
    name: str, shape: dict[str, Any], guidance: float, top_k: int, device: str, dtype: torch.dtype | None = None
) -> Target:
    """The same architecture with random weights and an EAGLE drafter: its images are noise, its speed is real."""
    dtype, model = dtype or dtype_for(device), random_decoder(shape, device, dtype)
    drafter = random_net(lambda: new_eagle(model), device, dtype)
    vq = random_net(lambda: VQModel(VQConfig()), device, torch.float32)
    if model.config.model_type == "c2i":
        text: Features = lambda captions: class_labels(captions, device)  # noqa: E731
    else:
        cfg = model.config
        text = lambda captions: random_features(captions, cfg.cls_token_num, cfg.caption_dim, device, dtype)  # noqa: E731
    return Target(name, model, vq, text, guidance, top_k, options=dict(OPTIONS), drafters={"eagle": drafter})


def random_features(
    captions: list[str], length: int, width: int, device: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Features that depend on the caption alone, one per word: [B, T, c] and mask, right-padded."""
    features = torch.zeros(len(captions), length, width)
    mask = torch.zeros(len(captions), length, dtype=torch.long)
    for row, seen, caption in zip(features, mask, captions, strict=True):
        count = max(1, min(length, len(words(caption))))
        seed = int.from_bytes(hashlib.blake2b(caption.encode(), digest_size=7).digest(), "little")
        row[:count] = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
        seen[:count] = 1
    return features.to(device, dtype), mask.to(device)


def class_labels(captions: list[str], device: str) -> tuple[Tensor, Tensor]:
    """ImageNet class numbers, as prompts "0" … "999": [B, 1] and a mask of ones.

    Raises UserError for a prompt that is no class number.
    """
    for caption in captions:
        if not (caption.isascii() and caption.isdigit() and int(caption) < 1000):
            raise UserError(
                f"'{caption[:60]}' is no ImageNet class: this target draws classes 0 to 999, give a prompt file with "
                "one class number per line"
            )
    labels = torch.tensor([[int(c)] for c in captions], device=device)
    return labels, torch.ones_like(labels)
