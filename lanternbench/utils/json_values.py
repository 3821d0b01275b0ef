"""Values as JSON keeps them, and what differs between two of them."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanternbench.errors import UserError
from lanternbench.utils.files import open_file

SCHEMA_VERSION = 1  # of every JSON object written; objects without a version are of version 0


def plain(value: Any) -> Any:
    """The value as JSON gives it back: dataclasses and named tuples as objects, tuples as lists,
    NaN as null.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return plain(value.item()) if hasattr(value, "item") else str(value)


def versioned(value: Any) -> dict[str, Any]:
    """A JSON object as it is written: with the version of its schema first."""
    return {"schema_version": SCHEMA_VERSION} | plain(value)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file.  Raises OSError, ValueError where it has none, UserError for a
    later version.
    """
    with open_file(path) as file:
        try:
            value = json.loads(file.read())
        except (RecursionError, MemoryError) as error:
            raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    version = value.get("schema_version", 0)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        known = f"this lanternbench reads up to {SCHEMA_VERSION}"
        raise UserError(f"{path} has schema_version {version!r}, and {known}: upgrade it")
    return value


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of the configuration as JSON with sorted keys: equal for equal settings,
    whatever their order.
    """
    return hashlib.sha256(json.dumps(plain(config), sort_keys=True).encode()).hexdigest()


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """What differs between two JSON values, as "dotted.key: old -> new" lines."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = dict.fromkeys([*old, *new])
        each = [
            differences(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
            for key in keys
        ]
        return [line for lines in each for line in lines]
    if old == new and isinstance(old, bool) == isinstance(new, bool):
        return []
    return [
        f"{prefix}: {json.dumps(old, ensure_ascii=False)} -> {json.dumps(new, ensure_ascii=False)}"
    ]
