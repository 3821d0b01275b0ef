"""A method in a YAML file, as ``tune`` writes it: the keys ``method`` and its options, and the evidence for them.

Wherever a method is named, in ``run``, in a sweep file or from Python, the path of such a file stands for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lanternbench.errors import UserError
from lanternbench.utils import yaml_text

EVIDENCE = "evidence"  # key of the measurements behind the sizes, which no command reads


def is_file(name: str) -> bool:
    """Is a method named by the path of a file?"""
    return name.endswith((".yaml", ".yml"))


def read(name: str, folder: Path = Path()) -> dict[str, Any]:
    """``method`` and its options, without the evidence.  A path is looked up from ``folder``, then from here.

    Raises UserError for a missing file, broken YAML, and what is no preset.
    """
    path = next((p for p in (folder / name, Path(name)) if p.is_file()), None)
    if path is None:
        raise UserError(f"there is no preset file {name}: give one that `lanternbench tune` wrote")
    data = yaml_text.read(path, "a preset file")
    method = _named(data)
    if method is None or is_file(method):
        raise UserError(f"{path} is no preset: it needs the key 'method' with a name of `lanternbench methods`")
    return {str(key): value for key, value in data.items() if key != EVIDENCE}


def _named(entry: Any) -> str | None:
    """The method that a mapping names; None where it is no mapping or names none."""
    try:
        method = entry["method"]
    except (TypeError, KeyError):
        return None
    return method if isinstance(method, str) else None


def expanded(specs: Any, folder: Path = Path()) -> Any:
    """The method entries of a configuration with files read; options beside a file's name replace the file's."""
    if not isinstance(specs, list):
        return specs
    return [_expanded(spec, folder) for spec in specs]


def _expanded(spec: Any, folder: Path) -> Any:
    entry = {"method": spec} if isinstance(spec, str) else spec
    method = _named(entry)
    if method is None or not is_file(method):
        return spec
    return read(method, folder) | {key: value for key, value in entry.items() if key != "method"}
