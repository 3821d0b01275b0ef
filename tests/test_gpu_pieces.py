"""``make gpu`` without a GPU: every piece runs on the stand-in; what breaks costs its own figures
alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, mistake, slow_but
from fake_device import THERE, Apart

from benchmarks.gpu import bars, decoding, report, shapes
from benchmarks.gpu.__main__ import ENGINE
from benchmarks.gpu.machine import Rehearsal, again, rehearsal
from benchmarks.gpu.model import StepModel
from benchmarks.gpu.pieces import PIECES, equal, other_shapes, presets, rounding, steps
from benchmarks.gpu.result import DONE, FAILED, RUNNING, SAME, Result, read
from benchmarks.gpu.runner import is_done, run_all, run_piece
from lanternbench.costs.forward_cost import Bandwidth
from lanternbench.costs.roofline import Operators, device_model
from lanternbench.doctor import gpu
from lanternbench.errors import UserError
from lanternbench.experiment import environment
from lanternbench.methods.presets import preset
from lanternbench.methods.proposals.jacobi import Jacobi
from lanternbench.registry import register, temporary
from lanternbench.utils.graph_capture import Graphs

FEW = ["ar", "adt-tree", "cool-sd"]


class Stood(Rehearsal):
    """The stand-in of a GPU, which counts how often the host waits for it."""

    apart: Apart

    def host_waits(self, work: Callable[[], Any]) -> int:
        before = self.apart.asked
        work()
        return self.apart.asked - before


@pytest.fixture
def few_presets(monkeypatch):
    """Every preset is decoded by a rehearsal: three are enough to go through a piece."""
    for module in (equal, steps):
        monkeypatch.setattr(module, "presets", lambda: FEW)
    for module in (equal, other_shapes):
        monkeypatch.setattr(module, "EAGLE_ALONE", FEW)
    for module in (equal, rounding):
        monkeypatch.setattr(module, "GROUPED", ("ar", "cool-sd"))


@pytest.fixture
def stood(few_presets, monkeypatch):
    known = Bandwidth(30.0, 29.0, 10, 1)  # the host's is measured by the piece "machine"
    monkeypatch.setattr("benchmarks.gpu.machine.bandwidth", lambda *_: known)
    with torch.inference_mode(), Apart() as apart:
        made = Stood(str(THERE), True, apart.record)
        object.__setattr__(made, "apart", apart)
        yield made


def measured(name: str, machine: Rehearsal, folder: Path) -> Result:
    """What a piece leaves, its bars judged."""
    result = Result(name, "stand-in", True, folder=folder)
    PIECES[name].measure(machine, result)
    assert tuple(b["bar"] for b in result.bars) == PIECES[name].bars
    assert result.failures == []
    kept = read(folder, name)
    assert kept is not None
    assert kept.tables.keys() == result.tables.keys() != set()
    return kept


# none of them records a step of its own on the device
ON_THE_HOST = ("machine", "presets", "plain", "embedded", "networks")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PIECES if name not in ON_THE_HOST])
def test_every_piece_runs_on_the_stand_in_and_keeps_the_bars_that_need_no_gpu(
    name, stood, tmp_path, monkeypatch
):
    if name == "rounding":  # it asks for no length; "graphs" does
        monkeypatch.setattr(rounding, "LONG", "a word")
        monkeypatch.setattr(shapes, "LONG_GRID", 4)
    kept = measured(name, stood, tmp_path)
    assert all(b["passed"] for b in kept.bars if b["bar"] not in bars.GPU_ONLY)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_THE_HOST)
def test_pieces_that_record_no_step_run_on_the_host(name, tmp_path):
    kept = measured(name, rehearsal(), tmp_path)
    rows = [row for table in kept.tables.values() for row in table]
    assert any(isinstance(cell, float | int) for row in rows for cell in row.values())
    assert all(b["passed"] for b in kept.bars)


# what a rehearsal builds


@pytest.mark.parametrize("shape", shapes.FULL_SIZE)
def test_every_preset_that_has_its_drafter_is_built_at_every_full_size(shape):
    target = shapes.full_size(shape, "meta")
    target.prefix(["a red circle"], target.guidance)
    lacking = {name for name in decoding.presets() if decoding.lack(target, name)}
    assert lacking == (set() if shape == shapes.XL else {"sd", "medusa"})
    for name in set(decoding.presets()) - lacking:
        assert presets.built(target, name) == presets.BUILT, name


def test_every_preset_is_built_on_the_bundled_model_of_the_exact_pieces(tmp_path):
    target = shapes.bundled(rehearsal())
    result = Result("graphs", "stand-in", True, folder=tmp_path)
    assert decoding.fitting(target, decoding.presets(), result) == decoding.presets()
    assert result.tables == {}


def test_a_preset_without_its_drafter_is_left_out_and_said(tmp_path):
    target = shapes.row_ends(rehearsal())
    result = Result("graphs", "stand-in", True, folder=tmp_path)
    assert decoding.fitting(target, ["ar", "medusa"], result) == ["ar"]
    assert result.tables == {
        "left out": [{"method": "medusa", "reason": "no drafter of kind 'medusa'"}]
    }


class Unfit(Jacobi):
    """A plug-in's proposal that no target here suits."""

    def build(self, *_: object) -> Any:
        raise UserError("it needs a target of 2027")


