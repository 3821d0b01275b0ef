"""A method in another package: the example of docs/add-a-method.md, installed as a wheel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs" / "add-a-method.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """An environment in which the document's example is installed."""
    folder = tmp_path_factory.mktemp("plugin")
    code = re.search(r"```python\n(.*?)```", DOC.read_text(), re.S).group(1)
    wheel = folder / "lanternbench_peak-0.1-py3-none-any.whl"
    info = "lanternbench_peak-0.1.dist-info"
    files = {
        "lanternbench_peak/__init__.py": code,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: lanternbench-peak\nVersion: 0.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[lanternbench.plugins]\npeak = lanternbench_peak\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    return os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}


def cli(env: dict[str, str], *args: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lanternbench", *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def test_the_example_is_at_most_thirty_lines():
    code = re.search(r"```python\n(.*?)```", DOC.read_text(), re.S).group(1)
    assert len(code.splitlines()) <= 30


def test_an_installed_method_is_listed_and_runs(installed, tmp_path):
    listed = json.loads(cli(installed, "methods", "--json", cwd=tmp_path).stdout)
    assert "eagle-peak" in {m["method"] for m in listed}
    done = cli(installed, "run", "-m", "eagle-peak", "-n", "1", "--no-baseline", "--json", cwd=tmp_path)
    row = json.loads(done.stdout)["rows"][0]
    assert row["label"] == "eagle-peak"
    assert row["figures"]["fidelity_loss"]["value"] > 0  # it is not lossless, and that is seen
    judged = cli(installed, "verify", "eagle-peak", cwd=tmp_path)
    assert judged.returncode == 0, judged.stderr + judged.stdout
    (tmp_path / "sweep.yaml").write_text(
        "{target: tiny, num_prompts: 1, methods: [{method: eagle-peak, share: [0.1, 0.9]}]}"
    )
    assert cli(installed, "sweep", "sweep.yaml", cwd=tmp_path).returncode == 0
    also = cli(installed, "run", "-m", "medusa", "--acceptance", "peak", "-n", "1", "--no-baseline", cwd=tmp_path)
    assert also.returncode == 0, also.stderr


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
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lanternbench-broken\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[lanternbench.plugins]\nbroken = lanternbench_broken\n")
    (tmp_path / "lanternbench_broken.py").write_text(text)
    done = cli(os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, "methods", cwd=tmp_path)
    assert done.returncode == 2
    assert "the plug-in 'broken' (lanternbench_broken) cannot be loaded" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_it_the_method_is_unknown(tmp_path):
    done = cli(dict(os.environ), "run", "-m", "eagle-peak", "-n", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown method" in done.stderr
