"""The embedded target and its drafters: safetensors in LlamaGen's and LANTERN's key names, read and written here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.drafters import eagle, eagle_files
from lanternbench.models.drafters.medusa import Medusa
from lanternbench.models.entries import Entry
from lanternbench.models.family import Family
from lanternbench.models.llamagen import model as llamagen
from lanternbench.models.llamagen.model import LlamaGen, LlamaGenConfig
from lanternbench.models.loading import explain_errors, load_into
from lanternbench.models.target import Target
from lanternbench.models.tiny import text_encoder as text
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.registry import register
from lanternbench.utils.files import OUT, WEIGHTS, replacing, writing

# what suits a machine on which every verified node costs, by the costs and acceptance that `tune` measures
OPTIONS: dict[str, Any] = {
    "static": "chain-5",
    "chain": "chain-3",
    "medusa": "twig-8",
    "depth": 2,
    "draft_top_k": 4,
    "total_nodes": 5,
    "depth_range": (0, 4),
    "width_range": (1, 5),
    "l_k": 1,
    "near": 64,
}


def write(path: Path, state: dict[str, Tensor], **meta: Any) -> None:
    """Half-precision safetensors with ``meta`` as JSON strings in the header."""
    halves = {k: v.detach().half().contiguous() for k, v in state.items()}
    write_tensors(path, halves, {k: json.dumps(v) for k, v in meta.items()})


def write_tensors(path: Path, state: dict[str, Tensor], meta: dict[str, str]) -> None:
    """Safetensors under their name only when whole.  Raises UserError where the disk is full or not writable."""
    with writing(path, OUT):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, OUT) as file:
        file.write(save(state, meta))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State and header of an embedded weight file.  Raises UserError if it is missing or damaged."""
    try:
        with safe_open(path, "pt") as file:
            meta = {k: json.loads(v) for k, v in (file.metadata() or {}).items()}
            return {k: file.get_tensor(k) for k in file.keys()}, meta  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise UserError(
            f"cannot read the embedded weights {path} ({error}); reinstall, or remake them with "
            "`lanternbench train tiny`"
        ) from None


def _llamagen(path: Path, device: str, dtype: torch.dtype) -> LlamaGen:
    state, meta = read(path)
    with explain_errors(path, "does not say what it is"):
        config, weights = LlamaGenConfig(**meta["config"]), llamagen.from_official(state)
    return load_into(lambda: LlamaGen(config), weights, path, device, dtype)


def _eagle(path: Path, model: LlamaGen, device: str, dtype: torch.dtype) -> eagle.Eagle:
    state, _ = read(path)
    with explain_errors(path, "is no EAGLE drafter of this target"):
        shape = eagle_files.shape_in(state, replace(model.config.decoder, first_norm=False))
        weights = eagle_files.from_published(state)
    return load_into(lambda: eagle.Eagle(shape.config, fused=shape.fused), weights, path, device, dtype)


@register("target", "tiny")
class TinyFamily(Family):
    """The embedded model; a folder that ``train tiny`` wrote is a target too."""

    rows = Path(__file__).with_name("catalogue.yaml")

    def options(self, row: Entry) -> dict[str, Any]:
        return dict(OPTIONS)

    def home(self, row: Entry) -> Path:
        return WEIGHTS

    def missing(self, row: Entry, folder: Path) -> list[str]:
        return [] if self.reads(folder) else ["model"]

    def reads(self, folder: Path) -> bool:
        return (folder / "target.safetensors").is_file()

    def load(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Target:
        return load(folder, device, dtype)

    def decoder(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> LlamaGen:
        return _llamagen(folder / "target.safetensors", device, dtype or torch.float32)

    def random_decoder(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> LlamaGen:
        """Its trained weights, which are always here."""
        return self.decoder(row, WEIGHTS, device, dtype)

    def random_target(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Target:
        raise UserError(f"target '{row.name}' comes with trained weights: leave out --random-weights")


def load(folder: Path = WEIGHTS, device: str = "cpu", dtype: torch.dtype | None = None) -> Target:
    """The embedded target with all its drafters.

    ``dtype`` is that of model and drafters (default: float32); text encoder and tokeniser are float32.
    """
    dtype = dtype or torch.float32
    model = _llamagen(folder / "target.safetensors", device, dtype)
    path = folder / "text.safetensors"
    encoder = load_into(text.TextEncoder, read(path)[0], path, device, torch.float32)
    path = folder / "vq.safetensors"
    state, meta = read(path)
    with explain_errors(path, "does not say what it is"):
        shape: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in meta["config"].items()}
        size = VQConfig(**shape)
    vq = load_into(lambda: VQModel(size), state, path, device, torch.float32)
    drafters: dict[str, nn.Module] = {"eagle": _eagle(folder / "eagle.safetensors", model, device, dtype)}
    if (path := folder / "eagle-3.safetensors").exists():  # earlier versions trained none
        drafters["eagle-3"] = _eagle(path, model, device, dtype)
    path = folder / "medusa.safetensors"
    heads, _ = read(path)
    with explain_errors(path, "holds no Medusa heads"):
        count = len(heads["weight"])
    dim = model.config.dim
    drafters["medusa"] = load_into(lambda: Medusa(dim, count), heads, path, device, dtype)
    drafters["model"] = _llamagen(folder / "model.safetensors", device, dtype)
    return assemble(model, encoder, vq, drafters)


def assemble(model: LlamaGen, encoder: text.TextEncoder, vq: VQModel, drafters: dict[str, nn.Module]) -> Target:
    """The embedded target of its parts, on whatever device they are."""
    for net in (model, encoder, vq, *drafters.values()):
        net.eval().requires_grad_(False)

    def features(captions: list[str]) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            states, mask = encoder(text.tokenize(captions).to(model.device))
        return states.to(model.dtype), mask

    return Target(
        "tiny", model, vq, features, guidance=3.0, top_k=64, evaluators="tiny", options=OPTIONS, drafters=drafters
    )
