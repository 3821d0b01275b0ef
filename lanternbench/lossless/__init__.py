"""Check that a method draws what it claims to: exact enumeration on tables, then statistics on a
loaded target.

On tables the engine's every outcome is enumerated.  A lossless method's images are held against
the target's joint distribution; any method's images, and how many steps they take, against its
plain definition from the papers.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import torch
from scipy.stats import chisquare
from torch import Tensor

from lanternbench.engine.decode import generate
from lanternbench.errors import UserError
from lanternbench.lossless import shared_noise
from lanternbench.lossless.definitions import definition
from lanternbench.lossless.exact import (
    DiagonalDecoder,
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
from lanternbench.utils.progress import Progress, counted, silent

EXACT = 1e-6  # largest deviation of a sequence's probability
IMAGES = 8  # of a statistical test
OVERLAP = {"eagle": 0.59, "eagle-3": 0.62}  # of the bundled drafters, mean of 24 images
SHORT = 0.15  # five standard errors of eight images
SAME_NOISE = 1e-9  # largest probability of noise with which a lossless image is not ar's
FORWARD = 1e-3  # largest deviation of a cached forward pass's probability from a plain one's
GUIDED = Sampling(guidance=1.5, temperature=1.3, top_k=3, top_p=0.95)
MILD = Sampling(guidance=1.5, temperature=0.9)
TWO_TOKENS = Sampling(guidance=2.0, temperature=1.2, top_k=2)


MakeTables = Callable[[int], Tables]  # from a seed
WORLDS: Sequence[MakeTables] = (
    partial(Tables, 3, 4, kind="mixed"),
    partial(Tables, 4, 3, kind="zeros"),
    partial(Tables, 4, 3, kind="dense", sampling=GUIDED),
    partial(Tables, 2, 6, kind="dense", sampling=MILD, deep=True),
    partial(Tables, 3, 5, kind="dense", sampling=TWO_TOKENS, deep=True),
)
# two rows: each with a window of two drafts; three: the third begins while the second is drawn
ROWS: Sequence[MakeTables] = (
    partial(RowTables, 2, (2, 3)),
    partial(RowTables, 2, (3, 3), sampling=MILD),
)
# of other forms; a window's drafts outlive a step
TREES: Sequence[MakeTables] = (partial(Tables, 4, 3, kind="dense"),)
WINDOWS: Sequence[MakeTables] = (partial(Tables, 3, 4, kind="dense"),)
# long enough for neighbours of later steps to enter windows that are wider or narrower than a row
NEIGHBOURS: Sequence[MakeTables] = (
    partial(Tables, 2, 6, kind="dense", width=1),
    partial(Tables, 2, 6, kind="dense", width=3),
)
FEW = 6  # tokens of an image; with more of them a row has one draft


class Row(NamedTuple):
    """One check of one method; ``passed`` is None if it does not apply."""

    method: str  # its label
    check: str
    passed: bool | None
    value: float | None  # what was measured
    limit: float | None  # what it must not exceed
    detail: str
    seconds: float


def outcome(check: str, value: float, limit: float | None, detail: str) -> Row:
    """A row whose method and time are still open: NaN fails, a limit of None requires nothing."""
    passed = None if limit is None else value <= limit
    return Row("", check, passed, float(value), limit, detail, 0.0)


def evidence(check: str, p_value: float, detail: str) -> Row:
    """−log10 of a p-value, so that more is worse; NaN stays."""
    return outcome(check, -math.log10(max(p_value, 1e-300)), -math.log10(ALPHA), detail)


def verify_all(
    methods: list[str | Method],
    target: Target | None = None,
    seed: int = 0,
    images: int = IMAGES,
    on_row: Callable[[Row], None] = lambda row: None,
    progress: Progress = silent,
) -> list[Row]:
    """Every check of every method (preset names or Methods), on ``target`` too if one is given.

    ``images``: how many a statistical test generates.  ``on_row`` is told of each row as it comes,
    ``progress`` of each enumeration.  Raises UserError for an unknown method.
    """
    rows = []
    for method in [named(m) if isinstance(m, str) else m for m in methods]:
        for row in verify_method(method, target, seed, images, progress):
            rows.append(row)
            on_row(row)
    return rows


@torch.inference_mode()
def verify_method(
    method: Method,
    target: Target | None,
    seed: int,
    images: int,
    progress: Progress = silent,
) -> Iterator[Row]:
    """The checks of one method, one by one; the time of several together is that of the first."""
    start = time.perf_counter()
    with plugin_errors(*parts_of(method)):
        for row in _outcomes(method, target, seed, images, progress):
            yield row._replace(method=method.label, seconds=time.perf_counter() - start)
            start = time.perf_counter()


def _outcomes(
    method: Method, target: Target | None, seed: int, images: int, progress: Progress
) -> Iterator[Row]:
    """The checks of one method, their method and time left open."""
    by_position = method.acceptance.by_position
    if by_position:
        yield _tokens_of_uniforms(method, seed)
    elif not method.proposal.lasting_noise:
        yield from _on_tables(method, seed, progress)
    elif method.lossless:
        yield _decoded(method, seed)
    if method.lossless and not by_position:
        yield _on_large_tables(method, seed)
    if method.lossless:
        yield _greedy_on_tables(method, seed)
        yield _shared_noise_on_tables(method, seed)
    yield from _row_ends(method, seed)
    if target is not None:
        yield from _on_target(target, method, seed, images)


def parts_of(method: Method) -> tuple[object, ...]:
    """The method's components, its residual included."""
    return (*method.parts, component("residual", method.choices.residual).weights)


