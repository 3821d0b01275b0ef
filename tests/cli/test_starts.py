"""Commands that compute nothing start without what computes: imports are counted, not seconds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DATA
from rich.cells import cell_len

from lanternbench import registry
from lanternbench.cli.listing_cmd import _methods, methods, metrics, targets
from lanternbench.methods.method import flag, named
from lanternbench.models.drafters.kinds import KINDS
from lanternbench.models.entries import catalogue, entry
from lanternbench.models.grids import size
from lanternbench.settings import Sampling

HEAVY = ("torch", "scipy", "transformers", "ray", "matplotlib", "pandas")
REPORTED = f"""
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from lanternbench.cli import interrupts
interrupts.finish = lambda code: None
from lanternbench.__main__ import main
before, found = set(), []
for args in json.loads(sys.argv[1]):
    sys.argv = ["lanternbench", *args]
    with StringIO() as text, redirect_stdout(text), redirect_stderr(text):
        main()
        said = text.getvalue()
    heavy = {{m for m in {HEAVY} if m in sys.modules}}
    found.append((said, sorted(heavy - before)))
    before |= heavy
print(json.dumps(found))
"""
Imported = dict[tuple[str, ...], tuple[str, list[str]]]


def imported(commands: list[tuple[str, ...]], folder: Path) -> Imported:
    """What each command wrote to both streams, and which heavy packages it was the first to
    import.

    One process runs them one after the other, as half a second passes before it runs the first.
    """
    for name in ("first", "second"):
        shutil.copytree(DATA / "run_of_flat_figures", folder / "results" / name)
    (folder / "wrong.yaml").write_text("methods: [egle-1]\n")
    (folder / "elsewhere.yaml").write_text("methods: [ar]\ntarget: tiiny\n")
    command = [sys.executable, "-c", REPORTED, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, map(tuple, json.loads(done.stdout)), strict=True))


COMPUTE_NOTHING = [
    ("--help",),
    ("methods",),
    ("targets",),
    ("targets", "anole-7b"),
    ("metrics",),
    ("metrics", "fid"),
    ("prompts", "demo"),
    ("runs",),
    ("compare", "first", "second"),
]


@pytest.fixture(scope="module")
def of_nothing(tmp_path_factory) -> Imported:
    return imported(COMPUTE_NOTHING, tmp_path_factory.mktemp("nothing"))


@pytest.mark.parametrize("args", COMPUTE_NOTHING, ids=" ".join)
def test_a_command_that_computes_nothing_imports_nothing_that_computes(args, of_nothing):
    text, heavy = of_nothing[args]
    assert "lanternbench: " not in text  # what an error begins with
    assert text
    assert heavy == []


WRONG = (
    (("run", "-m", "egle-1"), "did you mean 'eagle-1'?"),
    (("run", "--method=block"), "'block' is an acceptance rule"),
    (("run", "-m", "ar", "--target", "tiiny"), "did you mean 'tiny'?"),
    (("tune", "-m", "egle-1"), "did you mean 'eagle-1'?"),
    (("verify", "egle-1"), "did you mean 'eagle-1'?"),
    (("sweep", "wrong.yaml"), "did you mean 'eagle-1'?"),
    (("sweep", "elsewhere.yaml"), "did you mean 'tiny'?"),
)


@pytest.fixture(scope="module")
def of_wrong(tmp_path_factory) -> Imported:
    return imported([args for args, _ in WRONG], tmp_path_factory.mktemp("wrong"))


@pytest.mark.parametrize(
    ("args", "said"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_names_are_checked_before_torch_is_imported(args, said, of_wrong):
    text, heavy = of_wrong[args]
    assert said in text
    assert "torch" not in heavy


def test_presets_say_what_their_components_say():
    presets = registry.components("preset")
    assert {n: p.lossless for n, p in presets.items() if n in registry._components["preset"]} == {
        name: named(name).lossless for name in presets
    }


@pytest.mark.parametrize("name", list(registry.components("preset")))
def test_a_methods_page_has_every_option_that_it_reads_in_80_columns(name, capsys):
    methods(name)
    text = capsys.readouterr().out
    assert max(map(cell_len, text.splitlines())) <= 80
    assert all(f"--{flag(option).replace('_', '-')}" in text for option in named(name).read)
    assert registry.component("preset", name).paper in text


def test_a_methods_page_says_symbol_default_and_bounds(capsys):
    methods("lantern++")
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith(" --lambda"))
    assert line.split()[:4] == ["--lambda", "λ", "2.0", "component"]
    assert "≥ 1, ≤ 1000" in line
    (line,) = (line for line in lines if line.startswith(" --shape"))
    assert line.split()[1:3] == ["–", "target"]


@pytest.mark.parametrize("name", list(catalogue()))
def test_a_targets_page_is_whole_in_80_columns(name, capsys):
    targets(name)
    text = capsys.readouterr().out
    found, words = entry(name), " ".join(text.split())
    assert max(map(cell_len, text.splitlines())) <= 80
    assert found.licence in words
    assert f"guidance (CFG) {found.guidance:g} " in words
    assert f"{sum(map(size, found.all_grids)):,} an image" in words
    assert all(source.repo in words for source in found.files.values())
    assert all(method in words for method in registry.components("preset"))


def test_a_targets_page_says_which_methods_need_a_drafter(target):
    bundled = {kind.name for kind in KINDS.values() if kind.is_bundled}
    assert bundled == set(target.drafters) < set(KINDS)
    for name, preset in registry.components("preset").items():
        needed = registry.component("proposal", preset.choices.proposal).drafter_kind
        assert needed == (preset.choices.proposal if preset.choices.proposal in KINDS else None), (
            name
        )
    assert target.sampling == entry("tiny").part(Sampling)
    ready, given, never = _methods(["eagle"])
    assert ("eagle-2" in ready, "sjd" in ready, given, never) == (
        True,
        True,
        "sd, eagle-3, dflash, flashar",
        "medusa",
    )


@pytest.mark.parametrize("name", list(registry.components("metric")))
def test_a_metrics_page_is_whole_in_80_columns(name, capsys):
    metrics(name)
    text, kind = capsys.readouterr().out, registry.component("metric", name)
    words = " ".join(text.split())
    assert max(map(cell_len, text.splitlines())) <= 80
    assert kind.paper
    assert kind.paper in words
    assert f"better {'higher' if kind.higher_is_better else 'lower'} " in words
    assert all(weights.title in words for weights in kind.weights)
    needs_files = kind.weights or ":" in name
    if needs_files:
        assert kind.embedded or f"lanternbench fetch {name}" in words
    else:
        assert "get them it needs none" in words


@pytest.mark.parametrize("kind", ["proposal", "tree", "acceptance", "target"])
def test_every_component_is_listed_with_its_module(kind):
    assert all(registry.components(kind)[name] for name in registry._modules(kind))
    ours = {
        n
        for n, c in registry._components[kind].items()
        if c.__module__.startswith("lanternbench.")
    }
    assert ours == set(registry._modules(kind))


@pytest.mark.slow
def test_what_torch_traces_and_compiles_with_is_not_imported_to_decode():
    code = "import sys, lanternbench"
    code += "; lanternbench.load('tiny', 'cpu'); sys.exit(bool({'torch._dynamo', 'sympy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


class Plugin:
    """An entry point that counts its loads and registers a component of its name."""

    def __init__(self, name: str, loaded: list[str]):
        self.name, self.value, self.loaded = name, f"{name}_module", loaded

    def load(self) -> None:
        self.loaded.append(self.name)
        registry.register("residual", self.name)(lambda q, p, x, depth, rule: q)


def test_a_plug_in_is_loaded_when_its_component_is_used_and_found_by_its_name(monkeypatch):
    loaded: list[str] = []
    residuals = registry.components("residual")
    points = (Plugin("first", loaded), Plugin("second", loaded))
    with registry.temporary():
        monkeypatch.setattr(registry, "plugins", lambda: points)
        assert registry.component("residual", "standard")
        assert loaded == []
        assert registry.component("residual", "second")
        assert loaded == ["second"]
        assert list(residuals)[-2:] == ["second", "first"]


def test_plug_ins_are_looked_for_once_a_process(monkeypatch):
    looked: list[str] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: looked.append(group) or [])
    registry.plugins.cache_clear()
    try:
        for kind in ("residual", "metric", "preset"):
            assert "nobody's" not in registry.components(kind)
            assert list(registry.components(kind))
    finally:
        registry.plugins.cache_clear()
    assert looked == [registry.PLUGINS]
