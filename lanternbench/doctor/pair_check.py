"""Checks that a drafter belongs to a target, by a short decode: with another drafter, next to nothing is accepted."""

from typing import Any

from lanternbench.doctor.gpu_check import check_row
from lanternbench.engine.decode import Generation, generate
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, method, named
from lanternbench.models.entries import Entry, expectation, shortfall
from lanternbench.models.target import Target
from lanternbench.registry import components

STEPS = 40  # of each decode: what a minute allows on a laptop, for a model of some hundred million weights
TEMPERATURES = (0.0, 1.0)


def drafting_method(kind: str) -> Method:
    """The first lossless preset that drafts with ``kind``, a dynamic tree preferred.  Raises StopIteration for none."""
    presets = [m for m in map(named, components("preset")) if m.lossless and m.proposal.drafter_kind == kind]
    return next((m for m in presets if m.choices.tree == "dynamic"), next(iter(presets)))


def check_pair(target: Target, kind: str, captions: list[str], row: Entry | None = None) -> list[dict[str, Any]]:
    """Rows of item, value and ``ok`` by a short decode.  Raises UserError where the drafter does not fit the target."""
    net, used, misfit = target.drafters[kind], drafting_method(kind), target.drafters[kind].misfit(target)
    weights = sum(p.numel() for p in net.parameters())
    rows = [check_row(f"drafter '{kind}'", f"{net.about}, {weights / 1e6:.1f}M weights")]
    rows.append(check_row("fits the target", misfit or "yes", misfit is None))
    for temperature in TEMPERATURES:
        drafted = generate(build(target, used, temperature), captions, max_steps=STEPS)
        accepted, count = first_tokens(drafted)
        known = row and expectation(row, kind, used.choices.tree, temperature)
        note = row and shortfall(row, kind, used.choices.tree, temperature, accepted, count)
        text = f"{accepted / count:.1%} of {count} steps ({used.label})"
        if known:
            text += f"; published: at least {known.first_token_acceptance:.0%} ({known.source})"
        rows.append(check_row(f"first token accepted, T = {temperature:g}", text, known and note is None))
        if temperature == 0:
            rows.append(same_as_ar(target, drafted, captions))
    return rows


def first_tokens(drafted: list[Generation]) -> tuple[int, int]:
    """Steps whose first drafted token was accepted, and all steps; not the last, which the end of the image may cut."""
    steps = [n for g in drafted for n in g.accept_lengths[:-1]]
    return sum(n > 1 for n in steps), max(1, len(steps))


def same_as_ar(target: Target, drafted: list[Generation], captions: list[str]) -> dict[str, Any]:
    """Greedy tokens so far against autoregressive decoding's."""
    known = [min(1 + sum(g.accept_lengths), target.length) for g in drafted]
    plain = generate(build(target, method("ar"), 0.0), captions, max_steps=max(known))
    equal = all((a.tokens[:n] == b.tokens[:n]).all() for a, b, n in zip(drafted, plain, known, strict=True))
    return check_row("greedy tokens", "those of ar" if equal else "not those of ar", bool(equal))
