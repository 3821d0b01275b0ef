"""The JSON files of a run folder as pydantic models, from which their JSON Schemas are generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lanternbench.measure.summaries import Summary
from lanternbench.utils.json_values import SCHEMA_VERSION


class _Part(BaseModel):
    """Any further key is kept: other versions may have more."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class RunConfig(_Part):
    """The settings that determine the results, as a sweep file has them."""

    target: str | None = None
    drafter: str | None = None
    dtype: str | None = None
    compile: str | None = None
    prompts: str | None = None
    suite: str | None = None
    seed: int | None = Field(default=None, ge=0)
    batch: int | None = None
    repeats: int | None = None
    num_prompts: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    guidance: float | None = None


class RunFile(_Part):
    """``run.json``: what was run, on what, and where; the lines of ``samples.jsonl`` are of its version."""

    schema_version: int = Field(0, le=SCHEMA_VERSION)
    run_id: str = ""
    created: str = ""
    config: RunConfig = RunConfig()
    config_hash: str = ""
    environment: dict[str, Any] = {}
    prompts: dict[str, Any] = {}
    target: dict[str, Any] = {}
    methods: list[dict[str, Any]] = []
    resumed: list[dict[str, Any]] = []
    left_out: list[Any] = []


@dataclass(frozen=True)
class SummaryFile(Summary):
    """``summary.json``: a row per method, every figure with its interval."""

    schema_version: int = SCHEMA_VERSION
