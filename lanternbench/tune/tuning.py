"""``tune``: which sizes give a method the most tokens per second here; expected first, then measured beside its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lanternbench import prompts as prompt_sets
from lanternbench.costs.forward_cost import Shape, Timed, fit, lengths_of, time_steps
from lanternbench.engine.decode import SpeculativeDecoder, generate
from lanternbench.errors import UserError
from lanternbench.experiment import config_hash
from lanternbench.experiment.environment import environment
from lanternbench.experiment.run_folder import free
from lanternbench.experiment.worker import WARMUP_STEPS, mode
from lanternbench.measure.fidelity import decode_loss
from lanternbench.measure.statistics import Estimate, bootstrap_ratio
from lanternbench.measure.steps import robust
from lanternbench.methods.method import Method, method
from lanternbench.models.catalogue import load_with_drafter
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.tune import tree_search as searches
from lanternbench.tune.adaptive_search import BoundsSearch
from lanternbench.tune.pieces import Measured, Pieces
from lanternbench.tune.result import BASELINE, OWN, Result, Tuning, best, preset_text
from lanternbench.tune.tree_search import LEVELS, Candidate, TreeSearch, Tune
from lanternbench.utils.device import cpu_threads, load_average
from lanternbench.utils.files import FRESH, OUT, replacing
from lanternbench.utils.json_values import plain

SEARCHES: dict[str | None, type[TreeSearch]] = {
    "shape": searches.ShapeSearch,
    "length": searches.LengthSearch,
    "growth": searches.GrowthSearch,
    "bounds": BoundsSearch,
    None: searches.OptionSearch,
}
Progress = Callable[[int, int, str], None]


def search_kind(made: Method) -> type[TreeSearch]:
    """How the sizes of a method are searched.  Raises UserError where it has none."""
    if made.choices.order != "raster":
        raise UserError(
            f"'{made.preset}' draws several rows at once, of which the search has no model: compare sizes in a sweep"
        )
    kind = None if made.proposal.tree_is_own else made.tree.search
    if kind is None and not made.proposal.tuned and not (made.tree.tuned and not made.proposal.tree_is_own):
        raise UserError(
            f"method '{made.preset}' has no tree and no window whose size could be tuned: choose a method that drafts, "
            "such as eagle-1 or sjd"
        )
    return SEARCHES[kind]


def tune(
    config: Tune, out: Path, *, fresh: bool = False, device: str = "cpu", progress: Progress = lambda *_: None
) -> tuple[Path, Tuning]:
    """Search, measure the best few beside the method's own sizes and ``ar``, and write the preset; returns its path.

    Raises UserError for a method without a tree or window, and for what cannot be loaded or simulated.
    """
    made = method(config.method, **config.options)
    kind = search_kind(made)
    selected = prompt_sets.load(config.prompts, config.num_prompts, config.seed)
    c, used = config, {made.choices.proposal}
    target = load_with_drafter(c.target, c.drafter, device, c.random_weights, c.dtype, used, c.compile)
    search = kind(target, c)
    machine = environment() | mode(target)
    here = {key: machine[key] for key in ("cpu", "threads", "device", "dtype", "compile")}
    here["gpus"] = [gpu["name"] for gpu in machine["gpus"]]
    root = f"tune-{config.method}-{config_hash(config.model_dump() | selected.record() | here)[:8]}"
    folder = free(out / root) if fresh else out / root
    about = {"selection": selected.hash, "machine": here, "weights": target.weights}
    pieces = Pieces(folder, config.model_dump(mode="json") | about)
    try:
        captions = [p.text for p in selected]
        target.prepare(captions)
        cost = fit(_costs(pieces, search, captions[0], progress))
        records, wanted = {}, search.wanted(cost, captions[: config.recorded])
        for i, (name, record) in enumerate(wanted.items()):
            progress(i, len(wanted), f"acceptance: {name}")
            records[name] = pieces.arrays(name, record)
        candidates = search.candidates(cost, records)
        few = best_few(candidates, config.few)
        chosen = {OWN: candidates[0]} | {f"candidate-{i}": c for i, c in enumerate(few, 1)}
        results = _results(search, chosen, _measure(pieces, search, chosen, selected, progress))
        machine |= {"load": load_average()}
        table = search.acceptance(records)
        tuning = Tuning(config, search.about, cost, results, len(candidates), best(results), table, machine)
        path = folder / f"{config.method}-tuned.yaml"
        with replacing(path, OUT) as file:
            file.write(preset_text(tuning).encode())
        return path, tuning
    finally:
        pieces.close()


def _costs(pieces: Pieces, search: TreeSearch, caption: str, progress: Progress) -> list[Timed]:
    """Every probe, each in two halves with all others in between: a disturbance of the machine hits them alike."""
    probes = [(method("ar"), Shape(1, 0)), *((search.method(options), shape) for options, shape in search.probes())]
    lengths = lengths_of(search.target.length, LEVELS)

    def make() -> list[Timed]:
        times: list[Timed] = []
        for half in range(2):
            for i, (made, shape) in enumerate(probes):
                progress(half * len(probes) + i, 2 * len(probes), f"cost: {shape.nodes} nodes")
                times += time_steps(search.decoder(made=made), shape, caption, lengths, steps=6)
        return times

    rows = pieces.json("costs.json", make)
    return [Timed(**row | {"shape": Shape(**row["shape"] | {"levels": tuple(row["shape"]["levels"])})}) for row in rows]


def best_few(candidates: list[Candidate], count: int) -> list[Candidate]:
    """The best of each depth and width of drafts, by expected tokens per second; the first is the method's own."""
    own, kinds = candidates[0], dict[Any, Candidate]()
    for c in sorted(candidates[1:], key=lambda c: -c.tokens_per_s):
        if (c.shape, c.reach) != (own.shape, own.reach):
            kinds.setdefault((c.shape.depth, c.shape.levels[:1], c.shape.chain), c)
    return [c for c in list(kinds.values())[:count] if c.options != own.options]


