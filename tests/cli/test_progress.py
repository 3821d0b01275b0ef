"""A long command says how far it is, in a terminal and in a log."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import pytest
import torch
from conftest import two_layers
from rich.console import Console
from rich.progress import Progress
from typer.testing import CliRunner

from lanternbench import prompts
from lanternbench.cli import output
from lanternbench.cli.main import app
from lanternbench.engine import decode as engine
from lanternbench.experiment import runner as sweeps
from lanternbench.experiment.config import sweep
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.training import drafter
from lanternbench.utils.progress import counted


@pytest.mark.parametrize("captions", [["a red circle"], ["a red circle", "a blue ring"]])
def test_every_step_tells_how_many_tokens_are_done(shallow_8x8, captions):
    told: list[tuple[int, int]] = []
    decoder = build(shallow_8x8, method("eagle-1"))
    made = engine.generate(decoder, captions, on_step=lambda *at: told.append(at))
    assert len(told) == max(g.steps for g in made)
    assert told == sorted(told)
    assert told[-1] == (64 * len(captions),) * 2


def test_without_a_terminal_every_image_is_a_line(small_images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        app, ["run", "-m", "eagle-1", "-n", "1", "--metrics", ""], catch_exceptions=False
    )
    assert done.exit_code == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert [line.split("]")[0] for line in lines] == ["[1/2", "[2/2"]
    assert {line.split("] ")[1].split(" · ")[0] for line in lines} == {"ar", "eagle-1"}
    assert all(line.endswith(" s") for line in lines)


def heard(capfd: pytest.CaptureFixture[str], line: str) -> str:
    """What stderr has got once a line of it is ``line``, which may take a busy machine a while."""
    said = ""
    while not re.search(f"^{line}$", said, re.MULTILINE):
        time.sleep(0.01)
        said += capfd.readouterr().err
    return said


@pytest.mark.usefixtures("in_time")
def test_without_a_terminal_a_long_image_is_never_silent(monkeypatch, capfd):
    monkeypatch.setattr(output, "SILENCE", 0.05)
    monkeypatch.setattr(output, "FIRST", 0.05)
    with output.display("loading") as shown:
        heard(capfd, r"loading: \d+ s so far")
        shown.show(0, 2, "ar · a red circle")
        shown.step(90, 256)
        heard(capfd, r"ar · a red circle, 90 of 256 tokens: \d+ s so far")
    capfd.readouterr()
    time.sleep(0.2)
    assert not capfd.readouterr().err  # it ends with the command


def test_a_count_of_pieces_ends_at_its_end_and_names_what_is_done(capfd):
    with output.display("tuning") as shown:
        for nodes in counted([1, 9], shown.show, lambda nodes: f"cost: {nodes} nodes"):
            assert shown.done == [1, 9].index(nodes)
    assert (shown.done, shown.of) == (2, 2)
    assert capfd.readouterr().err.splitlines() == ["[1/2] cost: 1 nodes", "[2/2] cost: 9 nodes"]


@pytest.mark.usefixtures("in_time")
def test_without_a_terminal_the_first_line_comes_soon(monkeypatch, capfd):
    monkeypatch.setattr(output, "FIRST", 0.05)
    with output.display("loading"):
        said = heard(capfd, r"loading: \d+ s so far")
    assert len(said.splitlines()) == 1


def test_a_training_tells_how_much_is_done_and_the_time_left_also_in_a_terminal(
    tmp_path, monkeypatch, capfd
):
    """Every stage: no stretch of ten times the interval is silent, though each step sleeps for a
    fifth of it.
    """
    monkeypatch.setattr(output, "FIRST", 0.05)
    monkeypatch.setattr(output, "SILENCE", 0.05)
    quick = engine.step

    def slow(*args: Any) -> Any:
        time.sleep(0.01)
        return quick(*args)

    monkeypatch.setattr(engine, "step", slow)
    monkeypatch.setattr(
        drafter, "load_unpacked", lambda *_, **__: two_layers(side=8, dtype=torch.float32)
    )
    plan = drafter.Plan("tiny", prompts.load("demo", 2), steps=3, batch=1, lr=3e-3, seed=0)
    with output.display("loading the target", bars=False, each=False) as shown:
        drafter.train(
            plan, "cpu", tmp_path / "work", tmp_path / "out", log=str, progress=shown.show
        )
    said = capfd.readouterr().err
    left = r"about \d+:\d\d:\d\d left"
    assert re.search(
        rf"^image tokens of samples: \d+ s so far, \d+/128, {left}$", said, re.MULTILINE
    )
    assert "[" not in said  # no line per step


@pytest.mark.parametrize("width", [80, 100, 160])
def test_in_a_terminal_figures_are_whole_and_long_captions_end_in_an_ellipsis(width):
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=width, color_system=None, legacy_windows=False
    )
    what = "adt-tree λ=2 · a large noisy green ring on the left on a gradient black background beside a small fox"
    with output.progress_bar(console) as bar:
        shown = output.Bars(bar, "sweep")
        shown.show(17, 1280, what)
        bar.refresh()
    line = next(line for line in reversed(out.getvalue().splitlines()) if "adt-tree" in line)
    assert re.search(r" 17/1280 \d:\d\d:\d\d -:--:--", line)
    head = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).split("\r")[-1]
    head = re.split(r"  +", head)[0]
    assert head == what or (head.endswith("…") and what.startswith(head[:-1]) and len(head) > 20)


def test_a_slow_warm_up_tells_how_far_it_is(tmp_path, monkeypatch, capfd):
    """Trees of 1,024 nodes take seconds a step on a CPU."""
    monkeypatch.setattr(output, "FIRST", 0.1)
    monkeypatch.setattr(output, "SILENCE", 0.1)
    quick = engine.step

    def slow(*args: Any) -> Any:
        time.sleep(0.1)
        return quick(*args)

    monkeypatch.setattr(engine, "step", slow)
    config = sweep({"methods": ["ar"], "num_prompts": 1, "metrics": []})

    def stop(done: int, of: int, what: str) -> None:
        shown.show(done, of, what)
        if what.startswith("ar · "):
            raise KeyboardInterrupt

    with output.display("sweep") as shown, pytest.raises(KeyboardInterrupt):
        sweeps.run(config, tmp_path, watch=sweeps.Callbacks(stop, shown.step))
    assert re.search(
        r"^warming up ar, \d+ of 256 tokens: \d+ s so far$", capfd.readouterr().err, re.MULTILINE
    )


def test_in_a_terminal_an_image_that_takes_long_gets_a_bar_of_its_tokens(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Progress(console=console, auto_refresh=False) as bar:
        shown = output.Bars(bar, "sweep")
        shown.show(0, 2, "ar · a red circle")
        shown.step(3, 256)
        assert not bar.tasks[1].visible  # quick images do not flicker
        monkeypatch.setattr(shown, "next", 0.0)
        shown.step(90, 256)
        assert (bar.tasks[1].visible, bar.tasks[1].completed, bar.tasks[1].total) == (
            True,
            90,
            256,
        )
        shown.show(1, 2, "eagle-1 · a red circle")
        assert not bar.tasks[1].visible
