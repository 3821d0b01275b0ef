"""What a run says, in sentences, each of which the tables show."""

from __future__ import annotations

from collections.abc import Sequence

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.statistics import ALPHA, prompts_needed
from lanternbench.measure.summaries import Row
from lanternbench.notes import Note, preliminary
from lanternbench.report.columns import BASE, MISSING
from lanternbench.report.pairs import SPEED, TAU, Pair
from lanternbench.utils.text import one_line

BUDGET = 0.1  # fidelity loss: total variation per token, a mean
SPEEDUP = next(column for column in BASE if column.key == "speedup")
LOSS = next(column for column in BASE if column.key == "fidelity_loss")


def answer(rows: Sequence[Row], pairs: Sequence[Pair], notes: Sequence[Note], budget: float = BUDGET) -> list[str]:
    """The sentences of one run: is it unfit to be quoted, what is fastest, at what cost, and what is not told apart.

    pairs: of the run's methods, with p-values corrected for their number; notes: the run's.
    """
    drafting = [row for row in rows if row.label != BASELINE and row.value("speedup") is not None]
    said = [preliminary(notes)]
    doubt = " (preliminary)" if said[0] else ""
    if drafting:
        lossless = [row for row in drafting if row.lossless]
        name = f"Fastest lossless method{doubt}"
        said.append(_fastest(name, lossless, pairs) or "No lossless method was timed beside ar.")
        close = [row for row in drafting if not row.lossless and (loss := row.value("fidelity_loss")) is not None
                 and loss <= budget]  # fmt: skip
        name = f"Fastest relaxed method within a fidelity loss of {budget:g}{doubt}"
        relaxed = any(row.lossless is False for row in drafting)
        said.append(_fastest(name, close, pairs) or (f"{name}: none." if relaxed else ""))
        said.append(_apart(pairs))
    else:
        said.append("No speedup was measured: methods are compared by accepted length alone.")
    said.append(_quality(pairs))
    disturbed = [note.text for note in notes if note.metric == "latency_s" and note.kind in ("unfit", "warning")]
    if disturbed:
        said += disturbed
    elif any(row.value("robust_latency_s") is not None for row in rows):
        said.append("The clock shows no sign of a disturbance.")
    return [sentence for sentence in said if sentence]


def _fastest(what: str, rows: Sequence[Row], pairs: Sequence[Pair]) -> str:
    """The fastest of some rows, with what the tests say of it and ar, and which others may be as fast."""
    if not rows:
        return ""
    best = max(rows, key=lambda row: row.value("speedup") or 0.0)
    loss = "" if best.lossless or best.value("fidelity_loss") is None else f", fidelity loss {LOSS.value(best)}"
    said = f"{what}: {one_line(best.label, 60)}, {SPEEDUP.cell(best)} against ar{loss}."
    if not _told_apart(best.label, BASELINE, pairs):
        return f"{said} That may be chance: the tests do not tell it from ar."
    alike = [row.label for row in rows if row is not best and not _told_apart(best.label, row.label, pairs)]
    return f"{said} Not told apart from it: {_listed(alike)}." if alike else said


def _told_apart(one: str, other: str, pairs: Sequence[Pair]) -> bool:
    return any(
        pair.figure == SPEED and {pair.method, pair.against} == {one, other} and pair.p < ALPHA for pair in pairs
    )


def _apart(pairs: Sequence[Pair]) -> str:
    """How many pairs of methods the tests tell apart in speed."""
    speed = [pair for pair in pairs if pair.figure == SPEED]
    if not speed:
        return "Too few prompts to tell any methods apart."
    first = [pair for pair in speed if BASELINE in (pair.method, pair.against)]
    others = [pair for pair in speed if pair not in first]
    counts = [(family, sum(pair.p < ALPHA for pair in family)) for family in (first, others)]
    prompts = max(pair.prompts for pair in speed)
    words = ("methods from ar", "pairs of them from each other")
    said = [f"{told} of {len(family)} {what}" for (family, told), what in zip(counts, words) if family]
    needed = prompts_needed(len(first or others))
    fix = f"measure {needed} prompts or more" if prompts < needed else "more prompts tell more apart"
    end = "" if all(told == len(family) for family, told in counts) else f": {fix}"
    return f"The tests over {prompts} prompts tell apart in speed {' and '.join(said)} (p < {ALPHA:g}){end}."


def _quality(pairs: Sequence[Pair]) -> str:
    """Which methods differ from ar in a metric."""
    against = [pair for pair in pairs if pair.figure not in (SPEED, TAU) and BASELINE in (pair.method, pair.against)]
    titles = list(dict.fromkeys(pair.title for pair in against))
    differing = [pair for pair in against if pair.p < ALPHA]
    if not titles:
        return ""
    if not differing:
        return f"No method is told apart from ar in {_listed(titles)}."
    each = []
    for pair in differing:
        sign = 1 if pair.against == BASELINE else -1
        other = pair.method if pair.against == BASELINE else pair.against
        value = MISSING if pair.value is None else f"{sign * pair.value:+.3g}"
        p = pair.cells()[-1] if pair.p < 0.001 else f"= {pair.p:.3f}"
        each.append(f"{one_line(other, 60)} ({pair.title} {value}, p {p})")
    return f"Told apart from ar in quality: {_listed(each)}."


def _listed(names: Sequence[str]) -> str:
    names = [one_line(name, 90) for name in names]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
