"""Families of targets: registered components with rows of their own, which a plug-in's family may
bring too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import slow_but
from families import SMALL_VQ
from test_anole import small

from lanternbench import registry
from lanternbench.engine import decode as engine
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models import catalogue, packing
from lanternbench.models.drafters.dflash import Medusa
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.entries import Entry
from lanternbench.models.family import Family
from lanternbench.models.target import Target
from lanternbench.settings import GREEDY

MODELS = Path(catalogue.__file__).parent


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """A family of someone else's, for as long as the test runs."""
    rows = tmp_path / "rows.yaml"
    rows.write_text(
        "theirs-1b:\n  about: somebody's target\n  licence: MIT\n  gigabytes: 2\n  guidance: 4.5\n"
    )

    class Theirs(Family):
        needs = ()

        def load(
            self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
        ) -> Target:
            return small("anole")

    Theirs.rows = rows
    catalogue.catalogue.cache_clear()
    with registry.temporary({"target": {"theirs": Theirs}}):
        yield rows
    catalogue.family.cache_clear()
    catalogue.catalogue.cache_clear()


def test_a_family_of_someone_else_s_brings_its_rows_and_decodes(plugged):
    row = catalogue.entry("theirs-1b")
    assert (row.family, row.licence, row.guidance) == ("theirs", "MIT", 4.5)
    target = catalogue.load_target("theirs-1b")
    made = engine.generate(
        build(target, method("eagle-1", shape="chain-3"), GREEDY), ["a red circle"]
    )
    assert len(made[0].tokens) == target.length


def test_two_families_cannot_have_a_target_of_the_same_name(plugged):
    plugged.write_text("anole-7b:\n  about: another\n")
    catalogue.catalogue.cache_clear()
    with pytest.raises(UserError, match="'chameleon' and 'theirs' both have a target 'anole-7b'"):
        catalogue.catalogue()


def test_no_file_outside_a_family_s_folder_names_its_classes():
    shared = [p for p in MODELS.glob("*.py") if p.name != "__init__.py"]
    for path in shared:
        for word in ("llamagen.", "chameleon.", "LlamaGen(", "Chameleon(", '== "tiny"'):
            assert word not in path.read_text(encoding="utf-8"), f"{path.name} names {word}"
    assert len(shared) > 8


def test_a_drafter_says_what_keeps_it_from_a_target(target):
    wide = small("anole").model
    width = "it is made for hidden states 32 wide, the target's are 128 wide"
    assert target.model.config.dim == 128
    assert Eagle(wide.config.decoder).misfit(target) == width
    assert Medusa(32, 3).misfit(target) == width
    assert wide.misfit(target) == "it is a Chameleon model, the target a LlamaGen"
    assert all(net.misfit(target) is None for net in target.drafters.values())


def test_packing_leaves_a_model_s_dtype_and_device_to_be_asked(target):
    assert (target.dtype, target.device) == (torch.float32, torch.device("cpu"))
    assert (packing.packed(small("anole")).dtype) == torch.float32


@pytest.mark.parametrize("name", slow_but(["llamagen-b-c2i"], ["llamagen-b-c2i", "janus-pro-1b"]))
def test_a_smaller_part_of_a_target_is_run_with_random_weights_alone(name):
    target = catalogue.load_target(f"{name}:layers=1,grid=3", random_weights=True)
    whole = catalogue.entry(name).shape
    assert (len(target.model.layers), target.length, target.model.config.dim) == (
        1,
        9,
        whole["dim"],
    )
    with pytest.raises(
        UserError, match=f"'{name}:layers=1' has sizes without weights: add --random-weights"
    ):
        catalogue.load_target(f"{name}:layers=1")
    with pytest.raises(UserError, match="unknown target"):
        catalogue.load_target(f"{name}:layers=0", random_weights=True)


TEMPLATES = {
    "llamagen-b-c2i": "{caption}",
    "anole-7b": "{caption}",
    "lumina-mgpt-7b-512": "Generate an image of 512x512 according to the following prompt:\n{caption}",
    "janus-pro-1b": "<|User|>: {caption}\n\n<|Assistant|>:",
    "emu3-gen": "{caption} masterpiece, film grained, best quality.",
}


@pytest.mark.parametrize("name", slow_but(["llamagen-b-c2i", "lumina-mgpt-7b-512"], TEMPLATES))
def test_a_target_says_what_it_puts_captions_into(name):
    row = catalogue.entry(name)
    shape = {"dim": 16, "n_layer": 1, "n_head": 2} | ({} if "llamagen" in name else {"hidden": 16})
    shape |= {"n_kv_head": 1} if row.family == "emu3" else {"vq": SMALL_VQ}
    target = catalogue.family(row.family).random_target(
        row.model_copy(update={"shape": row.shape | shape}), "cpu"
    )
    assert target.prompt_template == TEMPLATES[name]
