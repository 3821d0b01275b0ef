"""``run.json`` as an object: what was run, with which settings, on what."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

from lanternbench.settings import UNLESS_DEFAULT, MethodSpec, ModelSpec, Sampling, Sweep
from lanternbench.utils.json_values import SCHEMA_VERSION, config_hash, differences

IMPORTED = "imported"  # the method of samples that other code made
MOMENTARY = ("sm_clock_mhz", "memory_clock_mhz")  # what a GPU's facts say of one moment
# what may change times, from other machines to other versions
TIMING_FACTS = {
    *("lanternbench", "python", "torch", "platform", "cpu", "cores", "threads", "cuda", "gpus"),
    *("device", "dtype", "compile", "executor", "workers"),
}


Evaluators = Literal["tiny", "full", "none"]
Side = Annotated[int, Field(ge=1, le=4096)]  # tokens


class Record(BaseModel):
    """Base class of the parts of run.json.  Keeps keys that other versions may have."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)

    def written(self) -> dict[str, Any]:
        """Return what the file has: the fields that are set."""
        return self.model_dump(mode="json", exclude_unset=True)


class Gpu(Record):
    """One GPU: name and memory, and what the driver says of it."""

    name: str | None = None


class Environment(Record):
    """The machine and the versions, as far as they are known."""

    lanternbench: str | None = None
    commit: str | None = None
    python: str | None = None
    torch: str | None = None
    transformers: str | None = None
    platform: str | None = None
    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    memory_gb: float | None = None
    memory_gb_per_s: float | None = None  # measured when the run began
    cuda: str | None = None
    gpus: list[Gpu] = []
    device: str | None = None
    dtype: str | None = None
    compile: str | None = None
    executor: str | None = None
    workers: int | None = None

    @property
    def on_cpu(self) -> bool:
        return (self.device or "cpu").startswith("cpu")

    @property
    def hardware(self) -> str | None:
        """The name of the GPU that was used, or of the CPU if none was."""
        return self.gpus[0].name if self.gpus and not self.on_cpu else self.cpu

    def lasting(self) -> dict[str, object]:
        """Return the facts that do not change from moment to moment."""
        facts = self.written()
        facts.pop("memory_gb_per_s", None)
        for gpu in facts.get("gpus", []):
            for name in MOMENTARY:
                gpu.pop(name, None)
        return facts

    def timing_facts(self) -> dict[str, object]:
        """Return the facts that may change times."""
        return {name: fact for name, fact in self.lasting().items() if name in TIMING_FACTS}

    @property
    def setting(self) -> str | None:
        """A name that two environments share if times in them can be compared; None if nothing is
        known.
        """
        facts = self.timing_facts()
        return config_hash(facts)[:8] if facts else None


def setting_changes(environments: Iterable[Environment]) -> list[str]:
    """Return how the others differ from the first environment in what may change times."""
    facts = [known for one in environments if (known := one.timing_facts())]
    changes: dict[str, None] = {}
    for other in facts[1:]:
        changes |= dict.fromkeys(differences(facts[0], other))
    return list(changes)


class RunConfig(Sweep):
    """The settings of a run, flat as in a sweep file; ``model_fields_set`` are those it has."""

    model_config = ConfigDict(extra="allow", strict=True)

    device: str | None = None
    methods: list[MethodSpec] = Field(default_factory=list)

    def written(self) -> dict[str, object]:
        """Return what the file has: the settings that are set."""
        return self.model_dump(mode="json", exclude_unset=True)


class PromptsRecord(Record):
    """The prompts that were drawn; ``hash`` identifies the selection."""

    source: str | None = None
    dataset: str | None = None
    count: int = Field(default=0, ge=0)
    seed: int | None = None
    hash: str | None = None
    notes: list[str] = []


class TargetRecord(Record):
    """The target: its image of ``grid`` rows and columns of tokens, and digests of its files."""

    name: str | None = None
    grid: Annotated[tuple[Side, Side], Strict(False)] | None = None
    tokens_before: int = 0  # of grids that are drawn before that one
    vocab: int | None = None
    evaluators: Evaluators | None = None  # none: it draws no images
    weights: dict[str, str] = {}
    read_bytes: int | None = None  # of its weights, in each forward pass
    prompt_template: str | None = None
    labels: bool = False  # prompts are classes
    top_k: int | None = None  # of its sampling, if the settings give none
    remark: str | None = None

    @property
    def draws_images(self) -> bool:
        return self.evaluators != "none"


