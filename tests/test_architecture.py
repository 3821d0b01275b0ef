"""Imports point one way, no circles, files and functions stay small, the engine asks no component
for its type.
"""

from __future__ import annotations

import ast
import re
import sys
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import lanternbench
from lanternbench.cli.main import app
from lanternbench.engine import decode as engine
from lanternbench.experiment import RunFolder, read_samples, worker
from lanternbench.lossless.tables import row_end_target
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from tools import density

ROOT = Path(lanternbench.__file__).parent
# a package may import those before it; equal numbers do not import each other
LAYERS = {
    "utils": 0,
    "models": 1,
    "prompts": 1,
    "metrics": 2,
    "engine": 2,
    "methods": 3,
    "measure": 4,
    "costs": 4,
}
LAYERS |= {"lossless": 5, "training": 5, "profile": 5, "experiment": 6, "imported": 7, "report": 7}
LAYERS |= {"reproduce": 8, "suite": 8, "tune": 8, "predict": 8, "doctor": 8, "cli": 9}
LONG_FILES: set[str] = set()  # over 600 lines, with a reason beside each


@cache
def files() -> dict[str, ast.Module]:
    """Module name -> its syntax tree."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def outer(tree: ast.AST) -> list[ast.AST]:
    """Statements that run on import, those under ``if TYPE_CHECKING`` left out."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        found += [node, *outer(node)]
    return found


