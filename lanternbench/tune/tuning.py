"""``tune``: finds the sizes with which a method is fastest on this machine; estimates first, then
measures the best.

Each intermediate result is stored in a file or line of the search's folder as soon as it is
computed (``Pieces``): an interrupted search resumes from them.
"""

import io
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from lanternbench import prompts as prompt_sets
from lanternbench.costs.forward_cost import Shape, StepCost, Timed, fit, lengths_of, time_steps
from lanternbench.engine.decode import SpeculativeDecoder, generate
from lanternbench.errors import UserError
from lanternbench.experiment.environment import environment
from lanternbench.experiment.run_folder import free
from lanternbench.experiment.worker import WARMUP_STEPS, mode
from lanternbench.measure.fidelity import decode_loss
from lanternbench.measure.figures import BASELINE, robust
from lanternbench.measure.statistics import bootstrap_ratio
from lanternbench.methods.method import Method, method
from lanternbench.models.catalogue import load_with_drafter
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.settings import ModelSpec, Tune
from lanternbench.tune.accepted_lengths import Record
from lanternbench.tune.result import DEFAULT, Result, Tuning, best
from lanternbench.tune.tree_search import (
    LEVELS,
    BoundsSearch,
    Candidate,
    GrowthSearch,
    LengthSearch,
    OptionSearch,
    ShapeSearch,
    TreeSearch,
)
from lanternbench.utils.device import cpu_threads, load_average
from lanternbench.utils.files import FRESH, OUT, write_file
from lanternbench.utils.json_values import config_hash, differences, plain
from lanternbench.utils.ledger import Ledger, Lines, as_json
from lanternbench.utils.progress import Progress, counted, silent

SETTINGS, LINES = "tune.json", "measured.jsonl"
TIMES = TypeAdapter(list[Timed])
SEARCHES: dict[str | None, type[TreeSearch]] = {
    "shape": ShapeSearch,
    "length": LengthSearch,
    "growth": GrowthSearch,
    "bounds": BoundsSearch,
    None: OptionSearch,
}


def search_kind(method: Method) -> type[TreeSearch]:
    """Return the search over the sizes of a method.  Raises UserError for a method without sizes."""
    if method.choices.order != "raster":
        raise UserError(
            f"'{method.preset}' draws several rows at once, of which the search has no model: "
            "compare sizes in a sweep"
        )
    search = None if method.proposal.tree_is_own else method.tree.search
    if search is None and not any(part.tuned for part in method.parts):
        raise UserError(
            f"method '{method.preset}' has no tree and no window whose size could be tuned: "
            "choose a method that drafts, such as eagle-1 or sjd"
        )
    return SEARCHES[search]


