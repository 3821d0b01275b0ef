"""Threads: a busy machine is not made busier, and a small model computes with one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from conftest import slow_but
from torch import nn

import lanternbench
from lanternbench.errors import UserError
from lanternbench.experiment import iter_samples
from lanternbench.experiment.config import sweep
from lanternbench.experiment.runner import run
from lanternbench.utils import device

TINY, LARGE = nn.Linear(8, 8), nn.Linear(2**13, 2**12, device="meta")


@pytest.fixture
def unasked(monkeypatch):
    """A user who chose no number of threads, on a machine with three cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(device, "_requested", None)
    monkeypatch.setattr(device, "cores", lambda: 3)


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=clean | environment, capture_output=True, text=True, timeout=120, check=True
    )


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings GNU's OpenMP on Linux only")
@pytest.mark.parametrize(
    "first",
    slow_but(["lanternbench"], ["lanternbench", "lanternbench.cli.main", "lanternbench.api"]),
)
def test_openmp_s_threads_sleep_while_they_wait_whichever_module_comes_first(first):
    said = python(f"import {first}, torch", OMP_DISPLAY_ENV="VERBOSE").stderr
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in said
    assert "GOMP_SPINCOUNT = '0'" in said


def test_what_the_user_s_environment_says_of_waiting_is_kept():
    said = python(
        "import os, lanternbench; print(os.environ['OMP_WAIT_POLICY'])", OMP_WAIT_POLICY="ACTIVE"
    )
    assert said.stdout.strip() == "ACTIVE"


def test_a_small_model_gets_one_thread_and_a_large_one_every_core(unasked):
    device.fit_threads(LARGE)
    assert torch.get_num_threads() == 3
    device.fit_threads(TINY)
    assert torch.get_num_threads() == 1


def test_the_embedded_model_is_loaded_for_one_thread_unless_more_are_asked_for(
    unasked, monkeypatch
):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    torch.set_num_threads(3)
    lanternbench.load("tiny", "cpu")
    assert torch.get_num_threads() == 1
    lanternbench.load("tiny", "cpu", threads=2)
    assert torch.get_num_threads() == 2


def test_asked_for_threads_are_used_whatever_the_model(unasked, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    device.request_threads(2)
    device.fit_threads(LARGE)
    assert torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    device.request_threads(None)
    device.fit_threads(TINY)
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("threads", [0, -1, 5, 100_000])
def test_more_threads_than_the_machine_has_cpus_are_refused(monkeypatch, threads):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    with pytest.raises(UserError, match="this machine has 4 CPU"):
        device.choose("cpu", threads)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 4),
        (
            {
                f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": f"{i % 2},{i % 2 + 2}"
                for i in range(4)
            },
            2,
        ),
        ({"sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 4),
    ],
)
def test_cores_are_physical_ones_within_affinity_and_quota(tmp_path, monkeypatch, files, wanted):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(device, "_SYSTEM", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert device.cores() == wanted


@pytest.mark.slow
def test_a_sweep_over_targets_of_two_sizes_records_the_threads_of_each(
    unasked, monkeypatch, tmp_path
):
    monkeypatch.setattr(device, "cores", lambda: 2)
    plain = {
        "methods": ["sjd"],
        "baseline": False,
        "num_prompts": 1,
        "metrics": [],
        "prompts": "imagenet",
    }
    large = {"target": "llamagen-b-c2i:layers=1,grid=4", "random_weights": True}
    threads = []
    for name, given in (
        ("small", {"prompts": "demo"}),
        ("large", large),
        ("again", {"prompts": "demo"}),
    ):
        folder, _ = run(sweep(plain | given | {"name": name}), tmp_path)
        threads += [sample.threads for sample in iter_samples(folder)]
    assert threads == [1, 2, 1]
