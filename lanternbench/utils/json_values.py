"""Values as JSON has them, and differences between two of them."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lanternbench.errors import UserError
from lanternbench.utils.files import open_file

SCHEMA_VERSION = 1  # of every JSON object that is written; 0: without a version


def plain(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses and named tuples as objects, tuples as lists,
    NaN as null.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, BaseModel):
        value = dict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):  # a scalar of NumPy or torch
        return plain(value.item())
    return str(value)


def versioned(value: Any) -> dict[str, Any]:
    """Return a JSON object that begins with the version of its schema."""
    return {"schema_version": SCHEMA_VERSION} | plain(value)


def json_text(value: object) -> str:
    """Return a JSON object with the version of its schema, as it is written to files."""
    return json.dumps(versioned(value), indent=2, ensure_ascii=False, allow_nan=False)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file.

    Raises OSError, ValueError if there is no object, and UserError for a later version.
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


def config_hash(config: Mapping[str, object]) -> str:
    """Return the SHA-256 (hex) of settings as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(plain(config), sort_keys=True).encode()).hexdigest()


def differences(old: object, new: object, prefix: str = "") -> list[str]:
    """Return the differences between two JSON values as lines of "dotted.key: old -> new"."""
    lines: list[str] = []
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            name = f"{prefix}.{key}" if prefix else str(key)
            lines += differences(old.get(key), new.get(key), name)
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        before, after = (json.dumps(value, ensure_ascii=False) for value in (old, new))
        lines.append(f"{prefix}: {before} -> {after}")
    return lines
