"""Check that a method draws what it claims to: exact enumeration on tables, then statistics on a
loaded target.

On tables the engine's every outcome is enumerated.  A lossless method's images are held against
the target's joint distribution; any method's images, and how many steps they take, against its
plain definition from the papers.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, get_args, get_origin

import torch
from scipy.stats import chisquare
from torch import Tensor

from lanternbench.engine.decode import generate
from lanternbench.errors import UserError
from lanternbench.lossless.definitions import definition
from lanternbench.lossless.exact import (
    Enumerated,
    RowDecoder,
    TableDecoder,
    decode_tables,
    enumerate_decodes,
)
from lanternbench.lossless.plain import decode_by_steps
from lanternbench.lossless.statistical import (
    ALPHA,
    CAPTIONS,
    DECODES,
    greedy_difference,
    sampled_tables,
    sampled_tests,
)
from lanternbench.lossless.tables import RowTables, Tables, row_end_target
from lanternbench.methods.build import build
from lanternbench.methods.method import KINDS, Method, named
from lanternbench.methods.method import method as make
from lanternbench.models.entries import fingerprints
from lanternbench.models.target import Target
from lanternbench.registry import component, components, plugin_errors
from lanternbench.settings import Sampling
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
    (2, 6, "dense", Sampling(guidance=1.5, temperature=0.9), True),
    (3, 5, "dense", Sampling(guidance=2.0, temperature=1.2, top_k=2), True),
)
# of other forms; a window's drafts outlive a step
TREES, WINDOWS = (4, 3, "dense"), (3, 4, "dense")
# ``RowTables``
ROWS: tuple[tuple[Any, ...], ...] = (
    (2, (2, 3), "dense", Sampling(guidance=1.5, temperature=0.9)),
    (2, (3, 3), "dense"),
)
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


def outcome(check: str, value: float | None, limit: float | None, detail: str) -> Row:
    """A row whose method and time are still open: NaN fails, a limit of None requires nothing."""
    passed = None if value is None or limit is None else bool(value <= limit)
    return Row("", check, passed, None if value is None else float(value), limit, detail, 0.0)


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

    ``images``: how many a statistical test generates.  ``on_row`` is told of each row as it comes,
    ``on_world`` of each enumeration as it begins.  Raises UserError for an unknown method.
    """
    rows = []
    for method in [named(m) if isinstance(m, str) else m for m in methods]:
        for row in verify_method(method, target, seed, images, on_world):
            rows.append(row)
            on_row(row)
    return rows


@torch.inference_mode()
def verify_method(
    method: Method,
    target: Target | None,
    seed: int,
    images: int,
    on_world: OnWorld = lambda what, done, of: None,
) -> Iterator[Row]:
    """The checks of one method, one by one; the time of several together is that of the first."""
    start = time.perf_counter()
    with plugin_errors(*parts_of(method)):
        for row in _outcomes(method, target, seed, images, on_world):
            yield row._replace(method=method.label, seconds=time.perf_counter() - start)
            start = time.perf_counter()


def _outcomes(
    method: Method, target: Target | None, seed: int, images: int, on_world: OnWorld
) -> Iterator[Row]:
    """The checks of one method; whose they are, and their time, is left open."""
    lossless, by_position = method.lossless, method.acceptance.by_position
    if by_position:
        tokens, expected = decode_tables(Tables(4, 4, seed, "dense"), method, False, 512, seed)
        share = float((tokens != expected).double().mean())
        yield outcome(
            "tables: the tokens of the same uniforms", share, 0.0, "share of tokens, 512 decodes"
        )
    elif not method.proposal.lasting_noise:
        yield from _on_tables(method, seed, on_world)
    elif lossless:
        yield _sampled(method, seed)
    if lossless and not by_position:
        tests = sampled_tables(method, seed, DECODES)
        if tests.ranks.p_value < ALPHA:  # as on a model, a failure is judged by a larger sample
            tests = sampled_tables(method, seed + 1, 2 * DECODES)
        about = tests.ranks.about(f"{tests.tokens} tokens", "TV", tests.powers)
        yield _evidence("large tables, published sizes: token ranks", tests.ranks.p_value, about)
    if lossless:
        worlds = [
            decode_tables(Tables(4, 4, seed + i, "dense"), method, True, 2, seed)
            for i in range(16)
        ]
        differ = sum(int((tokens != argmax).any()) for tokens, argmax in worlds)
        yield outcome(
            "tables: greedy identity", differ, 0.0, "images that are not the argmax, of 16"
        )
    yield from _row_ends(method, seed)
    if target is not None:
        yield from _on_target(target, method, seed, images)


