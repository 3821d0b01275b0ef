"""Is a method lossless?  Exact enumeration on tables, then statistics on a loaded target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from rich.table import Table
from scipy.stats import chisquare

from lanternbench.errors import UserError
from lanternbench.lossless.exact import decoded, output_distribution
from lanternbench.lossless.statistical import ALPHA, greedy_difference, sampled_tests
from lanternbench.lossless.tables import Tables
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, named
from lanternbench.models.target import Target
from lanternbench.registry import blamed, component

EXACT = 1e-6  # largest deviation of a sequence's probability
FORWARD = 1e-3  # largest deviation of a cached forward's probability from a plain one's
WORLDS = ((3, 4, "mixed"), (3, 4, "dense"), (4, 3, "mixed"), (4, 3, "zeros"))  # vocabulary, length, kind of tables


class Row(NamedTuple):
    """One check of one method; ``passed`` None where it does not apply."""

    method: str  # its label
    check: str
    passed: bool | None
    value: float | None  # what was measured
    limit: float | None  # what it must not exceed
    detail: str
    seconds: float


def verify_all(
    methods: list[str | Method],
    target: Target | None = None,
    seed: int = 0,
    images: int = 8,
    on_row: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Every check of every method (preset names or Methods), on ``target`` too if one is given.

    ``images``: how many a statistical test generates.  ``on_row`` is told of each row as it comes.
    Raises UserError for an unknown method.
    """
    rows = []
    for method in [named(m) if isinstance(m, str) else m for m in methods]:
        for row in verify_method(method, target, seed, images):
            rows.append(row)
            if on_row is not None:
                on_row(row)
    return rows


@torch.inference_mode()
def verify_method(method: Method, target: Target | None, seed: int, images: int) -> Iterator[Row]:
    """The checks of one method, one by one."""
    lossless = method.lossless
    if method.acceptance.by_position:
        yield _timed(method, "tables: the tokens of the same uniforms", _same_draws, method, seed)
    elif lossless and method.proposal.lasting_noise:
        yield _timed(method, "tables: images", _sampled, method, seed)
    elif lossless:
        yield _timed(method, "tables: exact distribution", _exact, method, seed)
    else:
        yield _timed(method, "tables: within the bound", _bounded, method, seed)
    if lossless:
        yield _timed(method, "tables: greedy identity", _greedy_tables, method, seed)
    if target is None:
        return
    try:
        build(target, method)
    except UserError as error:
        yield Row(method.label, f"{target.name}: all", None, None, None, str(error), 0.0)
        return
    few = max(1, images // 2)
    if lossless:
        yield _timed(method, f"{target.name}: greedy identity", _greedy_target, target, method, seed, few)
    yield from _statistics(target, method, seed, images if lossless else few, lossless)


def table(rows: list[Row]) -> Table:
    """The rows for a terminal."""
    shown = Table("method", "check", "", "measured", "limit", "detail")
    for row in rows:
        mark = {True: "[green]pass[/]", False: "[red]FAIL[/]", None: "–"}[row.passed]
        numbers = ("–" if x is None else f"{x:.3g}" for x in (row.value, row.limit))
        shown.add_row(row.method, row.check, mark, *numbers, row.detail)
    return shown


Outcome = tuple[float, float, str]  # value, limit, detail


def _timed(method: Method, check: str, run: Callable[..., Outcome], *args) -> Row:
    start = time.perf_counter()
    with blamed(*method.parts, component("residual", method.choices.residual)):
        value, limit, detail = run(*args)
    passed = bool(value <= limit)  # NaN fails
    return Row(method.label, check, passed, value, limit, detail, time.perf_counter() - start)


def _exact(method: Method, seed: int) -> Outcome:
    worst, count = 0.0, 0
    for i, (vocab, length, kind) in enumerate(WORLDS):
        tables = Tables(vocab, length, seed + i, kind)
        out, _ = output_distribution(tables, method)
        worst = _worse(worst, float((out - tables.joint()).abs().max()))
        count += vocab**length
    return worst, EXACT, f"max |P − P_target| over {count} sequences"


def _sampled(method: Method, seed: int, count: int = 20_000) -> Outcome:
    """χ² of decoded images: where steps share noise, one step's outcomes cannot be enumerated by themselves."""
    tables = Tables(3, 3, seed, "dense")
    tokens, _ = decoded(tables, method, False, count, seed)
    images = (tokens * 3 ** torch.tensor([2, 1, 0])).sum(1)
    p_value = float(chisquare(torch.bincount(images, minlength=27), tables.joint() * count).pvalue)
    return _evidence(p_value), _evidence(ALPHA), f"−log10 p-value of χ² over {count} images"


def _bounded(method: Method, seed: int) -> Outcome:
    excess, shown = -float("inf"), []
    for i, (vocab, length, kind) in enumerate(WORLDS):
        tables = Tables(vocab, length, seed + i, kind)
        out, bound = output_distribution(tables, method)
        tv = 0.5 * float((out - tables.joint()).abs().sum())
        excess = _worse(excess, tv - bound)
        shown.append(f"{tv:.3f} ≤ {bound:.3f}")
    return excess, EXACT, f"TV − fidelity loss: {', '.join(shown)}"


def _worse(a: float, b: float) -> float:
    """The larger; NaN if either is."""
    return b if b != b or b > a else a


def _same_draws(method: Method, seed: int) -> Outcome:
    tokens, expected = decoded(Tables(4, 4, seed, "dense"), method, False, 512, seed)
    return float((tokens != expected).double().mean()), 0.0, "share of tokens, 512 decodes"


def _greedy_tables(method: Method, seed: int) -> Outcome:
    differ = 0
    for i in range(16):
        tokens, expected = decoded(Tables(4, 4, seed + i, "dense"), method, True, 2, seed)
        differ += int((tokens != expected).any())
    return float(differ), 0.0, "images that are not the argmax, of 16"


def _greedy_target(target: Target, method: Method, seed: int, images: int) -> Outcome:
    return (
        float(greedy_difference(target, method, images, seed)),
        0.0,
        f"images that greedy ar would not make, of {images}",
    )


def _statistics(target: Target, method: Method, seed: int, images: int, lossless: bool) -> Iterator[Row]:
    start = time.perf_counter()
    found = sampled_tests(target, method, images, seed)
    seconds = time.perf_counter() - start
    sample = f"{images} × {target.length} tokens"
    detail = f"max |q in the loop − q of a plain forward|, {sample}"
    passed = bool(found.forward <= FORWARD)
    yield Row(method.label, f"{target.name}: cached forward", passed, found.forward, FORWARD, detail, seconds)
    if not lossless:
        return
    if min(found.ranks.p_value, found.log_q.p_value) < ALPHA:  # among dozens of tests one in ALPHA is to be expected:
        images *= 4  # a decoder that is at fault fails again
        found = sampled_tests(target, method, images, seed + 1)
        sample = f"{images} × {target.length} new tokens, after a first failure"
    for name, finding, unit in (("token ranks", found.ranks, "TV"), ("log-probability", found.log_q, "nats a token")):
        detail = f"−log10 p-value; {sample}; finds {finding.effect:.2g} {unit} 9 times in 10"
        value, limit = _evidence(finding.p_value), _evidence(ALPHA)
        yield Row(method.label, f"{target.name}: {name}", bool(value <= limit), value, limit, detail, 0.0)


def _evidence(p_value: float) -> float:
    """−log10 of a p-value, so that more is worse."""
    return -math.log10(max(p_value, 1e-300)) if p_value == p_value else math.nan
