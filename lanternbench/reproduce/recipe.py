"""Recipes: the runs that measure a paper's table, with the source of every setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from pydantic import BaseModel, ConfigDict

from lanternbench.errors import UserError, unknown
from lanternbench.experiment.config import name_part, sweep
from lanternbench.methods.method import method
from lanternbench.models.entries import catalogue, catalogue_name, check_target, lacking
from lanternbench.models.footprint import ONE_IMAGE, of_target
from lanternbench.registry import components
from lanternbench.report.papers import DATASETS, NAMES, published_figures, published_rows
from lanternbench.settings import MethodSpec, Sweep
from lanternbench.utils.files import read_yaml

REHEARSED = "tiny"  # the target on which every recipe can be rehearsed
NOT_WORDS = ("README", "and")  # of a table's name in papers.csv
# a metric for each of them; "steps" and the like are measured in any case
METRICS = ("fid", "clip", "image-reward", "hpsv2", "inception-score", "aesthetic")
OPEN = ("num_prompts", "top_k", "guidance")  # settings that rows of papers.csv do not have
SOURCES = {paper: name for name, paper in DATASETS.items()} | {
    "imagenet": "imagenet",
    "dpg": "dpg",
}
NOT_KNOWN = "not known; the default"
REHEARSAL = "the default, for a rehearsal"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Setting(_Part):
    """A setting of a paper's runs, and where that is written."""

    value: int | float | str
    source: str
    targets: list[str] | None = None  # of which it holds; None: of all


class TargetReading(_Part):
    """The target that stands for one that a paper does not name exactly."""

    target: str
    reading: str


class Recipe(_Part):
    """The facts of a paper's runs beyond its rows in papers.csv."""

    source: str  # as papers.csv has it
    settings: dict[str, Setting] = {}
    set_images: int | None = None  # of which FID and the like were computed, if known
    targets: dict[str, TargetReading] = {}
    # by "option=value" of a row: our options, and "reading", which says why these
    options: dict[str, dict[str, object]] = {}


class Group(NamedTuple):
    """The rows of a table that one run measures: they share target, prompts and temperature."""

    paper: str  # the recipe's name
    table: str  # as papers.csv has it
    target: str
    dataset: str
    temperature: str
    rows: tuple[dict[str, str], ...]

    @property
    def title(self) -> str:
        temperature = self.temperature or "not reported"
        dataset = self.dataset or "prompts not reported"
        return f"{self.target}, {dataset}, T {temperature}"

    @property
    def missing(self) -> list[str]:
        """Return the methods of the table that are not implemented."""
        return sorted({row["method"] for row in self.rows if not is_known(row)})


class Plan(NamedTuple):
    """One run of a recipe: its settings, and where each comes from."""

    group: Group
    config: Sweep
    sources: dict[str, str]  # by setting, and by option that was read in one of several ways
    published: dict[str, dict[str, str]]  # by label of a method: its row in papers.csv

    @property
    def settings(self) -> list[str]:
        """Return each setting with its value and source."""
        used = self.config.model_dump(exclude_unset=True)
        lines = []
        for name, source in self.sources.items():
            value = f"{name} {used[name]}" if name in used else name
            lines.append(f"{value} ({source})")
        return lines

    @property
    def needs(self) -> str:
        """Return what a run needs: memory, and files that are to be fetched."""
        name = catalogue_name(self.config.target)
        folder = self.config.target.partition("=")[2]
        row = catalogue().get(name)
        if row is None:
            return f"the files of {self.config.target}"
        if not row.files:
            return "no files"
        dtype = getattr(torch, self.config.dtype or "bfloat16")
        need = of_target(row, None, dtype, ONE_IMAGE)
        files = f"`lanternbench fetch {name}` ({row.gigabytes:g} GB)"
        if folder or not lacking(row):
            files = "files are downloaded"
        return f"{need} in {self.config.dtype or 'bfloat16'}; {files}"


@cache
def recipes() -> dict[str, Recipe]:
    """Return the recipes by the name of their paper."""
    values = read_yaml(Path(__file__).with_name("recipes.yaml"), "the recipes")
    return {name: Recipe.model_validate(value) for name, value in values.items()}


def guidance_of(target: str) -> dict[str, str]:
    """Return the guidance of papers' runs on a target by paper, as papers.csv names it, if known."""
    found: dict[str, str] = {}
    for recipe in recipes().values():
        setting = recipe.settings.get("guidance")
        if setting is not None and (setting.targets is None or target in setting.targets):
            found[recipe.source] = str(setting.value)
    return found


def is_known(row: Mapping[str, str]) -> bool:
    """Return whether the method of a published row is implemented."""
    return row["method"] in components("preset")


def groups(paper: str) -> list[Group]:
    """Return the runs that the tables of a paper need, in the order of papers.csv."""
    found: dict[tuple[str, str, str, str], list[dict[str, str]]] = {}
    for row in published_rows():
        if row["source"] == recipes()[paper].source:
            key = (row["table"], row["target"], row["dataset"], row["temperature"])
            found.setdefault(key, []).append(row)
    return [
        Group(paper, table, target, dataset, temperature, tuple(rows))
        for (table, target, dataset, temperature), rows in found.items()
    ]


