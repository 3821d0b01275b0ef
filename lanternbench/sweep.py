"""Run a sweep: methods interleaved per prompt on one loaded target, every sample stored as soon as it is made."""

from __future__ import annotations

import hashlib
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from lanternbench import prompts as prompt_sets
from lanternbench.config import Sweep
from lanternbench.decoding.acceptance import Exact
from lanternbench.decoding.engine import Decoder, Generation, build, generate
from lanternbench.decoding.fidelity import (
    drafter_figures,
    fidelity_loss,
    greedy_loss,
    samples_children,
    target_figures,
)
from lanternbench.decoding.side_by_side import parts, side_by_side
from lanternbench.environment import environment
from lanternbench.measure import summarise
from lanternbench.metrics.registry import Scorer, SetScorer, scorers_for
from lanternbench.metrics.setup import Setup
from lanternbench.models.catalogue import load_with_drafter
from lanternbench.models.target import Target
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.results import RunFolder, Sample, config_hash, sample_key
from lanternbench.scoring import Costs, image_groups, known, prepared, score_sets, stored, there, with_record

WARMUP_STEPS = 12
Progress = Callable[[int, int, str], None]  # done, of, what


def run(
    config: Sweep,
    out: Path,
    *,
    fresh: bool = False,
    run_id: str | None = None,
    device: str = "cpu",
    progress: Progress = lambda done, of, what: None,
) -> tuple[Path, dict[str, Any]]:
    """Measure everything that ``config`` asks for and is not stored yet; returns the run folder and its summary.

    An interrupted sweep continues where it stopped: what is stored is never computed again, and what is computed
    depends on (seed, prompt, method) alone.  Raises UserError before anything is computed if a setting is wrong.
    """
    methods = config.methods()
    selected = prompt_sets.load(config.prompts, config.num_prompts, config.seed, config.caption)
    used, c = {m.proposal for m in methods}, config
    target = load_with_drafter(c.target, c.drafter, device, c.random_weights, c.dtype, used, c.compile)
    decoders = [build(target, m, c.temperature, c.top_k, c.top_p, c.guidance, c.simulate_acceptance) for m in methods]
    meaningless = config.random_weights or config.simulate_acceptance is not None
    scorers = [] if meaningless else scorers_for(config.metrics, target.evaluators, Setup(device=device))
    record = config.record() | {"guidance": decoders[0].guidance, "device": device}
    with RunFolder.open(
        out,
        run_id or f"{config.name}-{config_hash(record | selected.record())[:8]}",
        record,
        fresh=fresh,
        environment=environment() | mode(target, config.batch),
        prompts=selected.record(),
        target={
            "name": target.name,
            "grid": list(target.grid),
            "vocab": target.vocab,
            "evaluators": target.evaluators,
        },
        methods=[
            {"label": m.label, "method": m.preset, "options": m.options, "lossless": decoder.lossless}
            for m, decoder in zip(methods, decoders, strict=True)
        ],
    ) as folder:
        spent = _measure(folder, config, decoders, selected, [s for s in scorers if isinstance(s, Scorer)], progress)
        (sets, notes, costs, real), groups = stored(folder), image_groups(folder)  # ``score`` may have added to them
        here = there(groups)
        whole = [
            s
            for s in scorers
            if isinstance(s, SetScorer) and not (known(sets, groups, s) and (s.available() or not here))
        ]
        kept = {f"{name}: " for columns in sets.values() for name in columns} - {f"{s.name}: " for s in whole}
        found, missing, more = score_sets(groups, whole)
        for label, columns in found.items():
            sets.setdefault(label, {}).update(columns)
        summary = summarise(folder.samples(), folder.run, sets, config.seed)
        missing += [f"{s.name}: {why}" for s in scorers if isinstance(s, Scorer) and (why := s.available())]
        missing += [note for note in notes if note.startswith(tuple(kept))]
        summary["notes"] += missing + simulation_notes(config) + _process_note(device)
        summary = with_record(summary, costs | spent | more, real)
        folder.finish(summary)
        return folder.path, summary


def mode(target: Target, batch: int) -> dict[str, str]:
    """How the target runs: device, dtype, and whether forwards are recorded."""
    recorded = target.graphs is not None and batch == 1
    dtype = str(target.dtype).removeprefix("torch.")
    return {"device": str(target.device), "dtype": dtype, "compile": "graphs" if recorded else "eager"}


def simulation_notes(config: Sweep) -> list[str]:
    """What a reader must know of a run whose images mean nothing."""
    notes = []
    if config.random_weights:
        notes.append("Random weights: the times are real, the images are noise, and no metric is computed.")
    if config.simulate_acceptance:
        notes.append(
            f"Accepted lengths are simulated to a mean of {config.simulate_acceptance:g} tokens a step: the times are "
            "real, the images are noise, and no metric is computed."
        )
    return notes


def plan(prompts: PromptSet, decoders: list[Decoder], seed: int, batch: int) -> Iterator[tuple[Decoder, list[Prompt]]]:
    """Every (method, prompts) to run: prompt after prompt, the methods of each in a seeded random order."""
    chosen = list(prompts)
    for start in range(0, len(chosen), batch):
        group = chosen[start : start + batch]
        digest = hashlib.sha256(f"{seed}\0{group[0].id}".encode()).digest()
        for decoder in random.Random(digest).sample(decoders, len(decoders)):
            yield decoder, group


