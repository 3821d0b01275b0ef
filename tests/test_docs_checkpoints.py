"""docs/checkpoints.md covers every family of the catalogue, and what it calls loud is an error in
the code.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from lanternbench.registry import components
from tools.layouts import LAYOUTS, current, general, recorded, try_cell
from tools.small_targets import WORLDS, World

DOC = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
HEADINGS = {"llamagen": "LlamaGen", "chameleon": "Anole", "janus": "Janus", "emu3": "Emu3"}
HEADINGS |= {"lumina-mgpt-2": "Lumina-mGPT 2.0"}
HEADINGS |= {"glm-image": "GLM-Image", "transformers": "Any model that transformers runs"}


def test_every_family_has_a_section():
    for name in components("target"):
        if name != "tiny":  # its weights come with the package, and are tested
            assert f"## {HEADINGS[name]}" in DOC


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("loading.py", "has no place"),
        ("loading.py", "it is the checkpoint of another size"),
        ("state_files.py", "it was not opened"),
        ("llamagen/checkpoint.py", "it is of another"),
        ("llamagen/checkpoint.py", "it has to be Flan-T5-XL"),
        ("chameleon/checkpoint.py", "use Lumina-mGPT"),
        ("lumina2/checkpoint.py", "other ids than "),
        ("lumina2/checkpoint.py", "names no bos_token and no eos_token"),
        ("token_decoder.py", "not every one once"),
        ("emu3/checkpoint.py", "name the target that it belongs to"),
        ("token_decoder.py", "name the target it "),
        ("glm_image/checkpoint.py", "cannot be used"),
        ("token_decoder.py", "has no token"),
        ("drafters/eagle.py", "attention heads but the target has"),
    ],
)
def test_what_is_called_loud_is_an_error(file, said):
    text = (ROOT / "lanternbench" / "models" / file).read_text(encoding="utf-8")
    assert said in text
    assert "UserError" in text


# ---- layouts ----

QUICK = ("the hub's cache, nothing named", "clones of whole repositories", "one flat folder")
QUICK_WORLD = "LlamaGen c2i"


RECORDED = recorded()


def cases() -> list:
    found = []
    for world in WORLDS:
        for layout in LAYOUTS:
            is_quick = layout in QUICK or world.title == QUICK_WORLD
            marks = () if is_quick else (pytest.mark.slow,)
            found.append(pytest.param(world, layout, marks=marks, id=f"{world.title}: {layout}"))
    return found


def test_the_record_has_every_layout_of_every_target_and_at_least_40_load():
    assert list(RECORDED) == list(LAYOUTS)
    for by_target in RECORDED.values():
        assert list(by_target) == [world.title for world in WORLDS]
    results = [said for by_target in RECORDED.values() for said in by_target.values()]
    assert results.count("loads") >= 40


def test_the_page_says_what_the_record_has():
    text, wanted = current(RECORDED)
    assert text == wanted, "run `python -m tools.layouts`"


@pytest.mark.parametrize(("world", "layout"), cases())
def test_a_layout_loads_or_is_said_to_be_what_it_is(world: World, layout: str, tmp_path: Path):
    found = general(try_cell(world, layout, tmp_path))
    assert found == RECORDED[layout][world.title], "run `python -m tools.layouts`"
