"""The rule, residual, tree, proposal and target of docs/extend.md, as one package of someone
else's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

SECTIONS = {
    "An acceptance rule": "ours_rule",
    "A residual": "ours_residual",
    "A tree": "ours_tree",
    "A proposal": "ours_proposal",
    "A target": "ours_target",
}


def example(section: str, language: str = "python") -> str:
    text = (ROOT / "docs" / "extend.md").read_text()
    return re.search(rf"^## {section}\n.*?```{language}\n(.*?)```", text, re.S | re.M).group(1)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """An environment in which all five are installed."""
    site = tmp_path_factory.mktemp("site")
    for section, module in SECTIONS.items():
        (site / f"{module}.py").write_text(example(section))
    (site / "early_exit.yaml").write_text(example("A target", "yaml"))
    info = site / "ours-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 0.1\n")
    points = "".join(f"{module} = {module}\n" for module in SECTIONS.values())
    (info / "entry_points.txt").write_text(f"[lanternbench.plugins]\n{points}")
    return os.environ | {
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
        "LANTERNBENCH_HOME": str(site / "home"),
    }


def cli(env: dict[str, str], *args: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lanternbench", *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def in_python(env: dict[str, str], code: str, cwd: Path) -> Any:
    """The JSON document that ``code`` prints in the environment of ours."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("section", SECTIONS)
def test_an_example_is_at_most_forty_lines(section):
    assert len(example(section).splitlines()) <= 40


