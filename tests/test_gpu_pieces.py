"""``make gpu`` without a GPU: every piece runs on the stand-in; what breaks costs its own figures
alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, mistake
from fake_device import THERE, Apart
from families import SMALL_VQ

from benchmarks.gpu import bars, report, shapes
from benchmarks.gpu.machine import Rehearsal, again, rehearsal
from benchmarks.gpu.pieces import PIECES, equal
from benchmarks.gpu.result import DONE, FAILED, RUNNING, Result, read
from benchmarks.gpu.runner import is_done, run_all, run_piece
from lanternbench.costs.forward_cost import Bandwidth
from lanternbench.doctor import gpu
from lanternbench.models.entries import Entry
from lanternbench.models.llamagen.checkpoint import LlamaGenFamily
from lanternbench.utils.graph_capture import Graphs


class Stood(Rehearsal):
    """The stand-in of a GPU, which counts how often the host waits for it."""

    apart: Apart

    def host_waits(self, work: Callable[[], Any]) -> int:
        before = self.apart.asked
        work()
        return self.apart.asked - before


@pytest.fixture
def stood(monkeypatch):
    """Every preset is recorded on the stand-in by other tests: three are enough to go through a
    piece.
    """
    monkeypatch.setattr(equal, "QUICK", ("ar", "adt-tree", "cool-sd"))
    with torch.inference_mode(), Apart() as apart:
        made = Stood(str(THERE), True, apart.record)
        object.__setattr__(made, "apart", apart)
        yield made


def measured(name: str, machine: Rehearsal, folder: Path) -> Result:
    """What a piece leaves, its bars judged."""
    result = Result(name, "stand-in", True, folder=folder)
    PIECES[name].measure(machine, result)
    assert tuple(b["bar"] for b in result.bars) == PIECES[name].bars
    kept = read(folder, name)
    assert kept is not None
    assert kept.tables.keys() == result.tables.keys() != set()
    return kept


# none of them records a step of its own
ON_THE_HOST = ("machine", "plain", "embedded", "networks")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PIECES if name not in ON_THE_HOST])
def test_every_piece_runs_on_the_stand_in_and_keeps_the_bars_that_need_no_gpu(
    name, stood, tmp_path
):
    kept = measured(name, stood, tmp_path)
    assert all(b["passed"] for b in kept.bars if b["bar"] not in bars.GPU_ONLY)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_THE_HOST)
def test_pieces_that_record_no_step_run_on_the_host(name, tmp_path):
    kept = measured(name, rehearsal(), tmp_path)
    numbers = [
        x
        for rows in kept.tables.values()
        for row in rows
        for x in row.values()
        if isinstance(x, float | int)
    ]
    assert numbers


def test_xl_gets_a_drafter_of_every_kind():
    shape = {
        "dim": 32,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": 64,
        "grid": 4,
        "caption_dim": 8,
        "cls_token_num": 4,
    }
    row = Entry(
        name="small", family="llamagen", about="", shape=shape | {"vq": SMALL_VQ}, guidance=3.0
    )
    target = shapes.with_all_drafters(LlamaGenFamily().random_target(row, "cpu", torch.float32))
    assert set(target.drafters) == {"eagle", "eagle-3", "dflash", "model", "medusa"}
    assert [
        net.misfit(target) for net in (target.drafters["model"], target.drafters["medusa"])
    ] == [None, None]
    held = sum(p.numel() for p in target.model.parameters())
    assert shapes.weights(target) > 4 * held
    # rows, layers, keys and values
    assert shapes.cache_bytes(target, 10) == 10 * 2 * 2 * 2 * 32 * 4


WRITES = """
import os, signal, sys, time
from pathlib import Path
from benchmarks.gpu.result import DONE, Result
piece, folder, fault = sys.argv[1:]
result = Result(piece, "a GPU", folder=Path(folder))
result.row("times", what="first", ms=1.5)
if fault == "raises":
    raise ValueError("no kernel image is available")
