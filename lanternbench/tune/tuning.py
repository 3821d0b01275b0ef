"""``tune``: finds the sizes with which a method is fastest on this machine; estimates first, then
measures the best.

Each intermediate result is stored in a file or line of the search's folder as soon as it is
computed (``Pieces``): an interrupted search resumes from them.
"""

import io
import json
import random
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from lanternbench import prompts as prompt_sets
from lanternbench.costs.forward_cost import Shape, Timed, fit, lengths_of, time_steps
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
from lanternbench.tune import tree_search as searches
from lanternbench.tune.accepted_lengths import Record
from lanternbench.tune.result import DEFAULT, Result, Tuning, best
from lanternbench.tune.tree_search import LEVELS, Candidate, TreeSearch
from lanternbench.utils.device import cpu_threads, load_average
from lanternbench.utils.files import FRESH, OUT, replacing
from lanternbench.utils.json_values import config_hash, differences, plain
from lanternbench.utils.ledger import Ledger, Lines, as_json

SETTINGS, LINES = "tune.json", "measured.jsonl"
SEARCHES: dict[str | None, type[TreeSearch]] = {
    "shape": searches.ShapeSearch,
    "length": searches.LengthSearch,
    "growth": searches.GrowthSearch,
    "bounds": searches.BoundsSearch,
    None: searches.OptionSearch,
}
Progress = Callable[[int, int, str], None]


def search_kind(method: Method) -> type[TreeSearch]:
    """The search over the sizes of a method.  Raises UserError for a method without sizes."""
    if method.choices.order != "raster":
        text = f"'{method.preset}' draws several rows at once, of which the search has no model"
        raise UserError(f"{text}: compare sizes in a sweep")
    tree = None if method.proposal.tree_is_own else method.tree
    if not (method.proposal.tuned or (tree and (tree.search or tree.tuned))):
        text = f"method '{method.preset}' has no tree and no window whose size could be tuned"
        raise UserError(f"{text}: choose a method that drafts, such as eagle-1 or sjd")
    return SEARCHES[tree.search if tree else None]


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

    def __init__(self, folder: Path, settings: Mapping[str, object]):
        """``settings``: all that the pieces depend on; "weights" are digests of the target's files.

        Raises UserError for a folder that is in use, or that is of other settings or weights.
        """
        super().__init__(folder)
        try:
            self._claim(plain(settings))
        except UserError:
            self.close()
            raise

    def _claim(self, new: dict[str, Any]) -> None:
        """Check that the folder is of these settings, and store them."""
        old = self.read_json(SETTINGS)
        if old:
            weights = differences(old.pop("weights", {}), new["weights"])
            if weights:
                text = f"{self.folder} was begun with other weights ({'; '.join(weights[:5])})"
                raise UserError(f"{text}: put the old files back, or {FRESH}")
            changes = differences(old, {k: v for k, v in new.items() if k != "weights"})
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
    progress: Progress = lambda *_: None,
) -> tuple[Path, Tuning]:
    """Search, measure the best few, the method's default sizes and ``ar``, and write the preset;
    returns its path.

    Raises UserError for a method without a tree or window, or one that cannot be loaded or
    simulated.
    """
    default = method(config.method, **config.options)
    kind = search_kind(default)
    selected = prompt_sets.load(config.prompts, config.num_prompts, config.seed)
    target = load_with_drafter(config.part(ModelSpec), device, {default.choices.proposal})
    search = kind(target, config)
    machine = environment() | mode(target)
    hardware = {key: machine[key] for key in ("cpu", "threads", "device", "dtype", "compile")}
    hardware["gpus"] = [gpu["name"] for gpu in machine["gpus"]]
    root = f"tune-{config.method}-{config_hash(config.model_dump() | selected.record() | hardware)[:8]}"
    folder = free(out / root) if fresh else out / root
    inputs = {"selection": selected.hash, "machine": hardware, "weights": target.weights}
    with Pieces(folder, config.model_dump(mode="json") | inputs) as pieces:
        captions = [p.text for p in selected]
        target.prepare(captions)
        cost = fit(_costs(pieces, search, captions[0], progress))
        recordings, each = search.recordings(cost, captions[: config.recorded]), {}
        for i, (name, record) in enumerate(recordings.items()):
            progress(i, len(recordings), f"acceptance: {name}")
            each[name] = pieces.arrays(name, record)
        records = search.combined(each)
        candidates = search.candidates(cost, records)
        few = best_few(candidates, config.few)
        chosen = {DEFAULT: candidates[0]} | {f"candidate-{i}": c for i, c in enumerate(few, 1)}
        results = _results(search, chosen, _measure(pieces, search, chosen, selected, progress))
        machine |= {"load": load_average()}
        table = search.acceptance(records)
        tuning = Tuning(
            config, search.about, cost, results, len(candidates), best(results), table, machine
        )
        path = folder / f"{config.method}-tuned.yaml"
        with replacing(path, OUT) as file:
            file.write(tuning.preset_text().encode())
        return path, tuning


