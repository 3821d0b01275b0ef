"""From settings to runs: sweep files, the methods that their entries stand for, names of runs."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lanternbench.component import Choices
from lanternbench.errors import UserError
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.statistics import look_sizes, prompts_needed
from lanternbench.methods import presets
from lanternbench.methods.method import Method, canonical, method, preset, takes_lists
from lanternbench.models.drafters.kinds import FILED
from lanternbench.models.entries import catalogue, check_target
from lanternbench.settings import MAX_NAME, MethodSpec, Sweep, checked
from lanternbench.utils.files import read_yaml, shipped

MAX_METHODS = 1000  # of a grid
MAX_RUNS = 1000  # of a sweep file


def sweep(values: Mapping[str, object], where: str = "the configuration") -> Sweep:
    """Return validated settings, with as many prompts as distinguish every method from ``ar``
    where their number is not set.  Raises UserError.
    """
    config = checked(Sweep, values, where)
    check_specs(config.methods, where)
    if "num_prompts" in values and not config.until_told_apart:
        return config
    compared = sum(m.label != BASELINE for m in expand(config))
    count = prompts_needed(compared)
    if config.until_told_apart:
        count = _most_prompts(config, compared)
    return config.model_copy(update={"num_prompts": count})


def _most_prompts(config: Sweep, compared: int) -> int:
    """Return how many prompts a sweep may use until its speeds are statistically distinguishable."""
    several = config.batch > 1 or config.repeats > 1
    if several or not compared or not config.baseline:
        raise UserError(
            "--until-told-apart compares speeds with ar's, of one seed at batch 1: leave out what"
            " differs"
        )
    most = look_sizes(compared)[-1]
    if "num_prompts" in config.model_fields_set and config.num_prompts is not None:
        most = min(most, config.num_prompts)
    return most


def of_methods(
    methods: Sequence[str | MethodSpec],
    given: Mapping[str, object],
    method_options: MethodSpec,
    where: str,
) -> Sweep:
    """Return the settings of a run of these methods, each with the options that it reads, and of
    the settings ``given``.  Raises UserError.
    """
    entries = [_uniform(spec) for spec in specs(methods, method_options, where)]
    chosen = {"name": default_name(methods, given), **given, "methods": entries}
    return sweep(chosen, where)


def _uniform(spec: MethodSpec) -> MethodSpec:
    """Return an entry as the command line writes it: options by their fields' names, and a float
    where a whole number stands for one.
    """
    read = next(_grid(spec, None)).read
    uniform: MethodSpec = {}
    for key, value in spec.items():
        name = canonical(key)
        if isinstance(read.get(name), float):
            value = list(map(float, value)) if isinstance(value, list) else float(value)
        uniform[name] = value
    return uniform


def default_name(methods: Sequence[str | MethodSpec], given: Mapping[str, object]) -> str:
    """Return a run's name: its methods, and target and prompts unless they are the default."""
    stems = []
    for one in methods:
        name = str(one if isinstance(one, str) else one.get("method"))
        stems.append(Path(name).stem if presets.is_file(name) else name)
    parts = ["run", "+".join(stems)]
    target = str(given.get("target", "tiny"))
    prompts = str(given.get("prompts", "demo"))
    if target != "tiny":
        parts.append(Path(target.partition("=")[0]).name)
    if prompts != "demo":
        parts.append(prompts_name(prompts))
    return name_part("-".join(parts))


def specs(
    methods: Sequence[str | MethodSpec], options: MethodSpec, where: str = "the command line"
) -> list[MethodSpec]:
    """Return an entry for each method, with the options that it reads.

    Options that no method reads stay in all entries, so that the error names them.
    """
    entries = checked(Sweep, {"methods": presets.expanded(list(methods))}, where).methods
    check_specs(entries, where)
    choices = {key: options[key] for key in Choices._fields if key in options}
    for key, value in options.items():
        takers = entries
        if key not in choices:
            takers = [entry for entry in entries if takes(entry, choices, key, value)]
        for entry in takers or entries:
            entry[key] = value
    return entries