def _tokens_of_uniforms(method: Method, seed: int) -> Row:
    tokens, expected = decode_tables(Tables(4, 4, seed, "dense"), method, False, 512, seed)
    share = float((tokens != expected).double().mean())
    detail = "share of tokens, 512 decodes"
    return outcome("tables: the tokens of the same uniforms", share, 0.0, detail)


def _decoded(method: Method, seed: int) -> Row:
    """χ² of decoded images: if steps share noise, one step's outcomes cannot be enumerated by
    themselves.
    """
    # long enough for several positions to be drawn with lasting noise
    tables = Tables(2, 6, seed, "dense")
    count = 20_000
    sample = TableDecoder(tables, method).sample(count, torch.Generator().manual_seed(seed))
    joint = tables.joint()
    counts = torch.bincount(tables.numbers(sample.tokens), minlength=len(joint))
    p_value = float(chisquare(counts, joint * count).pvalue)
    return evidence("tables: images", p_value, f"−log10 p-value of χ² over {count} images")


def _on_large_tables(method: Method, seed: int) -> Row:
    tests = sampled_tables(method, seed, DECODES)
    if tests.ranks.p_value < ALPHA:  # as on a model, a failure is judged by a larger sample
        tests = sampled_tables(method, seed + 1, 2 * DECODES)
    about = tests.ranks.about(f"{tests.tokens} tokens", "TV", tests.powers)
    return evidence("large tables, published sizes: token ranks", tests.ranks.p_value, about)


def _greedy_on_tables(method: Method, seed: int) -> Row:
    differ = 0
    for i in range(16):
        tokens, argmax = decode_tables(Tables(4, 4, seed + i, "dense"), method, True, 2, seed)
        differ += int(not torch.equal(tokens, argmax))
    detail = "images that are not the argmax, of 16"
    return outcome("tables: greedy identity", differ, 0.0, detail)


def _shared_noise_on_tables(method: Method, seed: int) -> Row:
    worst = 0.0
    decodes = 0
    for i, tables in enumerate(WORLDS):
        found = shared_noise.missed(tables(seed + i), method, seed)
        worst = max(worst, found.probability)
        decodes += found.tables
    detail = f"P(noise whose image is not ar's), {decodes:,} tables of noise"
    return outcome("tables: shared noise", worst, SAME_NOISE, detail)


