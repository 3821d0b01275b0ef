"""The findings of a run as sentences, each with its figures in the tables."""

from collections.abc import Sequence

from lanternbench.measure.figures import BASELINE
from lanternbench.measure.statistics import ALPHA, prompts_needed
from lanternbench.measure.summary import Row
from lanternbench.notes import Note, preliminary
from lanternbench.report.columns import COLUMN, MISSING
from lanternbench.report.pairs import SPEED, TAU, Pair
from lanternbench.utils.text import one_line

BUDGET = 0.1  # fidelity loss: total variation per token, a mean


def answer(rows: Sequence[Row], pairs: Sequence[Pair], notes: Sequence[Note], budget: float = BUDGET) -> list[str]:
    """The sentences of one run: is it fit to be quoted, the fastest method, its cost, and methods without a difference.

    pairs: of the run's methods, with p-values corrected for their number; notes: the run's.
    """
    drafting = [row for row in rows if row.label != BASELINE and row.value("speedup") is not None]
    sentences = [preliminary(notes)]
    doubt = " (preliminary)" if sentences[0] else ""
    if drafting:
        lossless = _fastest(f"Fastest lossless method{doubt}", [row for row in drafting if row.lossless], pairs)
        losses = [(row, row.value("fidelity_loss")) for row in drafting if not row.lossless]
        close = [row for row, loss in losses if loss is not None and loss <= budget]
        name = f"Fastest relaxed method within a fidelity loss of {budget:g}{doubt}"
        none = f"{name}: none." if any(row.lossless is False for row in drafting) else ""
        sentences.append(lossless or "No lossless method was timed beside ar.")
        sentences += [_fastest(name, close, pairs) or none, _told_apart(pairs)]
    else:
        sentences.append("No speedup was measured: methods are compared by accepted length alone.")
    sentences.append(_quality(pairs))
    disturbed = [note.text for note in notes if note.metric == "latency_s" and note.kind in ("unfit", "warning")]
    if not disturbed and any(row.value("robust_latency_s") is not None for row in rows):
        sentences.append("The clock shows no sign of a disturbance.")
    return [sentence for sentence in sentences + disturbed if sentence]


def _fastest(what: str, rows: Sequence[Row], pairs: Sequence[Pair]) -> str:
    """The fastest of some rows, with what the tests say of it and ar, and which others may be as fast."""
    if not rows:
        return ""
    apart = [{pair.method, pair.against} for pair in pairs if pair.figure == SPEED and pair.p < ALPHA]
    best = max(rows, key=lambda row: row.value("speedup") or 0.0)
    cost = COLUMN["fidelity_loss"].value(best)
    loss = "" if best.lossless or cost == MISSING else f", fidelity loss {cost}"
    sentence = f"{what}: {one_line(best.label, 60)}, {COLUMN['speedup'].cell(best)} against ar{loss}."
    if {best.label, BASELINE} not in apart:
        return f"{sentence} That may be chance: the tests do not tell it from ar."
    alike = [row.label for row in rows if row is not best and {best.label, row.label} not in apart]
    return f"{sentence} Not told apart from it: {_listed(alike)}." if alike else sentence


def _told_apart(pairs: Sequence[Pair]) -> str:
    """How many pairs of methods the tests tell apart in speed."""
    speed = [pair for pair in pairs if pair.figure == SPEED]
    if not speed:
        return "Too few prompts to tell any methods apart."
    first = [pair for pair in speed if BASELINE in (pair.method, pair.against)]
    others = [pair for pair in speed if pair not in first]
    families = {"methods from ar": first, "pairs of them from each other": others}
    counts = [f"{sum(p.p < ALPHA for p in each)} of {len(each)} {what}" for what, each in families.items() if each]
    prompts, needed = max(pair.prompts for pair in speed), prompts_needed(len(first or others))
    fix = f": measure {needed} prompts or more" if prompts < needed else ": more prompts tell more apart"
    end = "" if all(pair.p < ALPHA for pair in speed) else fix
    return f"The tests over {prompts} prompts tell apart in speed {' and '.join(counts)} (p < {ALPHA:g}){end}."


def _quality(pairs: Sequence[Pair]) -> str:
    """Which methods differ from ar in a metric."""
    against = [pair for pair in pairs if pair.figure not in (SPEED, TAU) and BASELINE in (pair.method, pair.against)]
    if not against:
        return ""
    each = []
    for pair in against:
        if pair.p < ALPHA:
            other, sign = (pair.method, 1) if pair.against == BASELINE else (pair.against, -1)
            value = MISSING if pair.value is None else f"{sign * pair.value:+.3g}"
            p = pair.p_text if pair.p < 0.001 else f"= {pair.p_text}"
            each.append(f"{one_line(other, 60)} ({pair.title} {value}, p {p})")
    if each:
        return f"Told apart from ar in quality: {_listed(each)}."
    return f"No method is told apart from ar in {_listed(list(dict.fromkeys(pair.title for pair in against)))}."


def _listed(names: Sequence[str]) -> str:
    names = [one_line(name, 90) for name in names]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