def takes(entry: MethodSpec, choices: MethodSpec, key: str, value: object) -> bool:
    """Return whether the method of an entry reads an option, once it has these components."""
    try:
        method(str(entry["method"]), **choices | {key: value})
    except UserError:
        return False
    return True


def check_specs(specs: list[MethodSpec], where: str) -> None:
    """Raise UserError for unknown methods and for grids that are too large, without torch."""
    count = 0
    for spec in specs:
        name = spec.get("method")
        if not isinstance(name, str):
            raise UserError(
                f"{where}: a method entry needs the key 'method' with one name,"
                f" not {spec}: give every method an entry"
            )
        preset(name)
        for option, value in spec.items():
            if not is_readable(option, value):
                raise UserError(
                    f"{where}: {option!r} of method '{name}' has a value that is no name"
                )
            if value == []:
                raise UserError(
                    f"{where}: option '{option}' of method '{name}' is an empty list: give a value"
                )
        count += math.prod(len(value) for value in spec.values() if isinstance(value, list))
    if count > MAX_METHODS:
        raise UserError(
            f"{where}: lists of options make {count} methods, and at most {MAX_METHODS} fit in one"
            " sweep"
        )


def is_readable(option: str, value: object) -> bool:
    """Return whether an option and its texts are printable, and names are texts."""
    values = value if isinstance(value, list) else [value]
    if option in Choices._fields and not all(isinstance(item, str) for item in values):
        return False
    texts = [item for item in (option, *values) if isinstance(item, str)]
    return all(text.isprintable() for text in texts)


def expand(config: Sweep) -> list[Method]:
    """Return every method of a sweep, ``ar`` first, each once; a list of option values is a grid."""
    specs: list[MethodSpec] = [{"method": BASELINE}] if config.baseline else []
    by_key: dict[str, Method] = {}
    for spec in specs + config.methods:
        for one in _grid(spec, config.drafter):
            by_key.setdefault(one.key, one)
    methods = list(by_key.values())
    if config.drafter:
        _check_drafter(config.drafter, methods)
    return labelled(methods)


def labelled(methods: Sequence[Method]) -> list[Method]:
    """Return methods whose labels show every option in which those of one preset differ.

    No two have the same label: where two would, the later ones end with the start of their key.
    """
    swept: dict[str, list[str]] = {}
    for one in methods:
        swept.setdefault(one.preset, []).extend(one.options)
    found: dict[str, Method] = {}
    for one in methods:
        one = replace(one, swept=tuple(swept[one.preset]))
        if one.label in found:
            one = replace(one, mark=f"#{one.key[:6]}")
        found[one.label] = one
    return list(found.values())


def _check_drafter(drafter: str, methods: list[Method]) -> None:
    """Raise UserError if methods draft with one drafter as with drafters of several kinds."""
    kinds = sorted({str(m.proposal.drafter_kind) for m in methods if m.drafter == drafter})
    if len(kinds) > 1:
        raise UserError(
            f"'{drafter}' cannot be a drafter of kind {' and '.join(kinds)} at once:"
            " name it as `drafter` of the methods that it is for"
        )


def _grid(spec: MethodSpec, drafter: str | None) -> Iterator[Method]:
    """Yield the methods of one entry, with the sweep's drafter if they can draft with it."""
    options = {option: value for option, value in spec.items() if option != "method"}
    several = {k: v for k, v in options.items() if isinstance(v, list) and is_axis(k, v)}
    for values in itertools.product(*several.values()):
        chosen = options | dict(zip(several, values, strict=True))
        one = method(str(spec["method"]), **chosen)
        if drafter and not one.drafter and one.proposal.drafter_kind in kinds_of(drafter):
            one = replace(one, drafter=drafter)
        yield one


def is_axis(option: str, values: list[object]) -> bool:
    """Return whether a list has several values of an option, and is not one value."""
    return not takes_lists(option) or all(isinstance(value, str) for value in values)