def imports(name: str, nodes: list[ast.AST]) -> set[str]:
    """Our modules that these statements name."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name in files()}
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{a.name}" for a in node.names}
            found |= whole & files().keys()
            if node.module in files() and not whole <= files().keys():
                found.add(node.module)
    return found - {name}


def layer(name: str) -> int | None:
    parts = name.split(".")
    return LAYERS.get(parts[1]) if len(parts) > 1 else None


def test_every_package_has_a_layer():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == LAYERS.keys()


def test_imports_point_one_way():
    wrong = []
    for name, tree in files().items():
        for other in imports(name, list(ast.walk(tree))):
            here, there = layer(name), layer(other)
            if here is None or there is None or name.split(".")[1] == other.split(".")[1]:
                continue
            if there >= here:
                wrong.append(f"{name} -> {other}")
    assert wrong == []


def test_no_files_import_each_other():
    graph = {name: imports(name, outer(tree)) for name, tree in files().items()}
    done: set[str] = set()
    circles: list[list[str]] = []

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            circles.append([*path[path.index(name) :], name])
        elif name not in done:
            for other in sorted(graph[name]):
                visit(other, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    assert circles == []


def test_files_are_short():
    sizes = {
        str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines())
        for p in ROOT.rglob("*.py")
    }
    assert {name for name, lines in sizes.items() if lines > 600} == LONG_FILES


def test_functions_have_few_parameters():
    wide = set()
    for name, tree in files().items():
        if name.startswith("lanternbench.cli"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                count = len(
                    [
                        a
                        for a in node.args.posonlyargs + node.args.args
                        if a.arg not in ("self", "cls")
                    ]
                )
                if count + len(node.args.kwonlyargs) > 8:
                    wide.add(f"{name}.{node.name}")
    assert wide == set()


def test_engine_and_methods_ask_no_component_for_its_type():
    """What remains asks about tensors, numbers and nestings of them, never about a component."""
    allowed = {
        "Tensor",
        "PerPrompt",
        "DecoderCache",
        "slice",
        "Tensor | int",
        "str",
        "float",
        "list",
        "tuple",
        "dict",
        "tuple | list",
        "tuple | list | dict",
        "int",
    }
    asked = []
    for name, tree in files().items():
        if name.startswith(("lanternbench.engine", "lanternbench.methods")):
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    "isinstance",
                    "hasattr",
                ):
                    what = ast.unparse(node.args[1])
                    if what not in allowed:
                        asked.append(f"{name}: {ast.unparse(node)}")
    assert asked == []


FILES_OF_A_STEP = 10


def files_of_a_step(target, name):
    """Our files whose functions run in one step, some steps after the beginning."""
    decoder, opened = build(target, method(name)), set()

    def hook(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            opened.add(str(Path(frame.f_code.co_filename).relative_to(ROOT)))

    with torch.inference_mode():
        state, carried = engine.begin(decoder, ["a red star"], [1])
        state.clock.start()
        for _ in range(3):
            carried, _ = engine.step(decoder, state, carried)
        sys.setprofile(hook)
        engine.step(decoder, state, carried)
        sys.setprofile(None)
    return opened


def test_a_reader_of_one_step_opens_the_files_that_the_page_lists(target):
    page = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([\w/]+\.py)`", page.partition("\n1. ")[2].partition("\n## ")[0]))
    # not every machine packs
    assert files_of_a_step(target, "eagle-1") | {"models/packing.py"} == listed
    assert len(listed) <= FILES_OF_A_STEP
    assert (
        sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in listed) <= 3400
    )


@pytest.mark.parametrize("name", ["ar", "eagle-1", "zipar"])
def test_steps_of_every_order_and_with_row_ends_are_the_same_step(name, monkeypatch):
    """One function each drafts, feeds, decides and writes, whatever the strategy."""
    target = row_end_target()
    decoder = build(target, method(name))
    called = []
    for function in ("forward", "apply"):
        honest = getattr(engine, function)

        def counted(*args, function=function, honest=honest):
            called.append(function)
            return honest(*args)

        monkeypatch.setattr(engine, function, counted)
    made = engine.generate(decoder, ["a red star"], max_steps=6)[0]
    assert called == ["forward", "apply"] * made.steps


@pytest.mark.parametrize("name", ["ar", "eagle-1", "sjd", "zipar"])
def test_a_step_of_any_order_and_with_row_ends_runs_through_ten_files(target, name):
    assert len(files_of_a_step(target, name) | {"models/packing.py"}) <= FILES_OF_A_STEP
    assert len(files_of_a_step(row_end_target(), name)) <= FILES_OF_A_STEP


def test_from_command_to_stored_sample_a_reader_opens_the_files_of_the_page(
    shallow_8x8, tmp_path, monkeypatch
):
    """The second of two runs counts, so that imports and caches do not."""
    opened = set[str]()

    def hook(frame, event, argument):
        code = frame.f_code
        if (
            event == "call"
            and code.co_filename.startswith(str(ROOT))
            and code.co_name != "<module>"
        ):
            opened.add(str(Path(code.co_filename).relative_to(ROOT)))

    def append(*args, whole=RunFolder.append):
        whole(*args)
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker, "load_with_drafter", lambda *_: shallow_8x8)
    monkeypatch.setattr(RunFolder, "append", append)
    for name, watch in (("first", None), ("second", hook)):
        sys.setprofile(watch)
        with suppress(KeyboardInterrupt):
            CliRunner().invoke(
                app, ["run", "--method", "eagle-1", "--name", name], catch_exceptions=False
            )
        sys.setprofile(None)
        (folder,) = Path("results").glob(f"{name}-*")
        assert len(read_samples(folder)) == 1
    page = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(
        r"`([\w/]+\.py)`", page.partition("\n## One sample")[2].partition("\n## ")[0]
    )
    folders = ("experiment/", "measure/", "utils/ledger.py")
    assert {file for file in opened if file.startswith(folders)} == set(listed)
    assert len(listed) <= 12


@pytest.mark.parametrize("tokens", [6, 5])
def test_a_package_over_its_token_budget_fails_lint(tokens, tmp_path, monkeypatch):
    (tmp_path / "lanternbench" / "deep").mkdir(parents=True)
    (tmp_path / "lanternbench" / "deep" / "a.py").write_text("a = 1\n\nb = 2  # two\n")
    limits = f"[tool.lanternbench.density.total]\ntokens = {tokens}\n"
    (tmp_path / "pyproject.toml").write_text(limits)
    monkeypatch.setattr(density, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["density"])
    with (
        pytest.raises(SystemExit, match="tokens is 6 and may be 5")
        if tokens < 6
        else nullcontext()
    ):
        density.main()


@pytest.mark.parametrize(
    ("code", "figure"),
    [
        ("a, b = 1, 2", "tuple_assignments"),
        ("a = 1 if b else 2", "ternaries"),
        ("a = [x for x in b]", "comprehensions"),
        ("a = [[y for y in x] for x in b]", "nested_comprehensions"),
        ("a: Any = 1", "any"),
        ("a = '" + 99 * "x" + "'", "long_lines"),
        ('def f():\n    """Which of them."""', "question_docstrings"),
        ("def f():\n" + 50 * "    a = 1\n", "functions_over_50_lines"),
        ("def f():\n" + "".join(f"    a{i} = 1\n" for i in range(16)), "functions_over_15_names"),
    ],
)
def test_each_packed_construct_is_counted(code, figure, tmp_path):
    path = tmp_path / "a.py"
    path.write_text(code + "\n")
    packed = density.measure(path).figures()
    path.write_text("a = 1\nb = 2\n")
    plain = density.measure(path).figures()
    assert packed[figure] > 0
    assert plain.get(figure, 0) == 0
