"""Check that a method draws what it claims to: exact enumeration on tables, then statistics on a loaded target.

On tables the engine's every outcome is enumerated.  A lossless method's images are held against the target's joint
distribution; any method's images, and how many steps they take, against its plain definition from the papers.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from torch import Tensor

from lanternbench.engine.decode import generate
from lanternbench.errors import UserError
from lanternbench.lossless.exact import Enumerated, World, decode_tables, enumerate_world, image_numbers
from lanternbench.lossless.forms import changed, definition, few_drafts, variations
from lanternbench.lossless.plain import decode_by_steps
from lanternbench.lossless.row_ends import row_end_target
from lanternbench.lossless.row_tables import RowWorld
from lanternbench.lossless.statistical import (
    ALPHA,
    CAPTIONS,
    DECODES,
    FACTORS,
    Finding,
    greedy_difference,
    sampled_tables,
    sampled_tests,
)
from lanternbench.lossless.tables import RowTables, Sampling, Tables, with_small_sizes
from lanternbench.methods.build import build
from lanternbench.methods.method import Method, named
from lanternbench.models.fingerprints import fingerprints
from lanternbench.models.target import Target
from lanternbench.registry import component, plugin_errors
from lanternbench.utils.files import WEIGHTS

EXACT = 1e-6  # largest deviation of a sequence's probability
IMAGES = 8  # of a statistical test
OVERLAP = {"eagle": 0.59, "eagle-3": 0.62}  # of the embedded drafters, mean of 24 images
SHORT = 0.15  # five standard errors of eight images
FORWARD = 1e-3  # largest deviation of a cached forward's probability from a plain one's
GUIDED = Sampling(guidance=1.5, temperature=1.3, top_k=3, top_p=0.95)
WORLDS: tuple[tuple[Any, ...], ...] = (  # see ``Tables``: vocabulary, length, kind, sampling, deep
    (3, 4, "mixed"),
    (4, 3, "zeros"),
    (4, 3, "dense", GUIDED),
    (2, 6, "dense", Sampling(1.5, 0.9), True),
    (3, 5, "dense", Sampling(2.0, 1.2, 2), True),
)
TREES, WINDOWS = (4, 3, "dense"), (3, 4, "dense")  # of other forms; a window's drafts outlive a step
ROWS: tuple[tuple[Any, ...], ...] = ((2, (2, 3), "dense", Sampling(1.5, 0.9)), (2, (3, 3), "dense"))  # ``RowTables``
FEW = 6  # tokens of an image; with more of them a row has one draft


class Row(NamedTuple):
    """One check of one method; ``passed`` None where it does not apply."""

    method: str  # its label
    check: str
    passed: bool | None
    value: float | None  # what was measured
    limit: float | None  # what it must not exceed
    detail: str
    seconds: float


class Outcome(NamedTuple):
    """What a check measured; NaN fails."""

    value: float
    limit: float
    detail: str

    def row(self, method: Method, check: str, seconds: float = 0.0) -> Row:
        return Row(method.label, check, bool(self.value <= self.limit), *self, seconds)


OnWorld = Callable[[str, int, int], None]  # what is enumerated, worlds done, of


def verify_all(
    methods: list[str | Method],
    target: Target | None = None,
    seed: int = 0,
    images: int = IMAGES,
    on_row: Callable[[Row], None] = lambda row: None,
    on_world: OnWorld = lambda what, done, of: None,
) -> list[Row]:
    """Every check of every method (preset names or Methods), on ``target`` too if one is given.

    ``images``: how many a statistical test generates.  ``on_row`` is told of each row as it comes, ``on_world`` of each
    enumeration as it begins.  Raises UserError for an unknown method.
    """
    rows = []
    for method in [named(m) if isinstance(m, str) else m for m in methods]:
        for row in verify_method(method, target, seed, images, on_world):
            rows.append(row)
            on_row(row)
    return rows


@torch.inference_mode()
def verify_method(
    method: Method, target: Target | None, seed: int, images: int, on_world: OnWorld = lambda what, done, of: None
) -> Iterator[Row]:
    """The checks of one method, one by one."""
    timed, lossless = partial(_timed, method), method.lossless
    if method.acceptance.by_position:
        yield timed("tables: the tokens of the same uniforms", _same_draws, method, seed)
    elif not method.proposal.lasting_noise:
        yield from _on_tables(method, seed, on_world)
    elif lossless:
        yield timed("tables: images", _sampled, method, seed)
    if lossless and not method.acceptance.by_position:
        yield timed("large tables, published sizes: token ranks", _published, method, seed)
    if lossless:
        yield timed("tables: greedy identity", _greedy_tables, method, seed)
    yield from _row_ends(method, seed)
    if target is None:
        return
    try:
        build(target, method)
    except UserError as error:
        yield Row(method.label, f"{target.name}: all", None, None, None, str(error), 0.0)
        return
    few = max(1, images // 2)
    if lossless:
        yield timed(f"{target.name}: greedy identity", _greedy_target, target, method, seed, few)
    yield from _statistics(target, method, seed, images if lossless else few)


def _timed(method: Method, check: str, run: Callable[..., Outcome], *args: Any) -> Row:
    start = time.perf_counter()
    with plugin_errors(*parts_of(method)):
        outcome = run(*args)
    return outcome.row(method, check, time.perf_counter() - start)


def parts_of(method: Method) -> tuple[Any, ...]:
    """The method's components, its residual included."""
    return (*method.parts, component("residual", method.choices.residual))


