from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lanternbench.models import tiny
from lanternbench.models.target import Target

SHARED = Path(__file__).resolve().parents[2] / "shared"


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.fixture(autouse=True)
def _threads() -> None:
    torch.set_num_threads(min(2, CORES))  # two threads on one core wait for each other


@pytest.fixture(scope="session")
def target() -> Target:
    """The embedded target with its drafters."""
    return tiny.load()


@pytest.fixture
def shared() -> Path:
    """Official data beside the checkout; a test that needs it is skipped, loudly, where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"OFFICIAL DATA ABSENT: {SHARED} is not there, so this promise was not checked")
    return SHARED


@pytest.fixture
def no_caches(tmp_path, monkeypatch):
    """A machine without any published weights."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *a, **k: None)
    return tmp_path
