"""Turn a run's samples into cases to predict: its methods, as they drafted in the run, on the requested target."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lanternbench.errors import UserError
from lanternbench.measure.samples import Sample
from lanternbench.methods.build import prepared_proposal
from lanternbench.methods.method import Method, method
from lanternbench.models.catalogue import load_unpacked, with_drafter
from lanternbench.models.entries import Entry, catalogue, family
from lanternbench.models.target import Target
from lanternbench.predict.machines import Case, shape_of
from lanternbench.predict.predict import BASE, traces_of
from lanternbench.predict.replay import Trace


@cache
def shapes() -> dict[str, Entry]:
    """Architectures that only predictions know."""
    rows = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text(encoding="utf-8"))
    return {name: Entry(name=name, **row) for name, row in rows.items()}


def sketch(name: str, drafter: str | None = None) -> Target:
    """A target's shape, options and drafters without its weights, except where they come with the package.

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
            raise UserError(f"{error}; `predict` knows {', '.join(shapes())} beside the catalogue") from None
    target = replace(target, name=title)
    return target if drafter is None else with_drafter(target, drafter, str(target.device), random_weights=True)[0]


class Cases(NamedTuple):
    """What is replayed on which target, with notes for the reader."""

    traces: dict[Case, list[Trace]]
    methods: dict[str, Method]  # by label
    notes: list[str]


def cases(samples: Iterable[Sample], source: Target, target: Target, guidance: float | None, run: str) -> Cases:
    """``source``: the run's target, whose trees were measured; ``guidance``: where it differs from the target's.

    Methods without what they need on ``target`` are left out, with a note.  Raises UserError for a run without samples
    and for one in which nothing was drafted.
    """
    by_label = defaultdict[str, list[Sample]](list)
    for sample in samples:
        by_label[sample.label].append(sample)
    if not by_label:
        raise UserError(f"{run} has no samples yet: let `lanternbench run` finish at least one image of it")
    shape = shape_of(target, guidance)
    traces: dict[Case, list[Trace]] = {}
    methods: dict[str, Method] = {}
    notes: list[str] = []
    for label, group in by_label.items():
        try:
            m = method(group[0].method, **group[0].options)
            measured = prepared_proposal(source, m)
            same = target is source or measured.drafter is None
            drafter = measured.drafter if same else prepared_proposal(target, m).drafter  # may raise UserError
            if m.choices.order != "raster" and source.grids != target.grids:
                raise UserError("the rows of its steps follow from the grid, which is another here")
            drafts = measured if measured.max_depth > 0 else None
            if drafts is None and m.preset != BASE:
                raise UserError("it drafts nothing that could be replayed")
        except UserError as error:
            notes.append(f"{label} is left out: {error}")
            continue
        if steps := traces_of(group, drafts, shape.length):
            methods[label] = m
            net = None if drafter is None else drafter.network()
            traces[Case(label if drafts else BASE, m.preset, shape, net, drafts)] = steps
    if all(case.measured is None for case in traces):
        why = notes[0] if notes else f"{run} has only methods that draft nothing ({', '.join(by_label)})"
        raise UserError(f"there are no draft trees to replay: {why}; measure one that drafts, such as eagle-1")
    if shape.length != source.length:
        notes.append(
            f"the run's images have {source.length} tokens, those of {shape.name} {shape.length}: each image's steps "
            "are repeated, or cut"
        )
    if shape.name != source.name:
        notes.append(
            f"accepted lengths and tree sizes are those measured on {source.name}: a drafter for {shape.name} may be "
            "accepted more or less often"
        )
    return Cases(traces, methods, notes)


def of_run(record: dict[str, Any]) -> tuple[str, str | None, float | None]:
    """A run's target, drafter and guidance, out of its run.json."""
    config = record.get("config", {})
    name = config.get("target") or record.get("target", {}).get("name")
    if not isinstance(name, str):
        raise UserError("run.json does not say which target the run is of: give a run that this version made")
    return name, config.get("drafter"), config.get("guidance")
