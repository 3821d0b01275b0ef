"""Whatever somebody else's component does, the command says one sentence that names its module."""

from __future__ import annotations

import sys

import pytest
import torch
from conftest import mistake

from lanternbench import registry
from lanternbench.cli.main import main
from lanternbench.engine.decode import generate
from lanternbench.engine.relaxed import RelaxedProb
from lanternbench.engine.verify import AcceptanceRule, RuleTest
from lanternbench.errors import UserError
from lanternbench.lossless import verify_method
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.methods.presets import preset
from lanternbench.metrics import ImageMetric, Setup
from lanternbench.models import entries
from lanternbench.prompts import Prompt, PromptSource, load

pytestmark = pytest.mark.usefixtures("in_time")


class Fatal(BaseException):
    pass


def leave() -> None:
    sys.exit(3)


def fail(error: BaseException) -> None:
    raise error


FAULTS = {
    "sys.exit": leave,
    "an error": lambda: fail(ValueError("two\nlines")),
    "a BaseException": lambda: fail(Fatal("x")),
    "None": lambda: None,
    "a word": lambda: "yes",
    "another shape": lambda: RelaxedProb(torch.zeros(3, 7)),
}


@pytest.fixture
def rule():
    """A registered acceptance rule of someone else's, whose behaviour a test sets."""
    faults: dict[str, object] = {}

    class TheirRule(AcceptanceRule):
        lossless = False

        def build(self, target, depth):
            return faults.get("build", lambda: RuleTest(self))()

        def relax(self, q, x, depth):
            return faults["relax"]()

    with registry.temporary({"acceptance": {"theirs": TheirRule}}):
        yield faults


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rule_that_fails_is_named(fault, rule, shallow):
    rule["relax"] = FAULTS[fault]
    with pytest.raises(UserError, match="the plug-in module 'test_plugin_faults' failed") as said:
        generate(
            build(shallow, method("eagle-1", acceptance="theirs")), ["a red circle"], max_steps=3
        )
    assert "\n" not in str(said.value)
    with pytest.raises(UserError, match="the plug-in module 'test_plugin_faults' failed"):
        list(verify_method(method("eagle-1", acceptance="theirs"), None, 0, 1))


@pytest.mark.parametrize("fault", ["sys.exit", "an error", "a BaseException", "None"])
def test_a_rule_that_cannot_be_built_is_named(fault, rule, shallow):
    rule["build"] = FAULTS[fault]
    with pytest.raises(UserError, match="the plug-in module 'test_plugin_faults' failed"):
        generate(
            build(shallow, method("eagle-1", acceptance="theirs")), ["a red circle"], max_steps=3
        )


def test_what_is_built_in_is_not_blamed_on_a_plug_in_and_ctrl_c_passes(rule, shallow):
    decoder = build(shallow, method("eagle-1"))
    object.__setattr__(decoder.proposer, "draft", lambda *_: fail(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        generate(decoder, ["a red circle"], max_steps=3)
    rule["relax"] = lambda: fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        generate(
            build(shallow, method("eagle-1", acceptance="theirs")), ["a red circle"], max_steps=3
        )


@pytest.mark.parametrize("name", ["ar", "eagle-2", "cool-sd"])
def test_no_preset_is_replaced(name):
    with pytest.raises(UserError, match=f"the preset '{name}' is registered already"):
        preset(name, proposal="none", tree="none")
    assert method(name).choices == registry.component("preset", name).choices


def test_a_metric_and_a_prompt_source_that_fail_are_named():
    class Broken(ImageMetric):
        title = "broken"

        def load(self):
            return lambda images, captions: None

    with pytest.raises(UserError, match="the plug-in module 'test_plugin_faults' failed"):
        Broken("broken", Setup()).score([object()], ["a"])

    class Prompts(PromptSource):
        def read(self, path, seed, caption):
            yield Prompt("1", "a")
            leave()

    failed = pytest.raises(UserError, match="the plug-in module 'test_plugin_faults' failed")
    with registry.temporary({"prompts": {"broken": Prompts}}), failed:
        load("broken")


class Odd:
    """The entry point of a plug-in that ends the process when it is loaded."""

    name, value = "odd", "odd_module"

    def load(self) -> None:
        raise SystemExit(0)


def broken():
    """A list of plug-ins with one that cannot be loaded, the same however often it is asked for."""
    points = (Odd(),)
    return lambda: points


@pytest.mark.parametrize(
    "args",
    [
        ("run", "-m", "theirs"), ("run", "-m", "eagle-1", "--acceptance", "theirs"),
        ("prompts", "theirs"), ("fetch", "theirs"), ("metrics", "theirs"),
    ],
    ids=lambda args: " ".join(args[:3]),
)  # fmt: skip
def test_a_plug_in_that_cannot_be_loaded_is_named_where_it_might_be_used(
    args, monkeypatch, capfd, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "plugins", broken())
    entries.catalogue.cache_clear()
    monkeypatch.setattr(sys, "argv", ["lanternbench", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "the plug-in 'odd' (odd_module) cannot be loaded" in capfd.readouterr().err


@pytest.mark.parametrize(
    "args",
    [("methods",), ("targets",), ("metrics",), ("sweep", "small.yaml", "--no-baseline")],
    ids=lambda args: args[0],
)
def test_a_plug_in_that_cannot_be_loaded_stops_nothing_else(
    args, small_images, monkeypatch, capfd, tmp_path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text("methods: [sjd]\nnum_prompts: 1\nmetrics: []\n")
    monkeypatch.setattr(registry, "plugins", broken())
    entries.catalogue.cache_clear()
    monkeypatch.setattr(sys, "argv", ["lanternbench", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    assert not ended.value.code
    assert out.strip()
    assert err.count("the plug-in 'odd' (odd_module) cannot be loaded (SystemExit: 0)") == 1
    assert "its components are left out" in err


@pytest.mark.parametrize("args", [("compare", "a", "b"), ("report",)])
def test_a_plug_in_is_not_loaded_where_it_is_not_used(args, monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "plugins", broken())
    assert "there is no run" in mistake(monkeypatch, capfd, *args)
