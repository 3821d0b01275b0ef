"""A measured run as steps to replay: its methods, as they drafted in the run, on the requested
target.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from statistics import mean
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lanternbench.costs.operators import baseline_operators, count_operators
from lanternbench.costs.roofline import Operators, Values
from lanternbench.engine.proposal import AnyProposer
from lanternbench.errors import UserError
from lanternbench.measure.run_record import RunRecord
from lanternbench.measure.samples import Sample
from lanternbench.methods.build import build_proposer
from lanternbench.methods.method import Method, method, named
from lanternbench.models.catalogue import load_unpacked, parts_of, with_drafter
from lanternbench.models.entries import Entry, catalogue, family
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target
from lanternbench.utils.files import packaged_yaml

BASE = "ar"
# kinds of acceptance
MEASURED = "measured on this target"
PUBLISHED = "published for this target"
TOY = "toy model"
ELSEWHERE = "another target or drafter"
SIMULATED = "simulated, or of random weights"
Ints = NDArray[np.int64]


class Shape(NamedTuple):
    """A target as a device sees it: L tokens, prompt positions, rows per prompt."""

    name: str
    network: Network
    length: int
    prompt: int
    rows: int


def shape_of(target: Target, guidance: float | None = None) -> Shape:
    """Return the shape of a target, also of one on the device ``meta``; ``guidance``: by default
    the target's.
    """
    model = target.model
    size = network(model, model, model.layers)
    scale = target.guidance if guidance is None else guidance
    rows = 1 if scale == 1.0 else 2
    return Shape(target.name, size, target.length, model.prompt_positions, rows)


class Acceptance(NamedTuple):
    """The origin of a row's accepted lengths; no kind for the baseline.

    ``source``: the run, or the paper with its table and setup.  ``speedup``: the paper's own.
    ``quality``: the fidelity loss, or the figures of the paper's table next to those of ``ar``.
    """

    kind: str
    source: str = ""
    speedup: float | None = None
    quality: str = ""
    warning: str = ""


class Trace(NamedTuple):
    """The steps of one image after its prefill: [T] each."""

    committed: Ints  # tokens, the bonus token included
    nodes: Ints  # of the tree, the root included
    depths: Ints  # its levels

    @property
    def steps(self) -> int:
        return len(self.committed)

    @property
    def start(self) -> Ints:
        """Tokens before each step: the prefill gives the first."""
        return 1 + np.cumsum(self.committed) - self.committed

    @property
    def before(self) -> Ints:
        """Tokens that the step before committed."""
        return np.concatenate([[1], self.committed[:-1]])


class Case(NamedTuple):
    """Decodes of a target with a method."""

    label: str
    method: Method
    shape: Shape
    drafter: Network | None  # for the target
    measured: AnyProposer | None  # the proposal in the run; None for the baseline
    operators: Operators  # of a step
    traces: Sequence[Trace]
    acceptance: Acceptance = Acceptance("")


def baseline(shape: Shape) -> Case:
    """Return the autoregressive decode of a target."""
    ones = np.ones(shape.length - 1, np.int64)
    trace = Trace(ones, ones, np.zeros_like(ones))
    return Case(BASE, named(BASE), shape, None, None, baseline_operators(), [trace])


class Steps(NamedTuple):
    """The steps of a batch: [T] each."""

    batch: Values  # prompts that are still decoded together
    nodes: Values
    depths: Values
    start: Values  # tokens of the most advanced prompt
    before: Values  # tokens that the last step committed


def stretched(committed: ArrayLike, nodes: ArrayLike, depths: ArrayLike, length: int) -> Trace:
    """Return a measured decode, repeated and cut to ``length`` tokens: the prefill's and those of
    the steps.
    """
    wanted = length - 1
    times = -(-wanted // int(np.sum(committed)))
    repeated = np.tile(np.array([committed, nodes, depths], np.int64), times)
    ends = repeated[0].cumsum()
    steps = int(np.searchsorted(ends, wanted)) + 1
    cut = Trace(*repeated[:, :steps])
    cut.committed[-1] -= ends[steps - 1] - wanted
    return cut


def batches(traces: Sequence[Trace], batch: int, keeps_shape: bool) -> list[Steps]:
    """Return the traces in batches of ``batch``, in order; fewer than a batch are repeated.

    A batch takes the steps of its slowest prompt.  Unless it ``keeps_shape``, as one that is
    recorded in CUDA graphs does, it continues without finished prompts whenever at least half of
    it is finished.
    """
    if batch > len(traces):
        times, more = divmod(batch, len(traces))
        counts = times + (np.arange(len(traces)) < more)
        return [_together(traces, counts, keeps_shape)]
    once = np.ones(batch)
    starts = range(0, len(traces) - batch + 1, batch)
    return [_together(traces[start : start + batch], once, keeps_shape) for start in starts]


def _together(traces: Sequence[Trace], counts: NDArray, keeps_shape: bool) -> Steps:
    """Return the steps of one batch, in which each trace occurs ``counts`` times."""
    longest = max(trace.steps for trace in traces)
    alive = np.zeros(longest)
    for count, trace in zip(counts, traces, strict=True):
        alive[: trace.steps] += count
    size = np.full(longest, alive[0])
    if not keeps_shape:
        for t in range(1, longest):
            is_half_finished = 2 * alive[t] <= size[t - 1]
            size[t] = alive[t] if is_half_finished else size[t - 1]
    largest = []
    for name in ("nodes", "depths", "start", "before"):
        columns = [getattr(trace, name) for trace in traces]
        padded = np.array(list(zip_longest(*columns, fillvalue=0)), np.float64)
        largest.append(padded.max(1))
    return Steps(size, *largest)


def traces_of(samples: Sequence[Sample], proposer: AnyProposer | None, length: int) -> list[Trace]:
    """Return the samples of one method, stretched to ``length`` tokens.  Sizes of fixed trees are
    derived if not recorded.

    Raises UserError if they are neither recorded nor fixed.
    """
    traces = []
    for sample in samples:
        committed = sample.accept_lengths[1:]
        if committed:
            nodes, depths = tree_sizes(sample, proposer)
            traces.append(stretched(committed, nodes, depths, length))
    return traces


def tree_sizes(sample: Sample, proposer: AnyProposer | None) -> tuple[list[int], list[int]]:
    """Return the nodes and depths of the trees of a sample's steps after the prefill."""
    steps = len(sample.accept_lengths) - 1
    if proposer is None:
        return [1] * steps, [0] * steps
    nodes = (sample.tree_nodes or [])[1:]
    depths = sample.tree_depths[1:]
    if len(nodes) == len(depths) == steps:
        return nodes, depths
    if proposer.size.adapts:
        raise UserError(
            f"the samples of '{sample.label}' lack the tree size of each step, which this method "
            "changes as it goes: measure it again with this version"
        )
    return [proposer.size.nodes] * steps, [proposer.size.max_depth] * steps