def _measure(
    pieces: Pieces, search: TreeSearch, chosen: Mapping[str, Candidate], selected: PromptSet, progress: Progress
) -> list[Measured]:
    """Every prompt with ``ar``, the method's own sizes and each candidate, in a random order per prompt."""
    decoders = {BASELINE: search.decoder(made=method("ar"))}
    decoders |= {name: search.decoder(c.options) for name, c in chosen.items()}
    plan = {name: c.options for name, c in chosen.items()}
    if pieces.json("candidates.json", lambda: plan) != plain(plan):
        raise UserError(f"{pieces.folder} has pieces of another search: {FRESH}")
    names, seed = list(decoders), search.config.seed
    orders = [(prompt, random.Random(f"{seed} {prompt.id}").sample(names, len(names))) for prompt in selected]
    jobs = [(name, prompt) for prompt, order in orders for name in order]
    lines = pieces.measured({(name, prompt.id) for name, prompt in jobs})
    done = {(line.name, line.prompt) for line in lines}
    if len(done) < len(jobs):
        for decoder in decoders.values():
            generate(decoder, [selected.prompts[0].text], max_steps=WARMUP_STEPS)
    for i, (name, prompt) in enumerate(jobs):
        if (name, prompt.id) not in done:
            progress(i, len(jobs), f"measuring {name}: {prompt.text}")
            lines.append(_image(name, decoders[name], prompt, seed))
            pieces.append(lines[-1])
    return lines


def _image(name: str, decoder: SpeculativeDecoder, prompt: Prompt, seed: int) -> Measured:
    made = generate(decoder, [prompt.text], [prompt.id], seed, trace=decoder.lossless is False)[0]
    loss = None if made.trace is None else float(decode_loss(decoder, made.trace, made.tokens[None]))
    seconds = robust(made.step_s, made.cpu_s, cpu_threads(decoder.target.device))[0]
    return Measured(
        name=name, prompt=prompt.id, tokens=sum(made.accept_lengths), steps=made.steps, decode_s=made.decode_s,
        robust_s=seconds, fidelity_loss=loss,
    )  # fmt: skip


def _results(search: TreeSearch, chosen: Mapping[str, Candidate], lines: list[Measured]) -> list[Result]:
    ordered = sorted(lines, key=lambda line: line.prompt)
    by_name = {name: [line for line in ordered if line.name == name] for name in [BASELINE, *chosen]}

    def ratio(mine: list[Measured], seconds: str) -> Estimate:
        return bootstrap_ratio([getattr(x, seconds) for x in by_name[OWN]], [getattr(x, seconds) for x in mine])

    results = []
    for name, mine in by_name.items():
        candidate, options = chosen.get(name), chosen[name].options if name in chosen else {}
        label = search.method(options).label if candidate else BASELINE
        tokens, losses = sum(x.tokens for x in mine), [x.fidelity_loss for x in mine if x.fidelity_loss is not None]
        steps, wall, calm = (sum(getattr(x, part) for x in mine) for part in ("steps", "decode_s", "robust_s"))
        loss = sum(losses) / len(losses) if losses else None
        rates = tokens / steps, tokens / wall, tokens / calm
        results.append(
            Result(name, label, options, candidate, *rates, ratio(mine, "decode_s"), ratio(mine, "robust_s"), loss)
        )
    return results