class OnTables(NamedTuple):
    """One world, enumerated."""

    enumerated: Enumerated
    joint: Tensor  # [V ** L] the target's
    defined: list[Tensor] | None  # P(image after 1, 2, … steps) by the plain definition, if there is one
    loss: float  # and the fidelity loss

    @property
    def tv(self) -> float:
        return 0.5 * float((self.enumerated.images.sum(0) - self.joint).abs().sum())

    @property
    def lost(self) -> float:
        """How far the images' probabilities are from summing to 1; NaN if the target's are, too."""
        missed, target = (abs(1 - float(x.nan_to_num().sum())) for x in (self.enumerated.images, self.joint))
        return missed if target <= EXACT else math.nan

    @property
    def bias(self) -> float:
        """max |P(image) − P_target(image)|, or what is lost."""
        return _worst([float((self.enumerated.images.sum(0) - self.joint).abs().max()), self.lost])

    @property
    def off(self) -> float:
        """max |P(image, steps) − P_plain(image, steps)|; 0 without a plain definition."""
        if self.defined is None:
            return 0.0
        images, steps = self.enumerated.images, max(len(self.enumerated.images), len(self.defined))
        plain = torch.stack([*self.defined, *images.new_zeros(steps - len(self.defined), images.shape[1])])
        return float((F.pad(images, (0, 0, 0, steps - len(images))) - plain).abs().max())

    @property
    def loss_off(self) -> float:
        """|fidelity loss − the plain definition's|; 0 where either is not known."""
        known = self.defined is not None and not math.isnan(self.enumerated.loss)
        return abs(self.enumerated.loss - self.loss) if known else 0.0

    def wrong(self, lossless: bool) -> float:
        """The largest deviation from the distribution and definition that a method must match."""
        return _worst([self.off, self.loss_off, *([self.bias, self.enumerated.loss] if lossless else [])])


def on_tables(method: Method, world: tuple[Any, ...], seed: int) -> OnTables:
    """A method of enumerable size on the tables that ``world`` describes."""
    vocab, length, *rest = world
    in_rows = method.choices.order != "raster"
    tables: Any = (RowTables if in_rows else Tables)(vocab, length, seed, *rest)
    method = few_drafts(method) if in_rows and tables.length > FEW else method
    with plugin_errors(*parts_of(method)):
        enumerated = enumerate_world((RowWorld if in_rows else World)(tables, method))
        spec = definition(with_small_sizes(method), tables)
    if spec is None:
        return OnTables(enumerated, tables.joint(), None, math.nan)
    images, loss = decode_by_steps(tables.world(), spec)
    return OnTables(enumerated, tables.joint(), [tables.on_all_images(x) for x in images], loss)


def _on_tables(method: Method, seed: int, on_world: OnWorld) -> Iterator[Row]:
    """Every world is enumerated once; the rows say what was found in all of them."""
    start, worlds = time.perf_counter(), list[OnTables]()
    descriptions = WORLDS if method.choices.order == "raster" else ROWS
    for i, world in enumerate(descriptions):
        on_world(f"{method.label}: exact enumeration", i, len(descriptions))
        worlds.append(on_tables(method, world, seed + i))
        if not worlds[-1].wrong(method.lossless) <= EXACT:
            break  # no need to look further
    seconds = time.perf_counter() - start
    if not method.bounded:
        detail = f"TV of images from the target's: {', '.join(f'{one.tv:.3f}' for one in worlds)}; nothing bounds it"
        distance = max(one.tv for one in worlds)
        yield Row(method.label, "tables: total variation", None, distance, None, detail, seconds)
    checks = _judged(method, worlds)
    for check, outcome in checks:
        yield outcome.row(method, f"tables: {check}", seconds / len(checks))
    if all(outcome.value <= EXACT for _, outcome in checks) and (others := variations(method)):
        yield _timed(method, "tables: its other forms", _variations, others, seed, on_world)