def table_words(table: str) -> list[str]:
    """Return the names by which a table is asked for: "1 and 4" is 1 and is 4."""
    words = table.split()
    telling = [word for word in words if word not in NOT_WORDS]
    return telling if telling else words


def chosen(name: str, only: Sequence[str] = ()) -> list[Group]:
    """Return the runs of ``PAPER`` or ``PAPER:TABLE``, with methods ``only`` if any are given.

    Raises UserError for a paper, table or method that has no recipe.
    """
    paper, _, table = name.partition(":")
    if paper not in recipes():
        raise unknown(f"there is no recipe for '{paper}'", paper, list(recipes()))
    found = groups(paper)
    tables = list(dict.fromkeys(word for group in found for word in table_words(group.table)))
    if table:
        if table not in tables:
            raise unknown(f"'{paper}' has no table '{table}'", table, tables)
        found = [group for group in found if table in table_words(group.table)]
    methods = sorted({row["method"] for group in found for row in group.rows})
    for asked in only:
        if asked not in methods:
            raise unknown(f"'{name}' has no row of '{asked}'", asked, methods)
    if only:
        found = [_only(group, only) for group in found]
    return [group for group in found if any(map(is_known, group.rows))]


def _only(group: Group, methods: Sequence[str]) -> Group:
    rows = tuple(row for row in group.rows if row["method"] in methods)
    return group._replace(rows=rows)


def plan(group: Group, given: Mapping[str, object]) -> Plan:
    """Return the run of a group; ``given`` settings replace the recipe's.  Raises UserError."""
    recipe = recipes()[group.paper]
    sources: dict[str, str] = {}
    target = _target(group, recipe, given, sources)
    values: dict[str, object] = {"name": _name(group, target), "target": target}
    rehearsal = target == REHEARSED
    if group.temperature:
        values["temperature"] = float(group.temperature)
        sources["temperature"] = f"table {group.table}"
    if group.dataset in SOURCES and not rehearsal:
        values["prompts"] = SOURCES[group.dataset]
        sources["prompts"] = f"table {group.table}"
    for name, setting in recipe.settings.items():
        if setting.targets is None or group.target in setting.targets:
            values[name] = setting.value
            sources[name] = setting.source
    if rehearsal:
        values.pop("num_prompts", None)
    for name in ("prompts", "temperature", *OPEN):
        sources.setdefault(name, REHEARSAL if rehearsal else NOT_KNOWN)
    values["metrics"] = [] if rehearsal else _metrics(group)
    values |= given
    sources |= dict.fromkeys(given, "given")
    specs: list[MethodSpec] = []
    published: dict[str, dict[str, str]] = {}
    for row in group.rows:
        if is_known(row):
            spec = _spec(row, recipe, target, sources)
            label = label_of(spec)
            if label not in published:
                specs.append(spec)
                published[label] = row
    values["methods"] = specs
    return Plan(
        group, sweep(values, f"the recipe {group.paper}:{group.table}"), sources, published
    )


def _target(
    group: Group, recipe: Recipe, given: Mapping[str, object], sources: dict[str, str]
) -> str:
    """Return the target of a run.  Raises UserError if the table's one is not implemented."""
    sources["target"] = f"table {group.table}"
    target = group.target
    if target in recipe.targets:
        target = recipe.targets[target].target
        sources["target"] = recipe.targets[group.target].reading
    if "target" in given:
        target = str(given["target"])
        check_target(target)
    elif target not in catalogue():
        raise UserError(
            f"'{group.paper}' has a table of '{target}', which is not implemented: give --target"
            f" {REHEARSED} to rehearse it"
        )
    return target


def _metrics(group: Group) -> list[str]:
    """Return the metrics that the table has figures of."""
    figures: set[str] = set()
    for row in group.rows:
        figures |= published_figures(row).keys()
    return [name for name in METRICS if name in figures]


def _spec(
    row: Mapping[str, str], recipe: Recipe, target: str, sources: dict[str, str]
) -> MethodSpec:
    """Return a published row as an entry of a sweep."""
    spec: MethodSpec = {"method": row["method"]}
    for part in row["params"].split():
        name, _, value = part.partition("=")
        if part in recipe.options:
            read = dict(recipe.options[part])
            sources[part] = str(read.pop("reading"))
            spec |= read
        elif name == "drafter":
            if target != REHEARSED:
                spec["drafter"] = value
        else:
            spec[NAMES.get(name, name)] = yaml.safe_load(value)
    return spec


def label_of(spec: MethodSpec) -> str:
    """Return the label of an entry of a sweep."""
    options = {name: value for name, value in spec.items() if name != "method"}
    return method(spec["method"], **options).label


def _name(group: Group, target: str) -> str:
    table = "".join(table_words(group.table))
    parts = ["reproduce", group.paper, table, target.partition("=")[0].split("/")[-1]]
    if target == REHEARSED:
        parts.append(group.target)
    parts += [group.dataset, f"T{group.temperature}"]
    return name_part("-".join(part for part in parts if part))
