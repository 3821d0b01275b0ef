"""Devices as data: bandwidth, arithmetic, memory and launch overhead, each with its source."""

import re
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from lanternbench.errors import UserError, unknown

THIS = "this"


class DeviceModel(BaseModel):
    """``bandwidth`` GB/s, ``memory`` GB, ``tflops`` by dtype of the weights.

    ``gap``: µs that a kernel takes beside its bytes and products; ``issue``: µs in which the host issues one without
    CUDA graphs (0: it waits for each, as a CPU does).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    about: str
    bandwidth: float = Field(gt=0)
    memory: float = Field(gt=0)
    tflops: dict[str, float]
    gap: float = Field(ge=0)
    issue: float = Field(ge=0)
    source: str

    def peak(self, dtype: str) -> float:
        """FLOP/s with weights of this dtype.  Raises UserError for one that the model does not have."""
        if dtype not in self.tflops:
            raise UserError(f"the device model '{self.name}' has no FLOP/s for {dtype}: use {' or '.join(self.tflops)}")
        return 1e12 * self.tflops[dtype]

    def sentence(self, graphs: bool) -> str:
        """What the model says, with its source."""
        kernel = f"{self.gap:g} µs a kernel in a graph" if graphs else f"{self.issue:g} µs to issue a kernel"
        size = f"{self.bandwidth:g} GB/s, {self.memory:g} GB ({self.source})"
        return f"{self.name}: {self.about}, {size}; {kernel}, an estimate"


@cache
def device_models() -> dict[str, DeviceModel]:
    """Those of ``devices.yaml`` by name."""
    rows = yaml.safe_load(Path(__file__).with_name("devices.yaml").read_text(encoding="utf-8"))
    return {name: DeviceModel(name=name, **row) for name, row in rows.items()}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def device_model(name: str) -> DeviceModel:
    """By its name, or by how that begins, in any spelling: ``A100`` is ``a100-40g``.

    Raises UserError naming those there are.
    """
    models, letters = device_models(), _letters(name)
    for full in models if letters else ():
        if _letters(full).startswith(letters):
            return models[full]
    raise unknown(f"unknown device '{name}'", name.lower(), [*models, THIS])
