"""Any configuration is one sentence or runs: never a traceback, never long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanternbench.errors import UserError
from lanternbench.experiment import worker
from lanternbench.experiment.config import expand, read_sweeps
from lanternbench.settings import Sweep

FUZZ = settings(
    max_examples=40, deadline=300_000, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=20),
    st.sampled_from(["ar", "tiny", "chain", "exact", "l2", "1e39", "0x10", "~", "2020-01-01", "\x00", "é" * 300]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
)
OPTIONS = [
    *(
        "lambda",
        "delta",
        "k",
        "tree",
        "acceptance",
        "residual",
        "shape",
        "depth",
        "window",
        "init",
        "schedule",
        "nu",
    ),
    *("proximity", "divergence", "variant", "total_nodes"),
]
METHODS = [
    "ar",
    "sd",
    "medusa",
    "eagle-1",
    "eagle-2",
    "lantern",
    "lantern++",
    "jacobi",
    "sjd",
    "adt-tree",
    "uniform-rsd",
    "cool-sd",
    "nope",
]
SENSIBLE = st.one_of(
    st.integers(0, 80),
    st.floats(0, 4),
    st.sampled_from(["chain", "l2", "chain-3", "exp", "paper"]),
)
ENTRIES = st.one_of(
    st.sampled_from(METHODS),
    st.builds(
        lambda name, options: {"method": name, **options},
        st.sampled_from(METHODS),
        st.dictionaries(st.sampled_from(OPTIONS), SENSIBLE | VALUES, max_size=2),
    ),
)
FIELDS = [
    name for name in Sweep.model_fields if name not in ("methods", "prompts", "target", "drafter")
]
CONFIGS = st.builds(
    lambda methods, fields: {"methods": methods, **fields},
    st.lists(ENTRIES, min_size=1, max_size=2) | VALUES,
    st.dictionaries(st.sampled_from([*FIELDS, "metods"]), SENSIBLE | VALUES, max_size=2),
)


def one_sentence(error: UserError) -> None:
    assert str(error).strip()
    assert len(str(error).splitlines()) == 1


@FUZZ
@given(text=st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_as_a_sweep_file_is_one_sentence_or_runs(text, tmp_path):
    path = tmp_path / "any.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        assert all(expand(run) for run in read_sweeps(path))
    except UserError as error:
        one_sentence(error)


@FUZZ
@given(config=CONFIGS)
def test_any_settings_are_one_sentence_or_decode(config, small_images, tmp_path):
    path: Path = tmp_path / "any.yaml"
    path.write_text(
        yaml.safe_dump(config, allow_unicode=True), encoding="utf-8", errors="surrogatepass"
    )
    try:
        runs = read_sweeps(path)
        for run in runs[:2]:
            methods = expand(run)
            labels = [m.label for m in methods]
            assert len(set(labels)) == len(labels)
            json.dumps(run.record(), allow_nan=False)
            made: Any = worker.Worker(run, "cpu")
            for label in labels[-1:]:
                made.warm_up(label, "a red circle")
    except UserError as error:
        one_sentence(error)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_extreme_seeds_decode(seed, small_images):
    run = Sweep(methods=["cool-sd"], seed=seed)
    worker.Worker(run, "cpu").warm_up(expand(run)[-1].label, "a red circle")