def kinds_of(drafter: str) -> tuple[str, ...]:
    """Return the kinds of drafter that a target, file or folder may be."""
    is_target = drafter.partition("=")[0] in catalogue()
    return ("model",) if is_target else FILED


def read_sweeps(path: Path, changed: Mapping[str, object] | None = None) -> list[Sweep]:
    """Return the runs of a sweep file, with settings ``changed``: one, or one for each
    combination of the settings that are lists.

    Each is named after its values along these axes.  Raises UserError for a missing file, broken
    YAML (with its line), an unknown target and wrong settings.
    """
    values = _read_settings(path, dict(changed or {}))
    axes = _axes(path, values)
    for name in axes.get("target", [values.get("target")]):
        if isinstance(name, str) and name.isprintable() and len(name) < 256:
            check_target(name)  # before methods are built, which takes torch
    runs: dict[str, Sweep] = {}
    for choice in itertools.product(*axes.values()):
        chosen = dict(zip(axes, choice, strict=True))
        run = sweep(values | chosen, str(path))
        parts = [f"{key}-{name_part(str(value))}" for key, value in chosen.items()]
        name = "+".join([run.name, *parts])[:MAX_NAME]
        if name in runs:
            raise UserError(
                f"{path} has two runs named {name}: give each value of a list once, and shorter"
                " names"
            )
        runs[name] = run.model_copy(update={"name": name})
    return list(runs.values())


def _axes(path: Path, values: Mapping[str, object]) -> dict[str, list[object]]:
    """Return the settings that list several values."""
    axes: dict[str, list[object]] = {}
    for name in Sweep.axes():
        value = values.get(name)
        if isinstance(value, list):
            axes[name] = value
        if value == []:
            raise UserError(f"{path}: '{name}' is an empty list: give a value")
    count = math.prod(len(choices) for choices in axes.values())
    if count > MAX_RUNS:
        raise UserError(
            f"{path} is {count} runs: give at most {MAX_RUNS} combinations of {', '.join(axes)}"
        )
    return axes


def _read_settings(path: Path, changed: dict[str, object]) -> dict[str, object]:
    """Return the settings of a sweep file, with those that are changed."""
    values = {"name": name_part(path.stem) or "sweep"} | _read_mapping(path)
    prompts = changed.get("prompts", values.get("prompts"))
    if prompts != values.get("prompts"):
        values["name"] = f"{values['name']}+{prompts_name(str(prompts))}"[:MAX_NAME]
    values |= changed
    if "suite" in values:
        raise UserError(f"{path}: 'suite' is set by `lanternbench suite` alone; leave it out")
    if "methods" in values:
        values["methods"] = presets.expanded(values["methods"], path.parent)
    return values


def _read_mapping(path: Path) -> dict[str, object]:
    """Return the content of a sweep file, one of ours if there is none of that name."""
    places = [path]
    try:
        if path.parent in (Path("."), Path("configs")):
            places.append(shipped("configs", path.name))
        place = next((place for place in places if place.is_file()), None)
        is_something_else = place is None and path.exists()
    except OSError as error:  # a name that is too long, say
        raise UserError(
            f"cannot read {path} ({error.strerror}): give the path of a YAML file"
        ) from None
    if is_something_else:
        raise UserError(f"{path} is no regular file: give the path of a YAML file")
    if place is None:
        raise UserError(
            f"there is no sweep file {path}: give the path of a YAML file such as"
            " configs/demo.yaml"
        )
    values = read_yaml(place, "a sweep file")
    if not isinstance(values, dict):
        raise UserError(f"{path} must be a mapping of settings such as `methods: [ar, eagle-1]`")
    return values


def prompts_name(spec: str) -> str:
    """Return the name of prompts in a run's name: their source, or their file."""
    return name_part(Path(spec.partition(":")[0]).stem)


def name_part(text: str) -> str:
    """Return ``text`` as a part of a run's name."""
    return re.sub(r"[^A-Za-z0-9._+-]", "-", text).lstrip("._+-")[:MAX_NAME]