def test_a_preset_of_a_plug_in_that_does_not_fit_stops_no_piece(tmp_path, monkeypatch):
    with temporary():
        register("proposal", "unfit")(Unfit)
        preset("unfit", "unfit", "chain", True)
        monkeypatch.setattr(equal, "presets", lambda: ["unfit", "ar"])
        result = Result("batch", "stand-in", True, folder=tmp_path)
        equal.batch(rehearsal(), result)
        result.end(PIECES["batch"].bars, 1.0)
        assert decoding.is_foreign("unfit")
    assert result.status == DONE
    assert result.tables["left out"] == [
        {"method": "unfit", "reason": "it needs a target of 2027"}
    ]
    assert result.bars == [{"bar": bars.BATCH, "value": "1 of 1 presets", "passed": True}]


# pieces can fail


def test_a_preset_that_raises_costs_its_own_row_and_the_piece_is_not_done(tmp_path, monkeypatch):
    decode = equal.decode

    def broken(decoder, *rest):
        if decoder.method.preset == "sjd":
            raise RuntimeError("no kernel image is available")
        return decode(decoder, *rest)

    monkeypatch.setattr(equal, "decode", broken)
    monkeypatch.setattr(equal, "presets", lambda: ["sjd", "ar"])
    result = Result("batch", "stand-in", True, folder=tmp_path)
    equal.batch(rehearsal(), result)
    result.end(PIECES["batch"].bars, 1.0)
    assert [row["method"] for row in next(iter(result.tables.values()))] == ["ar"]
    assert result.status == FAILED
    assert result.said == "sjd: RuntimeError: no kernel image is available"
    assert result.bars[0]["passed"] is False
    assert "no kernel image" in result.bars[0]["value"]


def test_a_piece_that_judged_nothing_is_not_done(tmp_path):
    result = Result("batch", "stand-in", True, folder=tmp_path)
    result.end(PIECES["batch"].bars, 1.0)
    assert result.status == FAILED
    assert result.said == f"nothing was judged of: {bars.BATCH}"
    result.judge(bars.BATCH, {})
    assert result.bars[-1]["passed"] is False
    result.judge(bars.BATCH, {"ar": SAME, "sjd": "prompt 0: token 3 differs"})
    assert result.bars[-1] == {
        "bar": bars.BATCH,
        "value": "1 of 2 presets (sjd: prompt 0: token 3 differs)",
        "passed": False,
    }
    assert report.broken(result) == [f"{bar['bar']}: {bar['value']}" for bar in result.bars]


def stuck(work, inputs):
    """A recorder whose replays hand out what the first call made."""
    first = work(*inputs)
    return lambda: first


@pytest.mark.parametrize("works", slow_but([False], [True, False]))
def test_recordings_that_do_not_read_their_inputs_anew_are_noticed(
    works, tmp_path, few_presets, monkeypatch
):
    monkeypatch.setattr(equal, "steps_of", lambda machine, steps: 4)
    machine = Rehearsal("cpu", True, again if works else stuck)
    result = Result("graphs", "stand-in", True, folder=tmp_path)
    equal.greedy_and_drawn(machine, result)
    equal.with_row_ends(machine, result)
    assert [bar["passed"] for bar in result.bars] == [works, works]


