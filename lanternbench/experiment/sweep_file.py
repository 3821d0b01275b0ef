"""A sweep file -> its runs: one, or one per combination where a setting is a list."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanternbench.errors import UserError
from lanternbench.experiment.config import Sweep, name_part, prompts_name, sweep
from lanternbench.methods import preset_file
from lanternbench.models.entries import check_target
from lanternbench.utils.files import read_yaml, shipped

AXES = ("target", "seed", "temperature", "top_k", "guidance", "batch")  # settings that may be lists
MAX_RUNS = 1000


def read(path: Path, changed: Mapping[str, Any] | None = None) -> list[Sweep]:
    """The runs of a sweep file, with settings ``changed``; each is named after its values along the axes.

    Raises UserError for a missing file, broken YAML (with its line), an unknown target and wrong settings.
    """
    changed = dict(changed or {})
    values = {"name": name_part(path.stem) or "sweep"} | _values(path)
    if "prompts" in changed and changed["prompts"] != values.get("prompts"):
        values["name"] = f"{values['name']}+{prompts_name(str(changed['prompts']))}"[:80]
    values |= changed
    if "suite" in values:
        raise UserError(f"{path}: 'suite' is set by `lanternbench suite` alone; leave it out")
    if "methods" in values:
        values["methods"] = preset_file.expanded(values["methods"], path.parent)
    axes = {key: values[key] for key in AXES if isinstance(values.get(key), list)}
    if empty := [key for key, choices in axes.items() if not choices]:
        raise UserError(f"{path}: '{empty[0]}' is an empty list: give a value")
    if (count := math.prod(map(len, axes.values()))) > MAX_RUNS:
        raise UserError(f"{path} is {count} runs: give at most {MAX_RUNS} combinations of {', '.join(axes)}")
    for name in axes.get("target", [values.get("target")]):
        if isinstance(name, str) and name.isprintable() and len(name) < 256:
            check_target(name)  # before methods are built, which takes torch
    runs: dict[str, Sweep] = {}
    for choice in itertools.product(*axes.values()):
        chosen = dict(zip(axes, choice, strict=True))
        run = sweep(values | chosen, str(path))
        name = "+".join([run.name, *(f"{key}-{name_part(str(value))}" for key, value in chosen.items())])[:80]
        if name in runs:
            raise UserError(f"{path} has two runs named {name}: give each value of a list once, and shorter names")
        runs[name] = run.model_copy(update={"name": name})
    return list(runs.values())


def _values(path: Path) -> dict[str, Any]:
    try:
        places = [path] + ([shipped("configs", path.name)] if path.parent in (Path("."), Path("configs")) else [])
        place = next((place for place in places if place.is_file()), None)
        if place is None and path.exists():
            raise UserError(f"{path} is no regular file: give the path of a YAML file")
    except OSError as error:  # a name that is too long, say
        raise UserError(f"cannot read {path} ({error.strerror}): give the path of a YAML file") from None
    if place is None:
        raise UserError(f"there is no sweep file {path}: give the path of a YAML file such as configs/demo.yaml")
    values = read_yaml(place, "a sweep file")
    if not isinstance(values, dict):
        raise UserError(f"{path} must be a mapping of settings such as `methods: [ar, eagle-1]`")
    return values