class OnTables(NamedTuple):
    """One world, enumerated."""

    method: Method
    enumerated: Enumerated
    joint: Tensor  # [V ** L] the target's
    # P(image after 1, 2, … steps) by the plain definition, if there is one
    defined: list[Tensor] | None = None
    loss: float = math.nan  # and the fidelity loss

    @property
    def tv(self) -> float:
        return 0.5 * float((self.enumerated.images.sum(0) - self.joint).abs().sum())

    @property
    def lost(self) -> float:
        """Distance of the sum of the images' probabilities from 1; NaN if the target's is off, too."""
        of_target = abs(1 - float(self.joint.sum()))
        return abs(1 - float(self.enumerated.images.sum())) if of_target <= EXACT else math.nan

    @property
    def bias(self) -> float:
        """max |P(image) − P_target(image)|, or what is lost."""
        return _worst([float((self.enumerated.images.sum(0) - self.joint).abs().max()), self.lost])

    @property
    def off(self) -> float:
        """max |P(image, steps) − P_plain(image, steps)|; 0 without a plain definition."""
        if self.defined is None:
            return 0.0
        never = torch.zeros_like(self.joint)
        steps = zip_longest(self.enumerated.images, self.defined, fillvalue=never)
        return _worst([float((engine - plain).abs().max()) for engine, plain in steps])

    def deviations(self) -> dict[str, float]:
        """The values that must not exceed ``EXACT``, by check."""
        loss = self.enumerated.loss
        deviations: dict[str, float] = {}
        if self.method.lossless:
            deviations["exact distribution"] = self.bias
            deviations["fidelity loss of a lossless method"] = loss
        if self.defined is not None:
            deviations["plain definition"] = self.off
        if self.defined is not None and self.method.bounded:
            deviations["fidelity loss, plain definition"] = abs(loss - self.loss)
        if self.method.bounded and not self.method.lossless:
            deviations["within the bound"] = self.tv - loss
        return deviations

    @property
    def wrong(self) -> float:
        """The largest deviation from what the method must match."""
        return _worst([0.0, *self.deviations().values()])


def _worst(values: list[float]) -> float:
    """The largest; NaN if any is."""
    return float(np.max(values))


def table_decoder(method: Method, tables: Tables) -> TableDecoder:
    if not isinstance(tables, RowTables):
        return TableDecoder(tables, method)
    if method.choices.order == "diagonal":
        return DiagonalDecoder(tables, method)
    if tables.length > FEW and "window" in type(method.proposal).model_fields:
        method = replace(method, proposal=method.proposal.model_copy(update={"window": 1}))
    return RowDecoder(tables, method)


def on_tables(method: Method, tables: Tables) -> OnTables:
    """A method of enumerable size on tables."""
    with plugin_errors(*parts_of(method)):
        decoder = table_decoder(method, tables)
        enumerated = enumerate_decodes(decoder)
        plain = definition(decoder.method, tables)
    one = OnTables(method, enumerated, tables.joint())
    if plain is None:
        return one
    by_steps, loss = decode_by_steps(tables.world(), plain)
    return one._replace(defined=[tables.on_all_images(x) for x in by_steps], loss=loss)


def _on_tables(method: Method, seed: int, progress: Progress) -> Iterator[Row]:
    """The worst outcomes of all worlds, each enumerated once."""
    worlds: list[OnTables] = []
    makers = WORLDS if method.choices.order == "raster" else ROWS
    for tables in counted(makers, progress, lambda _: f"{method.label}: exact enumeration"):
        worlds.append(on_tables(method, tables(seed + len(worlds))))
        if not worlds[-1].wrong <= EXACT:
            break  # the other worlds cannot mend it
    if not method.bounded:
        distances = ", ".join(f"{one.tv:.3f}" for one in worlds)
        detail = f"TV of images from the target's: {distances}; nothing bounds it"
        yield outcome("tables: total variation", max(one.tv for one in worlds), None, detail)
    deviations = [one.deviations() for one in worlds]
    details = _details(worlds)
    passed = True
    for check in deviations[0]:
        worst = _worst([of_world[check] for of_world in deviations])
        passed = passed and worst <= EXACT
        yield outcome(f"tables: {check}", worst, EXACT, details[check])
    others = variations(method)
    if passed and others:
        yield _other_forms(others, seed, progress)


