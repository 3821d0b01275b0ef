"""The tokens of a fixed list of decodes are those on file: a change of speed or structure must not
change them.

``LANTERNBENCH_ALL_TOKENS=1`` checks every case; otherwise one prompt each, and a batch of three
where methods differ in how they carry state; in ``make test`` one prompt by a few methods.  The
file changes only when a method's definition does, or its key, which seeds its draws.  To record it
again: ``LANTERNBENCH_ALL_TOKENS=record python -m pytest -n 0 tests/engine/test_same_tokens.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import DATA, slow_but

from lanternbench.engine import decode as engine
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.settings import Sampling

FILE = DATA / "tokens.json"
CAPTIONS = [
    "a large red star on the left on a noisy blue background",
    "a small green ring",
    "two dogs in the snow",
]
SEED = 7
# the default trees of the embedded target when the file was made; by any other name they would
# draw other tokens
SIZES = {
    "depth": 3,
    "draft_top_k": 3,
    "total_nodes": 8,
    "depth_range": (0, 10),
    "width_range": (1, 9),
    "l_k": 1,
}
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())
BATCHES = ("eagle-2", "sjd")
EVERY_TIME = ("ar", "medusa", "sjd", "adt-tree", "cool-sd")
ALL = os.environ.get("LANTERNBENCH_ALL_TOKENS", "")
QUICK = [
    case
    for case in CASES
    if case["temperature"] == 1
    and not case["options"]
    and (case["batch"] == 1 or case["method"] in BATCHES)
]
QUICKEST = [case for case in QUICK if case["batch"] == 1 and case["method"] in EVERY_TIME]


def name(case: dict[str, Any]) -> str:
    options = " ".join(f"{k}={v}" for k, v in case["options"].items())
    return f"{case['method']} {options} T={case['temperature']} B={case['batch']}".replace(
        "  ", " "
    )


@pytest.fixture(scope="module", autouse=True)
def recorded():
    """Writes what the cases draw over the file, where that is asked for."""
    yield
    if ALL == "record":
        FILE.write_text("[\n" + ",\n".join(json.dumps(case) for case in CASES) + "\n]\n")


@pytest.mark.parametrize("case", CASES if ALL else slow_but(QUICKEST, QUICK), ids=name)
def test_tokens_and_steps_are_those_on_file(shallow, case):
    target = replace(shallow, options=shallow.options | SIZES)
    decoder = build(
        target,
        method(case["method"], **case["options"]),
        Sampling(temperature=case["temperature"]),
    )
    made = engine.generate(decoder, CAPTIONS[: case["batch"]], seed=SEED)
    digests = [
        hashlib.sha256(g.tokens.to(torch.int64).numpy().tobytes()).hexdigest()[:20] for g in made
    ]
    if ALL == "record":
        case |= {"tokens": digests, "steps": [g.steps for g in made]}
    assert (digests, [g.steps for g in made]) == (case["tokens"], case["steps"])