if fault == "hangs":
    time.sleep(60)
if fault == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
result.row("times", what="second", ms=2.5)
result.status = DONE
result.save()
"""
FAULTS = {"whole": "", "raising": "raises", "hanging": "hangs", "killed": "killed"}


def run(
    folder: Path, faults: dict[str, str], limit_s: float = 20.0, needs: tuple[str, ...] = ()
) -> list[Result]:
    """The pieces that are not done, each a process that writes, and then fails as it is told."""

    def measure(name: str, left_s: float) -> Result:
        command = [sys.executable, "-c", WRITES, name, str(folder), faults[name]]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        limit = 1.5 if faults[name] == "hangs" else limit_s
        return run_piece(Result(name, "a GPU", folder=folder), command, limit, needs, env)

    return list(run_all(faults, measure, lambda name: is_done(folder, name, "a GPU", False), 1.0))


@pytest.mark.slow
def test_a_piece_that_raises_hangs_or_is_killed_leaves_the_others_whole_and_is_measured_next_time(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("benchmarks.gpu.runner.GRACE_S", 0.1)
    made = {r.piece: r for r in run(tmp_path, FAULTS)}
    assert {name: r.status for name, r in made.items()} == dict.fromkeys(FAULTS, FAILED) | {
        "whole": DONE
    }
    assert "no kernel image is available" in made["raising"].said
    assert made["hanging"].said == "it took longer than 2 s"
    assert made["killed"].said == "killed by SIGKILL"
    # what was there stays
    assert all(r.tables["times"][0] == {"what": "first", "ms": 1.5} for r in made.values())
    assert (tmp_path / "raising.log").is_file()
    before = (tmp_path / "whole.json").read_bytes()
    repaired = run(tmp_path, dict.fromkeys(FAULTS, ""))
    assert [(r.piece, r.status) for r in repaired] == [(name, DONE) for name in list(FAULTS)[1:]]
    assert (tmp_path / "whole.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"{name}.json" for name in FAULTS)


def test_what_was_cut_off_or_torn_or_measured_elsewhere_is_not_done(tmp_path):
    left = Result("ar", "a GPU", folder=tmp_path)
    for status, device, done in (
        (RUNNING, "a GPU", False),
        (DONE, "another", False),
        (DONE, "a GPU", True),
    ):
        left.status, left.device = status, device
        left.save()
        assert is_done(tmp_path, "ar", "a GPU", False) == done
    assert not is_done(tmp_path, "ar", "a GPU", True)
    whole = (tmp_path / "ar.json").read_bytes()
    (tmp_path / "ar.json").write_bytes(whole[: len(whole) // 2])
    assert not is_done(tmp_path, "ar", "a GPU", False)


def test_a_piece_that_lacks_a_package_says_so_and_is_not_started(tmp_path):
    (made,) = run(tmp_path, {"whole": ""}, needs=("no_such_package", "torch"))
    assert made.said == "not started: this machine lacks no_such_package"
    assert made.tables == {}


def test_no_piece_is_begun_when_the_time_is_up(tmp_path):
    begun = []
    assert (
        list(run_all(["a", "b"], lambda name, left: begun.append(name), lambda name: False, 0.0))
        == []
    )  # type: ignore[arg-type,func-returns-value]
    assert begun == []


def test_the_report_says_not_measured_until_it_is_and_puts_what_is_expected_beside_it(tmp_path):
    folder = tmp_path / "gpu"
    folder.mkdir()
    text = report.write(folder).read_text()
    assert text.count("| not measured |") == sum(len(p.bars) for p in PIECES.values()) > 5
    assert "nothing below is measured" in text
    assert (ROOT / "benchmarks/results/gpu.md").is_file()
    made = Result(
        "ar",
        "NVIDIA H200",
        status=DONE,
        folder=folder,
        facts={"torch": "2.11", "commit": "abc+changes"},
    )
    made.row("one prompt", what="CUDA graphs", ms=0.75)
    made.bar(bars.SHARE, "81%", True)
    made.bar(bars.H200, "0.75 ms", None)
    cut = Result("steps", "NVIDIA H200", status=FAILED, said="killed by SIGKILL", folder=folder)
    cut.row("a step in ms", method="ar", step=0.75)
    (tmp_path / report.EXPECTED).write_text(
        '{"h100": {"ar": {"CUDA graphs": {"ms": 1}}}, "h200": {"ar": {"CUDA graphs": {"ms": 0.7}}}}'
    )
    text = report.write(folder).read_text()
    assert "on NVIDIA H200, torch 2.11, commit abc with changes." in text
    assert f"| {bars.SHARE} | 81% | pass |" in text
    assert f"| {bars.H200} | 0.75 ms | no bar on this machine |" in text
    assert f"| {bars.COOL_SD} | not measured |  |" in text
    assert "| what | ms | ms, expected |\n|---|---:|---:|\n| CUDA graphs | 0.75 | 0.7 |" in text
    assert "Not measured whole: killed by SIGKILL." in text
    assert text.count("\nNot measured.\n") == len(PIECES) - 2
    assert "rehearsal" not in text


def command(*options: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    run = [sys.executable, *python, "-m", "benchmarks.gpu", *options]
    return subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_command_measures_what_it_is_asked_for_and_a_second_call_nothing_more(tmp_path):
    out = tmp_path / "gpu"
    options = ("--rehearse", "--out", str(out))
    cut = command(*options, "--only", "machine", "--limit", "0.05")
    assert cut.returncode == 1
    assert "it took longer than 0 s" in cut.stdout
    whole = command(*options, "--only", "machine")
    assert whole.returncode == 0, whole.stderr
    before = (out / "machine.json").read_bytes()
    later = command(*options, "--minutes", "0")
    assert later.returncode == 1
    assert f"1 of {len(PIECES)} pieces are measured" in later.stdout
    assert "graphs, syncs, ar" in later.stdout
    assert (out / "machine.json").read_bytes() == before
    assert "A rehearsal in small shapes" in (tmp_path / "gpu.md").read_text()
    assert command(*options, "--only", "bread").returncode == 2


def test_a_bare_python_is_told_what_it_lacks():
    done = command(python=("-S",))
    assert done.returncode == 2
    assert "this Python lacks torch, numpy" in done.stderr
    assert "make gpu-packages" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_what_to_do(monkeypatch, capfd):
    done = command()
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "--rehearse" in done.stderr
    assert "run `lanternbench doctor --gpu` on a machine with one" in mistake(
        monkeypatch, capfd, "doctor", "--gpu"
    )


@pytest.mark.parametrize("works", [True, False])
def test_doctor_compares_recorded_steps_and_batches_with_launched_ones(
    shallow, works, monkeypatch
):
    """On the host, with a recorder that does the work again, or that hands out what it made at
    first.
    """

    def record(work, inputs):
        first = work(*inputs)
        return again(work, inputs) if works else lambda: first

    monkeypatch.setattr(gpu, "prepare_gpu", lambda device: None)
    monkeypatch.setattr(gpu, "bandwidth", lambda device: Bandwidth(3000.0, 2900.0, 10, 1))
    monkeypatch.setattr(gpu.tiny, "load", lambda **_: shallow)
    monkeypatch.setattr(gpu, "Graphs", lambda: Graphs(record))
    monkeypatch.setattr(gpu, "STEPS", 3)
    rows = gpu.check_gpu("cuda", [{"name": "a GPU", "memory_gb": 80}])
    assert rows[:2] == [("name", "a GPU", None), ("memory gb", 80, None)]
    judged = {row.item: row.ok for row in rows if row.ok is not None}
    assert set(judged) == {*(f"graphs, {name}" for name in gpu.PRESETS), "batch of 3, eagle-1"}
    assert all(ok for item, ok in judged.items() if item.startswith("graphs")) == works
