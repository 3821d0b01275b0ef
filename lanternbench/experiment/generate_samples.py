"""Make samples from prompts and a method: decode, render, and compute the figures that need no clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lanternbench.engine.decode import Generation, SpeculativeDecoder, generate
from lanternbench.engine.trace import Trace
from lanternbench.experiment import Sample, sample_key
from lanternbench.measure.fidelity import decode_loss, drafter_figures, row_losses, target_figures
from lanternbench.models.grids import size
from lanternbench.prompts import Prompt
from lanternbench.utils.device import cpu_threads
from lanternbench.utils.parallel import process_count, side_by_side


def make_samples(
    decoder: SpeculativeDecoder,
    group: list[Prompt],
    seed: int,
    timed: bool,
    on_step: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[Sample, Any]]:
    """Generate one image per prompt, all together; yields (sample, PIL image).

    ``on_step`` (tokens done, of) is called after every step, unless processes share the prompts.
    """
    count = process_count(decoder.target.model, len(group))
    alone = on_step if count == 1 else None
    traced = decoder.rates is None  # what a simulated acceptance commits has no distribution

    def make(part: list[Prompt]) -> list[tuple[Sample, Any]]:
        gpu = decoder.target.device if decoder.target.device.type == "cuda" else None
        if gpu is not None:
            torch.cuda.reset_peak_memory_stats(gpu)
        made = generate(decoder, [p.text for p in part], [p.id for p in part], seed, trace=traced, on_step=alone)
        memory = {"peak_memory_mb": None if gpu is None else torch.cuda.max_memory_allocated(gpu) / 1e6}
        clock = time.perf_counter()
        images = decoder.target.images(torch.stack([g.tokens for g in made]), [p.text for p in part])
        render_s = (time.perf_counter() - clock) / len(part)
        encoder_s = decoder.target.encode_seconds([p.text for p in part])  # of features kept from before the clock
        encode_s = (made[0].encode_s + encoder_s) / len(part)
        together = len(part) * count  # the other parts take the same time
        return [
            (_sample(decoder, prompt, generation, seed, timed, (encode_s, render_s), together, memory | extra), image)
            for prompt, generation, image, extra in zip(part, made, images, figures(decoder, made), strict=True)
        ]

    yield from side_by_side(make, group, count)


def figures(decoder: SpeculativeDecoder, made: list[Generation]) -> list[dict[str, Any]]:
    """Fidelity loss, drafter and target statistics of a batch, from its trace; off the clock."""
    trace, method = made[0].trace, decoder.method
    if trace is None:
        return [{} for _ in made]
    tokens = torch.stack([g.tokens for g in made])
    loss = decode_loss(decoder, trace, tokens)
    drafter = drafter_figures(trace) if method.proposal.drafter_kind is not None else {}
    target = target_figures(trace, tokens)
    places = _loss_by_place(decoder, trace)
    return [
        places[i]
        | {
            "fidelity_loss": None if loss[i].isnan() else float(loss[i]),
            "stats": _row(target, i),
            "drafter": _row(drafter, i),
        }
        for i in range(len(made))
    ]


def _loss_by_place(decoder: SpeculativeDecoder, trace: Trace) -> list[dict[str, list[float]]]:
    """The mean loss of each image's rows and columns, where several rows were drawn at once."""
    if trace.seen is None or decoder.warp.greedy:
        return [{} for _ in trace.q]
    grid = decoder.target.grid
    losses = row_losses(trace, decoder.rule, decoder.residual)[:, -size(grid) :]
    maps = losses.unflatten(1, grid).clamp(0, 1).cpu()
    return [{"row_loss": one.mean(1).tolist(), "column_loss": one.mean(0).tolist()} for one in maps]


def _row(columns: dict[str, torch.Tensor], i: int) -> dict[str, float] | None:
    """Image ``i`` of some figures, without those that are undefined; None where nothing is left."""
    return {k: float(v[i]) for k, v in columns.items() if not v[i].isnan()} or None


def _sample(
    decoder: SpeculativeDecoder,
    prompt: Prompt,
    made: Generation,
    seed: int,
    timed: bool,
    around: tuple[float, float],
    batch: int,
    extra: dict[str, Any],
) -> Sample:
    """``around``: seconds of an image's encoding, the text encoder's included, and of its rendering."""
    drafting = decoder.proposer.max_depth > 0 and made.steps > 1
    first = sum(n > 1 for n in made.accept_lengths) / max(made.steps, 1) if drafting else None
    overhead = {k: v for k, v in made.phases.items() if k not in ("draft", "verify")}
    return Sample(
        key=sample_key(prompt.id, decoder.method.key, seed),
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
        encode_s=around[0],
        render_s=around[1],
        phases={
            "draft_s": made.phases.get("draft", 0.0) / batch,
            "verify_s": made.phases.get("verify", 0.0) / batch,
            "commit_s": overhead.pop("commit", 0.0) / batch,
            "other_s": sum(overhead.values()) / batch,
        },
        timed=timed,
        step_s=[round(seconds, 7) for seconds in made.step_s] if timed else None,
        cpu_s=made.cpu_s if timed else None,
        threads=cpu_threads(decoder.target.device) if timed else None,
        load=os.getloadavg()[0] if timed else None,
        token_ids=made.tokens.tolist(),
        **extra,
    )
