"""The metric and the prompt source of docs/extend.md, as a package of someone else's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image


def example(section: str) -> str:
    text = (ROOT / "docs" / "extend.md").read_text()
    return re.search(rf"^## {section}\n.*?```python\n(.*?)```", text, re.S | re.M).group(1)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """An environment in which both examples are installed."""
    site = tmp_path_factory.mktemp("site")
    (site / "our_metric.py").write_text(example("A metric"))
    (site / "our_prompts.py").write_text(example("A prompt source"))
    info = site / "ours-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[lanternbench.plugins]\nmetric = our_metric\nprompts = our_prompts\n")
    return os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "LANTERNBENCH_HOME": str(site / "home")}


def cli(env: dict[str, str], *args: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lanternbench", *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("section", ["A metric", "A prompt source"])
def test_an_example_is_at_most_forty_lines(section):
    assert len(example(section).splitlines()) <= 40


def test_the_metric_scores_images_as_its_formula_says(installed, tmp_path):
    rng = np.random.default_rng(0)
    flat, noisy = np.full((16, 16, 3), 90, np.uint8), rng.integers(0, 255, (16, 16, 3), np.uint8)
    for name, pixels in (("flat", flat), ("noisy", noisy)):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "a.png")
    done = cli(installed, "score", "flat", "noisy", "--metrics", "sharpness", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    values = [found["rows"][0]["figures"]["sharpness"]["value"] for found in json.loads(done.stdout)]
    y = np.pad(np.asarray(Image.fromarray(noisy).convert("L"), float), 1, mode="edge")
    by_hand = [
        y[i - 1, j] + y[i + 1, j] + y[i, j - 1] + y[i, j + 1] - 4 * y[i, j] for i in range(1, 17) for j in range(1, 17)
    ]
    assert values == pytest.approx([0.0, np.var(by_hand)])


def test_a_table_shows_the_metric_under_its_title(installed, tmp_path):
    Image.effect_noise((16, 16), 50).save(tmp_path / "a.png")
    said = cli(installed, "score", ".", "--metrics", "sharpness", cwd=tmp_path).stdout
    (line,) = [line for line in said.splitlines() if "Sharpness" in line]
    assert "." in line.split()[1]
    assert "↑" not in line


def test_the_metric_is_suggested_listed_and_not_computed_unasked(installed, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    assert "sharpness" in cli(installed, "doctor", cwd=tmp_path).stdout
    assert "did you mean 'sharpness'?" in cli(installed, "score", ".", "--metrics", "sharpnes", cwd=tmp_path).stderr
    assert "sharpness" not in cli(installed, "score", ".", "--json", cwd=tmp_path).stdout


def test_the_prompt_source_reads_its_official_file_and_selects_by_seed(installed, tmp_path):
    lines = "".join(f'"a red kite, number {n}",Hawks,\n' for n in range(50))
    (tmp_path / "birds.csv").write_text("Prompt,Family\n" + lines.replace(",\n", "\n"))
    spec = "birds:birds.csv"
    chosen = json.loads(cli(installed, "prompts", spec, "-n", "5", "--seed", "1", "--json", cwd=tmp_path).stdout)
    assert (chosen["dataset"], chosen["count"]) == ("birds", 5)
    assert {p["category"] for p in chosen["prompts"]} == {"Hawks"}
    assert [p["id"] for p in chosen["prompts"]] != [f"bird-{n}" for n in range(1, 6)]
    assert all(p["prompt"] == f"a red kite, number {int(p['id'][5:]) - 1}" for p in chosen["prompts"])


def test_the_prompt_source_says_what_is_missing_or_wrong_in_one_sentence(installed, tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for spec, says in (("birds", "lanternbench fetch birds"), ("birds:other.csv", "no columns Prompt and Family")):
        done = cli(installed, "prompts", spec, cwd=tmp_path)
        assert done.returncode == 2
        assert says in " ".join(done.stderr.split())
    fetched = cli(installed, "fetch", "birds", "--dry-run", cwd=tmp_path)
    assert "birds.csv" in fetched.stdout, fetched.stderr
