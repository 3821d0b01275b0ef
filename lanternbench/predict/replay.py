"""A measured run as steps to replay: its methods, as they drafted in the run, on the requested
target.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from lanternbench.costs.operators import baseline_operators, count_operators
from lanternbench.costs.roofline import Operators, Values
from lanternbench.engine.proposal import AnyProposer
from lanternbench.errors import UserError
from lanternbench.measure.run_record import RunRecord
from lanternbench.measure.samples import Sample
from lanternbench.methods.build import build_proposer
from lanternbench.methods.method import Method, method
from lanternbench.models.catalogue import load_unpacked, with_drafter
from lanternbench.models.entries import Entry, catalogue, family
from lanternbench.models.network import Network, network
from lanternbench.models.target import Target

BASE = "ar"
Ints = NDArray[np.int64]


class Shape(NamedTuple):
    """A target as a device sees it: L tokens, prompt positions, rows a prompt."""

    name: str
    network: Network
    length: int
    prompt: int
    rows: int


def shape_of(target: Target, guidance: float | None = None) -> Shape:
    """The shape of a target, also of one on the device ``meta``; ``guidance``: by default the
    target's.
    """
    model, scale = target.model, target.guidance if guidance is None else guidance
    size, rows = network(model, model, model.layers), 1 if scale == 1.0 else 2
    return Shape(target.name, size, target.length, model.prompt_positions, rows)


class Case(NamedTuple):
    """A method on a target: ``measured``: its proposal in the run; ``drafter``: the drafter for
    the target; ``operators``: of a step.
    """

    label: str
    method: str
    shape: Shape
    drafter: Network | None
    measured: AnyProposer | None  # None for the baseline
    operators: Operators


def baseline(shape: Shape) -> Case:
    """Return autoregressive decoding of a target."""
    return Case(BASE, BASE, shape, None, None, baseline_operators())


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


class Steps(NamedTuple):
    """The steps of a batch: [T] each."""

    batch: Values  # prompts that are still decoded together
    nodes: Values
    depths: Values
    start: Values  # tokens of the most advanced prompt
    before: Values  # tokens that the last step committed


def stretched(committed: ArrayLike, nodes: ArrayLike, depths: ArrayLike, length: int) -> Trace:
    """A measured decode, repeated and cut to ``length`` tokens: the prefill's and those of the
    steps.
    """
    lengths = np.asarray(committed, np.int64)
    times = -(-(length - 1) // int(lengths.sum()))
    ends = np.cumsum(np.tile(lengths, times))
    steps = int(np.searchsorted(ends, length - 1)) + 1
    cut = Trace(
        *(np.tile(np.asarray(x, np.int64), times)[:steps] for x in (lengths, nodes, depths))
    )
    cut.committed[-1] -= ends[steps - 1] - (length - 1)
    return cut


def autoregressive(length: int) -> Trace:
    """One token a step."""
    ones = np.ones(length - 1, np.int64)
    return Trace(ones, ones, np.zeros_like(ones))


def batches(traces: Sequence[Trace], batch: int, keeps_shape: bool) -> list[Steps]:
    """The traces in batches of ``batch``, in order; fewer than a batch are repeated.

    A batch takes the steps of its slowest prompt.  Unless it ``keeps_shape``, as one that is
    recorded in CUDA graphs does, it goes on without finished prompts whenever at least half of it
    is finished.
    """
    if batch <= len(traces):
        whole = len(traces) // batch * batch
        return [
            _together(traces[i : i + batch], np.ones(batch), keeps_shape)
            for i in range(0, whole, batch)
        ]
    counts = batch // len(traces) + (np.arange(len(traces)) < batch % len(traces))
    return [_together(traces, counts, keeps_shape)]


def _together(traces: Sequence[Trace], counts: NDArray, keeps_shape: bool) -> Steps:
    longest = max(trace.steps for trace in traces)
    alive = sum(n * (np.arange(longest) < t.steps) for n, t in zip(counts, traces, strict=True))
    size = np.full(longest, float(counts.sum()))
    for t in () if keeps_shape else range(1, longest):
        size[t] = alive[t] if 2 * alive[t] <= size[t - 1] else size[t - 1]
    each = ([getattr(trace, name) for trace in traces] for name in Steps._fields[1:])
    return Steps(
        size, *(np.array(list(zip_longest(*x, fillvalue=0)), np.float64).max(1) for x in each)
    )


def traces_of(samples: Sequence[Sample], proposer: AnyProposer | None, length: int) -> list[Trace]:
    """The samples of one method, stretched to ``length`` tokens.  Sizes of fixed trees are derived
    where not recorded.

    Raises UserError where they are neither recorded nor fixed.
    """
    traces = []
    nodes, depth = (1, 0) if proposer is None else proposer.size[:2]
    for sample in samples:
        lengths = sample.accept_lengths[1:]
        sizes = ((sample.tree_nodes or [])[1:], sample.tree_depths[1:])
        if proposer is None or not len(sizes[0]) == len(sizes[1]) == len(lengths):
            if proposer is not None and proposer.size.adapts and lengths:
                lack = f"the samples of '{sample.label}' lack the tree size of each step, which this method changes"
                raise UserError(f"{lack} as it goes: measure it again with this version")
            sizes = ([nodes] * len(lengths), [depth] * len(lengths))
        traces += [stretched(lengths, *sizes, length)] if lengths else []
    return traces


@cache
def shapes() -> dict[str, Entry]:
    """Architectures that only predictions know."""
    rows = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text(encoding="utf-8"))
    return {name: Entry(name=name, **row) for name, row in rows.items()}


def sketch(name: str, drafter: str | None = None) -> Target:
    """A target's shape, options and drafters without its weights, except where they come with the
    package.

    Raises UserError for an unknown name, with the known names.
    """
    title = name.partition("=")[0]
    if title in shapes():
        target = family(shapes()[title].family).random_target(shapes()[title], "meta")
    elif title in catalogue() and catalogue()[title].gigabytes:
        target = load_unpacked(title, "meta", random_weights=True)
    else:
        try:
            target = load_unpacked(name)
        except UserError as error:
            raise UserError(
                f"{error}; `predict` knows {', '.join(shapes())} beside the catalogue"
            ) from None
    target = replace(target, name=title)
    return (
        target
        if drafter is None
        else with_drafter(target, drafter, str(target.device), random_weights=True)[0]
    )


class Cases(NamedTuple):
    """What is replayed on which target, with notes for the reader."""

    traces: dict[Case, list[Trace]]
    methods: dict[str, Method]  # by label
    notes: list[str]


def cases(
    samples: Iterable[Sample], source: Target, target: Target, guidance: float | None, run: str
) -> Cases:
    """``source``: the run's target, whose trees were measured; ``guidance``: where it differs from
    the target's.

    Methods without what they need on ``target`` are left out, with a note.  Raises UserError for a
    run without samples and for one in which nothing was drafted.
    """
    by_label = defaultdict[str, list[Sample]](list)
    for sample in samples:
        by_label[sample.label].append(sample)
    if not by_label:
        raise UserError(
            f"{run} has no samples yet: let `lanternbench run` finish at least one image of it"
        )
    shape = shape_of(target, guidance)
    traces: dict[Case, list[Trace]] = {}
    methods: dict[str, Method] = {}
    notes: list[str] = []
    for label, group in by_label.items():
        try:
            m = method(group[0].method, **group[0].options)
            measured = build_proposer(source, m)
            net = measured.network()
            if net is not None and target is not source:
                net = build_proposer(target, m).network()  # may raise UserError
            if m.choices.order != "raster" and source.grids != target.grids:
                raise UserError(
                    "the rows of its steps follow from the grid, which is another here"
                )
            drafts = measured if measured.size.max_depth > 0 else None
            if drafts is None and m.preset != BASE:
                raise UserError("it drafts nothing that could be replayed")
        except UserError as error:
            notes.append(f"{label} is left out: {error}")
            continue
        if steps := traces_of(group, drafts, shape.length):
            methods[label] = m
            if drafts is None:
                case = baseline(shape)
            else:
                operators = count_operators(m, source.options)
                case = Case(label, m.preset, shape, net, drafts, operators)
            traces[case] = steps
    if all(case.measured is None for case in traces):
        why = (
            notes[0]
            if notes
            else f"{run} has only methods that draft nothing ({', '.join(by_label)})"
        )
        raise UserError(
            f"there are no draft trees to replay: {why}; measure one that drafts, such as eagle-1"
        )
    if shape.length != source.length:
        lengths = (
            f"the run's images have {source.length} tokens, those of {shape.name} {shape.length}"
        )
        notes.append(f"{lengths}: each image's steps are repeated, or cut")
    if shape.name != source.name:
        where = f"accepted lengths and tree sizes are those measured on {source.name}"
        notes.append(f"{where}: a drafter for {shape.name} may be accepted more or less often")
    return Cases(traces, methods, notes)


def of_run(record: RunRecord) -> tuple[str, str | None, float | None]:
    """Return a run's target, drafter and guidance."""
    config, known = record.config, record.config.model_fields_set
    name = config.target if "target" in known else record.target.name
    if name is None:
        raise UserError(
            "run.json does not say which target the run is of: give a run that this version made"
        )
    return name, config.drafter, config.guidance if "guidance" in known else None
