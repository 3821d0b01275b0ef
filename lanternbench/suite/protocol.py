"""The suite: protocols, one a target, of what is frozen and what of a run departs from it;
submissions, one run in one file, whose figures follow from the samples in it: else it is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from lanternbench import __version__, prompts
from lanternbench.errors import UserError, cause, unknown
from lanternbench.experiment.config import labelled, sweep
from lanternbench.experiment.environment import commit
from lanternbench.experiment.run_folder import iter_samples, read_run
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.run_record import IMPORTED, MethodRecord, RunRecord
from lanternbench.measure.samples import Sample, fields_of
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import NOTHING, Row, Summary, read_summary, summarise
from lanternbench.methods.method import Method, method
from lanternbench.notes import Note
from lanternbench.prompts import Prompt
from lanternbench.prompts.sources import prompts_hash
from lanternbench.settings import MethodSpec, Sampling, Sweep
from lanternbench.utils.files import read_yaml, write_file
from lanternbench.utils.json_values import SCHEMA_VERSION, config_hash, plain, read_object

VERSION = "v1"
FOLDER = Path(__file__).parent
PLACE = "choose another file with -o"
CLOCK = ("load", "slow_steps", "cpu_share")  # signs of noisy timing
CLOCKS_DIFFER = timedelta(days=1)
TOLERANCE = 1e-6  # relative: sums in another order
# what the method and the prompt say of a sample, its tokens and its image: no submission repeats it
KNOWN = {
    "key",
    "prompt",
    "category",
    "challenge",
    "label",
    "method",
    "options",
    "token_ids",
    "image",
}
MEASURED = Sample.model_fields.keys() - KNOWN
Measured = dict[str, list[dict[str, Any]]]  # what was measured of the samples of each label


class Protocol(NamedTuple):
    """The frozen settings of a target; ``methods`` are measured by default."""

    name: str  # v1/tiny
    settings: dict[str, Any]
    methods: list[MethodSpec]

    @property
    def stamp(self) -> str:
        """Name and hash, as every result has them."""
        return f"{self.name} {config_hash(self.settings)[:16]}"

    @property
    def run(self) -> Sweep:
        """The frozen settings of a run."""
        frozen = {k: v for k, v in self.settings.items() if k not in ("prompts_hash", "weights")}
        name = f"suite-{self.name.replace('/', '-')}"
        return Sweep.model_validate(frozen | {"name": name, "methods": self.methods})

    @property
    def recipe(self) -> str:
        """The most important frozen settings."""
        run = self.run
        top_k = f"top-k {run.top_k}" if run.top_k else "no top-k"
        return (
            f"{run.num_prompts} prompts of {run.prompts}, T {run.temperature:g}, {top_k}, CFG"
            f" {run.guidance:g}"
        )

    def sweep(self, changes: Mapping[str, object]) -> Sweep:
        """Return the run of the protocol, with settings that it leaves open.  Raises UserError for
        other prompts.
        """
        values = self.run.model_dump(exclude_unset=True) | dict(changes)
        config = sweep(values, self.name).model_copy(update={"suite": self.stamp})
        chosen = prompts.selection(config)
        expected = self.settings["prompts_hash"]
        if chosen.hash != expected:
            raise UserError(
                f"the prompts of {config.prompts} are not those of {self.name} (hash"
                f" {chosen.hash[:8]}…, not {expected[:8]}…): give the official file, --prompts"
                f" {self.settings['prompts']}:FILE"
            )
        return config

    def deviations(self, run: RunRecord) -> Iterator[str]:
        """Yield what of a run is not as the protocol has it."""
        actual = run.config.model_dump() | {
            "target": run.target.name,
            "prompts_hash": run.prompts.hash,
            "weights": {p: run.target.weights.get(p) for p in self.settings.get("weights", ())},
        }
        if run.config.suite != self.stamp:
            yield "its run followed another suite"
        for name, value in self.settings.items():
            if name != "prompts" and actual.get(name) != value:  # prompts: by their hash
                yield f"{name} is {actual.get(name)}, not {value}"
        if run.config.part(Sampling) != self.run.part(Sampling):
            yield "it samples otherwise"
        if run.config.draws_noise:
            yield "it draws noise"
        if run.config.until_told_apart:
            yield "until_told_apart is True"
        if BASELINE not in run.labels:
            yield f"it has no baseline {BASELINE}"


def names() -> list[str]:
    """Return the targets that have a protocol."""
    return sorted(path.stem for path in (FOLDER / VERSION).glob("*.yaml"))


def protocol(target: str) -> Protocol:
    """Return the protocol of a target.  Raises UserError for one that has none."""
    if target not in names():
        raise unknown(f"the suite has no target '{target}'", target, names())
    values = read_yaml(FOLDER / VERSION / f"{target}.yaml", "a protocol")
    methods = values.pop("methods")
    return Protocol(f"{VERSION}/{target}", values, methods)


def of_stamp(stamp: str | None) -> Protocol | None:
    """Return the protocol of a name and hash; None if this version does not have it."""
    return next((one for one in map(protocol, names()) if one.stamp == stamp), None)


class Submission(BaseModel):
    """A run in one file.

    ``run``: its run.json, folders left out; ``rows``: as in its summary; ``sets``: figures of
    whole sets of images, which alone do not follow from ``samples``, by label; ``clock``: mean
    load, share of slow steps, CPU share; ``submitted``: when, and by which version.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: int
    suite: str
    run: RunRecord
    ar_ms_per_token: Estimate
    clock: dict[str, float | None]
    rows: list[Row]
    notes: list[Note]
    sets: list[str]
    submitted: dict[str, str | None]
    prompts: list[Prompt]
    samples: Measured


