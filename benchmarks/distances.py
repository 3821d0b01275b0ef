"""How far SJD++ and SJD-SV leave the target's distribution, by exact enumeration, beside their
exact counterparts.

    python benchmarks/distances.py

Nothing is sampled and no clock is read: the figures are the same on every machine.  Writes
benchmarks/results/distances.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from lanternbench.lossless import WORLDS, OnTables, on_tables
from lanternbench.methods.method import method
from lanternbench.report.tables import markdown

OUT = Path(__file__).parent / "results" / "distances.md"
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("sjd", {}),
    ("scd", {}),
    ("sjd++", {"theta": 0.1}),
    ("sjd++", {"theta": 0.5}),
    ("sjd++", {"theta": 0.9}),
    ("sjd-sv", {"alpha": 0.5}),
    ("sjd-sv", {"alpha": 0.6}),
    ("sjd-sv", {"alpha": 0.7}),
    ("sjd-sv", {"alpha": 0.8}),
    ("sjd-sv", {"alpha": 0.9}),
    ("sjd-sv", {"alpha": 1.0}),
    ("sjd-sv", {"alpha": 0.8, "excluded": "accepted"}),
    ("eagle-1", {"tree": "chain"}),
    ("eagle-1", {"tree": "chain", "acceptance": "block"}),
    ("eagle-1", {"tree": "chain", "acceptance": "sjd-sv", "alpha": 0.5}),
    ("eagle-1", {"tree": "chain", "acceptance": "sjd-sv", "alpha": 0.8}),
    ("eagle-1", {"tree": "chain", "acceptance": "sjd-sv", "alpha": 1.0}),
]
HEAD = """# How far SJD++ and SJD-SV are from the target's distribution

Total variation between the images that the engine draws and the target's, in the five worlds of `lanternbench verify`:
every outcome enumerated, none sampled. In brackets the mean number of steps an image takes there, after its first
token. Windows hold two drafts; chains two, in the last two worlds three. 0.0000 is below 1e-6: that method is exact.
`excluded=accepted` is the literal reading of SJD-SV, which keeps drafts that the target excludes; see
`lanternbench methods sjd-sv`. The exact counterpart of `sjd++` is `scd`, that of `sjd-sv` in a window `sjd` and on a drafted chain block verification.
Written by `python benchmarks/distances.py`.
"""


class Distance(NamedTuple):
    tv: float
    steps: float  # mean, of an image


def distance(one: OnTables) -> Distance:
    by_steps = one.enumerated.images.sum(1)
    return Distance(one.tv, float((torch.arange(1, len(by_steps) + 1) * by_steps).sum()))


@torch.inference_mode()
def of_world(name: str, options: dict[str, Any], number: int) -> Distance:
    """In the world ``number`` of ``verify``, with the seed that it has there."""
    return distance(on_tables(method(name, **options), WORLDS[number](number)))


def title(number: int) -> str:
    tables = WORLDS[number](number)
    guided = ", guided" if tables.sampling.guidance != 1 else ""
    return f"{tables.vocab}^{tables.length} {tables.kind}{guided}"


def cell(found: Distance) -> str:
    return f"{found.tv:.4f} ({found.steps:.2f})"


def table() -> str:
    rows = []
    for name, options in SETTINGS:
        cells = [cell(of_world(name, options, number)) for number in range(len(WORLDS))]
        rows.append([method(name, **options).label, *cells])
        print(*rows[-1], sep="  ", flush=True)
    return markdown(
        ["method", *map(title, range(len(WORLDS)))], rows, [False] + [True] * len(WORLDS)
    )


def main() -> None:
    OUT.write_text(f"{HEAD}\n{table()}", encoding="utf-8")


if __name__ == "__main__":
    main()
