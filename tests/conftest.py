from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

# a process per core runs tests: more threads would wait for each other
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_CACHE"] = "/no-files-of-the-hub"  # those of this machine's user stay out
# or every process that a test starts would compile the package anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
import torch

from lanternbench.cli.main import main
from lanternbench.experiment import worker
from lanternbench.metrics.files import Weights
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny

sys.dont_write_bytecode = False  # nor every run the tests
ROOT = Path(__file__).resolve().parents[1]
DATA, SHARED = ROOT / "tests" / "data", ROOT.parent / "shared"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """What the tests import stays to the end: the garbage collector looks at it neither meanwhile
    nor later.
    """
    gc.disable()
    found = yield
    gc.freeze()
    gc.enable()
    return found


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for the browser or for official data carries the marker that says so."""
    for item in items:
        for fixture, marker in (("browse", "browser"), ("shared", "golden")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


def slow_but(quick: Sequence[Any], cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: all but the quick ones are marked slow."""
    slow = pytest.mark.slow
    found = [case if isinstance(case, tuple) else (case,) for case in cases]
    wanted = [case if isinstance(case, tuple) else (case,) for case in quick]
    assert all(case in found for case in wanted)
    return [pytest.param(*case, marks=() if case in wanted else slow) for case in found]


@pytest.fixture(autouse=True)
def _threads() -> None:
    torch.set_num_threads(1)  # commands under test may have asked for more


@pytest.fixture
def in_time() -> Iterator[None]:
    """No fault may make a command work or wait without end: 30 s of CPU time are the limit,
    however busy the machine.

    One that waits uses none: five minutes, which no other process makes of the second that a test
    takes.
    """

    def late(*_: object) -> None:
        raise TimeoutError("it took more than 30 s of CPU time or five minutes")

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, 30), signal.ITIMER_REAL: (signal.SIGALRM, 300)}
    before = {number: signal.signal(number, late) for number, _ in timers.values()}
    for timer, (_, seconds) in timers.items():
        signal.setitimer(timer, seconds, 30)  # again: code may take the first one for an OSError
    yield
    for timer in timers:
        signal.setitimer(timer, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def put_weights(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Path]], None]:
    """Let weights of metrics, by name, be found at these paths."""

    def put(paths: dict[str, Path]) -> None:
        find = Weights.find
        monkeypatch.setattr(
            Weights, "find", lambda weights: paths.get(weights.name) or find(weights)
        )

    return put


@pytest.fixture(scope="session")
def target() -> Target:
    """The embedded target with its drafters."""
    return tiny.load()


def two_layers(device: str = "cpu", side: int = 16, dtype: torch.dtype = torch.float64) -> Target:
    """The embedded target's first two layers; in float64 no draw hangs on how a sum of many rows
    is rounded.

    ``side``: image tokens a side, at the places of the first ones of a whole image.
    """
    target = tiny.load(device=device, dtype=dtype)
    target.model.layers = target.model.layers[:2]
    target.model.config = replace(target.model.config, n_layer=2)
    return of_side(target, side)


def of_side(target: Target, side: int) -> Target:
    """The same target, changed in place: its images have ``side`` × ``side`` tokens."""
    for model in (target.model, target.drafters["model"]):
        model.config = replace(model.config, grid=side)
    return target


def write_two_layers(folder: Path) -> None:
    """The embedded target's first two layers, with its drafters, as files for other processes."""
    shutil.copytree(tiny.WEIGHTS, folder)
    state, meta = tiny.read(tiny.WEIGHTS / "target.safetensors")
    beyond = tuple(f"layers.{i}." for i in range(2, meta["config"]["n_layer"]))
    kept = {name: weight for name, weight in state.items() if not name.startswith(beyond)}
    shallow = meta | {"config": meta["config"] | {"n_layer": 2}}
    tiny.write(folder / "target.safetensors", kept, **shallow)


@pytest.fixture(scope="session")
def target_8x8() -> Target:
    """As ``target``, all its layers, with images of 8 × 8 tokens."""
    return of_side(tiny.load(), 8)


@pytest.fixture(scope="session")
def shallow() -> Target:
    return two_layers()


@pytest.fixture(scope="session")
def shallow_8x8() -> Target:
    """As ``shallow``, with images of 8 × 8 tokens: for what can be seen on a quarter of the steps."""
    return two_layers(side=8)


@pytest.fixture(scope="session")
def shallow_5x5() -> Target:
    """As ``shallow``, with images of 5 × 5 tokens: for runs, and for tokens that must be equal."""
    return two_layers(side=5)


@pytest.fixture
def few_layers(shallow: Target, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Runs in this process load ``shallow``."""
    monkeypatch.setattr(worker, "load_with_drafter", lambda *_: shallow)
    return shallow


@pytest.fixture
def small_images(shallow_5x5: Target, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Runs in this process load ``shallow_5x5``."""
    monkeypatch.setattr(worker, "load_with_drafter", lambda *_: shallow_5x5)
    return shallow_5x5


@pytest.fixture
def two_layers_here(tmp_path, monkeypatch) -> None:
    """A folder ``shallow`` with the embedded target's first two layers, to be found by a path
    relative to this one.
    """
    write_two_layers(tmp_path / "shallow")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Official data beside the checkout; a test that needs it is skipped, loudly, where it is
    absent.
    """
    if not SHARED.is_dir():
        pytest.skip(
            f"OFFICIAL DATA ABSENT: {SHARED} is not there, so this promise was not checked"
        )
    return SHARED


@pytest.fixture
def quick_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are drawn coarsely, as .png alone: their other files and the page's stay empty."""
    from matplotlib.figure import Figure

    from lanternbench.report import style

    savefig = Figure.savefig

    def coarse(figure: Figure, file: Any, **options: Any) -> None:
        if options["format"] == "png":
            savefig(figure, file, **options | {"dpi": 20})

    monkeypatch.setattr(Figure, "savefig", coarse)
    monkeypatch.setattr(style, "page_svg", lambda plot, name: "<svg/>")


@pytest.fixture
def no_caches(tmp_path, monkeypatch):
    """A machine without any published weights."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *a, **k: None)
    return tmp_path


def interrupted(
    command: list[str], folder: Path, begun: Callable[[], bool], **options: Any
) -> str:
    """What a command says when Ctrl-C comes as soon as it has begun; it must end with exit code
    130.
    """

    def hears_ctrl_c() -> None:  # a shell's background jobs, and what they start, ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        command, cwd=folder, text=True, preexec_fn=hears_ctrl_c, **pipes, **options
    )
    try:
        while not begun():
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    return said


def mistake(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, *args: str) -> str:
    """What a command that is given wrongly says: one line, and exit code 2."""
    monkeypatch.setattr(sys, "argv", ["lanternbench", *args])
    with pytest.raises(SystemExit) as exit_:
        main()
    said = capfd.readouterr().err
    assert exit_.value.code == 2
    lines = [line for line in said.strip().splitlines() if not line.endswith(" s so far")]
    assert len(lines) == 1  # next to what a display says on a slow machine
    return said