class MethodRecord(Record):
    """A method of the run; ``lossless``: what it claims, None if it claims nothing."""

    label: str
    key: str | None = None
    method: str = ""
    options: dict[str, Any] = {}
    lossless: bool | None = None


class Resumption(Record):
    """A later start of the run; with its environment if that had changed."""

    at: str = ""
    environment: Environment | None = None


class Shards(Record):
    """The shards of a run: their number, and those not finished when they were last joined."""

    of: int = Field(ge=1)
    unfinished: list[int] = []


class RunRecord(Record):
    """The content of ``run.json``; the lines of ``samples.jsonl`` are of its version."""

    schema_version: int = Field(default=0, le=SCHEMA_VERSION)
    run_id: str = ""
    created: str = ""
    config: RunConfig = RunConfig()
    config_hash: str = ""
    environment: Environment = Environment()
    prompts: PromptsRecord = PromptsRecord()
    target: TargetRecord = TargetRecord()
    methods: Sequence[MethodRecord] = []
    resumed: Sequence[Resumption] = []
    left_out: list[str] = []  # labels that did not fit in the time budget
    told_apart_after: int | None = None  # prompts, if the run was to stop early
    metric_weights: dict[str, str] = {}  # digests of the weights that scored, by metric
    shards: Shards | None = None  # if processes on several machines measure the run

    @property
    def labels(self) -> list[str]:
        """The labels of the methods, in the order of reports."""
        return [method.label for method in self.methods]

    @property
    def environments(self) -> list[Environment]:
        """The first environment, and those of resumptions that had another."""
        changed = [entry.environment for entry in self.resumed if entry.environment is not None]
        return [self.environment, *changed]

    @property
    def last_start(self) -> str:
        """Return the time when the run was last started or resumed, as ISO 8601."""
        return max([self.created, *(entry.at for entry in self.resumed)])

    @property
    def unfinished_shards(self) -> list[int]:
        """The shards that have not measured all of their prompts, as far as is known."""
        return self.shards.unfinished if self.shards is not None else []

    @property
    def temperature(self) -> float | None:
        """The temperature of the run; None if it was not recorded."""
        is_set = "temperature" in self.config.model_fields_set
        return self.config.temperature if is_set else None

    @property
    def dataset(self) -> str | None:
        source = (self.prompts.source or "").partition(":")[0]
        return self.prompts.dataset or source or None

    @property
    def samples_per_method(self) -> int:
        """The number of samples of each method the run was to make."""
        return (self.told_apart_after or self.prompts.count) * self.config.repeats

    def sampling(self) -> dict[str, str]:
        """Return how tokens were drawn, as texts by name; settings that are off are left out."""
        written = self.config.written()
        texts = {}
        for name, field in Sampling.model_fields.items():
            value = written.get(name)
            if value is not None:
                texts[name.replace("_", "-")] = str(value)
            elif UNLESS_DEFAULT not in field.metadata:
                texts[name.replace("_", "-")] = "target's default"
        return texts

    def setup(self) -> dict[str, str]:
        """Return what two runs must share, besides target and prompts, for figures of one to be
        compared with the other's.
        """
        environment = self.environment
        values = {
            **self.config.part(ModelSpec).model_dump(exclude_none=True, exclude_defaults=True),
            "seed": self.config.seed,
            **self.sampling(),
            "batch": self.config.batch,
            "dtype": environment.dtype,
            "compile": environment.compile,
            "threads": environment.threads,
            "workers": environment.workers,
            "torch": environment.torch,
            "hardware": environment.hardware,
        }
        values.pop("target", None)
        known = {name: value for name, value in values.items() if value is not None}
        return {name.replace("_", " "): str(value) for name, value in known.items()}

    def wanted(self, measured: Container[str] = ()) -> list[str]:
        """Return the labels that the run was to measure; one that was left out for time counts if
        it is among the ``measured``.
        """
        return [label for label in self.labels if label in measured or label not in self.left_out]
