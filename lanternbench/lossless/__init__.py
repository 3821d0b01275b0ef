"""Check that a method draws what it claims to: exact enumeration on tables, then statistics on a loaded target.

On tables the engine's every outcome is enumerated.  A lossless method's images are held against the target's joint
distribution; any method's images, and how many steps they take, against its plain definition from the papers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from torch import Tensor

from lanternbench.engine.decode import generate
from lanternbench.errors import UserError
from lanternbench.lossless.definitions import definition
from lanternbench.lossless.exact import Enumerated, decode_tables, enumerate_images
from lanternbench.lossless.large_tables import DECODES, sampled_tables
from lanternbench.lossless.plain import decode_by_steps
from lanternbench.lossless.row_ends import row_end_target
from lanternbench.lossless.row_tables import RowTables, enumerate_rows, few_drafts
from lanternbench.lossless.statistical import ALPHA, CAPTIONS, FACTORS, greedy_difference, sampled_tests
from lanternbench.lossless.tables import Sampling, Tables, with_small_sizes
from lanternbench.lossless.variations import changed, variations
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


Outcome = tuple[float, float, str]  # value, limit, detail
OnWorld = Callable[[str, int, int], None]  # what is enumerated, worlds done, of


def verify_all(
    methods: list[str | Method],
    target: Target | None = None,
    seed: int = 0,
    images: int = IMAGES,
    on_row: Callable[[Row], None] | None = None,
    on_world: OnWorld | None = None,
) -> list[Row]:
    """Every check of every method (preset names or Methods), on ``target`` too if one is given.

    ``images``: how many a statistical test generates.  ``on_row`` is told of each row as it comes, ``on_world`` of each
    enumeration as it begins.  Raises UserError for an unknown method.
    """
    rows = []
    for method in [named(m) if isinstance(m, str) else m for m in methods]:
        for row in verify_method(method, target, seed, images, on_world):
            rows.append(row)
            if on_row is not None:
                on_row(row)
    return rows


@torch.inference_mode()
def verify_method(
    method: Method, target: Target | None, seed: int, images: int, on_world: OnWorld | None = None
) -> Iterator[Row]:
    """The checks of one method, one by one."""
    lossless = method.lossless
    if method.acceptance.by_position:
        yield _timed(method, "tables: the tokens of the same uniforms", _same_draws, method, seed)
    elif method.proposal.lasting_noise:
        if lossless:
            yield _timed(method, "tables: images", _sampled, method, seed)
    else:
        yield from _on_tables(method, seed, on_world)
    if lossless and not method.acceptance.by_position:
        yield _timed(method, "large tables, published sizes: token ranks", _published, method, seed)
    if lossless:
        yield _timed(method, "tables: greedy identity", _greedy_tables, method, seed)
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
        yield _timed(method, f"{target.name}: greedy identity", _greedy_target, target, method, seed, few)
    yield from _statistics(target, method, seed, images if lossless else few, lossless)


def _timed(method: Method, check: str, run: Callable[..., Outcome], *args) -> Row:
    start = time.perf_counter()
    with plugin_errors(*parts_of(method)):
        value, limit, detail = run(*args)
    passed = bool(value <= limit)  # NaN fails
    return Row(method.label, check, passed, value, limit, detail, time.perf_counter() - start)


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
        """max |P(image) − P_target(image)|."""
        return float((self.enumerated.images.sum(0) - self.joint).abs().max())

    def wrong(self, lossless: bool) -> float:
        """The largest deviation from the distribution and definition that a method must match."""
        deviations = [self.bias, self.lost, self.enumerated.loss] if lossless else [0.0]
        return _worst(
            deviations + ([self.off, abs(self.enumerated.loss - self.loss)] if self.defined is not None else [])
        )

    @property
    def off(self) -> float:
        """max |P(image, steps) − P_plain(image, steps)|."""
        assert self.defined is not None
        images, steps = self.enumerated.images, max(len(self.enumerated.images), len(self.defined))
        plain = torch.stack([*self.defined, *images.new_zeros(steps - len(self.defined), images.shape[1])])
        return float((F.pad(images, (0, 0, 0, steps - len(images))) - plain).abs().max())


def on_tables(method: Method, world: tuple[Any, ...], seed: int) -> OnTables:
    """A method of enumerable size on the tables that ``world`` describes."""
    vocab, length, *rest = world
    in_rows = method.choices.order != "raster"
    tables: Any = RowTables(vocab, length, seed, *rest) if in_rows else Tables(vocab, length, seed, *rest)
    enumerate_all: Callable[..., Enumerated] = enumerate_rows if in_rows else enumerate_images
    method = few_drafts(method) if in_rows and tables.length > FEW else method
    with plugin_errors(*parts_of(method)):
        enumerated, spec = enumerate_all(tables, method), definition(with_small_sizes(method), tables)
    if spec is None:
        return OnTables(enumerated, tables.joint(), None, math.nan)
    images, loss = decode_by_steps(tables.world(), spec)
    return OnTables(enumerated, tables.joint(), [tables.on_all_images(x) for x in images], loss)


def _on_tables(method: Method, seed: int, on_world: OnWorld | None) -> Iterator[Row]:
    """Every world is enumerated once; the rows say what was found in all of them."""
    start, worlds = time.perf_counter(), []
    descriptions = WORLDS if method.choices.order == "raster" else ROWS
    for i, world in enumerate(descriptions):
        if on_world is not None:
            on_world(f"{method.label}: exact enumeration", i, len(descriptions))
        worlds.append(on_tables(method, world, seed + i))
        if not worlds[-1].wrong(method.lossless) <= EXACT:
            break  # no need to look further
    seconds, count = time.perf_counter() - start, sum(len(one.joint) for one in worlds)

    def row(check: str, value: float, detail: str) -> Row:
        return Row(method.label, f"tables: {check}", bool(value <= EXACT), value, EXACT, detail, seconds / len(rows))

    rows: list[tuple[str, float, str]] = []
    losses = ", ".join(f"{one.tv:.3f} ≤ {one.enumerated.loss:.3f}" for one in worlds)
    if method.lossless:
        off = [max(one.bias, one.lost) if one.lost == one.lost else math.nan for one in worlds]
        rows.append(("exact distribution", _worst(off), f"max |P − P_target| over {count} sequences"))
        loss = _worst([one.enumerated.loss for one in worlds])
        rows.append(("fidelity loss of a lossless method", loss, "Σ TV(q, K), computed as for any other"))
    if worlds[0].defined is not None:
        off = [one.off for one in worlds]
        rows.append(("plain definition", _worst(off), f"max |P(image, steps) − paper's| over {count} sequences"))
        off = [abs(one.enumerated.loss - one.loss) for one in worlds]
        rows.append(("fidelity loss, plain definition", _worst(off), "max |loss − paper's|"))
    if not method.lossless:
        only = "" if worlds[0].defined is not None else "bound only, as there is no plain definition; "
        excess = _worst([one.tv - one.enumerated.loss for one in worlds])
        rows.append(("within the bound", excess, f"{only}TV − fidelity loss: {losses}"))
    for check, value, detail in rows:
        yield row(check, value, detail)
    if all(value <= EXACT for _, value, _ in rows) and (others := variations(method)):
        yield _timed(method, "tables: its other forms", _variations, others, seed, on_world)


def _variations(methods: list[Method], seed: int, on_world: OnWorld | None) -> Outcome:
    """One small world for each form; what shares noise between steps is decoded and tested instead."""
    worst, which, judged = 0.0, "", 0
    for i, method in enumerate(methods):
        if on_world is not None:
            on_world(f"{method.label}: exact enumeration", i, len(methods))
        off = _variation(method, seed)
        judged += off is not None
        if off is not None and not off <= worst:
            worst, which = off, method.label
    return worst, EXACT, f"{judged} of {len(methods)} can be judged; the worst: {which}"


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
    count, tables = (
        20_000,
        Tables(2, 6, seed, "dense"),
    )  # long enough for several positions to be drawn with lasting noise
    tokens, _ = decode_tables(tables, method, False, count, seed)
    joint = tables.joint()
    images = (tokens * 2 ** torch.arange(5, -1, -1)).sum(1)
    p_value = float(chisquare(torch.bincount(images, minlength=len(joint)), joint * count).pvalue)
    return _evidence(p_value), _evidence(ALPHA), f"−log10 p-value of χ² over {count} images"


def _same_draws(method: Method, seed: int) -> Outcome:
    tokens, expected = decode_tables(Tables(4, 4, seed, "dense"), method, False, 512, seed)
    return float((tokens != expected).double().mean()), 0.0, "share of tokens, 512 decodes"


def _greedy_tables(method: Method, seed: int) -> Outcome:
    differ = 0
    for i in range(16):
        tokens, expected = decode_tables(Tables(4, 4, seed + i, "dense"), method, True, 2, seed)
        differ += int((tokens != expected).any())
    return float(differ), 0.0, "images that are not the argmax, of 16"


def _greedy_target(target: Target, method: Method, seed: int, images: int) -> Outcome:
    return (
        float(greedy_difference(target, method, images, seed)),
        0.0,
        f"images that greedy ar would not make, of {images}",
    )


def _row_ends(method: Method, seed: int) -> Iterator[Row]:
    """The cached forwards of a small random model that writes row ends, in decodes of this method."""
    try:
        build(row_end_target(), method)
    except UserError:
        return  # it has no drafter of this kind

    def run() -> Outcome:
        tests = sampled_tests(row_end_target(), method, IMAGES, seed)
        return tests.forward, FORWARD, "max |q in the loop − q of a plain forward|, a random model with row ends"

    yield _timed(method, "row ends: cached forward", run)
    if method.choices.order != "raster":
        yield _timed(method, "row ends: one row at a time", _one_row, row_end_target(), method, seed)


def _one_row(target: Target, method: Method, seed: int) -> Outcome:
    """Where a row begins only once the one above is complete, the tokens are those of raster order."""
    lead: dict[str, Any] = {"c": 256} if "c" in method.read else {"window": 256}
    raster, rows = (build(target, changed(method, to)) for to in ({"order": "raster"}, lead))
    rows = replace(rows, method=raster.method)  # whose key seeds the draws
    made = (generate(decoder, list(CAPTIONS[:2]), seed=seed) for decoder in (raster, rows))
    differ = sum(int((a.tokens != b.tokens).any()) for a, b in zip(*made, strict=True))
    return float(differ), 0.0, "images that differ from raster order's, of 2"


def _statistics(target: Target, method: Method, seed: int, images: int, lossless: bool) -> Iterator[Row]:
    start = time.perf_counter()
    tests = sampled_tests(target, method, images, seed)
    seconds = time.perf_counter() - start
    sample = f"{images} × {target.length} tokens"
    detail = f"max |q in the loop − q of a plain forward|, {sample}"
    passed = bool(tests.forward <= FORWARD)
    yield Row(method.label, f"{target.name}: cached forward", passed, tests.forward, FORWARD, detail, seconds)
    detail = f"pairs of images with one caption that are equal, of {images // 2}"
    yield Row(method.label, f"{target.name}: prompts differ", not tests.alike, float(tests.alike), 0.0, detail, 0.0)
    trained = OVERLAP.get(method.proposal.drafter_kind or "")
    if trained is not None and target.weights == fingerprints(WEIGHTS) and tests.overlap == tests.overlap:
        detail = f"by how much Σ min(p, q) of first drafts falls short of the {trained} that it was trained to"
        short = trained - tests.overlap
        yield Row(method.label, f"{target.name}: drafter", bool(short <= SHORT), short, SHORT, detail, 0.0)
    if not lossless:
        return
    if min(tests.ranks.p_value, tests.log_q.p_value) < ALPHA:  # among dozens of tests one in ALPHA is to be expected:
        images *= 4  # a decoder that is at fault fails again
        tests = sampled_tests(target, method, images, seed + 1)
        sample = f"{images} × {target.length} new tokens, after a first failure"
    for name, finding, unit in (("token ranks", tests.ranks, "TV"), ("log-probability", tests.log_q, "nats a token")):
        detail = f"−log10 p-value; {sample}; finds {finding.effect:.2g} {unit} 9 times in 10"
        detail += _powers(tests.powers) if name == "token ranks" else ""
        value, limit = _evidence(finding.p_value), _evidence(ALPHA)
        yield Row(method.label, f"{target.name}: {name}", bool(value <= limit), value, limit, detail, 0.0)


def _published(method: Method, seed: int) -> Outcome:
    """The rank test on large tables; as on a model, a failure is judged by a larger sample."""
    tests = sampled_tables(method, seed, DECODES)
    if tests.ranks.p_value < ALPHA:
        tests = sampled_tables(method, seed + 1, 2 * DECODES)
    detail = f"−log10 p-value; {tests.tokens} tokens; finds {tests.ranks.effect:.2g} TV 9 times in 10"
    return _evidence(tests.ranks.p_value), _evidence(ALPHA), detail + _powers(tests.powers)


def _powers(chances: tuple[float, ...]) -> str:
    """The chances that the test would have found deliberately wrong rules."""
    if not chances:
        return ""
    each = ", ".join(f"{factor}×: {100 * chance:.0f} %" for factor, chance in zip(FACTORS, chances, strict=True))
    return f"; a rule too generous by {each}"


def _evidence(p_value: float) -> float:
    """−log10 of a p-value, so that more is worse."""
    return -math.log10(max(p_value, 1e-300)) if p_value == p_value else math.nan
