"""The Python interface as docs/python.md shows it."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from conftest import DATA, ROOT, slow_but

import lanternbench
from lanternbench.errors import UserError
from lanternbench.models import catalogue

DOC = ROOT / "docs" / "python.md"
RUN = DATA / "run_of_flat_figures"


@pytest.fixture
def in_short(small_images, monkeypatch):
    """The page on small images of two layers of the target."""
    monkeypatch.setattr(catalogue, "load_with_drafter", lambda *_, **__: small_images)


@pytest.mark.parametrize("how", slow_but(["in_short"], ["in_short", "as it stands"]))
def test_every_block_of_the_page_runs_in_a_fresh_folder(
    how, request, tmp_path, monkeypatch, capsys
):
    if how == "in_short":
        request.getfixturevalue(how)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(DOC.parents[1]))
    known: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.S)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, str(DOC), "exec"), known)
    assert all(
        (tmp_path / name).stat().st_size > 500
        for name in ("circle.png", "accepted.png", "pareto.pdf")
    )
    out = capsys.readouterr().out
    tokens = 25 if how == "in_short" else 256
    assert re.match(rf"{tokens} tokens in \d+ steps, τ = \d\.\d\d, decoded in \d+\.\d\d s\n", out)
    assert "eagle-1" in known["run"]._repr_html_()
    assert known["made"]._repr_html_().startswith('<img src="data:image/png;base64,')
    assert {path.name for path in (tmp_path / "report").iterdir()} >= {"table.md", "table.csv"}


def test_the_example_of_verification_gives_what_it_says():
    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "verification.md").read_text(), re.S
    )
    *setup, losses, right = block.strip().splitlines()
    known: dict = {}
    exec("\n".join(setup), known)
    assert repr(eval(losses, known)) in losses
    assert repr(eval(right, known)) == "True"


def test_the_frames_hold_what_the_folder_holds():
    run = lanternbench.load_run(RUN)
    assert isinstance(run.summary, pd.DataFrame)
    assert list(run.summary["label"]) == ["ar", "eagle-1", "lantern δ=0.1"]
    assert len(run.samples) == 6
    ours = run.samples[run.samples["label"] == "eagle-1"]
    theirs = run.samples[run.samples["label"] == "ar"]
    assert theirs["decode_s"].sum() / ours["decode_s"].sum() == pytest.approx(
        run.summary["speedup"][1]
    )
    assert ours["clip-tiny"].mean() == pytest.approx(run.summary["clip-tiny"][1])


def test_no_such_run_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no run 'nothing'"):
        lanternbench.load_run("nothing")


def test_a_plot_of_a_figure_that_a_run_lacks_is_one_sentence():
    with pytest.raises(UserError, match="no image-reward to plot: choose of fidelity_loss"):
        lanternbench.load_run(RUN).plot("image-reward")
