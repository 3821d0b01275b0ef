"""The metric and the prompt source of docs/extend.md, as a package of someone else's."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image

from lanternbench import registry
from lanternbench.cli.main import main

MODULES = {"our_metric": "A metric", "our_prompts": "A prompt source"}


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str


def example(section: str) -> str:
    text = (ROOT / "docs" / "extend.md").read_text()
    return re.search(rf"^## {section}\n.*?```python\n(.*?)```", text, re.S | re.M).group(1)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Iterator[None]:
    """Both examples are installed, for this process; test_extend_methods has others in processes
    of their own.
    """
    site = tmp_path_factory.mktemp("site")
    for module, section in MODULES.items():
        (site / f"{module}.py").write_text(example(section))
    info = site / "ours-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[lanternbench.plugins]\nmetric = our_metric\nprompts = our_prompts\n"
    )
    with registry.temporary(), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("LANTERNBENCH_HOME", str(site / "home"))
        registry.plugins.cache_clear()
        yield
    registry.plugins.cache_clear()
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.fixture
def cli(installed, tmp_path, monkeypatch, capfd) -> Callable[..., Done]:
    """Runs a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["lanternbench", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code or 0, *capfd.readouterr())

    return run


@pytest.mark.parametrize("section", MODULES.values())
def test_an_example_is_at_most_forty_lines(section):
    assert len(example(section).splitlines()) <= 40


def test_the_metric_scores_images_as_its_formula_says(cli, tmp_path):
    rng = np.random.default_rng(0)
    flat, noisy = np.full((16, 16, 3), 90, np.uint8), rng.integers(0, 255, (16, 16, 3), np.uint8)
    for name, pixels in (("flat", flat), ("noisy", noisy)):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "a.png")
    done = cli("score", "flat", "noisy", "--metrics", "sharpness", "--json")
    assert done.code == 0, done.stderr
    values = [
        found["rows"][0]["figures"]["sharpness"]["value"] for found in json.loads(done.stdout)
    ]
    y = np.pad(np.asarray(Image.fromarray(noisy).convert("L"), float), 1, mode="edge")
    by_hand = [
        y[i - 1, j] + y[i + 1, j] + y[i, j - 1] + y[i, j + 1] - 4 * y[i, j]
        for i in range(1, 17)
        for j in range(1, 17)
    ]
    assert values == pytest.approx([0.0, np.var(by_hand)])


def test_a_table_shows_the_metric_under_its_title(cli, tmp_path):
    Image.effect_noise((16, 16), 50).save(tmp_path / "a.png")
    said = cli("score", ".", "--metrics", "sharpness").stdout
    (line,) = [line for line in said.splitlines() if "Sharpness" in line]
    assert "." in line.split()[1]
    assert "↑" not in line


def test_the_metric_is_suggested_listed_and_not_computed_unasked(cli, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    assert "sharpness" in cli("doctor").stdout
    assert "did you mean 'sharpness'?" in cli("score", ".", "--metrics", "sharpnes").stderr
    assert "sharpness" not in cli("score", ".", "--json").stdout


def test_the_prompt_source_reads_its_official_file_and_selects_by_seed(cli, tmp_path):
    lines = "".join(f'"a red kite, number {n}",Hawks,\n' for n in range(50))
    (tmp_path / "birds.csv").write_text("Prompt,Family\n" + lines.replace(",\n", "\n"))
    spec = "birds:birds.csv"
    chosen = json.loads(cli("prompts", spec, "-n", "5", "--seed", "1", "--json").stdout)
    assert (chosen["dataset"], chosen["count"]) == ("birds", 5)
    assert {p["category"] for p in chosen["prompts"]} == {"Hawks"}
    assert [p["id"] for p in chosen["prompts"]] != [f"bird-{n}" for n in range(1, 6)]
    assert all(
        p["prompt"] == f"a red kite, number {int(p['id'][5:]) - 1}" for p in chosen["prompts"]
    )


def test_the_prompt_source_says_what_is_missing_or_wrong_in_one_sentence(cli, tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for spec, says in (
        ("birds", "lanternbench fetch birds"),
        ("birds:other.csv", "no columns Prompt and Family"),
    ):
        done = cli("prompts", spec)
        assert done.code == 2
        assert says in " ".join(done.stderr.split())
    fetched = cli("fetch", "birds", "--dry-run")
    assert "birds.csv" in fetched.stdout, fetched.stderr