def submission(folder: Path) -> Submission:
    """Return the submission of a run folder.  Raises UserError for one that was not made by the
    suite, or is damaged.
    """
    run = read_run(folder)
    if run.config.suite is None:
        raise UserError(
            f"{folder} does not follow the suite:"
            " make a run that does with `lanternbench suite NAME`."
        )
    stored = [sample.model_copy(update={"token_ids": []}) for sample in iter_samples(folder)]
    selected = _prompts(run, stored)
    samples = _measured(run, selected, stored)
    old = read_summary(folder)
    figures = Figures(samples_of(run, selected, samples))
    summary = recomputed(run, figures, old)
    return Submission(
        schema_version=SCHEMA_VERSION,
        suite=run.config.suite,
        run=RunRecord.model_validate(_without_places(run.written())),
        ar_ms_per_token=ms_per_token(summary.rows),
        clock=clock(figures),
        rows=summary.rows,
        notes=summary.notes,
        sets=old.sets,
        submitted={
            "at": datetime.now(UTC).isoformat(),
            "lanternbench": __version__,
            "commit": commit(),
        },
        prompts=selected,
        samples=samples,
    )


def _measured(run: RunRecord, selected: Sequence[Prompt], stored: list[Sample]) -> Measured:
    """Return what was measured of each label's samples, in the order of prompts and seeds."""
    order = {prompt.id: i for i, prompt in enumerate(selected)}
    stored = sorted(stored, key=lambda s: (order.get(s.prompt_id, len(order)), s.seed))
    samples: Measured = {label: [] for label in run.labels}
    for sample in stored:
        fields = sample.model_dump(include=set(MEASURED), exclude_defaults=True)
        samples.setdefault(sample.label, []).append(fields)
    return samples


def _prompts(run: RunRecord, samples: list[Sample]) -> list[Prompt]:
    """Return the prompts of a run in their order: that of its samples, or of their file if workers
    shared them.
    """
    by_id: dict[str, Prompt] = {}
    for s in samples:
        by_id[s.prompt_id] = Prompt(s.prompt_id, s.prompt, s.category, s.challenge)
    config = run.config
    has_source = "prompts" in config.model_fields_set
    if prompts_hash(by_id.values()) == run.prompts.hash or not has_source:
        return list(by_id.values())
    chosen = prompts.selection(config)
    return [prompt._replace(image=None) for prompt in chosen]