@pytest.mark.parametrize("works", slow_but([False], [True, False]))
def test_recordings_are_compared_in_bfloat16_by_their_distributions(
    works, tmp_path, few_presets, monkeypatch
):
    monkeypatch.setattr(rounding, "LONG", "a word")
    machine = Rehearsal("cpu", True, again if works else stuck)
    result = Result("rounding", "stand-in", True, folder=tmp_path)
    rounding.measure(machine, result)
    assert [bar["passed"] for bar in result.bars] == [works]


def test_a_torch_that_does_not_report_waits_is_noticed(tmp_path, few_presets):
    class Deaf(Rehearsal):
        def host_waits(self, work):
            work()
            return 0

    result = Result("syncs", "stand-in", True, folder=tmp_path)
    equal.syncs(Deaf("cpu", True, again), result)
    assert [bar["passed"] for bar in result.bars] == [False, True]


def test_a_grouped_decode_goes_from_one_span_to_the_next(tmp_path):
    result = Result("graphs", "stand-in", True, folder=tmp_path)
    target = shapes.grouped_queries(rehearsal())
    assert target.model.config.decoder.kv_heads < target.model.config.decoder.n_head
    decoder = decoding.decoder_of(target, "ar")
    image = decoding.decode(decoder, [equal.LONG])[0]
    assert decoding.crosses_span(decoding.slots(decoder, [equal.LONG], image))
    short = decoding.decode(decoder, ["a word"])[0]
    assert not decoding.crosses_span(decoding.slots(decoder, ["a word"], short))
    assert result.bars == []


# bars and expectations


def test_bars_and_expectations_are_one_model_of_counted_operators_and_bandwidth():
    """The step of LlamaGen-XL's ``ar`` on an H100 by hand."""
    target = shapes.full_size(shapes.XL, "meta")
    operators = Operators(layer=16, forward=30, level=0, rest=27)
    h100 = device_model("h100")
    step = StepModel(target, h100, {"ar": operators}).step("ar")
    kernels = 16 * 36 + 30 + 27
    assert step.kernels == pytest.approx(kernels)
    # weights, and keys and values of 2 rows × 512 slots
    gigabytes = (2 * 752_446_720 + 2 * 512 * 36 * 2 * 1280 * 2) / 1e9
    assert step.gigabytes == pytest.approx(gigabytes)
    distributions = 4 * 16384 * 10 / 3350e9
    ms = 1e3 * (gigabytes / 3350 + distributions + 1.5e-6 * kernels)
    assert step.ms == pytest.approx(ms)
    assert step.outside_ms == pytest.approx(1e3 * 1.5e-6 * 27)


def test_expectations_of_the_report_follow_from_the_current_model():
    """Steps of the written file, from its own kernels and bytes."""
    expected = report.expectations(ROOT / "benchmarks/results" / report.EXPECTED)
    assert set(expected) == {"A100", "H100", "H200"}
    for name, device in (("A100", "a100-80g"), ("H100", "h100"), ("H200", "h200")):
        model = device_model(device)
        for piece in ("steps", "anole", "janus"):
            rows = expected[name][piece]
            assert {"ar", "eagle-1", "cool-sd"} <= rows.keys()
            for row in rows.values():
                least = (
                    1e3 * row["gigabytes"] / model.bandwidth + 1e-3 * model.gap * row["kernels"]
                )
                assert least <= row["step"] * 1.01
                assert row["step"] <= least * 1.25


# a machine that has the listed packages alone


def required(names: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The installed distributions of these names, with all that they require."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of another platform
            continue
        requirements = found[name].requires or []
        plain = [text for text in requirements if "extra ==" not in text]
        waiting += [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in plain]
    return found


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory) -> Path:
    """An environment that holds the packages of docs/gpu.md, as links, and nothing else."""
    place = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(symlinks=True).create(place)
    (site,) = place.glob("lib/python*/site-packages")
    for distribution in required(listed()).values():
        for top in {file.parts[0] for file in distribution.files or []}:
            source = Path(str(distribution.locate_file(top)))
            if top not in ("..", "__pycache__") and source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    return place / "bin" / "python"


def listed() -> list[str]:
    """The packages that docs/gpu.md says every piece needs."""
    text = (ROOT / "docs/gpu.md").read_text()
    sentence = text[text.index("Python 3.11 or later and ") :].partition(";")[0]
    return re.findall(r"`([\w-]+)`", sentence)