def parts_of(method: Method) -> tuple[Any, ...]:
    """The method's components, its residual included."""
    return (*method.parts, component("residual", method.choices.residual).weights)


class OnTables(NamedTuple):
    """One world, enumerated."""

    method: Method
    enumerated: Enumerated
    joint: Tensor  # [V ** L] the target's
    # P(image after 1, 2, … steps) by the plain definition, if there is one
    defined: list[Tensor] | None
    loss: float  # and the fidelity loss

    @property
    def tv(self) -> float:
        return 0.5 * float((self.enumerated.images.sum(0) - self.joint).abs().sum())

    @property
    def lost(self) -> float:
        """How far the images' probabilities are from summing to 1; NaN if the target's are, too."""
        missed, target = (
            abs(1 - float(x.nan_to_num().sum())) for x in (self.enumerated.images, self.joint)
        )
        return missed if target <= EXACT else math.nan

    @property
    def bias(self) -> float:
        """max |P(image) − P_target(image)|, or what is lost."""
        return _worst([float((self.enumerated.images.sum(0) - self.joint).abs().max()), self.lost])

    @property
    def off(self) -> float:
        """max |P(image, steps) − P_plain(image, steps)|; 0 without a plain definition."""
        steps = zip_longest(
            self.enumerated.images, self.defined or (), fillvalue=torch.zeros_like(self.joint)
        )
        return (
            _worst([float((engine - plain).abs().max()) for engine, plain in steps])
            if self.defined
            else 0.0
        )

    def deviations(self) -> dict[str, float]:
        """What must not exceed ``EXACT``, by check."""
        loss, deviations = self.enumerated.loss, dict[str, float]()
        if self.method.lossless:
            deviations |= {
                "exact distribution": self.bias,
                "fidelity loss of a lossless method": loss,
            }
        if self.defined:
            deviations["plain definition"] = self.off
        if self.defined and self.method.bounded:
            deviations["fidelity loss, plain definition"] = abs(loss - self.loss)
        if self.method.bounded and not self.method.lossless:
            deviations["within the bound"] = self.tv - loss
        return deviations

    @property
    def wrong(self) -> float:
        """The largest deviation from what the method must match."""
        return _worst([*self.deviations().values()])


def on_tables(method: Method, world: tuple[Any, ...], seed: int) -> OnTables:
    """A method of enumerable size on the tables that ``world`` describes."""
    vocab, length, *rest = world
    in_rows = method.choices.order != "raster"
    tables: Any = (RowTables if in_rows else Tables)(vocab, length, seed, *rest)
    if in_rows and tables.length > FEW and "window" in type(method.proposal).model_fields:
        method = replace(method, proposal=method.proposal.model_copy(update={"window": 1}))
    with plugin_errors(*parts_of(method)):
        decoder = (RowDecoder if in_rows else TableDecoder)(tables, method)
        enumerated, spec = enumerate_decodes(decoder), definition(decoder.method, tables)
    if spec is None:
        return OnTables(method, enumerated, tables.joint(), None, math.nan)
    images, loss = decode_by_steps(tables.world(), spec)
    return OnTables(
        method, enumerated, tables.joint(), [tables.on_all_images(x) for x in images], loss
    )