def _measure(
    folder: RunFolder,
    config: Sweep,
    decoders: list[Decoder],
    prompts: PromptSet,
    scorers: list[Scorer],
    progress: Progress,
) -> Costs:
    """Generate and score what is not stored yet; returns what the scores took."""
    done, total = folder.done(), len(prompts) * len(decoders)
    left = []
    for decoder, group in plan(prompts, decoders, config.seed, config.batch):
        missing = [p for p in group if sample_key(p.id, decoder.method.label, config.seed) not in done]
        if missing:
            left.append((decoder, missing))
    if left:  # a text encoder is loaded once, before the clock, and what it says is kept
        left[0][0].target.prepare(list(dict.fromkeys(p.text for _, group in left for p in group)))
    for decoder in {id(d): d for d, _ in left}.values():  # warm-up: first calls allocate and choose kernels
        progress(len(folder.done()), total, f"warming up {decoder.method.label}")
        generate(decoder, [prompts.prompts[0].text], seed=config.seed, most_steps=WARMUP_STEPS)
    costs: Costs = {}
    for scorer in scorers if left else ():
        prepared(scorer)
    for decoder, group in left:
        progress(len(folder.done()), total, f"{decoder.method.label} · {group[0].text}")
        for sample, image in make_samples(decoder, group, config.seed, config.batch == 1):
            for scorer in scorers:
                clock = time.perf_counter()
                value = sample.metrics[scorer.name] = scorer.score([image], [sample.prompt])[0]
                if value is not None:
                    cost = costs.setdefault(scorer.name, {"images": 0, "seconds": 0.0})
                    cost["images"], cost["seconds"] = cost["images"] + 1, cost["seconds"] + time.perf_counter() - clock
            folder.append(sample, image)
    progress(total, total, "scoring")
    return costs


def make_samples(decoder: Decoder, group: list[Prompt], seed: int, timed: bool) -> Iterator[tuple[Sample, Any]]:
    """Generate one image per prompt, all together; yields (sample, PIL image)."""
    traced = decoder.rates is None  # what a simulated acceptance commits has no distribution

    def make(part: list[Prompt]) -> list[tuple[Sample, Any]]:
        gpu = decoder.target.device if decoder.target.device.type == "cuda" else None
        if gpu is not None:
            torch.cuda.reset_peak_memory_stats(gpu)
        made = generate(decoder, [p.text for p in part], [p.id for p in part], seed, trace=traced)
        memory = {"peak_memory_mb": None if gpu is None else torch.cuda.max_memory_allocated(gpu) / 1e6}
        clock = time.perf_counter()
        images = decoder.target.images(torch.stack([g.tokens for g in made]))
        render_s = (time.perf_counter() - clock) / len(part)
        return [
            (_sample(decoder, prompt, generation, seed, timed, render_s, len(part), memory | extra), image)
            for prompt, generation, image, extra in zip(part, made, images, figures(decoder, made), strict=True)
        ]

    yield from side_by_side(make, group, parts(decoder.target, len(group)))


def figures(decoder: Decoder, made: list[Generation]) -> list[dict[str, Any]]:
    """Fidelity loss, drafter and target statistics of a batch, from its trace; off the clock."""
    trace, method = made[0].trace, decoder.method
    if trace is None:
        return [{} for _ in made]
    tokens = torch.stack([g.tokens for g in made])
    if decoder.lossless and isinstance(decoder.rule, Exact):  # what others claim is computed
        loss = torch.zeros(len(made))
    elif decoder.warp.greedy:
        loss = greedy_loss(trace, tokens)
    else:
        loss = fidelity_loss(trace, decoder.rule, decoder.residual, samples_children(method))
    drafter = drafter_figures(trace) if method.proposal not in ("none", "jacobi") else {}
    target = target_figures(trace, tokens)
    return [
        {"fidelity_loss": float(loss[i]), "stats": _row(target, i), "drafter": _row(drafter, i)}
        for i in range(len(made))
    ]


def _row(columns: dict[str, torch.Tensor], i: int) -> dict[str, float] | None:
    """Image ``i`` of some figures, without those that are undefined; None where nothing is left."""
    return {k: float(v[i]) for k, v in columns.items() if not v[i].isnan()} or None


def _sample(
    decoder: Decoder,
    prompt: Prompt,
    made: Generation,
    seed: int,
    timed: bool,
    render_s: float,
    batch: int,
    extra: dict[str, Any],
) -> Sample:
    drafting = decoder.method.proposal != "none" and made.steps > 1
    first = sum(n > 1 for n in made.accept_lengths) / max(made.steps, 1) if drafting else None
    overhead = {k: v for k, v in made.phases.items() if k not in ("draft", "verify")}
    return Sample(
        key=sample_key(prompt.id, decoder.method.label, seed),
        prompt_id=prompt.id,
        prompt=prompt.text,
        category=prompt.category,
        challenge=prompt.challenge,
        label=decoder.method.label,
        method=decoder.method.preset,
        options=decoder.method.options,
        seed=seed,
        tokens=len(made.tokens),
        # the prefill, which gives the first token, is a step of its own
        steps=1 + made.steps,
        accept_lengths=[1, *made.accept_lengths],
        tree_depths=[0, *made.tree_depths],
        tree_nodes=[1, *made.tree_nodes],
        first_token_acceptance=first,
        decode_s=made.decode_s / batch,
        encode_s=made.encode_s / batch,
        render_s=render_s,
        phases={
            "draft_s": made.phases.get("draft", 0.0) / batch,
            "verify_s": made.phases.get("verify", 0.0) / batch,
            "commit_s": overhead.pop("commit", 0.0) / batch,
            "other_s": sum(overhead.values()) / batch,
        },
        timed=timed,
        token_ids=made.tokens.tolist(),
        **extra,
    )


def _process_note(device: str) -> list[str]:
    """On a CPU memory is the process's, whichever method runs."""
    if device != "cpu":
        return []
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return [f"The process held {peak:,.0f} MB at its peak, evaluators included."]
