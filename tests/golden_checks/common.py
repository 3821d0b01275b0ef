"""What the checks share: reading a vector file, measuring errors, and targets built from recorded
weights.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from lanternbench.engine.cache import DecoderCache
from lanternbench.engine.decode import Generation, generate
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.key_names import from_published
from lanternbench.models.llamagen.checkpoint import LlamaGen, LlamaGenConfig
from lanternbench.models.target import Prefix, Target
from lanternbench.settings import Sampling

FLOAT, IMAGE = 1e-4, 5e-4  # tolerances, absolute


def cached(cache: DecoderCache, layer: int = 0) -> Tensor:
    """A layer's keys and values [2, R, H, S, d]."""
    return cache.store[layer].unflatten(1, (2, -1)).transpose(0, 1)


class Found(NamedTuple):
    """One compared group: the largest error, and the largest that passes."""

    group: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.error <= self.limit


class Vectors(NamedTuple):
    """A vector file: tensors by name, and the header's JSON values."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]

    def __getitem__(self, name: str) -> Tensor:  # type: ignore[override]
        return self.tensors[name]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names start with ``prefix``, without it."""
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}


def read(path: Path) -> Vectors:
    with safe_open(path, "pt") as file:
        meta = {k: _json(v) for k, v in (file.metadata() or {}).items()}
        return Vectors({k: file.get_tensor(k) for k in file.keys()}, meta)  # noqa: SIM118


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def close(group: str, got: Tensor, want: Tensor, limit: float = FLOAT) -> Found:
    """Largest absolute difference; ∞ if the shapes differ or anything is NaN."""
    if got.shape != want.shape:
        return Found(f"{group} {list(got.shape)} for {list(want.shape)}", math.inf, limit)
    error = (got.double() - want.double()).abs().nan_to_num(math.inf)
    return Found(group, float(error.max()) if error.numel() else 0.0, limit)


def close_for_size(group: str, got: Tensor, want: Tensor) -> Found:
    """As ``close``, but float32 rounds a number above 1 in proportion to its size."""
    size = want.double().abs().clamp(min=1)
    return close(group, got.double() / size, want.double() / size, FLOAT / 10)


def logits_in_float64(model: LlamaGen, prefix: Prefix, tokens: Tensor) -> Tensor:
    """Teacher-forced logits of ``model``, whose weights become float64.

    Guidance multiplies the rounding of two logits by 2s − 1 = 14: guided logits of float32 models
    agree to 5e-5 on one CPU and to 1.1e-4 on another.  In float64 what differs is the recorded
    side's rounding alone, on any.
    """
    for weights in model.parameters():
        weights.data = weights.data.double()
    embedded = model.cls_embedding(prefix.features.double())
    return model.output(model.teacher_forced(embedded, prefix.valid, tokens))


def same(group: str, got: Any, want: Any) -> Found:
    """How many integers differ; ∞ if the shapes differ."""
    got, want = torch.as_tensor(got).long(), torch.as_tensor(want).long()
    if got.shape != want.shape:
        return Found(f"{group} {list(got.shape)} for {list(want.shape)}", math.inf, 0)
    return Found(group, float((got != want).sum()), 0)


def worst(group: str, found: list[Found]) -> Found:
    """Several comparisons of one kind as one line."""
    return max(found, key=lambda f: (not f.passed, f.error))._replace(
        group=f"{group} ({len(found)})"
    )


def official_config(config: dict[str, Any]) -> LlamaGenConfig:
    """Official ``ModelArgs`` -> ours."""
    known = LlamaGenConfig.__dataclass_fields__
    shape = {k: v for k, v in config.items() if k in known}
    return LlamaGenConfig(**shape, grid=math.isqrt(config["block_size"]))


def official_model(vectors: Vectors) -> LlamaGen:
    return loaded(
        LlamaGen(official_config(vectors.meta["config"])), from_published(vectors.under("state."))
    )


def loaded(net: Any, state: dict[str, Tensor]) -> Any:
    net.load_state_dict(state)
    return net.eval().requires_grad_(False)


def captioned(
    model: LlamaGen, features: Tensor, mask: Tensor, codebook: Tensor | None = None, **more: Any
) -> Target:
    """A target whose every batch of captions has the recorded features; it cannot make images."""
    vq: Any = SimpleNamespace(quantize=SimpleNamespace(codes=lambda: codebook))
    return Target("golden", model, vq, lambda captions: (features, mask), **more)


def greedy(
    target: Target, scale: float, images: int = 1, name: str = "ar", **options: Any
) -> list[Generation]:
    """Temperature 0 through the engine itself."""
    decoder = build(target, method(name, **options), Sampling(temperature=0.0, guidance=scale))
    return generate(decoder, [f"caption {i}" for i in range(images)])