def _judged(method: Method, worlds: list[OnTables]) -> list[tuple[str, Outcome]]:
    """What a method must keep to, by check: the worst of all worlds."""
    checks: list[tuple[str, Outcome]] = []

    def check(name: str, values: list[float], detail: str) -> None:
        checks.append((name, Outcome(_worst(values), EXACT, detail)))

    sequences, defined = f"over {sum(len(one.joint) for one in worlds)} sequences", worlds[0].defined is not None
    if method.lossless:
        check("exact distribution", [one.bias for one in worlds], f"max |P − P_target| {sequences}")
        losses = [one.enumerated.loss for one in worlds]
        check("fidelity loss of a lossless method", losses, "Σ TV(q, K), computed as for any other")
    if defined:
        check("plain definition", [one.off for one in worlds], f"max |P(image, steps) − paper's| {sequences}")
    if defined and method.bounded:
        losses = [abs(one.enumerated.loss - one.loss) for one in worlds]
        check("fidelity loss, plain definition", losses, "max |loss − paper's|")
    if not method.lossless and method.bounded:
        only = "" if defined else "bound only, as there is no plain definition; "
        bounds = ", ".join(f"{one.tv:.3f} ≤ {one.enumerated.loss:.3f}" for one in worlds)
        excess = [one.tv - one.enumerated.loss for one in worlds]
        check("within the bound", excess, f"{only}TV − fidelity loss: {bounds}")
    return checks


def _variations(methods: list[Method], seed: int, on_world: OnWorld) -> Outcome:
    """One small world for each form; what shares noise between steps is decoded and tested instead."""
    worst, which, judged = 0.0, "", 0
    for i, method in enumerate(methods):
        on_world(f"{method.label}: exact enumeration", i, len(methods))
        off = _variation(method, seed)
        judged += off is not None
        if off is not None and not off <= worst:
            worst, which = off, method.label
    return Outcome(worst, EXACT, f"{judged} of {len(methods)} can be judged; the worst: {which}")


def _variation(method: Method, seed: int) -> float | None:
    """How far one form is from the target's joint, if it is lossless, and from its definition, if it has one."""
    if method.proposal.lasting_noise:
        evidence, limit, _ = _sampled(method, seed)
        return 0.0 if evidence <= limit else evidence
    world = ROWS[-1] if method.choices.order != "raster" else WINDOWS if method.proposal.tree_is_own else TREES
    one = on_tables(method, world, seed)
    return one.wrong(method.lossless) if method.lossless or one.defined is not None else None


def _worst(values: list[float]) -> float:
    """The largest; NaN if any is."""
    return max(values) if all(x == x for x in values) else math.nan


def _sampled(method: Method, seed: int) -> Outcome:
    """χ² of decoded images: where steps share noise, one step's outcomes cannot be enumerated by themselves."""
    # long enough for several positions to be drawn with lasting noise
    count, tables = 20_000, Tables(2, 6, seed, "dense")
    tokens, _ = decode_tables(tables, method, False, count, seed)
    joint = tables.joint()
    counts = torch.bincount(image_numbers(tokens, tables), minlength=len(joint))
    return _evidence(float(chisquare(counts, joint * count).pvalue), f"−log10 p-value of χ² over {count} images")


def _same_draws(method: Method, seed: int) -> Outcome:
    tokens, expected = decode_tables(Tables(4, 4, seed, "dense"), method, False, 512, seed)
    return Outcome(float((tokens != expected).double().mean()), 0.0, "share of tokens, 512 decodes")


def _greedy_tables(method: Method, seed: int) -> Outcome:
    differ = 0
    for i in range(16):
        tokens, expected = decode_tables(Tables(4, 4, seed + i, "dense"), method, True, 2, seed)
        differ += int((tokens != expected).any())
    return Outcome(float(differ), 0.0, "images that are not the argmax, of 16")