@cache
def shapes() -> dict[str, Entry]:
    """Return the architectures that only predictions know."""
    rows = packaged_yaml(__file__, "shapes.yaml")
    return {name: Entry(name=name, **row) for name, row in rows.items()}


def sketch(name: str, drafter: str | None = None, every: bool = True) -> Target:
    """Return a target's shape, options and drafters without its weights, unless they come with the
    package.

    ``every``: with drafters that nobody published, too.  Raises UserError for an unknown name,
    with the known names.
    """
    title, sizes, _ = parts_of(name)
    sized = f"{title}:{sizes}" if sizes else title
    target = replace(_sketch(name, title, sized), name=sized)
    if not every and target.device.type == "meta":
        row = catalogue().get(title)
        files = row.files if row is not None else {}
        published = {kind: net for kind, net in target.drafters.items() if kind in files}
        target = replace(target, drafters=published)
    if drafter is None:
        return target
    return with_drafter(target, drafter, str(target.device), random_weights=True)[0]


def _sketch(name: str, title: str, sized: str) -> Target:
    """Return the target ``name``; ``title``: its entry; ``sized``: with the sizes of its grid."""
    if title in shapes():
        entry = shapes()[title]
        return family(entry.family).random_target(entry, "meta")
    if title in catalogue() and catalogue()[title].gigabytes:
        return load_unpacked(sized, "meta", random_weights=True)
    try:
        return load_unpacked(name)
    except UserError as error:
        more = f"`predict` also knows {', '.join(shapes())}"
        raise UserError(f"{error}; {more}") from None


class Cases(NamedTuple):
    """The decodes that are replayed, with notes for the reader."""

    cases: list[Case]
    notes: list[str]


