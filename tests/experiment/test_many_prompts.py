"""A million prompts begin soon and fit in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lanternbench.experiment import worker
from lanternbench.experiment.worker import Executor, Job
from lanternbench.prompts import Prompt

MANY = 10**6
MEMORY = 3 * 2**29  # 1.5 GB of virtual memory; a prompt may take 1.2 KB
LOAD = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
from lanternbench import prompts
chosen = prompts.load(sys.argv[1], None, 0)
print(len(chosen), len(chosen.hash))
"""


def test_captions_are_encoded_in_parts_before_their_images_are_decoded(monkeypatch):
    """The first image does not wait for the captions of all."""
    done: list[object] = []
    stub = SimpleNamespace(
        prepare=done.append,
        warm_up=lambda label, *_: done.append(f"warm up {label}"),
        work=lambda job, _: [worker.Finished(job.prompts[0].id, None)],
    )
    monkeypatch.setattr(worker, "PREPARED", 2)
    executor = Executor()
    executor.worker = stub  # type: ignore[assignment]
    units = [[Job("ar", [Prompt(name, f"caption {name}")])] for name in "abc"]
    for finished in executor.samples(units, "caption a", lambda what: None):
        done.append(finished.sample)
    assert done == [
        ["caption a", "caption b"],
        "warm up ar",
        "a",
        "b",
        ["caption c"],
        "warm up ar",
        "c",
    ]


@pytest.mark.slow
def test_a_million_prompts_fit_in_a_small_memory(tmp_path):
    path: Path = tmp_path / "many.txt"
    with path.open("w") as file:
        file.writelines(f"a red circle and a blue square, number {i}\n" for i in range(MANY))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{MANY} 64\n", done.stderr