class Measured(BaseModel):
    """One line of ``measured.jsonl``: one image with one candidate's sizes.  Times in seconds."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str
    prompt: str
    tokens: int = Field(ge=1, le=2**40)
    steps: int = Field(ge=1, le=2**40)
    decode_s: float = Field(gt=0)
    robust_s: float = Field(gt=0)
    fidelity_loss: float | None = None


class Pieces(Ledger):
    """The folder of a search: its settings, pieces and measured images."""

    def claim(self, settings: Mapping[str, object]) -> None:
        """Store the settings.  Raises UserError for a folder of other settings or weights.

        ``settings``: all that the pieces depend on; "weights" are digests of the target's files.
        """
        new = plain(settings)
        old = self.read_json(SETTINGS) or dict(new)
        weights = differences(old.pop("weights", {}), new["weights"])
        if weights:
            text = f"{self.folder} was begun with other weights ({'; '.join(weights[:5])})"
            raise UserError(f"{text}: put the old files back, or {FRESH}")
        changes = differences(old | {"weights": new["weights"]}, new)
        if changes:
            shown = "; ".join(line[:200] for line in changes[:5])
            text = f"{self.folder} has pieces of a search with other settings ({shown})"
            raise UserError(f"{text}: {FRESH}")
        self.write_json(SETTINGS, new)

    def json(self, name: str, make: Callable[[], object]) -> Any:
        return json.loads(self.piece(name, lambda: as_json(make())))

    def arrays(self, name: str, make: Callable[[], Record]) -> Record:
        def npz() -> bytes:
            file = io.BytesIO()
            np.savez_compressed(file, **make())  # type: ignore[arg-type]
            return file.getvalue()

        with np.load(io.BytesIO(self.piece(f"{name}.npz", npz))) as arrays:
            return dict(arrays)

    @cached_property
    def measured(self) -> Lines[Measured]:
        """The measured images."""
        return self.lines(LINES, Measured, lambda line: (line.name, line.prompt))


def tune(
    config: Tune,
    out: Path,
    *,
    fresh: bool = False,
    device: str = "cpu",
    progress: Progress = silent,
) -> tuple[Path, Tuning]:
    """Search, measure the best candidates, the method's default sizes and ``ar``, and write the
    preset; return its path.

    Raises UserError for a method without a tree or window, or one that cannot be loaded or
    simulated.
    """
    default = method(config.method, **config.options)
    kind = search_kind(default)
    prompts = prompt_sets.load(config.prompts, config.num_prompts, config.seed, config.caption)
    target = load_with_drafter(config.part(ModelSpec), device, {default.choices.proposal})
    search = kind(target, config)
    machine = environment() | mode(target)
    hardware = hardware_of(machine)
    settings = config.model_dump() | prompts.record() | hardware
    folder = out / f"tune-{config.method}-{config_hash(settings)[:8]}"
    if fresh:
        folder = free(folder)
    inputs = {"selection": prompts.hash, "machine": hardware, "weights": target.weights}
    with Pieces(folder) as pieces:
        pieces.claim(config.model_dump(mode="json") | inputs)
        target.prepare([prompt.text for prompt in prompts])
        tuning = Steps(search, pieces, prompts, progress).tuning(machine)
        path = folder / f"{config.method}-tuned.yaml"
        write_file(path, tuning.preset_text(), OUT)
        return path, tuning


def hardware_of(machine: Mapping[str, Any]) -> dict[str, object]:
    """Return what times depend on."""
    hardware = {key: machine[key] for key in ("cpu", "threads", "device", "dtype", "compile")}
    return hardware | {"gpus": [gpu["name"] for gpu in machine["gpus"]]}


def chosen_of(candidates: list[Candidate], count: int) -> dict[str, Candidate]:
    """Return the candidates to measure, by name: the default sizes, and the fastest of each depth
    and width of drafts by expected tokens per second, at most ``count``.
    """
    default = candidates[0]
    fastest: dict[tuple[int, tuple[int, ...], bool], Candidate] = {}
    for candidate in sorted(candidates[1:], key=lambda candidate: -candidate.tokens_per_s):
        shape = candidate.shape
        if (shape, candidate.reach) != (default.shape, default.reach):
            fastest.setdefault((shape.depth, shape.levels[:1], shape.chain), candidate)
    chosen = {DEFAULT: default}
    for candidate in list(fastest.values())[:count]:
        if candidate.options != default.options:
            chosen[f"candidate-{len(chosen)}"] = candidate
    return chosen


@dataclass(frozen=True)
class Steps:
    """The steps of a search, each of whose results is stored."""

    search: TreeSearch
    pieces: Pieces
    prompts: PromptSet
    progress: Progress

    def tuning(self, machine: Mapping[str, Any]) -> Tuning:
        search = self.search
        cost = self.cost()
        records = self.records(cost)
        candidates = search.candidates(cost, records)
        results = self.results(chosen_of(candidates, search.config.few))
        return Tuning(
            config=search.config,
            about=search.about,
            cost=cost,
            results=results,
            looked_at=len(candidates),
            best=best(results),
            acceptance=search.acceptance(records),
            machine={**machine, "load": load_average()},
        )

    def cost(self) -> StepCost:
        """Time every probe, in two passes over all of them: a disturbance of the machine affects
        them alike.
        """
        probes = [(method(BASELINE), Shape(1, 0))]
        probes += [(self.search.method(sizes), shape) for sizes, shape in self.search.probes()]
        lengths = lengths_of(self.search.target.length, LEVELS)
        caption = self.prompts.prompts[0].text

        def timed() -> list[Timed]:
            times: list[Timed] = []
            pieces = counted(
                2 * probes, self.progress, lambda piece: f"cost: {piece[1].nodes} nodes"
            )
            for probe, shape in pieces:
                decoder = self.search.decoder_of(probe)
                times += time_steps(decoder, shape, caption, lengths, steps=6)
            return times

        return fit(TIMES.validate_python(self.pieces.json("costs.json", timed)))

    def records(self, cost: StepCost) -> dict[str, Record]:
        """Record the acceptance on the first prompts, unless it is simulated."""
        search = self.search
        if search.rates is not None:
            return {}
        captions = [prompt.text for prompt in self.prompts][: search.config.recorded]
        recorded = range(max(1, len(captions) // search.one_in))
        recorders = search.recorders(cost)
        parts: dict[str, list[Record]] = {name: [] for name in recorders}
        jobs = list(product(recorders, recorded))
        for name, i in counted(jobs, self.progress, lambda job: f"acceptance: {job[0]}-{job[1]}"):
            recording = partial(recorders[name], i, captions[i])
            parts[name].append(self.pieces.arrays(f"{name}-{i}", recording))
        return {name: search.joined(part) for name, part in parts.items()}

    def results(self, chosen: Mapping[str, Candidate]) -> list[Result]:
        """Measure ``ar`` and the chosen candidates."""
        lines: dict[str, list[Measured]] = {name: [] for name in (BASELINE, *chosen)}
        for line in sorted(self.measured(chosen), key=lambda line: line.prompt):
            lines[line.name].append(line)
        results = [result_of(BASELINE, BASELINE, None, lines)]
        for name, candidate in chosen.items():
            label = self.search.method(candidate.options).label
            results.append(result_of(name, label, candidate, lines))
        return results

    def measured(self, chosen: Mapping[str, Candidate]) -> list[Measured]:
        """Decode each prompt with ``ar`` and all ``chosen`` candidates, in a random order per
        prompt.
        """
        options = {name: candidate.options for name, candidate in chosen.items()}
        if self.pieces.json("candidates.json", lambda: options) != plain(options):
            raise UserError(f"{self.pieces.folder} has pieces of another search: {FRESH}")
        decoders = {BASELINE: self.search.decoder_of(method(BASELINE))}
        decoders |= {name: self.search.decoder(sizes) for name, sizes in options.items()}
        seed = self.search.config.seed
        jobs = self.jobs(list(decoders))
        stored = self.pieces.measured
        if not stored.keys <= {(name, prompt.id) for name, prompt in jobs}:
            raise self.pieces.damaged(LINES)
        missing = [(name, prompt) for name, prompt in jobs if (name, prompt.id) not in stored.keys]
        if missing:
            for decoder in decoders.values():
                generate(decoder, [self.prompts.prompts[0].text], max_steps=WARMUP_STEPS)
        pieces = counted(missing, self.progress, lambda job: f"measuring {job[0]}: {job[1].text}")
        for name, prompt in pieces:
            stored.append(measure(name, decoders[name], prompt, seed))
        return list(stored)

    def jobs(self, names: list[str]) -> list[tuple[str, Prompt]]:
        """Return every name with every prompt, in a random order per prompt."""
        jobs: list[tuple[str, Prompt]] = []
        for prompt in self.prompts:
            generator = random.Random(f"{self.search.config.seed} {prompt.id}")
            jobs += [(name, prompt) for name in generator.sample(names, len(names))]
        return jobs


def measure(name: str, decoder: SpeculativeDecoder, prompt: Prompt, seed: int) -> Measured:
    """Decode one image."""
    is_lossy = decoder.lossless is False
    image = generate(decoder, [prompt.text], [prompt.id], seed, trace=is_lossy)[0]
    loss = None
    if image.trace is not None:
        loss = float(decode_loss(decoder, image.trace, image.tokens[None]))
    threads = cpu_threads(decoder.target.device)
    return Measured(
        name=name,
        prompt=prompt.id,
        tokens=sum(image.accept_lengths),
        steps=image.steps,
        decode_s=image.decode_s,
        robust_s=robust(image.step_s, image.cpu_s, threads)[0],
        fidelity_loss=loss,
    )


def result_of(
    name: str,
    label: str,
    candidate: Candidate | None,
    lines: Mapping[str, list[Measured]],
) -> Result:
    """Return the result of a candidate, None for ``ar``, from the images of all, by name."""
    own = lines[name]
    default = lines[DEFAULT]
    tokens = sum(line.tokens for line in own)
    losses = [line.fidelity_loss for line in own if line.fidelity_loss is not None]
    return Result(
        name=name,
        label=label,
        options={} if candidate is None else candidate.options,
        expected=candidate,
        tau=tokens / sum(line.steps for line in own),
        tokens_per_s=tokens / sum(line.decode_s for line in own),
        robust_tokens_per_s=tokens / sum(line.robust_s for line in own),
        ratio=bootstrap_ratio(
            base=[line.decode_s for line in default],
            other=[line.decode_s for line in own],
        ),
        robust_ratio=bootstrap_ratio(
            base=[line.robust_s for line in default],
            other=[line.robust_s for line in own],
        ),
        fidelity_loss=fmean(losses) if losses else None,
    )