def cases(
    samples: Iterable[Sample],
    source: Target,
    target: Target,
    guidance: float | None,
    run: Acceptance,
) -> Cases:
    """Return the methods of a run as they would decode on ``target``.

    ``source``: the run's target, on which trees were measured; ``guidance``: if it differs from
    the target's; ``run``: the origin of the accepted lengths.  Methods without what they need on
    ``target`` are left out, with a note.  Raises UserError for a run without samples and for one in which nothing was drafted.
    """
    by_label = labelled(samples, run.source)
    shape = shape_of(target, guidance)
    found = Cases([], [])
    lacking: list[str] = []
    for label, group in by_label.items():
        try:
            used = method(group[0].method, **group[0].options)
            if lacks_drafter(used, target):
                lacking.append(label)
                continue
            case = case_of(label, used, shape, source, target)
        except UserError as error:
            found.notes.append(f"{label} is left out: {error}")
            continue
        traces = traces_of(group, case.measured, shape.length)
        if traces:
            acceptance = run._replace(quality=loss_of(group))
            found.cases.append(case._replace(traces=traces, acceptance=acceptance))
    found.notes.extend(without_drafter(lacking, shape))
    if all(case.measured is None for case in found.cases):
        only = f"{run.source} has only methods that draft nothing ({', '.join(by_label)})"
        reason = found.notes[0] if found.notes else only
        raise UserError(
            f"there are no draft trees to replay: {reason}; "
            "measure one that drafts, such as eagle-1"
        )
    if shape.length != source.length:
        found.notes.append(
            f"the run's images have {source.length} tokens, those of {shape.name} {shape.length}: "
            "each image's steps are repeated, or cut"
        )
    return found


def labelled(samples: Iterable[Sample], run: str) -> dict[str, list[Sample]]:
    """Return the samples by method.  Raises UserError for a run without any."""
    by_label: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_label[sample.label].append(sample)
    if not by_label:
        raise UserError(
            f"{run} has no samples yet: let `lanternbench run` finish at least one image of it"
        )
    return by_label


def lacks_drafter(used: Method, target: Target) -> bool:
    """Return whether a method needs a drafter that the target does not have."""
    kind = used.proposal.drafter_kind
    return kind is not None and kind not in target.drafters


def without_drafter(labels: Sequence[str], shape: Shape) -> list[str]:
    """Return a note that names the methods that are left out for want of a drafter, if any."""
    if not labels:
        return []
    names = ", ".join(dict.fromkeys(labels))
    return [f"left out, because nobody published their drafter for {shape.name}: {names}"]


def origin(record: RunRecord, source: Target, target: Target, run: str) -> Acceptance:
    """Return the origin of a run's accepted lengths on ``source``, as decodes of ``target``."""
    config = record.config
    place = f"{run} ({source.name}, T {config.temperature:g})"
    if config.draws_noise:
        return Acceptance(SIMULATED, place, warning="the accepted lengths are not of a real model")
    if source is target:
        return Acceptance(MEASURED, place)
    warning = f"accepted lengths of {source.name} say little about {target.name}"
    kind = TOY if source.evaluators == "tiny" else ELSEWHERE
    return Acceptance(kind, place, warning=warning)


def loss_of(samples: Sequence[Sample]) -> str:
    """Return the mean fidelity loss of samples, empty if it was not measured."""
    losses = [sample.fidelity_loss for sample in samples if sample.fidelity_loss is not None]
    return f"fidelity loss {mean(losses):.3f}" if losses else ""


def case_of(label: str, used: Method, shape: Shape, source: Target, target: Target) -> Case:
    """Return one method of the run.  Raises UserError if it cannot be replayed on ``target``."""
    measured = build_proposer(source, used)
    drafter = measured.network()
    if drafter is not None and target is not source:
        drafter = build_proposer(target, used).network()
    if used.choices.order != "raster" and source.grids != target.grids:
        raise UserError("the rows of its steps follow from the grid, which differs")
    if measured.size.max_depth == 0:
        if used.preset != BASE:
            raise UserError("it drafts nothing that could be replayed")
        return baseline(shape)
    return Case(label, used, shape, drafter, measured, count_operators(used, source.options), [])


def of_run(record: RunRecord) -> tuple[str, str | None, float | None]:
    """Return a run's target, drafter and guidance."""
    config, known = record.config, record.config.model_fields_set
    name = config.target if "target" in known else record.target.name
    if name is None:
        raise UserError(
            "run.json does not say which target the run is of: give a run that this version made"
        )
    return name, config.drafter, config.guidance if "guidance" in known else None
