"""run.json of runs that tests make."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lanternbench.measure.run_record import RunRecord
from lanternbench.utils.json_values import config_hash, plain


def run_record(run_id: str = "r", config: Mapping[str, Any] = {}, **facts: Any) -> RunRecord:
    """A run of these settings, started now; ``facts``: environment, prompts, target, methods."""
    parts = {
        "run_id": run_id,
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "config": dict(config),
        "config_hash": config_hash(config),
    }
    return RunRecord.model_validate(plain(parts | facts))


def record_of(parts: Mapping[str, Any]) -> RunRecord:
    """The content of a run.json as an object."""
    return RunRecord.model_validate(plain(parts))
