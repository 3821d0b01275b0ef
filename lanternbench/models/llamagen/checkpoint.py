"""LlamaGen targets at their published sizes: from official files, or with random weights to measure speed alone.

A folder holds one sub-folder per role: ``model`` (an official .pt, or LANTERN's Hugging Face conversion), ``vq``,
``text`` (Flan-T5-XL), and drafters such as ``eagle`` in LANTERN's layout.
"""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.drafters.eagle_files import from_published
from lanternbench.models.entries import Entry
from lanternbench.models.family import PublishedFamily
from lanternbench.models.grids import size
from lanternbench.models.llamagen.model import LlamaGen, LlamaGenConfig
from lanternbench.models.loading import State, read_state
from lanternbench.registry import register


@register("target", "llamagen")
class LlamaGenFamily(PublishedFamily):
    rows = Path(__file__).with_name("catalogue.yaml")
    network, configuration = LlamaGen, LlamaGenConfig
    needs = ("model", "vq", "text")
    # LANTERN++'s tree, and ADT-Tree's bounds for LlamaGen
    defaults: ClassVar[dict[str, Any]] = {"static": "naive_extend_57", "l_k": 10, "width_range": (3, 40)}
    eagle_pads = "uniform"  # LANTERN trained its drafters on hidden states whose pads see the caption

    def text(self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype) -> Any:
        """Flan-T5-XL, or class labels as they are."""
        config = self.config(row)
        if config.model_type == "c2i":
            return partial(class_labels, device=device)
        from lanternbench.models.llamagen.t5 import RandomT5Features, T5Features

        sizes = (config.cls_token_num, device, dtype, config.caption_dim)
        return T5Features(folder / "text", *sizes) if folder else RandomT5Features(*sizes, config.n_layer)

    def fields(self, row: Entry, model: LlamaGen, text: Any, folder: Path | None) -> dict[str, Any]:
        return {"labels": model.config.model_type == "c2i"}

    def published(self, row: Entry, folder: Path) -> tuple[LlamaGenConfig, None]:
        config, where = self.config(row), folder / "model"
        table, positions = read_state(where).get("freqs_cis"), config.prefix + size(config.grid)
        if table is not None and table.ndim == 3 and len(table) != positions:
            raise UserError(
                f"the checkpoint in {where} has {len(table)} positions but this target {positions}: it is of another "
                "image size"
            )
        return config, None

    def renamed(self, state: State, config: LlamaGenConfig, image_ids: Tensor | None) -> State:
        """From LANTERN's conversion or the official file."""
        return from_published(state, self.prefixes)


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
