"""A method in a YAML file, as ``tune`` writes it: the keys ``method`` and its options, and the evidence for them.

Wherever a method is named, in ``run``, in a sweep file or from Python, the path of such a file stands for it.
"""

from pathlib import Path
from typing import Any

from lanternbench.errors import UserError
from lanternbench.utils.files import read_yaml

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
    data = read_yaml(path, "a preset file")
    if not _named(data) or is_file(_named(data)):
        raise UserError(f"{path} is no preset: it needs the key 'method' with a name of `lanternbench methods`")
    return {str(key): value for key, value in data.items() if key != EVIDENCE}


def _named(entry: Any) -> str:
    """The method that a mapping names; empty where it is no mapping or names none."""
    method = entry.get("method") if isinstance(entry, dict) else None
    return method if isinstance(method, str) else ""


def expanded(specs: Any, folder: Path = Path()) -> Any:
    """The method entries of a configuration with files read; options beside a file's name replace the file's."""
    if not isinstance(specs, list):
        return specs
    methods = []
    for spec in specs:
        entry = {"method": spec} if isinstance(spec, str) else spec
        if is_file(name := _named(entry)):
            spec = read(name, folder) | {key: value for key, value in entry.items() if key != "method"}
        methods.append(spec)
    return methods