@pytest.fixture(scope="module")
def ended(installed, tmp_path_factory) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of four commands in one process, most of whose time is its
    start.
    """
    wrong = ["run", "-m", "eagle-peak", "--share", "2", "-n", "1"]
    code = (
        "import json, sys\n"
        "from contextlib import redirect_stderr, redirect_stdout\n"
        "from io import StringIO\n"
        "from lanternbench.cli.main import main\n"
        "ended = []\n"
        f"for command in (['methods', '--json'], ['targets'], ['run', '--help'], {wrong}):\n"
        "    sys.argv = ['lanternbench', *command]\n"
        "    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:\n"
        "        try:\n            main()\n"
        "        except SystemExit as left:\n            ended.append((left.code, out.getvalue(), err.getvalue()))\n"
        "print(json.dumps(ended))\n"
    )
    return in_python(installed | {"COLUMNS": "120"}, code, tmp_path_factory.mktemp("listed"))


@pytest.mark.slow
def test_all_are_listed_with_their_options(ended):
    listed, targets, shown = (out for _, out, _ in ended[:3])
    methods = {m["method"]: m for m in json.loads(listed)}
    assert methods["eagle-peak"]["options"]["share"] == 0.3
    assert (methods["lookup"]["proposal"], methods["eagle-fan"]["tree"]) == ("lookup", "fan")
    assert methods["eagle-fan"]["lossless"]
    assert not methods["eagle-peak"]["lossless"]
    assert "tiny-16" in targets
    assert all(
        word in shown
        for word in ("--share", "--blades", "--copied", "peak", "fan", "lookup", "flat")
    )


@pytest.mark.slow
def test_all_run_in_one_sweep_on_the_target_of_ours(installed, tmp_path):
    (tmp_path / "ours.yaml").write_text(
        "target: tiny-16\nnum_prompts: 1\nmetrics: []\nbaseline: false\nmethods:\n"
        "  - {method: eagle-peak, share: [0.2, 0.5]}\n  - {method: eagle-fan, acceptance: peak, residual: flat}\n"
        "  - {method: lookup, copied: 2}\n  - {method: adt-tree, acceptance: peak}\n"
    )
    done = cli(installed, "sweep", "ours.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["label"]: row for row in json.loads(done.stdout)["rows"]}
    assert list(rows) == [
        "eagle-peak s=0.2", "eagle-peak s=0.5", "eagle-fan+peak residual=flat s=0.3", "lookup copied=2",
        "adt-tree+peak s=0.3",
    ]  # fmt: skip
    assert not any(row["lossless"] for label, row in rows.items() if "peak" in label)
    assert rows["lookup copied=2"]["lossless"]


@pytest.mark.slow
def test_a_mistake_in_an_option_of_ours_is_one_sentence(ended):
    code, _, said = ended[3]
    assert code == 2
    assert "option 'share' = 2.0 is wrong" in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.slow
def test_verify_judges_ours_by_enumeration(installed, tmp_path):
    code = (
        "import json\n"
        "from lanternbench import lossless\n"
        "from functools import partial\n"
        "from lanternbench.lossless.tables import Tables\n"
        "guided = partial(Tables, 3, 3, kind='dense', sampling=lossless.GUIDED)\n"
        "lossless.WORLDS, lossless.DECODES = (guided,), 200\n"
        "lossless.statistical.LENGTH = 4\n"
        "lossless.TREES = lossless.WINDOWS = (partial(Tables, 2, 3, kind='dense'),)\n"
        "rows = lossless.verify_all(['lookup', 'eagle-fan', 'eagle-peak'])\n"
        "print(json.dumps([row._asdict() for row in rows]))\n"
    )
    rows = in_python(installed, code, tmp_path)
    assert {row["method"] for row in rows} == {"lookup", "eagle-fan", "eagle-peak s=0.3"}
    assert all(row["passed"] for row in rows)
    assert "tables: plain definition" in {
        row["check"] for row in rows if row["method"] == "eagle-peak s=0.3"
    }
    assert {row["check"] for row in rows if row["method"] == "lookup"} == {
        "tables: exact distribution", "tables: fidelity loss of a lossless method", "tables: its other forms",
        "large tables, published sizes: token ranks", "tables: greedy identity",
        "tables: shared noise",
        "row ends: cached forward",
    }  # fmt: skip


RELAXED = {
    "annealed": {"lam": 2.0},
    "lantern++": {"lam": 3.0},
    "lantern": {"delta": 0.2},
    "exact": {},
}


@pytest.mark.slow
def test_the_proposal_of_ours_reports_the_loss_of_a_relaxed_rule(installed, tmp_path):
    """Its children are chosen, as its drafts have no p, whatever the class says."""
    code = (
        "import json, lanternbench, torch\n"
        "from lanternbench.measure.fidelity import decode_loss\n"
        "from lanternbench.engine.decode import generate\n"
        "from lanternbench.methods.build import build\n"
        "from lanternbench.methods.method import method\n"
        "target, out = lanternbench.load('tiny', device='cpu').target, {}\n"
        f"for rule, options in {RELAXED}.items():\n"
        "    decoder = build(target, method('lookup', acceptance=rule, **options))\n"
        "    one = generate(decoder, ['a large red circle'], seed=42, trace=True)[0]\n"
        "    out[rule] = float(decode_loss(decoder, one.trace, one.tokens[None])[0])\n"
        "print(json.dumps(out))\n"
    )
    loss = in_python(installed, code, tmp_path)
    assert loss.pop("exact") < 1e-5
    assert min(loss.values()) > 0.02, loss


@pytest.mark.slow
def test_verify_judges_the_loss_that_a_run_reports(installed, tmp_path):
    """A loss computed as if chosen children were sampled is 0, and verify says so."""
    code = (
        "import json\n"
        "from lanternbench import lossless\n"
        "from lanternbench.engine.trace import Trace\n"
        "from lanternbench.methods.method import method\n"
        "lossless.WORLDS = lossless.WORLDS[2:3]\n"
        "class AsIfSampled(Trace):\n"
        "    sampled = property(lambda self: (self.q.sum(-1) > -1), lambda self, value: None)\n"
        "def passed():\n"
        "    rows = lossless.verify_all([method('lookup', acceptance='annealed', lam=2.0)])\n"
        "    return {row.check: row.passed for row in rows}['tables: within the bound']\n"
        "right = passed()\n"
        "lossless.exact.Trace = AsIfSampled\n"
        "print(json.dumps({'right': right, 'as if sampled': passed()}))\n"
    )
    assert in_python(installed, code, tmp_path) == {"right": True, "as if sampled": False}