def _details(worlds: list[OnTables]) -> dict[str, str]:
    """The detail of each check."""
    sequences = f"over {sum(len(one.joint) for one in worlds)} sequences"
    bounds = ", ".join(f"{one.tv:.3f} ≤ {one.enumerated.loss:.3f}" for one in worlds)
    alone = "" if worlds[0].defined else "bound only, because there is no plain definition; "
    return {
        "exact distribution": f"max |P − P_target| {sequences}",
        "fidelity loss of a lossless method": "Σ TV(q, K), computed as for any other",
        "plain definition": f"max |P(image, steps) − paper's| {sequences}",
        "fidelity loss, plain definition": "max |loss − paper's|",
        "within the bound": f"{alone}TV − fidelity loss: {bounds}",
    }


def _other_forms(methods: list[Method], seed: int, progress: Progress) -> Row:
    """The largest deviation of forms from the target's joint, if lossless, and from their
    definitions, on small worlds.
    """
    worst = 0.0
    worst_label = ""
    judged = 0
    for method in counted(methods, progress, lambda form: f"{form.label}: exact enumeration"):
        deviation = _deviation(method, seed)
        if deviation is None:
            continue
        judged += 1
        if not deviation <= worst:
            worst = deviation
            worst_label = method.label
    detail = f"{judged} of {len(methods)} can be judged; the worst: {worst_label}"
    return outcome("tables: its other forms", worst, EXACT, detail)


def _deviation(method: Method, seed: int) -> float | None:
    """The deviation of a form on small worlds; None without anything to hold it against.

    What shares noise between steps is decoded and tested instead.
    """
    if method.proposal.lasting_noise:
        row = _decoded(method, seed)
        return 0.0 if row.passed else row.value
    deviations = []
    for tables in small_worlds(method):
        one = on_tables(method, tables(seed))
        if one.defined is None and not method.lossless:
            return None
        deviations.append(one.wrong)
    return _worst(deviations)


def small_worlds(method: Method) -> Sequence[MakeTables]:
    """The worlds in which a form of a method differs from its other forms."""
    slides = "window" in type(method.proposal).model_fields
    if method.choices.order != "raster":
        return ROWS[:1] if slides else ROWS[1:]
    if not slides:
        return TREES
    return NEIGHBOURS if "init" in method.options else WINDOWS


def variations(method: Method) -> list[Method]:
    """The other forms of a method that can be judged.

    Every named value of every option that is read, and a second one of those that ask for it
    (``also``); every residual of a relaxed method, and every other exact rule that an exact one
    can be run with.
    """
    changes = other_values(method)
    if not method.lossless:
        for name, residual in components("residual").items():
            if residual.plain is not None:
                changes.append({"residual": name})
    elif method.choices.acceptance == "exact":
        for name, rule in components("acceptance").items():
            if rule.lossless and not rule.by_position:
                changes.append({"acceptance": name})
    others: dict[str, Method] = {}
    for change in changes:
        with suppress(UserError):  # some do not go together
            other = make(method.preset, **{**method.options, **change})
            others.setdefault(other.label, other)
    others.pop(method.label, None)
    return list(others.values())


def other_values(method: Method) -> list[dict[str, object]]:
    """The values that other forms give to single options."""
    changes: list[dict[str, object]] = []
    for part in method.parts:
        for name, field in type(part).model_fields.items():
            if name not in method.read or name == "variant":
                continue
            if get_origin(field.annotation) is Literal:
                changes += [{name: value} for value in get_args(field.annotation)]
            extra: Any = field.json_schema_extra or {}
            if extra.get("also") is not None:
                changes.append({name: extra["also"]})
    return changes