def _greedy_target(target: Target, method: Method, seed: int, images: int) -> Outcome:
    differ = greedy_difference(target, method, images, seed)
    return Outcome(float(differ), 0.0, f"images that greedy ar would not make, of {images}")


def _row_ends(method: Method, seed: int) -> Iterator[Row]:
    """The cached forwards of a small random model that writes row ends, in decodes of this method."""
    target = row_end_target()
    try:
        build(target, method)
    except UserError:
        return  # it has no drafter of this kind

    def cached() -> Outcome:
        forward = sampled_tests(target, method, 2 * IMAGES, seed).forward
        return Outcome(forward, FORWARD, "max |q in the loop − q of a plain forward|, a random model with row ends")

    yield _timed(method, "row ends: cached forward", cached)
    if method.choices.order != "raster":
        yield _timed(method, "row ends: one row at a time", _one_row, target, method, seed)


def _one_row(target: Target, method: Method, seed: int) -> Outcome:
    """Where a row begins only once the one above is complete, the tokens are those of raster order."""
    lead: dict[str, Any] = {"c": 256} if "c" in method.read else {"window": 256}
    raster, rows = (build(target, changed(method, to)) for to in ({"order": "raster"}, lead))
    rows = replace(rows, method=raster.method)  # whose key seeds the draws
    pairs = zip(*(generate(decoder, list(CAPTIONS[:2]), seed=seed) for decoder in (raster, rows)), strict=True)
    differ = sum(int((a.tokens != b.tokens).any()) for a, b in pairs)
    return Outcome(float(differ), 0.0, "images that differ from raster order's, of 2")


def _statistics(target: Target, method: Method, seed: int, images: int) -> Iterator[Row]:
    start = time.perf_counter()
    tests = sampled_tests(target, method, images, seed)
    seconds = time.perf_counter() - start

    def row(check: str, outcome: Outcome, seconds: float = 0.0) -> Row:
        return outcome.row(method, f"{target.name}: {check}", seconds)

    sample = f"{images} × {target.length} tokens"
    detail = f"max |q in the loop − q of a plain forward|, {sample}"
    yield row("cached forward", Outcome(tests.forward, FORWARD, detail), seconds)
    detail = f"pairs of images with one caption that are equal, of {images // 2}"
    yield row("prompts differ", Outcome(float(tests.alike), 0.0, detail))
    trained = OVERLAP.get(method.proposal.drafter_kind or "")
    if trained is not None and target.weights == fingerprints(WEIGHTS) and tests.overlap == tests.overlap:
        detail = f"by how much Σ min(p, q) of first drafts falls short of the {trained} that it was trained to"
        yield row("drafter", Outcome(trained - tests.overlap, SHORT, detail))
    if not method.lossless:
        return
    if min(tests.ranks.p_value, tests.log_q.p_value) < ALPHA:  # among dozens of tests one in ALPHA is to be expected:
        images *= 4  # a decoder that is at fault fails again
        tests = sampled_tests(target, method, images, seed + 1)
        sample = f"{images} × {target.length} new tokens, after a first failure"
    yield row("token ranks", _tested(tests.ranks, sample, "TV", tests.powers))
    yield row("log-probability", _tested(tests.log_q, sample, "nats a token"))


def _published(method: Method, seed: int) -> Outcome:
    """The rank test on large tables; as on a model, a failure is judged by a larger sample."""
    tests = sampled_tables(method, seed, DECODES)
    if tests.ranks.p_value < ALPHA:
        tests = sampled_tables(method, seed + 1, 2 * DECODES)
    return _tested(tests.ranks, f"{tests.tokens} tokens", "TV", tests.powers)


def _tested(test: Finding, sample: str, unit: str, powers: tuple[float, ...] = ()) -> Outcome:
    """``powers``: the chances that the test would have found deliberately wrong rules."""
    detail = f"−log10 p-value; {sample}; finds {test.effect:.2g} {unit} 9 times in 10"
    if powers:
        each = (f"{factor}×: {100 * chance:.0f} %" for factor, chance in zip(FACTORS, powers, strict=True))
        detail += f"; a rule too generous by {', '.join(each)}"
    return _evidence(test.p_value, detail)


def _evidence(p_value: float, detail: str) -> Outcome:
    """−log10 of a p-value, so that more is worse."""
    value = -math.log10(max(p_value, 1e-300)) if p_value == p_value else math.nan
    return Outcome(value, -math.log10(ALPHA), detail)