def _on_tables(method: Method, seed: int, on_world: OnWorld) -> Iterator[Row]:
    """Every world is enumerated once; the outcomes are the worst of all."""
    worlds: list[OnTables] = []
    descriptions = WORLDS if method.choices.order == "raster" else ROWS
    for i, world in enumerate(descriptions):
        on_world(f"{method.label}: exact enumeration", i, len(descriptions))
        worlds.append(on_tables(method, world, seed + i))
        if not worlds[-1].wrong <= EXACT:
            break  # no need to look further
    if not method.bounded:
        detail = f"TV of images from the target's: {', '.join(f'{one.tv:.3f}' for one in worlds)}; nothing bounds it"
        yield outcome("tables: total variation", max(one.tv for one in worlds), None, detail)
    sequences = f"over {sum(len(one.joint) for one in worlds)} sequences"
    bounds = ", ".join(f"{one.tv:.3f} ≤ {one.enumerated.loss:.3f}" for one in worlds)
    alone = "" if worlds[0].defined else "bound only, as there is no plain definition; "
    details = {
        "exact distribution": f"max |P − P_target| {sequences}",
        "fidelity loss of a lossless method": "Σ TV(q, K), computed as for any other",
        "plain definition": f"max |P(image, steps) − paper's| {sequences}",
        "fidelity loss, plain definition": "max |loss − paper's|",
        "within the bound": f"{alone}TV − fidelity loss: {bounds}",
    }
    each = [one.deviations() for one in worlds]
    rows = [
        outcome(f"tables: {name}", _worst([w[name] for w in each]), EXACT, details[name])
        for name in each[0]
    ]
    yield from rows
    if all(row.passed for row in rows) and (others := variations(method)):
        yield _variations(others, seed, on_world)


def _variations(methods: list[Method], seed: int, on_world: OnWorld) -> Row:
    """How far forms are from the target's joint, where lossless, and from their definitions, one
    small world each.

    What shares noise between steps is decoded and tested instead.
    """
    worst, which, judged = 0.0, "", 0
    for i, method in enumerate(methods):
        on_world(f"{method.label}: exact enumeration", i, len(methods))
        if method.proposal.lasting_noise:
            evidence = _sampled(method, seed)
            off = 0.0 if evidence.passed else evidence.value
        else:
            world = (
                ROWS[-1]
                if method.choices.order != "raster"
                else WINDOWS
                if method.proposal.tree_is_own
                else TREES
            )
            one = on_tables(method, world, seed)
            off = one.wrong if method.lossless or one.defined else None
        judged += off is not None
        if off is not None and not off <= worst:
            worst, which = off, method.label
    detail = f"{judged} of {len(methods)} can be judged; the worst: {which}"
    return outcome("tables: its other forms", worst, EXACT, detail)


def variations(method: Method) -> list[Method]:
    """Every named value of every option that is read, and a second one of those that ask for it
    (``also``); every residual of a relaxed method, and every other exact rule that an exact one
    can be run with."""
    changes: list[dict[str, Any]] = []
    for name, field in (pair for part in method.parts for pair in type(part).model_fields.items()):
        if name in method.read and name != "variant":
            extra: Any = field.json_schema_extra or {}
            values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            changes += [
                {name: value} for value in (*values, extra.get("also")) if value is not None
            ]
    if not method.lossless:
        residuals = components("residual").items()
        changes += [{"residual": name} for name, row in residuals if row.plain is not None]
    elif method.choices.acceptance == "exact":
        rules = components("acceptance").items()
        changes += [
            {"acceptance": name} for name, rule in rules if rule.lossless and not rule.by_position
        ]
    others: dict[str, Method] = {}
    for change in changes:
        with suppress(UserError):  # some do not go together
            other = make(method.preset, **{**method.options, **change})
            others.setdefault(other.label, other)
    return [other for label, other in others.items() if label != method.label]


def _worst(values: list[float]) -> float:
    """The largest; NaN if any is."""
    return max(values, default=0.0) if all(x == x for x in values) else math.nan


def _sampled(method: Method, seed: int) -> Row:
    """χ² of decoded images: where steps share noise, one step's outcomes cannot be enumerated by
    themselves.
    """
    # long enough for several positions to be drawn with lasting noise
    count, tables = 20_000, Tables(2, 6, seed, "dense")
    state, _ = TableDecoder(tables, method).sample(count, torch.Generator().manual_seed(seed))
    joint = tables.joint()
    counts = torch.bincount(tables.numbers(state.now.tokens), minlength=len(joint))
    p_value = float(chisquare(counts, joint * count).pvalue)
    return _evidence("tables: images", p_value, f"−log10 p-value of χ² over {count} images")


