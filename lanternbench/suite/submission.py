"""A submission: one run of the suite in one file, whose figures follow from the samples in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from lanternbench import __version__, prompts
from lanternbench.errors import UserError
from lanternbench.experiment.environment import commit
from lanternbench.experiment.run_reader import iter_samples, read_run, reason
from lanternbench.experiment.schema import RunFile
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.samples import Sample, sample_key
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summaries import NOTHING, Row, Summary, read_summary
from lanternbench.measure.summary import summarise
from lanternbench.notes import Note
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.utils.files import open_file, replacing
from lanternbench.utils.json_values import SCHEMA_VERSION, check_version, plain

PLACE = "choose another file with -o"
CLOCK = ("load", "slow_steps", "cpu_share")  # what tells a disturbed clock
# a sample without what its method and prompt say, and without its tokens and image
MEASURED = set(Sample.model_fields) - {
    *("key", "prompt", "category", "challenge", "label", "method", "options", "token_ids", "image")
}


class Submission(BaseModel):
    """``run``: its run.json, folders left out; ``rows``: as in its summary; ``sets``: figures of whole sets of images,
    which alone do not follow from ``samples``, by label; ``clock``: mean load, share of slow steps, CPU share;
    ``submitted``: when, and by which version."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int
    suite: str
    run: RunFile
    ar_ms_per_token: Estimate
    clock: dict[str, float | None]
    rows: list[Row]
    notes: list[Note]
    sets: list[str]
    submitted: dict[str, str | None]
    prompts: list[Prompt]
    samples: dict[str, list[dict[str, Any]]]

    @property
    def about(self) -> dict[str, Any]:
        """run.json."""
        return self.run.model_dump(exclude_unset=True)


def submission(folder: Path) -> Submission:
    """The submission of a run folder.  Raises UserError for one that was not made by the suite, or is damaged."""
    run = _without_places(read_run(folder))
    if not (stamp := run.get("config", {}).get("suite")):
        raise UserError(f"{folder} does not follow the suite: make a run that does with `lanternbench suite NAME`.")
    read = [sample.model_copy(update={"token_ids": []}) for sample in iter_samples(folder)]
    asked = _prompts(read_run(folder), read)
    order = {prompt.id: i for i, prompt in enumerate(asked)}
    read.sort(key=lambda sample: (order.get(sample.prompt_id, len(order)), sample.seed))
    samples: dict[str, list[dict[str, Any]]] = {str(method.get("label")): [] for method in run.get("methods", [])}
    for sample in read:
        samples.setdefault(sample.label, []).append(sample.model_dump(include=MEASURED, exclude_defaults=True))
    old, figures = read_summary(folder), Figures(samples_of(run, asked, samples))
    summary = recomputed(run, figures, old.rows, old.sets)
    return Submission(
        schema_version=SCHEMA_VERSION,
        suite=stamp,
        run=RunFile.model_validate(run),
        ar_ms_per_token=ms_per_token(summary.rows),
        clock=clock(figures),
        rows=summary.rows,
        notes=summary.notes,
        sets=old.sets,
        submitted={"at": datetime.now(UTC).isoformat(), "lanternbench": __version__, "commit": commit()},
        prompts=asked,
        samples=samples,
    )


def _prompts(run: dict[str, Any], samples: list[Sample]) -> list[Prompt]:
    """The prompts of a run in their order: that of its samples, or of their file where workers shared them."""
    config, recorded = run.get("config") or {}, run.get("prompts") or {}
    found = {s.prompt_id: Prompt(s.prompt_id, s.prompt, s.category, s.challenge) for s in samples}
    if PromptSet(tuple(found.values()), "", "", 0).hash == recorded.get("hash") or not config.get("prompts"):
        return list(found.values())
    chosen = prompts.load(config["prompts"], config.get("num_prompts"), config["seed"], config["caption"])
    return [prompt._replace(image=None) for prompt in chosen]


def _without_places(value: Any, key: str = "") -> Any:
    """A run.json without the folders of its files, which may name a person."""
    if isinstance(value, dict):
        return {re.sub(r"[^=:]*/", "", k): _without_places(item, k) for k, item in value.items()}
    if isinstance(value, list):
        return [_without_places(item, key) for item in value]
    if isinstance(value, str) and key in ("target", "prompts", "drafter"):
        return re.sub(r"[^=:]*/", "", value)
    return value


def samples_of(
    run: Mapping[str, Any], asked: Sequence[Prompt], samples: Mapping[str, list[dict[str, Any]]]
) -> Iterator[Sample]:
    """The samples, method by method.  Raises ValueError for one that no run can have."""
    known = {prompt.id: prompt for prompt in asked}
    for method in run.get("methods", []):
        label, key = str(method.get("label")), str(method.get("key"))
        about = {"label": label, "method": str(method.get("method")), "options": method.get("options") or {}}
        for values in samples.get(label, []):
            if (prompt := known.get(str(values.get("prompt_id")))) is None or values.keys() - MEASURED:
                raise ValueError(f"a sample of {label} has no prompt, or what no sample has")
            said = {"prompt": prompt.text, "category": prompt.category, "challenge": prompt.challenge}
            key_of = sample_key(prompt.id, key, values.get("seed", 0))
            yield Sample.model_validate(values | about | said | {"key": key_of})


def recomputed(run: Mapping[str, Any], figures: Figures, stated: Sequence[Row], sets: Sequence[str]) -> Summary:
    """The summary by the samples; figures of whole sets of images are as stated."""
    whole = {row.label: {name: row.figure(name) for name in sets} for row in stated}
    return summarise(figures, run, whole, int(run.get("config", {}).get("seed") or 0))


def clock(figures: Figures) -> dict[str, float | None]:
    """What tells a disturbed clock, over all samples."""
    return {name: figures.ratio(name, np.ones(len(figures), bool)) for name in CLOCK}


def ms_per_token(rows: list[Row]) -> Estimate:
    """Milliseconds of an autoregressive token."""
    found = next((row.figure("tokens_per_s") for row in rows if row.label == BASELINE), NOTHING)
    value, hi, lo = (None if not x else 1000 / x for x in found[:3])
    return Estimate(value, lo, hi, found.n)


def write(found: Submission, path: Path) -> None:
    """A sample a line.  Raises UserError where it cannot be written."""
    parts = plain(dict(found) | {"run": found.about})
    each = {label: ",\n".join(map(json.dumps, samples)) for label, samples in parts.pop("samples").items()}
    methods = ",\n".join(f"{json.dumps(label)}: [\n{lines}]" for label, lines in each.items())
    head = json.dumps(parts, indent=1, allow_nan=False).removesuffix("\n}")
    with replacing(path, PLACE) as file:
        file.write(f'{head},\n "samples": {{\n{methods}}}\n}}\n'.encode("utf-8", "replace"))


def read(path: Path) -> Submission:
    """A submission from its file.  Raises UserError where it is none."""
    try:
        with open_file(path) as file:
            values = json.loads(file.read())
        if not isinstance(values, dict):
            raise ValueError("no JSON object")
        check_version(values, path)
        return Submission.model_validate(values)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        why = reason(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{path} is no submission ({why}): make one with `lanternbench submit RUN`.") from None
