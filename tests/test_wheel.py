"""The wheel has all that the package needs, and runs outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

import lanternbench


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [
        *pip,
        "wheel",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    install = [
        *pip,
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(folder / "site"),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True, text=True)
    return folder


@pytest.mark.slow
def test_the_wheel_finds_its_sweeps_prompts_and_weights_outside_the_repository(
    installed, tmp_path
):
    environment = os.environ | {"PYTHONPATH": str(installed / "site")}
    code = (
        "from pathlib import Path; import lanternbench; from lanternbench.experiment.config import expand, read_sweeps\n"
        "from lanternbench.suite import leaderboard, protocol\n"
        "methods = expand(read_sweeps(Path('configs/demo.yaml'))[0])\n"
        "print(lanternbench.__file__, len(methods), len(protocol.names()), len(leaderboard.html_page([])) > 1000)"
    )
    options = {
        "cwd": tmp_path,
        "env": environment,
        "capture_output": True,
        "text": True,
        "timeout": 600,
    }
    where = subprocess.run([sys.executable, "-c", code], **options).stdout.split()
    assert where == [str(installed / "site" / "lanternbench" / "__init__.py"), "7", "6", "True"]
    command = [
        sys.executable,
        "-m",
        "lanternbench",
        "run",
        "-m",
        "cool-sd",
        "-n",
        "1",
        "--no-baseline",
    ]
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr
    assert "cool-sd" in done.stdout


@pytest.mark.slow
def test_the_wheel_says_where_the_makers_of_the_embedded_weights_are(installed, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(installed / "site")}
    command = [sys.executable, "-m", "lanternbench", "train", "tiny"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "tools/train_tiny" in done.stderr
    assert "checkout" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_wheel_is_typed_small_and_starts_by_its_command(installed):
    (wheel,) = installed.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (points,) = (
            archive.read(name).decode() for name in names if name.endswith("entry_points.txt")
        )
    assert f"-{lanternbench.__version__}-" in wheel.name
    assert "lanternbench/py.typed" in names
    assert "lanternbench = lanternbench.__main__:main" in points
    assert not [
        name for name in names if name.startswith(("tests", "tools", "benchmarks", "results"))
    ]
    assert wheel.stat().st_size < 60e6
