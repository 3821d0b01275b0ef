"""One line of ``samples.jsonl``: one image by one method."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from itertools import chain, count, repeat
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lanternbench.measure.run_record import IMPORTED, MethodRecord
from lanternbench.prompts import Prompt
from lanternbench.settings import Noise
from lanternbench.utils.json_values import plain

# what any image can have: a file from elsewhere may hold any number
Count = Annotated[int, Field(ge=0, le=2**24)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Figure = Annotated[float, Field(ge=-1e15, le=1e15)]

SHORTEST = 1e-6  # seconds of a decode

_LARGEST = {  # entry of each list
    "accept_lengths": 2**24,
    "tree_depths": 2**24,
    "tree_nodes": 2**24,
    "step_s": 1e9,
    "commit_steps": 2**24,
    "token_ids": 2**31 - 1,
    "row_loss": 1.0,
    "column_loss": 1.0,
}
# of ``stats``, ``drafter``
_STATS = (
    *("log_prob", "outside_support", "top1_prob", "entropy"),
    *("drafter_top1", "drafter_top3", "drafter_tv"),
)
MEASURED = (  # the figures of every row of a summary, in its order
    *("latency_s", "speedup", "robust_latency_s", "robust_speedup"),
    *("render_s", "end_to_end_s", "decode_share", "end_to_end_speedup"),
    *("tokens_per_s", "token_ms", "images_per_s"),
    *("step_compression", "accept_len", "tree_depth", "acceptance_rate"),
    *("first_token_acceptance", "fidelity_loss", "token_agreement", *_STATS),
    *("draft_fraction", "overhead_fraction", "stated_s"),
)
# the figures that follow from the other fields of a sample (``figures.of_sample``)
FIGURES = frozenset(
    {*MEASURED, "slow_steps", "cpu_share", "load", "peak_memory_mb"}.difference(_STATS)
)


class Sample(BaseModel):
    """One line of ``samples.jsonl``: one image by one method. Times in seconds, memory in MB.

    ``accept_lengths`` has one entry per step (tokens committed, bonus token included) and sums to
    ``tokens``; the first step is the prefill, which gives one token without a draft.
    ``tree_depths`` and ``tree_nodes`` have one per step too, and ``step_s`` one per step after the
    prefill, or they are empty.  ``commit_steps``: the step that committed each token, of methods
    that draw several rows at once; all others commit in raster order.  ``cpu_s``: the decode's CPU
    seconds; ``threads``: its CPU threads (None on a GPU); ``load``: the machine's 1-minute load
    average; ``setting``: the name of the setting in which it was timed; ``row_loss``,
    ``column_loss``: the fidelity loss of each row and column, of methods that draw several rows at
    once; ``noise``: whether it shares noise with other methods' images.  An imported image has none
    of these, 0 ``steps`` where they are unknown, and as ``stated_s`` its maker's seconds.
    """

    # extra: of another version, kept
    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    key: str
    prompt_id: str
    prompt: str
    category: str | None = None
    challenge: str | None = None
    label: str
    method: str
    options: dict[str, Any] = Field(default_factory=dict)
    seed: int = Field(ge=0, lt=2**63)
    tokens: Count
    steps: Count
    accept_lengths: list[int]
    tree_depths: list[int] = Field(default_factory=list)
    tree_nodes: list[int] | None = None
    first_token_acceptance: Figure | None = None
    decode_s: Seconds
    stated_s: Seconds | None = None
    encode_s: Seconds = 0.0
    render_s: Seconds = 0.0
    phases: dict[str, Seconds] | None = None
    step_s: list[float] | None = None
    commit_steps: list[int] | None = None
    cpu_s: Seconds | None = None
    threads: Count | None = None
    load: Seconds | None = None
    peak_memory_mb: Figure | None = None
    timed: bool = True
    setting: str | None = None
    noise: Noise | None = None
    fidelity_loss: Figure | None = None
    row_loss: list[float] | None = None
    column_loss: list[float] | None = None
    drafter: dict[str, Figure] | None = None
    stats: dict[str, Figure] | None = None
    # only what image_name makes: a samples.jsonl from elsewhere must not point outside its own
    # folder
    image: str | None = Field(default=None, pattern=r"^images/[A-Za-z0-9][A-Za-z0-9._+-]*$")
    token_ids: list[int] = Field(default_factory=list)
    metrics: dict[str, Figure | None] = Field(default_factory=dict)

    @field_validator("metrics", mode="before")
    @classmethod
    def _undefined_is_missing(cls, metrics: object) -> object:
        return plain(metrics)

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        self._check_key()
        self._check_names()
        self._check_lists()
        self._check_times()
        unknown_steps = self.method == IMPORTED and not self.timed and not self.decode_s
        if unknown_steps and not self.accept_lengths:
            return self
        if len(self.accept_lengths) != self.steps or sum(self.accept_lengths) != self.tokens:
            raise ValueError("accept_lengths must have one entry per step and sum to tokens")
        if self.tree_depths and len(self.tree_depths) != self.steps:
            raise ValueError("tree_depths must have one entry per step")
        if self.commit_steps is not None and sorted(self.commit_steps) != self._raster_steps():
            raise ValueError("commit_steps must have each step as often as accept_lengths says")
        return self

    def step_of_each_token(self) -> list[int] | None:
        """Return the step that committed each token; None if it is not known."""
        if self.commit_steps is not None:
            return self.commit_steps
        # in a run that recorded none, steps beyond a drafted path show that rows were drawn at once
        beyond_path = [
            length > depth + 1 for length, depth in zip(self.accept_lengths, self.tree_depths)
        ]
        if any(beyond_path) or self.row_loss is not None:
            return None
        return self._raster_steps()

    def _raster_steps(self) -> list[int]:
        """Return the step that committed each token if they were committed one after the other."""
        return list(chain.from_iterable(map(repeat, count(), self.accept_lengths)))

    def _check_key(self) -> None:
        method = self.key.removeprefix(f"{self.prompt_id}|").removesuffix(f"|{self.seed}")
        if self.key != sample_key(self.prompt_id, method, self.seed):
            raise ValueError("the key is not that of its prompt and seed")
        if method != self.label and not re.fullmatch("[0-9a-f]{16}", method):
            raise ValueError("the key is not that of a method")

    def _check_names(self) -> None:
        drafter = [f"drafter_{name}" for name in self.drafter or {}]
        names = [*(self.stats or {}), *drafter, *self.metrics]
        if len(set(names)) < len(names) or not FIGURES.isdisjoint(names):
            raise ValueError("two figures have the same name")

    def _check_lists(self) -> None:
        """Check a list as a whole: a bound on each entry would double the time of reading."""
        for name, largest in _LARGEST.items():
            values = getattr(self, name)
            if values and not 0 <= min(values) <= max(values) <= largest:
                raise ValueError(f"{name} has a number that no image can have")

    def _check_times(self) -> None:
        times = {"decode_s": self.decode_s}
        if self.cpu_s:  # a coarse clock shows 0
            times["cpu_s"] = self.cpu_s
        if self.step_s:
            times["step_s"] = sum(self.step_s)
        for name, seconds in times.items():
            if self.timed and seconds < SHORTEST:
                raise ValueError(f"{name} is {seconds:g} s, in which no image is decoded")


def sample_key(prompt_id: str, method: str, seed: int) -> str:
    """Return the unique key of a sample.  ``method``: the method's key, or its label in runs that
    recorded no keys.
    """
    return f"{prompt_id}|{method}|{seed}"


def fields_of(prompt: Prompt, method: MethodRecord, seed: int) -> dict[str, Any]:
    """Return the fields of a sample that its prompt, method and seed give."""
    return {
        "key": sample_key(prompt.id, str(method.key), seed),
        "prompt_id": prompt.id,
        "prompt": prompt.text,
        "category": prompt.category,
        "challenge": prompt.challenge,
        "label": method.label,
        "method": method.method,
        "options": method.options,
        "seed": seed,
    }


def image_name(sample: Sample) -> str:
    """Return a readable file name that is safe and unique for any prompt id and label."""
    digest = hashlib.sha256(sample.key.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    parts = [_slug(sample.prompt_id), _slug(sample.label), str(sample.seed), digest]
    return "-".join(filter(None, parts)).lstrip("+-") + ".png"


def _slug(text: str) -> str:
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9+]+", "-", ascii_text)[:40].strip("-")
