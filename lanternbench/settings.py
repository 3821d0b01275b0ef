"""Every setting: its name, help text, bounds and default.

Options of commands, sweep files, ``generate`` in Python, run.json, the recipes of the suite and
the reports derive from these classes.  A setting is added by adding a field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lanternbench.errors import UserError, first_mistake
from lanternbench.utils.device import choose
from lanternbench.utils.text import listed

MIN_TEMPERATURE = 1e-3  # or 0, which is greedy
MAX_TEMPERATURE = 10.0
MAX_SEED = 2**63 - 1
MAX_NAME = 80  # characters

Dtype = Literal["float32", "bfloat16", "float16"]
CompileMode = Literal["eager", "graphs", "inductor"]
Caption = Literal["first", "longest", "random"]
Noise = Literal["independent", "shared"]
Tracker = Literal["tensorboard", "wandb"]
Guidance = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
MethodSpec = dict[str, Any]  # "method", and options; a list of values stands for a grid
Part = TypeVar("Part", bound="Settings")
Model = TypeVar("Model", bound=BaseModel)


class Flags(NamedTuple):
    """Marks a setting whose options of the command line are not its name alone."""

    names: tuple[str, ...]


# marks of settings that run.json has only sometimes; it always has all others
NEVER = "never recorded"
UNLESS_DEFAULT = "recorded unless default"
AS_GIVEN = "recorded as given"  # None if it was not set
COUNT = Flags(("--num-prompts", "-n"))
RESULTS = "Folder that contains the run folders."


def _margin(name: str, size: object) -> float:
    """Return a margin as a positive number.  Raises ValueError."""
    try:
        margin = float(str(size))
    except ValueError:
        margin = 0.0
    if not 0 < margin < 1e6:
        raise ValueError(f"needs a positive margin for {name}, such as {name}=0.01")
    return margin


def _margins(value: object) -> dict[str, float]:
    """Return margins by metric; a text has them as ``clip=0.01,image-reward=0.05``."""
    if isinstance(value, str):
        value = dict(part.partition("=")[::2] for part in value.split(","))
    if not isinstance(value, Mapping):
        raise ValueError("must be margins such as clip=0.01,image-reward=0.05")
    return {str(name).strip(): _margin(str(name), size) for name, size in value.items()}


Margins = Annotated[dict[str, float], BeforeValidator(_margins)]
NOT_WORSE = (
    "Margins by metric, such as clip=0.01,image-reward=0.05: report which methods are not worse"
    " than ar by more."
)


class Settings(BaseModel):
    """Base class of settings: a value that cannot be changed and knows which fields were set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _of_its_kind(cls, value: object, info: ValidationInfo) -> object:
        """Read a text as the list of its names, and refuse true and false for a number."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (kind, *get_args(kind)):
            raise ValueError("must not be true or false")
        return listed(value) if isinstance(value, str) and kind == list[str] else value

    @field_validator("*", mode="before")
    @classmethod
    def _printable_and_short(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if any(len(part.encode("utf-8", "replace")) > 255 for part in value.split("/")):
            raise ValueError("is too long for a name")
        if not value.isprintable():
            raise ValueError("must not have control characters")
        return value

    def part(self, kind: type[Part]) -> Part:
        """Return the fields that were inherited from ``kind`` as a value of that class."""
        values = {name: getattr(self, name) for name in kind.model_fields}
        return kind.model_construct(self.model_fields_set & values.keys(), **values)

    def updated(self, changes: Settings) -> Self:
        """Return a copy with the fields that were set in ``changes``."""
        return self.model_copy(update=changes.model_dump(exclude_unset=True))


def checked(kind: type[Model], values: object, where: str = "the command line") -> Model:
    """Return validated settings.  Raises UserError that names the field and what is wrong."""
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        example = "such as `methods: [ar, eagle-1]`"
        raise UserError(f"{where} must be a mapping of settings {example}")
    if unknown := [name for name in values if name not in kind.model_fields]:
        known = ", ".join(name for name in kind.model_fields if name != "suite")
        raise UserError(f"{where} has no setting '{unknown[0]}': the settings are {known}")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        field, reason = first_mistake(error)
    raise UserError(f"{where}: '{field}' is wrong ({reason}); correct it")


class Sampling(Settings):
    """The sampling of tokens from logits.  Fields that are not set are the target's."""

    temperature: float = Field(
        default=1.0,
        ge=0,
        le=MAX_TEMPERATURE,
        description="Temperature of the softmax; 0 is greedy (default: the target's).",
    )
    top_k: Annotated[int, AS_GIVEN] = Field(
        default=0,
        ge=0,
        le=2**31,
        description="Draw from this many likeliest tokens; 0 for all (default: the target's).",
    )
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Draw from the likeliest tokens whose probabilities add up to this"
        " (default: the target's).",
    )
    min_p: Annotated[float, UNLESS_DEFAULT] = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Drop tokens whose probability is below this share of the highest one"
        " (default: the target's).",
    )
    guidance: Guidance = Field(
        default=1.0,
        description="Scale of classifier-free guidance; 1 is none (default: the target's).",
    )
    noise: Annotated[Noise, UNLESS_DEFAULT] = Field(
        default="independent",
        description="Noise of draws: shared by all methods, so that an image of a lossless one is"
        " ar's token for token, or independent.",
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_what_is_unset(cls, values: object) -> object:
        """Read None as a field that is not set."""
        if not isinstance(values, Mapping):
            return values
        names = Sampling.model_fields
        return {k: v for k, v in values.items() if v is not None or k not in names}

    @field_validator("temperature")
    @classmethod
    def _greedy_is_zero(cls, value: float) -> float:
        if 0 < value < MIN_TEMPERATURE:
            raise ValueError(f"must be 0, which is greedy, or at least {MIN_TEMPERATURE:g}")
        return value


TARGETS_OWN = Sampling()
GREEDY = Sampling(temperature=0.0)


class ModelSpec(Settings):
    """A target, the drafter that replaces its own, and how they run."""

    target: str = Field(
        default="tiny", description="A target of `lanternbench targets`, or a folder."
    )
    drafter: Annotated[str | None, UNLESS_DEFAULT] = Field(
        default=None,
        description="A smaller target that drafts, or a file or folder with a drafter.",
    )
    dtype: Annotated[Dtype | None, UNLESS_DEFAULT] = Field(
        default=None, description="Data type of the weights (default: by target and device)."
    )
    compile: Annotated[CompileMode | None, UNLESS_DEFAULT] = Field(
        default=None,
        description="graphs: CUDA graphs (default on a GPU); inductor: also fused kernels.",
    )
    random_weights: Annotated[bool, UNLESS_DEFAULT] = Field(
        default=False,
        description="Use random weights of full size, without files: only the speed is real.",
    )
    simulate_acceptance: Annotated[float | list[float] | None, UNLESS_DEFAULT] = Field(
        default=None,
        description="Simulate acceptance: the mean number of tokens per step, or a rate for each"
        " position, such as 0.8,0.7,0.6.",
    )

    @property
    def draws_noise(self) -> bool:
        """True if images are noise, so that no metric is computed."""
        return self.random_weights or self.simulate_acceptance is not None

    @field_validator("simulate_acceptance", mode="before")
    @classmethod
    def _mean_or_rates(cls, value: object) -> object:
        if isinstance(value, str):
            rates = [float(part) for part in value.split(",")]
            value = rates if len(rates) > 1 else rates[0]
        if value is None:
            return None
        if isinstance(value, list) and value:
            in_range = all(type(x) in (int, float) and 0 <= x <= 1 for x in value)
        else:
            in_range = isinstance(value, int | float) and 1 <= value <= 64
        if not in_range:
            raise ValueError(
                "must be a mean from 1 to 64 tokens per step, or rates from 0 to 1 such as"
                " 0.8,0.7,0.6"
            )
        return value


class PromptSpec(Settings):
    """The prompts, and the seed of their images."""

    prompts: str = Field(
        default="demo", description="demo, coco2017[:FILE], parti[:FILE], or a text file."
    )
    num_prompts: Annotated[int | None, COUNT] = Field(
        default=8,
        ge=1,
        le=10**9,
        description="Number of prompts; 0 for all (default: enough to distinguish every method's"
        " speed from ar's).",
    )
    caption: Caption = Field(default="first", description="Caption of a COCO image that is used.")
    seed: int = Field(default=0, ge=0, le=MAX_SEED, description="Seed of all random draws.")

    @field_validator("num_prompts", mode="before")
    @classmethod
    def _zero_is_all(cls, value: object) -> object:
        return None if value == 0 and value is not False else value


class RunSpec(Settings):
    """The name of a run, its repeats and its metrics."""

    name: Annotated[str, NEVER] = Field(
        default="run", description="Name of the run folder (default: made from its methods)."
    )
    suite: Annotated[str | None, UNLESS_DEFAULT] = None  # name and hash of its protocol
    until_told_apart: Annotated[bool, UNLESS_DEFAULT] = Field(
        default=False,
        description="Add prompts until every method's speed is statistically distinguishable"
        " from ar's.",
    )
    repeats: Annotated[int, UNLESS_DEFAULT] = Field(
        default=1,
        ge=1,
        le=1000,
        description="Decode every prompt with this many seeds, starting from --seed.",
    )
    batch: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Prompts decoded together; latency is measured at 1 only.",
    )
    metrics: list[str] = Field(
        default=["clip", "fid"], description="Names from `lanternbench metrics`, comma-separated."
    )
    baseline: bool = Field(
        default=True, description="Also measure ar, interleaved with the methods."
    )
    not_worse: Annotated[Margins, UNLESS_DEFAULT] = Field(default={}, description=NOT_WORSE)

    @field_validator("name")
    @classmethod
    def _name_of_a_folder(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", value) or len(value) > MAX_NAME:
            raise ValueError(
                "must begin with a letter or digit, and have only letters, digits and . _ + -,"
                f" at most {MAX_NAME}"
            )
        return value


class Sweep(RunSpec, Sampling, PromptSpec, ModelSpec):
    """One sweep: methods that share target, prompts and clock."""

    methods: list[MethodSpec] = Field(min_length=1)

    @field_validator("methods", mode="before")
    @classmethod
    def _names_are_specs(cls, value: object) -> object:
        if not isinstance(value, list):
            raise ValueError("must be a list of method names or of mappings with a key 'method'")
        return [{"method": spec} if isinstance(spec, str) else spec for spec in value]

    @classmethod
    def axes(cls) -> list[str]:
        """Return the settings for which a sweep file may list several values."""
        return [
            name
            for name, field in cls.model_fields.items()
            if "list" not in str(field.annotation) and NEVER not in field.metadata
        ]

    @property
    def seeds(self) -> list[int]:
        """One seed per repeat."""
        return [(self.seed + i) % (MAX_SEED + 1) for i in range(self.repeats)]

    def record(self, of_target: Sampling = TARGETS_OWN) -> dict[str, object]:
        """Return the settings that determine the results, as run.json keeps them.

        ``of_target``: the target's sampling, which replaces what is not set.
        """
        values = self.model_dump(mode="json")
        values |= of_target.updated(self.part(Sampling)).model_dump()
        for name, field in type(self).model_fields.items():
            if AS_GIVEN in field.metadata and name not in self.model_fields_set:
                values[name] = None
            unused = UNLESS_DEFAULT in field.metadata and values[name] == field.default
            if unused or NEVER in field.metadata:
                del values[name]
        return values


class Tune(Sampling, PromptSpec, ModelSpec):
    """A search for tree sizes: everything but the machine that its result depends on."""

    method: str
    options: dict[str, Any] = Field(default_factory=dict)
    num_prompts: Annotated[int, COUNT] = Field(
        default=12, ge=1, le=10**9, description="Prompts that are measured."
    )
    recorded: int = Field(
        default=4,
        ge=1,
        le=10**9,
        description="Prompts whose drafts are recorded to estimate acceptance.",
    )
    few: int = Field(default=3, ge=1, le=6, description="Number of best sizes that are measured.")


class Machine(Settings):
    """The device of a command, and its CPU threads."""

    device: str = Field(
        default="auto", description="cpu, cuda or cuda:N; auto takes a GPU if there is one."
    )
    threads: int | None = Field(
        default=None,
        description="CPU threads (default: 1 if the model is small, else all cores).",
    )

    def choose(self) -> str:
        return choose(self.device, self.threads)


class Place(Machine):
    """A machine and a folder of run folders."""

    out: Path = Field(default=Path("results"), description=RESULTS)
    fresh: Annotated[bool, Flags(("--fresh/--resume",))] = Field(
        default=False, description="Start a new run next to an existing one, or continue it."
    )


class Measuring(Place):
    """A place where times are measured."""

    remeasure_disturbed: bool = Field(
        default=False, description="Measure prompts with noisy timing once more."
    )
    tracker: Tracker | None = Field(
        default=None,
        description="A tracker that also gets settings, numbers and plots of finished runs.",
    )


class Execution(Measuring):
    """A place with workers."""

    executor: str = Field(
        default="local",
        description="local, or ray: split prompts over the GPUs of a Ray cluster, or this"
        " machine's CPUs.",
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="With ray: number of workers (default: one per GPU; without GPUs, one per"
        " --threads CPUs, or per CPU).",
    )
    ray_address: str | None = Field(
        default=None,
        description="Address of the Ray cluster (default: RAY_ADDRESS, or a new cluster for this"
        " sweep).",
    )


class TimedExecution(Execution):
    """A place with workers and a limited time."""

    time_budget: float | None = Field(
        default=None,
        ge=0,
        description="Minutes: leave out the last methods if they do not fit, and begin no prompt"
        " after this time.",
    )

    @property
    def seconds(self) -> float:
        return inf if self.time_budget is None else 60 * self.time_budget


class Comparing(Settings):
    """The settings of a comparison of two runs."""

    results: Path = Field(default=Path("results"), description=RESULTS)
    not_worse: Margins = Field(default={}, description=NOT_WORSE)
    fail_if: list[str] = Field(
        default=[],
        description="A change that fails: FIGURE<BOUND or FIGURE>BOUND; % for relative."
        " Keys: `speedup`, `tau`, …",
    )
    mapped: list[str] = Field(
        default=[],
        description='A method of the old run and its name in the new one, such as sjd="sjd'
        ' window=16".',
    )


class ReportSpec(Settings):
    """The settings of a report: what it shows, and where it is written."""

    methods: list[str] = Field(
        default=[], description="Only these, in this order: labels or names, comma-separated."
    )
    columns: list[str] = Field(
        default=[],
        description="Columns of tables: keys such as speedup,accept_len,fidelity_loss.",
    )
    names: dict[str, str] | Path | None = Field(
        default=None, description="YAML file with display names, such as `eagle-1: EAGLE`."
    )
    grid: bool = Field(
        default=False, description="Write grid.png and grid.pdf: images by prompt and method."
    )
    grid_prompts: int = Field(default=4, ge=1, description="Number of prompts in the grid.")
    race: Path | None = Field(
        default=None,
        description="Write a GIF of one prompt's images as they are drawn, to FILE.gif.",
    )
    budget: float = Field(
        default=0.1, ge=0, description="Maximum fidelity loss of the fastest relaxed method."
    )
    not_worse: Margins = Field(default={}, description=NOT_WORSE)
    results: Path = Field(default=Path("results"), description=RESULTS)
    out: Path | None = Field(default=None, description="Folder to write (default: RUN/report).")
    published: bool = Field(default=False, description="Show the papers' numbers next to ours.")
    formats: Annotated[list[str], Flags(("--format",))] = Field(
        default=[],
        description="Formats, comma-separated: md,csv,tex,html,json (default: all, and plots).",
    )