def _row_ends(method: Method, seed: int) -> Iterator[Row]:
    """The cached forward passes of a small random model that writes row ends, in decodes of this
    method.
    """
    target = row_end_target()
    try:
        build(target, method)
    except UserError:
        return  # it has no drafter of this kind
    forward = sampled_tests(target, method, 2 * IMAGES, seed).forward
    detail = "max |q in the loop − q of a plain forward pass|, a random model with row ends"
    yield outcome("row ends: cached forward", forward, FORWARD, detail)
    if method.choices.order == "rows":
        yield _one_row_at_a_time(target, method, seed)


def _one_row_at_a_time(target: Target, method: Method, seed: int) -> Row:
    """If a row begins only once the one above is complete, the tokens are those of raster order."""
    lead = "c" if "c" in method.read else "window"
    raster = build(target, changed(method, {"order": "raster"}))
    rows = build(target, changed(method, {lead: 256}))
    rows = replace(rows, method=raster.method)  # whose key seeds the draws
    captions = list(CAPTIONS[:2])
    differ = 0
    expected = generate(raster, captions, seed=seed)
    for a, b in zip(expected, generate(rows, captions, seed=seed), strict=True):
        differ += int(not torch.equal(a.tokens, b.tokens))
    detail = "images that differ from raster order's, of 2"
    return outcome("row ends: one row at a time", differ, 0.0, detail)


def changed(method: Method, options: dict[str, object]) -> Method:
    """``method`` with these options, and of its own those that are still read."""
    chosen = {kind: name for kind, name in method.options.items() if kind in KINDS} | options
    read = make(method.preset, **chosen).read
    kept = {name: value for name, value in method.options.items() if name in read}
    return make(method.preset, **kept | chosen)


def _shared_noise_on_target(target: Target, method: Method, seed: int, images: int) -> Row:
    differing = shared_noise.tokens_of_ar(target, method, images, seed)
    detail = f"images that are not ar's token for token, of {images}"
    if differing.ties:
        detail += f"; {differing.ties} more part at a near-tie of {target.dtype_name}"
    return outcome(f"{target.name}: shared noise", differing.images, 0.0, detail)


def _on_target(target: Target, method: Method, seed: int, images: int) -> Iterator[Row]:
    """Greedy identity and statistics on a model; of a lossy method with half the images."""
    try:
        build(target, method)
    except UserError as error:
        yield Row("", f"{target.name}: all", None, None, None, str(error), 0.0)
        return
    half = max(1, images // 2)
    if method.lossless:
        differ = greedy_difference(target, method, half, seed)
        detail = f"images that greedy ar would not make, of {half}"
        yield outcome(f"{target.name}: greedy identity", differ, 0.0, detail)
        yield _shared_noise_on_target(target, method, seed, images)
    else:
        images = half
    tests = sampled_tests(target, method, images, seed)
    sample = f"{images} × {target.length} tokens"
    detail = f"max |q in the loop − q of a plain forward pass|, {sample}"
    yield outcome(f"{target.name}: cached forward", tests.forward, FORWARD, detail)
    detail = f"pairs of images with one caption that are equal, of {images // 2}"
    yield outcome(f"{target.name}: prompts differ", tests.alike, 0.0, detail)
    trained = OVERLAP.get(method.proposal.drafter_kind or "")
    is_bundled = target.weights == fingerprints(WEIGHTS)
    if trained is not None and is_bundled and not math.isnan(tests.overlap):
        detail = f"by how much Σ min(p, q) of first drafts falls short of the {trained} that it was trained to"
        yield outcome(f"{target.name}: drafter", trained - tests.overlap, SHORT, detail)
    if not method.lossless:
        return
    # among dozens of tests one in ALPHA is to be expected:
    if min(tests.ranks.p_value, tests.log_q.p_value) < ALPHA:
        images *= 4  # a decoder that is at fault fails again
        tests = sampled_tests(target, method, images, seed + 1)
        sample = f"{images} × {target.length} new tokens, after a first failure"
    about = tests.ranks.about(sample, "TV", tests.powers)
    yield evidence(f"{target.name}: token ranks", tests.ranks.p_value, about)
    about = tests.log_q.about(sample, "nats a token")
    yield evidence(f"{target.name}: log-probability", tests.log_q.p_value, about)
