"""The JSON files of a run folder as pydantic models, from which their JSON Schemas are generated."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from lanternbench.analysis.summaries import Summary
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


@cache
def model_of(kind: type) -> type[BaseModel]:
    """A dataclass or named tuple as a model of the JSON object that ``plain`` makes of it."""
    known = {f.name: f for f in fields(kind)} if hasattr(kind, "__dataclass_fields__") else {}
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        if known:
            made = known[name]
            default = made.default_factory() if made.default_factory is not MISSING else made.default
        else:
            default = getattr(kind, "_field_defaults", {}).get(name, MISSING)
        found[name] = (_hint(hint), ... if default is MISSING else default)
    return create_model(kind.__name__, __base__=_Part, __doc__=kind.__doc__, **found)


def _hint(hint: Any) -> Any:
    """A type hint with models in place of dataclasses and named tuples."""
    if isinstance(hint, type) and (hasattr(hint, "__dataclass_fields__") or hasattr(hint, "_fields")):
        return model_of(hint)
    if not (parts := get_args(hint)) or not (origin := get_origin(hint)) or origin not in (list, dict, UnionType):
        return hint
    made = tuple(map(_hint, parts))
    return reduce(or_, made) if origin is UnionType else origin[made]


def summary_file() -> type[BaseModel]:
    """``summary.json``: a row per method, every figure with its interval."""
    return create_model("SummaryFile", __base__=model_of(Summary), schema_version=(int, Field(0, le=SCHEMA_VERSION)))
