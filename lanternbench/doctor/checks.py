"""Checks of a GPU, that its steps give the same tokens, and of a pair, that a drafter belongs to
its target.

On a GPU decodes are compared in float64, where no draw hangs on how a sum was rounded.  With
another target's drafter next to nothing is accepted, as a short decode shows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from lanternbench.costs.forward_cost import bandwidth
from lanternbench.engine.decode import Generation, generate
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, method, named
from lanternbench.models.catalogue import set_device
from lanternbench.models.entries import Entry, expectation, shortfall
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.registry import components
from lanternbench.settings import GREEDY, TARGETS_OWN, Sampling
from lanternbench.utils.graph_capture import Graphs

PRESETS = ("ar", "eagle-1", "eagle-2", "sjd", "cool-sd")  # a proposal or tree of every kind
CAPTIONS = ("a red circle", "two small green squares", "a large blue ring above a yellow star")
STEPS = 24  # of a decode on the GPU
PAIR_STEPS = 40  # what a minute allows on a laptop, for a model of some hundred million weights


def first_difference(expected: Sequence[Generation], decoded: Sequence[Generation]) -> str | None:
    """The first difference between two decodes of the same prompts, in words; None if there is
    none.
    """
    for prompt, (a, b) in enumerate(zip(expected, decoded, strict=True)):
        known = min(1 + min(sum(a.accept_lengths), sum(b.accept_lengths)), len(a.tokens))
        wrong = (a.tokens[:known].cpu() != b.tokens[:known].cpu()).nonzero()
        if len(wrong):
            return f"prompt {prompt}: token {int(wrong[0])} differs"
        if a.accept_lengths != b.accept_lengths:
            return f"prompt {prompt}: {a.steps} and {b.steps} steps, of other lengths"
    return None


def recorded_differs(
    target: Target,
    graphs: Graphs,
    name: str,
    captions: Sequence[str],
    sampling: Sampling = TARGETS_OWN,
    *,
    steps: int,
) -> str | None:
    """The first difference between recorded and launched steps of the preset ``name``; None if
    there is none.
    """
    both = (build(replace(target, graphs=g), method(name), sampling) for g in (None, graphs))
    return first_difference(
        *(generate(decoder, list(captions), max_steps=steps) for decoder in both)
    )


def batch_differs(target: Target, name: str, captions: Sequence[str], steps: int) -> str | None:
    """The first difference between a batch and its prompts decoded alone; None if there is none."""
    decoder = build(target, method(name))
    alone = [generate(decoder, [caption], max_steps=steps)[0] for caption in captions]
    return first_difference(alone, generate(decoder, list(captions), max_steps=steps))


def check_gpu(device: str, facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first minute on a GPU, as rows; ``facts``: of each GPU, see ``experiment.environment``.
    Raises UserError.
    """
    if not device.startswith("cuda"):
        why = "torch sees no GPU here, so neither its memory's bandwidth nor CUDA graphs could be checked"
        raise UserError(f"{why}: run `lanternbench doctor --gpu` on a machine with one")
    set_device(device)
    mine = facts[torch.device(device).index or 0] if facts else {}
    rows = [check_row(key.replace("_", " "), value) for key, value in mine.items()]
    rows.append(check_row("memory reads at", f"{bandwidth(torch.device(device)).best:.0f} GB/s"))
    target = tiny.load(device=device, dtype=torch.float64)
    for name in PRESETS:
        wrong = recorded_differs(target, Graphs(), name, CAPTIONS[:1], steps=STEPS)
        value = wrong or f"the tokens of launched steps, {STEPS} steps"
        rows.append(check_row(f"graphs, {name}", value, wrong is None))
    wrong = batch_differs(replace(target, graphs=Graphs()), "eagle-1", CAPTIONS, STEPS)
    rows.append(
        check_row("batch of 3, eagle-1", wrong or "the tokens of its prompts alone", wrong is None)
    )
    return rows


def check_row(item: str, value: Any, ok: Any = None) -> dict[str, Any]:
    """``ok``: None where there is nothing to judge by."""
    return {"item": item, "value": value, "ok": ok}


def drafting_method(kind: str) -> Method:
    """The first lossless preset that drafts with ``kind``, a dynamic tree preferred.  Raises
    StopIteration for none.
    """
    presets = [
        m
        for m in map(named, components("preset"))
        if m.lossless and m.proposal.drafter_kind == kind
    ]
    return next((m for m in presets if m.choices.tree == "dynamic"), next(iter(presets)))


def check_pair(
    target: Target, kind: str, captions: list[str], row: Entry | None = None
) -> list[dict[str, Any]]:
    """Rows of item, value and ``ok`` by a short decode.  Raises UserError where the drafter does
    not fit the target.
    """
    net, used, misfit = (
        target.drafters[kind],
        drafting_method(kind),
        target.drafters[kind].misfit(target),
    )
    weights = sum(p.numel() for p in net.parameters())
    rows = [check_row(f"drafter '{kind}'", f"{net.about}, {weights / 1e6:.1f}M weights")]
    rows.append(check_row("fits the target", misfit or "yes", misfit is None))
    for temperature in (0.0, 1.0):
        drafted = generate(
            build(target, used, Sampling(temperature=temperature)), captions, max_steps=PAIR_STEPS
        )
        accepted, count = first_tokens(drafted)
        known = row and expectation(row, kind, used.choices.tree, temperature)
        note = row and shortfall(row, kind, used.choices.tree, temperature, accepted, count)
        text = f"{accepted / count:.1%} of {count} steps ({used.label})"
        if known:
            text += f"; published: at least {known.first_token_acceptance:.0%} ({known.source})"
        rows.append(
            check_row(f"first token accepted, T = {temperature:g}", text, known and note is None)
        )
        if temperature == 0:
            # tokens so far
            counts = [min(1 + sum(g.accept_lengths), target.length) for g in drafted]
            plain = generate(
                build(target, method("ar"), GREEDY),
                captions,
                max_steps=max(counts),
            )
            equal = all(
                (a.tokens[:n] == b.tokens[:n]).all()
                for a, b, n in zip(drafted, plain, counts, strict=True)
            )
            rows.append(
                check_row(
                    "greedy tokens", "those of ar" if equal else "not those of ar", bool(equal)
                )
            )
    return rows


def first_tokens(drafted: list[Generation]) -> tuple[int, int]:
    """Steps whose first drafted token was accepted, and all steps; not the last, which the end of
    the image may cut.
    """
    steps = [n for g in drafted for n in g.accept_lengths[:-1]]
    return sum(n > 1 for n in steps), max(1, len(steps))
