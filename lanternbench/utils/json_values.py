"""Values as JSON keeps them, and what differs between two of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """The value as JSON gives it back: tuples as lists, paths and numpy scalars plain, NaN and infinity as null."""

    def known(item: Any) -> Any:
        return item.item() if hasattr(item, "item") else str(item)

    return finite(json.loads(json.dumps(finite(value), default=known)))


def finite(value: Any) -> Any:
    """NaN and infinity as None, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of the configuration as JSON with sorted keys: equal for equal settings, whatever their order."""
    return hashlib.sha256(json.dumps(plain(config), sort_keys=True).encode()).hexdigest()


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """What differs between two JSON values, as "dotted.key: old -> new" lines."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for key in [*old, *(key for key in new if key not in old)]:
            lines += differences(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
        return lines
    if old == new and isinstance(old, bool) == isinstance(new, bool):
        return []
    return [f"{prefix}: {json.dumps(old, ensure_ascii=False)} -> {json.dumps(new, ensure_ascii=False)}"]
