"""Configuration as data: what a run or a sweep is, from options or a YAML file."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    field_validator,
)

from lanternbench.errors import UserError
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.statistics import look_sizes, prompts_needed
from lanternbench.methods import presets
from lanternbench.methods.method import Method, method, preset, takes_lists
from lanternbench.models.entries import catalogue, check_target
from lanternbench.settings import TARGETS_OWN, Sampling, checked
from lanternbench.utils.files import read_yaml, shipped

FILED = ("eagle", "eagle-3", "dflash")  # kinds of drafter that a file or folder may hold
# settings of a sweep file that may be lists
AXES = ("target", "seed", "temperature", "top_k", "guidance", "batch")
MAX_METHODS = 1000  # of a grid
MAX_RUNS = 1000  # of a sweep file
MAX_SEED = 2**63 - 1
Dtype = Literal["float32", "bfloat16"]
# options whose value is a component's name
_NAMES = {"proposal", "tree", "acceptance", "residual", "order"}


class Decoding(Sampling):
    """What is decoded and how: the settings, and their limits, of every command that decodes."""

    target: str = Field("tiny", description="A target of `lanternbench targets`, or a folder.")
    drafter: str | None = Field(
        None, description="A smaller target that drafts, or a file or folder with a drafter."
    )
    dtype: Dtype | None = Field(None, description="Of weights (default: by target and device).")
    compile: Literal["eager", "graphs"] | None = Field(
        None, description="graphs: CUDA graphs (default on a GPU)."
    )
    random_weights: bool = Field(False, description="Full size without files: speed alone.")
    simulate_acceptance: float | list[float] | None = Field(
        None, description="Mean tokens a step to yield, or rates by position: 0.8,0.7,0.6."
    )
    prompts: str = Field(
        "demo", description="demo, coco2017[:FILE], parti[:FILE], or a text file."
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="Of all draws.")

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        if isinstance(value, str) and any(
            len(part.encode("utf-8", "replace")) > 255 for part in value.split("/")
        ):
            raise ValueError("is too long for a name")
        if isinstance(value, str) and not value.isprintable():
            raise ValueError("must not have control characters")
        return value

    @field_validator("simulate_acceptance", mode="before")
    @classmethod
    def _mean_or_rates(cls, value: Any) -> Any:
        """The mean tokens a step, or acceptance rates by position such as 0.8,0.7,0.6."""
        if isinstance(value, str):
            rates = [float(x) for x in value.split(",")]
            value = rates if len(rates) > 1 else rates[0]
        if isinstance(value, list) and value:
            good = all(type(x) in (int, float) and 0 <= x <= 1 for x in value)
        else:
            good = value is None or (isinstance(value, int | float) and 1 <= value <= 64)
        if not good:
            raise ValueError(
                "must be a mean from 1 to 64 tokens a step, or rates from 0 to 1 such as 0.8,0.7,0.6"
            )
        return value

    @property
    def sampling(self) -> Sampling:
        return self.part(Sampling)


class Sweep(Decoding):
    """One sweep: methods that share target, prompts and clock.  ``method_specs`` are expanded by
    ``methods``.
    """

    name: str = Field(
        "run",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,79}$",
        description="Of the run folder (default: its methods).",
    )
    suite: str | None = None  # name and hash of the protocol that it follows
    num_prompts: int | None = Field(
        8,
        ge=1,
        le=10**9,
        description="How many; 0 for all (default: what tells its methods apart from ar).",
    )
    until_told_apart: bool = Field(
        False, description="Add prompts until every method's speed is told apart from ar's."
    )
    caption: Literal["first", "longest", "random"] = Field(
        "first", description="Which caption of a COCO image."
    )
    repeats: int = Field(
        1, ge=1, le=1000, description="Decode every prompt with so many seeds, from --seed on."
    )
    batch: int = Field(
        1, ge=1, le=1024, description="Prompts decoded together; latency is measured at 1 only."
    )
    metrics: list[str] = Field(["clip", "fid"], description="Comma-separated.")
    baseline: bool = Field(True, description="Measure ar alongside, interleaved.")
    method_specs: list[dict[str, Any]] = Field(alias="methods", min_length=1)

    @field_validator("num_prompts", mode="before")
    @classmethod
    def _none_is_all(cls, value: Any) -> Any:
        return None if value == 0 and value is not False else value

    @field_validator("method_specs", mode="before")
    @classmethod
    def _names_are_specs(cls, value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError("must be a list of method names or of mappings with a key 'method'")
        entries = [{"method": v} if isinstance(v, str) else v for v in value]
        # pydantic refuses the others
        specs, grids = [v for v in entries if isinstance(v, dict)], 0
        for spec in specs:
            for key, item in spec.items():
                texts = [
                    x
                    for x in (item if isinstance(item, list) else [item])
                    if isinstance(x, str) or key in _NAMES
                ]
                if not isinstance(key, str) or not all(
                    isinstance(x, str) and x.isprintable() for x in (key, *texts)
                ):
                    raise ValueError(f"{str(key)!r} has a value that is no name")
        for spec in specs:
            if isinstance(spec.get("method"), str):
                preset(spec["method"])
            grids += math.prod(len(x) for x in spec.values() if isinstance(x, list))
        if grids > MAX_METHODS:
            raise ValueError(
                f"lists of options make {grids} methods, and at most {MAX_METHODS} fit in one sweep"
            )
        return entries

    @property
    def seeds(self) -> list[int]:
        """One per repeat: every prompt is decoded with each."""
        return [(self.seed + i) % (MAX_SEED + 1) for i in range(self.repeats)]

    def methods(self) -> list[Method]:
        """Every method of the sweep, lists of option values expanded to their grid, each once;
        ``ar`` first.

        No two have the same label: where two would, the later ones end with the start of their
        key.
        """
        methods: dict[str, Method] = {}
        for spec in ([{"method": "ar"}] if self.baseline else []) + self.method_specs:
            for one in self._expanded(spec):
                if one.key not in methods and one.label in {m.label for m in methods.values()}:
                    one = replace(one, mark=f"#{one.key[:6]}")
                methods.setdefault(one.key, one)
        kinds = sorted(
            {str(m.proposal.drafter_kind) for m in methods.values() if m.drafter == self.drafter}
        )
        if self.drafter and len(kinds) > 1:
            text = f"'{self.drafter}' cannot be a drafter of kind {' and '.join(kinds)} at once"
            raise UserError(f"{text}: name it as `drafter` of the methods that it is for")
        return list(methods.values())

    def _expanded(self, spec: dict[str, Any]) -> Iterator[Method]:
        """The methods of one entry, with the sweep's drafter where it may be one of the kind that
        they draft with.
        """
        if "method" not in spec:
            raise UserError(f"a method entry needs the key 'method': {spec}")
        if not isinstance(spec["method"], str):
            raise UserError(
                f"'method' must be one name, not {spec['method']!r}: give every method an entry"
            )
        if empty := [k for k, v in spec.items() if v == []]:
            raise UserError(
                f"option '{empty[0]}' of method '{spec['method']}' is an empty list: give a value"
            )
        options = {k: v for k, v in spec.items() if k != "method"}
        # several values, unless one value is a list
        lists = [k for k, v in options.items() if isinstance(v, list)]
        several = [
            k for k in lists if not takes_lists(k) or all(isinstance(x, str) for x in options[k])
        ]
        kinds = (
            ()
            if not self.drafter
            else ("model",)
            if self.drafter.partition("=")[0] in catalogue()
            else FILED
        )
        for values in itertools.product(*(options[k] for k in several)):
            one = method(spec["method"], **options | dict(zip(several, values, strict=True)))
            yield (
                replace(one, drafter=self.drafter)
                if one.proposal.drafter_kind in kinds and not one.drafter
                else one
            )

    def record(self, of_target: Sampling = TARGETS_OWN) -> dict[str, Any]:
        """The settings that determine the results: all but the name, and those that are switched
        off.  ``of_target`` replaces what is not set.
        """
        optional = (
            "drafter",
            "dtype",
            "compile",
            "random_weights",
            "simulate_acceptance",
            "until_told_apart",
            "suite",
        )
        off = {k for k in optional if not getattr(self, k)} | (
            {"repeats"} if self.repeats == 1 else set()
        )
        values = self.model_dump(by_alias=True, exclude={"name"} | off, mode="json")
        return values | self.sampling.record(of_target)


def sweep(values: dict[str, Any], where: str = "the configuration") -> Sweep:
    """Validated settings of a sweep, by default with as many prompts as tell every method apart
    from the baseline, or ``until_told_apart`` at most as many.  Raises UserError as ``checked``
    does."""
    config, is_set = checked(Sweep, values, where), "num_prompts" in values
    if is_set and not config.until_told_apart:
        return config
    methods = sum(m.label != BASELINE for m in config.methods())
    if not config.until_told_apart:
        return config.model_copy(update={"num_prompts": prompts_needed(methods)})
    if config.batch > 1 or config.repeats > 1 or not (methods and config.baseline):
        raise UserError(
            "--until-told-apart compares speeds with ar's, of one seed at batch 1: leave out what differs"
        )
    most = look_sizes(methods)[-1]
    return config.model_copy(
        update={"num_prompts": min(most, config.num_prompts or most) if is_set else most}
    )


def read_sweeps(path: Path, changed: Mapping[str, Any] | None = None) -> list[Sweep]:
    """The runs of a sweep file, with settings ``changed``: one, or one per combination where
    settings are lists.

    Each is named after its values along these axes.  Raises UserError for a missing file, broken
    YAML (with its line), an unknown target and wrong settings.
    """
    changed = dict(changed or {})
    values = {"name": name_part(path.stem) or "sweep"} | _values(path)
    if "prompts" in changed and changed["prompts"] != values.get("prompts"):
        values["name"] = f"{values['name']}+{prompts_name(str(changed['prompts']))}"[:80]
    values |= changed
    if "suite" in values:
        raise UserError(f"{path}: 'suite' is set by `lanternbench suite` alone; leave it out")
    if "methods" in values:
        values["methods"] = presets.expanded(values["methods"], path.parent)
    axes = {key: values[key] for key in AXES if isinstance(values.get(key), list)}
    if empty := [key for key, choices in axes.items() if not choices]:
        raise UserError(f"{path}: '{empty[0]}' is an empty list: give a value")
    if (count := math.prod(map(len, axes.values()))) > MAX_RUNS:
        raise UserError(
            f"{path} is {count} runs: give at most {MAX_RUNS} combinations of {', '.join(axes)}"
        )
    for name in axes.get("target", [values.get("target")]):
        if isinstance(name, str) and name.isprintable() and len(name) < 256:
            check_target(name)  # before methods are built, which takes torch
    runs: dict[str, Sweep] = {}
    for choice in itertools.product(*axes.values()):
        chosen = dict(zip(axes, choice, strict=True))
        run = sweep(values | chosen, str(path))
        name = "+".join(
            [run.name, *(f"{key}-{name_part(str(value))}" for key, value in chosen.items())]
        )[:80]
        if name in runs:
            raise UserError(
                f"{path} has two runs named {name}: give each value of a list once, and shorter names"
            )
        runs[name] = run.model_copy(update={"name": name})
    return list(runs.values())


def _values(path: Path) -> dict[str, Any]:
    try:
        places = [path] + (
            [shipped("configs", path.name)] if path.parent in (Path("."), Path("configs")) else []
        )
        place = next((place for place in places if place.is_file()), None)
        if place is None and path.exists():
            raise UserError(f"{path} is no regular file: give the path of a YAML file")
    except OSError as error:  # a name that is too long, say
        raise UserError(
            f"cannot read {path} ({error.strerror}): give the path of a YAML file"
        ) from None
    if place is None:
        raise UserError(
            f"there is no sweep file {path}: give the path of a YAML file such as configs/demo.yaml"
        )
    values = read_yaml(place, "a sweep file")
    if not isinstance(values, dict):
        raise UserError(f"{path} must be a mapping of settings such as `methods: [ar, eagle-1]`")
    return values


def prompts_name(spec: str) -> str:
    """Prompts in a run's name: their source, or their file."""
    return name_part(Path(spec.partition(":")[0]).stem)


def name_part(text: str) -> str:
    """``text`` as a part of a run's name."""
    return re.sub(r"[^A-Za-z0-9._+-]", "-", text).lstrip("._+-")[:80]
