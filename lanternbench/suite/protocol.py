"""The suite: protocols, one a target, of what is frozen and what of a run departs from it;
submissions, one run in one file, whose figures follow from the samples in it: else it is
refused."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from lanternbench import __version__, prompts
from lanternbench.errors import UserError, unknown
from lanternbench.experiment.config import sweep
from lanternbench.experiment.environment import commit
from lanternbench.experiment.run_folder import RunFile, iter_samples, read_run, reason
from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.samples import IMPORTED, Sample, sample_key
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import LARGEST, NOTHING, Row, Summary, read_summary, summarise
from lanternbench.notes import Note
from lanternbench.prompts import Prompt
from lanternbench.prompts.sources import prompts_hash
from lanternbench.settings import Sweep
from lanternbench.utils.files import read_yaml, replacing
from lanternbench.utils.json_values import SCHEMA_VERSION, config_hash, plain, read_object

VERSION = "v1"
FOLDER = Path(__file__).parent
# settings that no protocol has
_OFF = ("random_weights", "simulate_acceptance", "until_told_apart")
PLACE = "choose another file with -o"
CLOCK = ("load", "slow_steps", "cpu_share")  # signs of a disturbed clock
NEAR = 1e-6  # relative: sums in another order
# what its method and prompt say of a sample, its tokens and its image: what no submission repeats
_KNOWN = {
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
MEASURED = set(Sample.model_fields) - _KNOWN
Measured = dict[str, list[dict[str, Any]]]  # what was measured of the samples of each label


class Protocol(NamedTuple):
    """``settings``: the frozen ones; ``methods``: entries of a sweep file that are measured by
    default.
    """

    name: str  # v1/tiny
    settings: dict[str, Any]
    methods: list[Any]

    @property
    def stamp(self) -> str:
        """Name and hash, as every result has them."""
        return f"{self.name} {config_hash(self.settings)[:16]}"

    @property
    def recipe(self) -> str:
        """The most important frozen settings."""
        s = self.settings
        top_k = f"top-k {s['top_k']}" if s["top_k"] else "no top-k"
        return f"{s['num_prompts']} prompts of {s['prompts']}, T {s['temperature']:g}, {top_k}, CFG {s['guidance']:g}"

    def sweep(self, settings: Mapping[str, Any]) -> Sweep:
        """The run of the protocol, with ``settings`` that it leaves open.  Raises UserError for
        other prompts.
        """
        frozen = {k: v for k, v in self.settings.items() if k not in ("prompts_hash", "weights")}
        values = (
            frozen
            | {"name": f"suite-{self.name.replace('/', '-')}", "methods": self.methods}
            | dict(settings)
        )
        config = sweep(values, self.name).model_copy(update={"suite": self.stamp})
        chosen = prompts.load(config.prompts, config.num_prompts, config.seed, config.caption)
        if chosen.hash != self.settings["prompts_hash"]:
            text = f"the prompts of {config.prompts} are not those of {self.name} (hash {chosen.hash[:8]}…, not"
            fix = f"give the official file, --prompts {self.settings['prompts']}:FILE"
            raise UserError(f"{text} {self.settings['prompts_hash'][:8]}…): {fix}")
        return config

    def deviations(self, run: Mapping[str, Any]) -> list[str]:
        """What of a run, by its run.json, is not as the protocol has it."""
        config, target = run.get("config") or {}, run.get("target") or {}
        actual = {"repeats": 1} | config | {
            "target": target.get("name"),
            "prompts_hash": (run.get("prompts") or {}).get("hash"),
            "weights": {part: (target.get("weights") or {}).get(part) for part in self.settings.get("weights", ())},
        }  # fmt: skip
        # compared by their hash
        frozen = [(name, value) for name, value in self.settings.items() if name != "prompts"]
        wrong = [
            f"{name} is {actual.get(name)}, not {value}"
            for name, value in frozen
            if actual.get(name) != value
        ]
        wrong += [f"{name} is {config[name]}" for name in _OFF if config.get(name)]
        labels = [method.get("label") for method in run.get("methods") or []]
        return wrong + ([] if BASELINE in labels else [f"it has no baseline {BASELINE}"])


def names() -> list[str]:
    """Targets that have a protocol."""
    return sorted(path.stem for path in (FOLDER / VERSION).glob("*.yaml"))


def protocol(target: str) -> Protocol:
    """The protocol of a target.  Raises UserError for one that has none."""
    if target not in names():
        raise unknown(f"the suite has no target '{target}'", target, names())
    values = read_yaml(FOLDER / VERSION / f"{target}.yaml", "a protocol")
    return Protocol(f"{VERSION}/{target}", values, values.pop("methods"))


def of_stamp(stamp: str | None) -> Protocol | None:
    """The protocol of a name and hash; None where this version does not have it."""
    return next((one for one in map(protocol, names()) if one.stamp == stamp), None)


class Submission(BaseModel):
    """``run``: its run.json, folders left out; ``rows``: as in its summary; ``sets``: figures of
    whole sets of images, which alone do not follow from ``samples``, by label; ``clock``: mean
    load, share of slow steps, CPU share; ``submitted``: when, and by which version."""

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
    samples: Measured

    @property
    def about(self) -> dict[str, Any]:
        """run.json."""
        return self.run.model_dump(exclude_unset=True)


def submission(folder: Path) -> Submission:
    """The submission of a run folder.  Raises UserError for one that was not made by the suite, or
    is damaged.
    """
    run = _without_places(read_run(folder))
    if not (stamp := run.get("config", {}).get("suite")):
        raise UserError(
            f"{folder} does not follow the suite: make a run that does with `lanternbench suite NAME`."
        )
    stored = [sample.model_copy(update={"token_ids": []}) for sample in iter_samples(folder)]
    selected = _prompts(read_run(folder), stored)
    order = {prompt.id: i for i, prompt in enumerate(selected)}
    stored.sort(key=lambda sample: (order.get(sample.prompt_id, len(order)), sample.seed))
    samples: Measured = {str(method.get("label")): [] for method in run.get("methods", [])}
    for sample in stored:
        samples.setdefault(sample.label, []).append(
            sample.model_dump(include=MEASURED, exclude_defaults=True)
        )
    old, figures = read_summary(folder), Figures(samples_of(run, selected, samples))
    summary = recomputed(run, figures, old.rows, old.sets)
    parts: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "suite": stamp,
        "run": RunFile.model_validate(run),
    }
    parts |= {
        "ar_ms_per_token": ms_per_token(summary.rows),
        "clock": clock(figures),
        "rows": summary.rows,
    }
    parts |= {"notes": summary.notes, "sets": old.sets, "prompts": selected, "samples": samples}
    submitted = {
        "at": datetime.now(UTC).isoformat(),
        "lanternbench": __version__,
        "commit": commit(),
    }
    return Submission(**parts, submitted=submitted)


def _prompts(run: dict[str, Any], samples: list[Sample]) -> list[Prompt]:
    """The prompts of a run in their order: that of its samples, or of their file where workers
    shared them.
    """
    config, recorded = run.get("config") or {}, run.get("prompts") or {}
    by_id = {s.prompt_id: Prompt(s.prompt_id, s.prompt, s.category, s.challenge) for s in samples}
    if prompts_hash(by_id.values()) == recorded.get("hash") or not config.get("prompts"):
        return list(by_id.values())
    chosen = prompts.load(
        config["prompts"], config.get("num_prompts"), config["seed"], config["caption"]
    )
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
    run: Mapping[str, Any], selected: Sequence[Prompt], samples: Measured
) -> Iterator[Sample]:
    """The samples, method by method.  Raises ValueError for one that no run can have."""
    by_id = {prompt.id: prompt for prompt in selected}
    for method in run.get("methods", []):
        label, key = str(method.get("label")), str(method.get("key"))
        about = {
            "label": label,
            "method": str(method.get("method")),
            "options": method.get("options") or {},
        }
        for values in samples.get(label, []):
            if (
                prompt := by_id.get(str(values.get("prompt_id")))
            ) is None or values.keys() - MEASURED:
                raise ValueError(f"a sample of {label} has no prompt, or what no sample has")
            about |= {
                "prompt": prompt.text,
                "category": prompt.category,
                "challenge": prompt.challenge,
            }
            yield Sample.model_validate(
                values | about | {"key": sample_key(prompt.id, key, values.get("seed", 0))}
            )


def recomputed(
    run: Mapping[str, Any], figures: Figures, stated: Sequence[Row], sets: Sequence[str]
) -> Summary:
    """The summary by the samples; figures of whole sets of images are as stated."""
    whole = {row.label: {name: row.figure(name) for name in sets} for row in stated}
    return summarise(figures, run, whole, int(run.get("config", {}).get("seed") or 0))


def clock(figures: Figures) -> dict[str, float | None]:
    """The signs of a disturbed clock, over all samples."""
    return {name: figures.ratio(name, np.ones(len(figures), bool)) for name in CLOCK}


def ms_per_token(rows: list[Row]) -> Estimate:
    """Milliseconds of an autoregressive token."""
    speed = next((row.figure("tokens_per_s") for row in rows if row.label == BASELINE), NOTHING)
    value, hi, lo = (None if not x else 1000 / x for x in speed[:3])
    return Estimate(value, lo, hi, speed.n)


def judged(stated: Submission) -> tuple[Summary | None, list[str]]:
    """The summary recomputed from the samples, and the reasons to refuse it; none where it fits."""
    try:
        run, frozen = stated.about, of_stamp(stated.suite)
        if frozen is None:
            known = ", ".join(protocol(name).stamp for name in names())
            return None, [f"its suite '{stated.suite}' is none of this version ({known})"]
        samples = list(samples_of(run, stated.prompts, stated.samples))
        reasons = (
            [] if stated.run.config.suite == stated.suite else ["its run followed another suite"]
        )
        reasons += frozen.deviations(run) + _incomplete(stated, frozen, samples)
        if reasons or not samples:
            return None, reasons or ["it has no samples"]
        figures = Figures(samples)
        summary = recomputed(run, figures, stated.rows, stated.sets)
        reasons = _tampered(stated, summary, figures)
        return summary, reasons + [
            note.text.partition(": ")[0] for note in summary.notes if note.kind == "unfit"
        ]
    # of a file from elsewhere
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return None, [f"it has what no run can have ({reason(error)})"]


def _incomplete(stated: Submission, frozen: Protocol, samples: Sequence[Sample]) -> list[str]:
    """Other prompts, samples that are absent, and such as no run of the protocol has."""
    if prompts_hash(stated.prompts) != frozen.settings["prompts_hash"]:
        return ["its prompts are not the suite's"]
    labels = [str(method.get("label")) for method in stated.run.methods]
    seeds = range(frozen.settings["seed"], frozen.settings["seed"] + frozen.settings["repeats"])
    expected = Counter(
        (label, p.id, seed) for label in labels for p in stated.prompts for seed in seeds
    )
    have = Counter((sample.label, sample.prompt_id, sample.seed) for sample in samples)
    counts = Counter(label for label, *_ in expected.keys() & have.keys())
    each = len(stated.prompts) * len(seeds)
    few = [label for label in dict.fromkeys(labels) if counts[label] < each]
    reasons = [f"it has {counts[label]} of {each} samples of {label}" for label in few]
    if not reasons and (have != expected or stated.samples.keys() - set(labels)):
        reasons.append("it has samples that no run of the suite has")
    if any(sample.method == IMPORTED for sample in samples):
        reasons.append("it has imported figures, which were not measured")
    if tokens := {s.tokens for s in samples} - {math.prod(stated.run.target.get("grid") or [0])}:
        reasons.append(f"it has images of {tokens.pop()} tokens")
    if any(s.step_s and sum(s.step_s) > s.decode_s + 1e-3 for s in samples):
        reasons.append("it has steps that took longer than their decode")
    return reasons


def _tampered(stated: Submission, summary: Summary, figures: Figures) -> list[str]:
    """Figures that do not follow from the samples."""
    if [row.label for row in stated.rows] != [row.label for row in summary.rows]:
        return ["its rows are not those of its samples"]
    wrong = []
    for row, computed in zip(stated.rows, summary.rows, strict=True):
        names = [
            n
            for n in ("method", "n", "lossless", "options")
            if getattr(row, n) != getattr(computed, n)
        ]
        numbers = {name: [x for x in row.figure(name) if x is not None] for name in stated.sets}
        names += [
            name
            for name, values in numbers.items()
            if any(abs(x) > LARGEST or x != x for x in values)
        ]
        names += [
            name
            for name, figure in row.figures.items()
            if not all(map(_near, figure, computed.figure(name)))
        ]
        wrong += [f"{name} of {row.label}" for name in names]
    wrong += (
        []
        if all(map(_near, stated.ar_ms_per_token, ms_per_token(summary.rows)))
        else ["ar_ms_per_token"]
    )
    wrong += [
        name for name, value in clock(figures).items() if not _near(stated.clock.get(name), value)
    ]
    return [f"its samples give another {wrong[0]}"] if wrong else []


def _near(a: float | None, b: float | None) -> bool:
    return a == b or (
        a is not None and b is not None and math.isclose(a, b, rel_tol=NEAR, abs_tol=1e-9)
    )


def write(submission: Submission, path: Path) -> None:
    """A sample a line.  Raises UserError where it cannot be written."""
    parts = plain(dict(submission) | {"run": submission.about})
    each = {
        label: ",\n".join(map(json.dumps, samples))
        for label, samples in parts.pop("samples").items()
    }
    methods = ",\n".join(f"{json.dumps(label)}: [\n{lines}]" for label, lines in each.items())
    head = json.dumps(parts, indent=1, allow_nan=False).removesuffix("\n}")
    with replacing(path, PLACE) as file:
        file.write(f'{head},\n "samples": {{\n{methods}}}\n}}\n'.encode("utf-8", "replace"))


def read(path: Path) -> Submission:
    """A submission from its file.  Raises UserError where it is none."""
    try:
        return Submission.model_validate(read_object(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is no submission ({reason(error)}): make one with `submit RUN`."
        ) from None