def bare(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(ROOT)}
    env["OMP_NUM_THREADS"] = "1"
    run = [str(python), *arguments]
    return subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)


IMPORTS = """
import importlib.util
from benchmarks.gpu import shapes
from benchmarks.gpu.pieces import PIECES
from lanternbench.doctor import gpu
from lanternbench.experiment.environment import environment

assert importlib.util.find_spec("transformers") is None
assert importlib.util.find_spec("typer") is None
assert environment()["transformers"] is None
for piece in PIECES.values():
    if not piece.needs:
        piece.measure
target = shapes.full_size(shapes.XL, "meta")
target.prefix(["a red circle"], target.guidance)
print("imported")
"""


# several in one process, most of whose time is its start; one preset of another shape
MEASURES = """
from benchmarks.gpu.machine import rehearsal
from benchmarks.gpu.pieces import PIECES, other_shapes
from benchmarks.gpu.result import Result

other_shapes.EAGLE_ALONE = ("ar",)
for name in ("machine", "ar", "batches", "memory", "janus"):
    result = Result(name, "a rehearsal", True)
    PIECES[name].measure(rehearsal(), result)
    assert result.failures == []
    assert result.tables
    print(name)
"""


def test_the_listed_packages_are_what_the_command_asks_for():
    modules = {"pyyaml": "yaml", "pillow": "PIL"}
    assert [modules.get(name, name) for name in listed()] == list(ENGINE)


@pytest.mark.slow
def test_pieces_import_and_the_environment_is_told_with_the_listed_packages_alone(bare_python):
    done = bare(bare_python, "-c", IMPORTS)
    assert done.stdout == "imported\n", done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_doctor_checks_a_gpu_with_the_listed_packages_alone(bare_python):
    done = bare(bare_python, "-m", "lanternbench", "doctor", "--gpu")
    assert done.returncode == 2
    assert "on a machine with one" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    other = bare(bare_python, "-m", "lanternbench", "methods")
    assert other.returncode == 2
    assert "this Python lacks typer" in other.stderr
    assert len(other.stderr.splitlines()) == 1


@pytest.mark.slow
def test_pieces_run_with_the_listed_packages_alone(bare_python, tmp_path):
    done = bare(bare_python, "-c", MEASURES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "machine\nar\nbatches\nmemory\njanus\n"
    options = ["--rehearse", "--out", str(tmp_path / "gpu"), "--only", "machine"]
    done = bare(bare_python, "-m", "benchmarks.gpu", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 pieces are measured" in done.stdout


def test_what_is_not_installed_has_no_version(monkeypatch):
    def absent(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(environment.metadata, "version", absent)
    assert environment.environment()["transformers"] is None


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
    made.bar(bars.BASELINE, "0.75 ms for 0.7 ms", True)
    cut = Result("steps", "NVIDIA H200", status=FAILED, said="killed by SIGKILL", folder=folder)
    cut.row("a step in ms", method="ar", step=0.75)
    (tmp_path / report.EXPECTED).write_text(
        '{"h100": {"ar": {"CUDA graphs": {"ms": 1}}}, "h200": {"ar": {"CUDA graphs": {"ms": 0.7}}}}'
    )
    text = report.write(folder).read_text()
    assert "on NVIDIA H200, torch 2.11, commit abc with changes." in text
    assert f"| {bars.BASELINE} | 0.75 ms for 0.7 ms | pass |" in text
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
    assert "graphs, rounding, syncs, ar" in later.stdout
    assert (out / "machine.json").read_bytes() == before
    assert "A rehearsal in small shapes" in (tmp_path / "gpu.md").read_text()
    assert command(*options, "--only", "bread").returncode == 2


def test_a_bare_python_is_told_what_it_lacks():
    done = command(python=("-S",))
    assert done.returncode == 2
    assert "this Python lacks torch, numpy" in done.stderr
    assert "make gpu-packages" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_what_to_do(monkeypatch, capfd):
    done = command()
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "--rehearse" in done.stderr
    assert "run `lanternbench doctor --gpu` on a machine with one" in mistake(
        monkeypatch, capfd, "doctor", "--gpu"
    )


@pytest.mark.parametrize("works", slow_but([False], [True, False]))
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
