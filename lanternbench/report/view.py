"""What of the runs a report shows: methods, columns, and the names that they have in a paper."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import yaml

from lanternbench.errors import UserError
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.summary import Row
from lanternbench.report.columns import Column, columns
from lanternbench.report.load import Run
from lanternbench.utils.files import open_file

# as their papers write them; other names are unchanged
PAPER_NAMES = {
    "ar": "AR", "sd": "SD", "medusa": "Medusa", "eagle-1": "EAGLE-1", "eagle-2": "EAGLE-2", "eagle-3": "EAGLE-3",
    "lantern": "LANTERN", "lantern++": "LANTERN++", "jacobi": "Jacobi", "sjd": "SJD", "scd": "SJD with coupling",
    "sjd-pac": "SJD-PAC", "gsd": "GSD", "adt-tree": "ADT-Tree", "uniform-rsd": "Uniform-RSD", "cool-sd": "Cool-SD",
}  # fmt: skip
AnyRow = TypeVar("AnyRow", bound=Row)


class View(NamedTuple):
    """``methods``: labels or names of methods, in the order shown; ``columns``: keys; ``names``: by label or method.

    Empty: all methods, the columns that each table chooses, the labels as they are.
    """

    methods: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    names: Mapping[str, str] = {}

    def of(self, runs: Sequence[Run]) -> list[Run]:
        """The runs with the chosen rows alone.  Raises UserError for a method that none of them has."""
        if not self.methods:
            return list(runs)
        names = dict.fromkeys(name for run in runs for row in run.rows for name in (row.label, row.method))
        if unknown := [name for name in self.methods if name not in names]:
            raise UserError(f"--methods: no run here has {unknown[0]!r}: choose of {', '.join(names)}.")
        each = [{r.label: r for name in self.methods for r in run.rows if name in (r.label, r.method)} for run in runs]
        return [replace(run, rows=list(rows.values())) for run, rows in zip(runs, each) if rows]

    def name(self, label: str, method: str) -> str:
        """The displayed text of a label: its name if set, or the method's within it."""
        return self.names[label] if label in self.names else _renamed(label, method, self.names)

    def labels(self, methods: Mapping[str, str]) -> dict[str, str]:
        """The displayed texts of labels, given with their methods; what compares with the baseline seeks its label."""
        return {label: label if label == BASELINE else self.name(label, method) for label, method in methods.items()}

    def named(self, rows: Sequence[AnyRow]) -> list[AnyRow]:
        """The rows under their names."""
        return [replace(row, label=self.name(row.label, row.method)) for row in rows]

    def columns_for(self, rows: Sequence[Row], table: str) -> list[Column]:
        """The columns of a table ("full", "md", "tex", "terminal"): the chosen ones, else those it chooses itself.

        Raises UserError for a column that these rows do not have.
        """
        if not self.columns:
            return columns(rows, table)
        by_key = {c.key: c for c in columns(rows) if not c.test}
        if unknown := [key for key in self.columns if key not in by_key]:
            raise UserError(f"--columns: these runs have no {unknown[0]!r}: choose of {', '.join(by_key)}.")
        return [by_key[key] for key in dict.fromkeys(("run", "label", *self.columns)) if key in by_key]


def paper_name(row: Row) -> str:
    """A label as papers write it: "Cool-SD (λ=2)"; one that --names changed stays."""
    return _renamed(row.label, row.method, PAPER_NAMES)


def _renamed(label: str, method: str, names: Mapping[str, str]) -> str:
    """A label with its method's name in ``names`` and its options in brackets: "Cool-SD (λ=2, ν=0.7)"."""
    if method not in names or not label.startswith(method):
        return label
    options = label[len(method) :].strip()
    return names[method] + (f" ({options.replace(' ', ', ')})" if options else "")


def read_names(path: Path) -> dict[str, str]:
    """Names by label or method, from a YAML or JSON file such as ``eagle-1: EAGLE``.  Raises UserError."""
    try:
        with open_file(path) as file:
            names = yaml.safe_load(file.read())
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"--names: {path} cannot be read ({' '.join(str(error).split())}); give a YAML file.") from None
    if not isinstance(names, dict) or any(isinstance(value, dict | list) for value in names.values()):
        raise UserError(f"--names: {path} must have a line per method, such as `eagle-1: EAGLE`.")
    return {str(key): str(value) for key, value in names.items()}