def _without_places(value: Any, key: str = "") -> Any:
    """Return a run.json without the folders of its files, which may name a person."""
    if isinstance(value, dict):
        return {re.sub(r"[^=:]*/", "", k): _without_places(item, k) for k, item in value.items()}
    if isinstance(value, list):
        return [_without_places(item, key) for item in value]
    if isinstance(value, str) and key in ("target", "prompts", "drafter"):
        return re.sub(r"[^=:]*/", "", value)
    return value


def samples_of(run: RunRecord, selected: Sequence[Prompt], samples: Measured) -> Iterator[Sample]:
    """Yield the samples, method by method.  Raises ValueError for one that no run can have."""
    by_id = {prompt.id: prompt for prompt in selected}
    for one in run.methods:
        for values in samples.get(one.label, []):
            prompt = by_id.get(str(values.get("prompt_id")))
            if prompt is None or values.keys() - MEASURED:
                raise ValueError(f"a sample of {one.label} has no prompt, or what no sample has")
            known = fields_of(prompt, one, values["seed"])
            yield Sample.model_validate(values | known)


def recomputed(run: RunRecord, figures: Figures, stated: Summary | Submission) -> Summary:
    """Return the summary by the samples; figures of whole sets of images are as reported."""
    whole = {row.label: {name: row.figure(name) for name in stated.sets} for row in stated.rows}
    return summarise(figures, run, whole)


def clock(figures: Figures) -> dict[str, float | None]:
    """Return the signs of noisy timing, over all samples."""
    return {name: figures.ratio(name) for name in CLOCK}


def ms_per_token(rows: Sequence[Row]) -> Estimate:
    """Return the milliseconds of an autoregressive token."""
    speed = next((row.figure("tokens_per_s") for row in rows if row.label == BASELINE), NOTHING)
    value, hi, lo = (1000 / speed if speed else None for speed in speed[:3])
    return Estimate(value, lo, hi, speed.n)


def judged(stated: Submission) -> tuple[Summary | None, list[str]]:
    """Return the summary recomputed from the samples, and the reasons to refuse it, if any."""
    frozen = of_stamp(stated.suite)
    if frozen is None:
        known = ", ".join(protocol(name).stamp for name in names())
        return None, [f"its suite '{stated.suite}' is none of this version ({known})"]
    try:
        return _judged(stated, frozen)
    # of a file from elsewhere
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return None, [f"it has what no run can have ({cause(error)})"]


def _judged(stated: Submission, frozen: Protocol) -> tuple[Summary | None, list[str]]:
    samples = list(samples_of(stated.run, stated.prompts, stated.samples))
    reasons = [
        *frozen.deviations(stated.run),
        *_incomplete(stated, frozen, samples),
        *_misdated(stated),
        *_unregistered(stated.run),
    ]
    if reasons:
        return None, reasons
    figures = Figures(samples)
    summary = recomputed(stated.run, figures, stated)
    reasons += islice(_tampered(stated, summary, figures), 1)
    unfit = [note.text.partition(": ")[0] for note in summary.notes if note.kind == "unfit"]
    return summary, reasons + unfit


def _incomplete(stated: Submission, frozen: Protocol, samples: Sequence[Sample]) -> Iterator[str]:
    """Yield what its prompts and samples lack, or have that no run of the protocol has."""
    if prompts_hash(stated.prompts) != frozen.settings["prompts_hash"]:
        yield "its prompts are not the suite's"
        return
    labels = list(dict.fromkeys(stated.run.labels))
    seeds = frozen.run.seeds
    ids = [prompt.id for prompt in stated.prompts]
    expected = Counter(product(labels, ids, seeds))
    found = Counter((sample.label, sample.prompt_id, sample.seed) for sample in samples)
    counts = Counter(label for label, *_ in expected.keys() & found.keys())
    of = len(ids) * len(seeds)
    incomplete = [label for label in labels if counts[label] < of]
    for label in incomplete:
        yield f"it has {counts[label]} of {of} samples of {label}"
    if not incomplete and (found != expected or stated.samples.keys() - set(labels)):
        yield "it has samples that no run of the suite has"
    yield from _impossible(stated.run, samples)