def _costs(pieces: Pieces, search: TreeSearch, caption: str, progress: Progress) -> list[Timed]:
    """The times of every probe, in two passes over all of them: a disturbance of the machine
    affects them alike.
    """
    probes = [
        (method("ar"), Shape(1, 0)),
        *((search.method(options), shape) for options, shape in search.probes()),
    ]
    lengths = lengths_of(search.target.length, LEVELS)

    def make() -> list[Timed]:
        times: list[Timed] = []
        for i, (probe, shape) in enumerate(2 * probes):
            progress(i, 2 * len(probes), f"cost: {shape.nodes} nodes")
            times += time_steps(search.decoder_of(probe), shape, caption, lengths, steps=6)
        return times

    rows = pieces.json("costs.json", make)
    return [
        Timed(**row | {"shape": Shape(**row["shape"] | {"levels": tuple(row["shape"]["levels"])})})
        for row in rows
    ]


def best_few(candidates: list[Candidate], count: int) -> list[Candidate]:
    """The best of each depth and width of drafts, by expected tokens per second; the first has the
    default sizes.
    """
    default, kinds = candidates[0], dict[Any, Candidate]()
    for c in sorted(candidates[1:], key=lambda c: -c.tokens_per_s):
        if (c.shape, c.reach) != (default.shape, default.reach):
            kinds.setdefault((c.shape.depth, c.shape.levels[:1], c.shape.chain), c)
    return [c for c in list(kinds.values())[:count] if c.options != default.options]


def _measure(
    pieces: Pieces,
    search: TreeSearch,
    chosen: Mapping[str, Candidate],
    selected: PromptSet,
    progress: Progress,
) -> list[Measured]:
    """Each prompt with ``ar`` and all ``chosen`` candidates, in a random order per prompt; by
    prompt.
    """
    options = {name: c.options for name, c in chosen.items()}
    if pieces.json("candidates.json", lambda: options) != plain(options):
        raise UserError(f"{pieces.folder} has pieces of another search: {FRESH}")
    decoders = {BASELINE: search.decoder_of(method("ar"))}
    decoders |= {name: search.decoder(sizes) for name, sizes in options.items()}
    names, seed = list(decoders), search.config.seed
    orders = [
        (prompt, random.Random(f"{seed} {prompt.id}").sample(names, len(names)))
        for prompt in selected
    ]
    jobs = [(name, prompt) for prompt, order in orders for name in order]
    stored = pieces.measured
    lines = list(stored)
    done = stored.keys
    if not done <= {(name, prompt.id) for name, prompt in jobs}:
        raise pieces.damaged(LINES)
    if len(done) < len(jobs):
        for decoder in decoders.values():
            generate(decoder, [selected.prompts[0].text], max_steps=WARMUP_STEPS)
    for i, (name, prompt) in enumerate(jobs):
        if (name, prompt.id) not in done:
            progress(i, len(jobs), f"measuring {name}: {prompt.text}")
            lines.append(_image(name, decoders[name], prompt, seed))
            stored.append(lines[-1])
    return sorted(lines, key=lambda line: line.prompt)


def _image(name: str, decoder: SpeculativeDecoder, prompt: Prompt, seed: int) -> Measured:
    image = generate(decoder, [prompt.text], [prompt.id], seed, trace=decoder.lossless is False)[0]
    loss = (
        None
        if image.trace is None
        else float(decode_loss(decoder, image.trace, image.tokens[None]))
    )
    return Measured(
        name=name, prompt=prompt.id, tokens=sum(image.accept_lengths), steps=image.steps, decode_s=image.decode_s,
        robust_s=robust(image.step_s, image.cpu_s, cpu_threads(decoder.target.device))[0], fidelity_loss=loss,
    )  # fmt: skip


def _results(
    search: TreeSearch, chosen: Mapping[str, Candidate], lines: list[Measured]
) -> list[Result]:
    def values(name: str, field: str) -> list[Any]:
        return [getattr(line, field) for line in lines if line.name == name]

    results = []
    for name in (BASELINE, *chosen):
        candidate = chosen.get(name)
        options, label = (
            (candidate.options, search.method(candidate.options).label)
            if candidate
            else ({}, BASELINE)
        )
        tokens, steps, wall_s, robust_s = (
            sum(values(name, x)) for x in ("tokens", "steps", "decode_s", "robust_s")
        )
        losses = [loss for loss in values(name, "fidelity_loss") if loss is not None]
        rates = tokens / steps, tokens / wall_s, tokens / robust_s
        ratio, robust_ratio = (
            bootstrap_ratio(values(DEFAULT, x), values(name, x)) for x in ("decode_s", "robust_s")
        )
        loss = fmean(losses) if losses else None
        results.append(Result(name, label, options, candidate, *rates, ratio, robust_ratio, loss))
    return results
