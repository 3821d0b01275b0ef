"""A method in another package: the first example of docs/extend.md, built and installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

DOC = ROOT / "docs" / "extend.md"


def blocks() -> tuple[str, str]:
    """The document's pyproject.toml and its first example, an acceptance rule."""
    text = DOC.read_text()
    return tuple(
        re.search(rf"```{language}\n(.*?)```", text, re.S).group(1)
        for language in ("toml", "python")
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """An environment in which the document's example is installed from its source, beside a
    results folder.
    """
    folder = tmp_path_factory.mktemp("plugin")
    project, code = blocks()
    (folder / "lanternbench_peak").mkdir()
    (folder / "results").mkdir()
    (folder / "lanternbench_peak" / "__init__.py").write_text(code)
    (folder / "pyproject.toml").write_text(project)
    site = folder / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    done = subprocess.run(
        [*pip, "--target", str(site), "."], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}


def cli(env: dict[str, str], *args: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lanternbench", *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_an_installed_method_is_listed_and_runs(installed, tmp_path):
    listed = json.loads(cli(installed, "methods", "--json", cwd=tmp_path).stdout)
    assert "eagle-peak" in {m["method"] for m in listed}
    done = cli(
        installed, "run", "-m", "eagle-peak", "-n", "1", "--no-baseline", "--json", cwd=tmp_path
    )
    row = json.loads(done.stdout)["rows"][0]
    assert row["method"] == "eagle-peak"
    assert row["figures"]["fidelity_loss"]["value"] > 0  # it is not lossless, and that is seen


@pytest.mark.parametrize(
    "text",
    [
        "import nothing_of_the_kind\n",
        "import sys\nsys.exit(3)\n",
        "from lanternbench.methods.presets import preset\npreset('ar', proposal='none', tree='none')\n",
    ],
    ids=["import", "exit", "taken"],
)
def test_a_plug_in_that_cannot_be_loaded_is_one_sentence(text, tmp_path):
    info = tmp_path / "lanternbench_broken-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lanternbench-broken\nVersion: 0.1\n"
    )
    (info / "entry_points.txt").write_text(
        "[lanternbench.plugins]\nbroken = lanternbench_broken\n"
    )
    (tmp_path / "lanternbench_broken.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    for args, code in ((["run", "-m", "theirs"], 2), (["methods"], 0)):
        done = cli(environment, *args, cwd=tmp_path)
        assert done.returncode == code
        assert "the plug-in 'broken' (lanternbench_broken) cannot be loaded" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_without_it_the_method_is_unknown(tmp_path):
    done = cli(dict(os.environ), "run", "-m", "eagle-peak", "-n", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown method" in done.stderr
