"""LlamaGen targets at their published sizes: from official files, or with random weights to measure speed alone.

A folder holds one sub-folder per role: ``model`` (an official .pt, or LANTERN's Hugging Face conversion), ``vq``,
``text`` (Flan-T5-XL), and drafters such as ``eagle`` in LANTERN's layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.family import Entry, Family, eagles_in, random_eagles
from lanternbench.models.llamagen import model as llamagen
from lanternbench.models.llamagen.model import LlamaGen, LlamaGenConfig
from lanternbench.models.loading import dtype_for, load_into, load_layers, random_net, read_state
from lanternbench.models.target import Pads, Target
from lanternbench.models.tiny.text_encoder import words
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.registry import register

OPTIONS = {"l_k": 10, "width_range": (3, 40)}  # ADT-Tree's own for LlamaGen
EAGLE_PADS: Pads = "uniform"  # LANTERN trained its drafters on hidden states whose pads see the caption

Features = Callable[[list[str]], tuple[Tensor, Tensor]]


@register("target", "llamagen")
class LlamaGenFamily(Family):
    rows = Path(__file__).with_name("catalogue.yaml")
    needs = ("model", "vq", "text")

    def load(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Target:
        dtype = dtype or dtype_for(device)
        model = self.decoder(row, folder, device, dtype)
        vq = load_into(lambda: VQModel(VQConfig()), read_state(folder / "vq"), folder / "vq", device, torch.float32)
        drafters = eagles_in(folder, model, device)
        if model.config.model_type == "c2i":
            text: Features = lambda captions: class_labels(captions, device)  # noqa: E731
        else:
            from lanternbench.models.llamagen.t5 import T5Features

            text = T5Features(folder / "text", model.config.cls_token_num, device, dtype, model.config.caption_dim)
        return _target(row, model, vq, text, drafters, EAGLE_PADS if drafters else "alone")

    def decoder(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> LlamaGen:
        """From its official file or LANTERN's conversion."""
        config, here = LlamaGenConfig(**row.shape), folder / "model"
        state = read_state(here)
        convert = llamagen.from_hf if "model.embed_tokens.weight" in state else llamagen.from_official
        table, positions = state.get("freqs_cis"), config.prefix + config.grid**2
        if table is not None and table.ndim == 3 and len(table) != positions:
            raise UserError(
                f"the checkpoint in {here} has {len(table)} positions but this target {positions}: it is of another "
                "image size"
            )
        return load_layers(lambda: LlamaGen(config), here, convert, device, dtype or dtype_for(device))

    def random_decoder(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> LlamaGen:
        return random_net(lambda: LlamaGen(LlamaGenConfig(**row.shape)), device, dtype or dtype_for(device))

    def random_target(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Target:
        dtype = dtype or dtype_for(device)
        model = self.random_decoder(row, device, dtype)
        drafters = random_eagles(model, device, dtype)
        vq = random_net(lambda: VQModel(VQConfig()), device, torch.float32)
        config = model.config
        if config.model_type == "c2i":
            text: Features = lambda captions: class_labels(captions, device)  # noqa: E731
        else:
            length, width = config.cls_token_num, config.caption_dim
            text = lambda captions: random_features(captions, length, width, device, dtype)  # noqa: E731
        return _target(row, model, vq, text, drafters, "alone")


def _target(
    row: Entry, model: LlamaGen, vq: VQModel, text: Features, drafters: dict[str, nn.Module], pads: Pads
) -> Target:
    return Target(
        row.name,
        model,
        vq,
        text,
        row.guidance,
        row.top_k,
        options=dict(OPTIONS),
        drafters=drafters,
        pad_rows=pads,
        eagle_pads=EAGLE_PADS,
    )


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