def changed(method: Method, options: dict[str, Any]) -> Method:
    """``method`` with these options, and of its own those that are still read."""
    chosen = {kind: name for kind, name in method.options.items() if kind in KINDS} | options
    still = make(method.preset, **chosen).read
    return make(method.preset, **{k: v for k, v in method.options.items() if k in still} | chosen)


def _row_ends(method: Method, seed: int) -> Iterator[Row]:
    """The cached forwards of a small random model that writes row ends, in decodes of this method."""
    target = row_end_target()
    try:
        build(target, method)
    except UserError:
        return  # it has no drafter of this kind
    forward = sampled_tests(target, method, 2 * IMAGES, seed).forward
    detail = "max |q in the loop − q of a plain forward|, a random model with row ends"
    yield outcome("row ends: cached forward", forward, FORWARD, detail)
    if method.choices.order == "raster":
        return
    # where a row begins only once the one above is complete, the tokens are those of raster order
    lead: dict[str, Any] = {"c": 256} if "c" in method.read else {"window": 256}
    raster, rows = (build(target, changed(method, to)) for to in ({"order": "raster"}, lead))
    rows = replace(rows, method=raster.method)  # whose key seeds the draws
    pairs = zip(
        *(generate(decoder, list(CAPTIONS[:2]), seed=seed) for decoder in (raster, rows)),
        strict=True,
    )
    differ = sum(int((a.tokens != b.tokens).any()) for a, b in pairs)
    yield outcome(
        "row ends: one row at a time", differ, 0.0, "images that differ from raster order's, of 2"
    )


def _on_target(target: Target, method: Method, seed: int, images: int) -> Iterator[Row]:
    """Greedy identity and statistics on a model; of a lossy method with half the images."""
    try:
        build(target, method)
    except UserError as error:
        yield outcome(f"{target.name}: all", None, None, str(error))
        return
    few = max(1, images // 2)
    if method.lossless:
        differ = greedy_difference(target, method, few, seed)
        yield outcome(
            f"{target.name}: greedy identity",
            differ,
            0.0,
            f"images that greedy ar would not make, of {few}",
        )
    images = images if method.lossless else few
    tests = sampled_tests(target, method, images, seed)
    sample = f"{images} × {target.length} tokens"
    detail = f"max |q in the loop − q of a plain forward|, {sample}"
    yield outcome(f"{target.name}: cached forward", tests.forward, FORWARD, detail)
    detail = f"pairs of images with one caption that are equal, of {images // 2}"
    yield outcome(f"{target.name}: prompts differ", tests.alike, 0.0, detail)
    trained = OVERLAP.get(method.proposal.drafter_kind or "")
    if (
        trained is not None
        and target.weights == fingerprints(WEIGHTS)
        and tests.overlap == tests.overlap
    ):
        detail = f"by how much Σ min(p, q) of first drafts falls short of the {trained} that it was trained to"
        yield outcome(f"{target.name}: drafter", trained - tests.overlap, SHORT, detail)
    if not method.lossless:
        return
    # among dozens of tests one in ALPHA is to be expected:
    if min(tests.ranks.p_value, tests.log_q.p_value) < ALPHA:
        images *= 4  # a decoder that is at fault fails again
        tests = sampled_tests(target, method, images, seed + 1)
        sample = f"{images} × {target.length} new tokens, after a first failure"
    about = (
        tests.ranks.about(sample, "TV", tests.powers),
        tests.log_q.about(sample, "nats a token"),
    )
    yield _evidence(f"{target.name}: token ranks", tests.ranks.p_value, about[0])
    yield _evidence(f"{target.name}: log-probability", tests.log_q.p_value, about[1])


def _evidence(check: str, p_value: float, detail: str) -> Row:
    """−log10 of a p-value, so that more is worse."""
    value = -math.log10(max(p_value, 1e-300)) if p_value == p_value else math.nan
    return outcome(check, value, -math.log10(ALPHA), detail)