def _misdated(stated: Submission) -> Iterator[str]:
    """Yield what is wrong with its dates: they are in order, and none is yet to come."""
    run = stated.run
    texts = [run.created, *(entry.at for entry in run.resumed), str(stated.submitted.get("at"))]
    try:
        dates = [datetime.fromisoformat(text).astimezone(UTC) for text in texts]
    except ValueError:
        yield f"it has a date that is none ({', '.join(texts)})"
        return
    if dates != sorted(dates) or dates[-1] > datetime.now(UTC) + CLOCKS_DIFFER:
        yield f"its dates are not in order, or yet to come ({', '.join(texts)})"


def _unregistered(run: RunRecord) -> Iterator[str]:
    """Yield what its methods claim and the registry does not say of them."""
    pairs: list[tuple[MethodRecord, Method]] = []
    for one in run.methods:
        try:
            pairs.append((one, method(one.method, **one.options)))
        except UserError:
            if one.lossless:
                yield f"{one.label} claims to be lossless, and is not registered"
    methods = [known for _, known in pairs]
    labels = {known.label for known in [*methods, *labelled(methods)]}
    for one, known in pairs:
        if one.lossless != known.lossless:
            claim = "lossless" if one.lossless else "not lossless"
            yield f"{one.label} claims to be {claim}, unlike the method of its options"
        if one.label not in labels:
            yield f"{one.label} is no label of the method of its options"


def _impossible(run: RunRecord, samples: Sequence[Sample]) -> Iterator[str]:
    """Yield what samples have that a run of the suite cannot measure."""
    if any(sample.method == IMPORTED for sample in samples):
        yield "it has imported figures, which were not measured"
    tokens = math.prod(run.target.grid or (0,))
    if other := {sample.tokens for sample in samples} - {tokens}:
        yield f"it has images of {other.pop()} tokens"
    if any(s.step_s and sum(s.step_s) > s.decode_s + 1e-3 for s in samples):
        yield "it has steps that took longer than their decode"


def _tampered(stated: Submission, summary: Summary, figures: Figures) -> Iterator[str]:
    """Yield what does not follow from the samples."""
    if [row.label for row in stated.rows] != [row.label for row in summary.rows]:
        yield "its rows are not those that its samples give"
        return
    for row, computed in zip(stated.rows, summary.rows, strict=True):
        for name in _unequal(row, computed):
            yield f"its samples give another {name} of {row.label}"
    if not _close(stated.ar_ms_per_token, ms_per_token(summary.rows)):
        yield "its samples give another ar_ms_per_token"
    for name, value in clock(figures).items():
        if not _close([stated.clock.get(name)], [value]):
            yield f"its samples give another {name}"


def _unequal(row: Row, computed: Row) -> Iterator[str]:
    """Yield what a row has that differs from the one that is computed."""
    for name in ("method", "n", "lossless", "options"):
        if getattr(row, name) != getattr(computed, name):
            yield name
    for name, figure in row.figures.items():
        if not _close(figure, computed.figure(name)):
            yield name


def _close(stated: Sequence[float | None], computed: Sequence[float | None]) -> bool:
    """Return whether numbers are equal but for rounding; None is equal to None alone."""
    one = np.array(stated, np.float64)
    other = np.array(computed, np.float64)
    return np.allclose(one, other, TOLERANCE, 1e-9, equal_nan=True)


def write(submission: Submission, path: Path) -> None:
    """Write a submission, a sample a line.  Raises UserError if it cannot be written."""
    parts = plain(dict(submission) | {"run": submission.run.written()})
    methods = []
    for label, samples in parts.pop("samples").items():
        lines = ",\n".join(json.dumps(sample) for sample in samples)
        methods.append(f"{json.dumps(label)}: [\n{lines}]")
    head = json.dumps(parts, indent=1, allow_nan=False).removesuffix("\n}")
    body = ",\n".join(methods)
    text = f'{head},\n "samples": {{\n{body}}}\n}}\n'
    write_file(path, text, PLACE)


def read(path: Path) -> Submission:
    """Return a submission from its file.  Raises UserError if it is none."""
    try:
        return Submission.model_validate(read_object(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is no submission ({cause(error)}): make one with `submit RUN`."
        ) from None
