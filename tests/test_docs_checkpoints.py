"""docs/checkpoints.md covers every family of the catalogue, and what it calls loud is an error in
the code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT

from lanternbench.registry import components
from tools.layouts import LAYOUTS, general, try_cell
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


# ---- the table of layouts ----

QUICK = ("the hub's cache, nothing named", "clones of whole repositories", "one flat folder")
QUICK_WORLD = "LlamaGen c2i"


def cells() -> dict[tuple[str, str], str]:
    """What the page says of each layout of each target."""
    table = DOC.partition("<!-- layouts: begin -->")[2].partition("<!-- layouts: end -->")[0]
    notes = dict(re.findall(r"^(\d+)\. (.*)$", table, re.M))
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line[:2] == "| "]
    titles = lines[0][1:]
    said = {}
    for layout, *texts in lines[1:]:
        for title, text in zip(titles, texts, strict=True):
            said[layout, title] = notes.get(text.strip("[]"), text)
    return said


CELLS = cells()


def cases() -> list:
    found = []
    for world in WORLDS:
        for layout in LAYOUTS:
            is_quick = layout in QUICK or world.title == QUICK_WORLD
            marks = () if is_quick else (pytest.mark.slow,)
            found.append(pytest.param(world, layout, marks=marks, id=f"{world.title}: {layout}"))
    return found


def test_the_table_has_every_layout_of_every_target_and_at_least_40_cells():
    assert CELLS.keys() == {(layout, world.title) for layout in LAYOUTS for world in WORLDS}
    assert list(CELLS.values()).count("loads") >= 40


@pytest.mark.parametrize(("world", "layout"), cases())
def test_a_layout_loads_or_is_said_to_be_what_it_is(world: World, layout: str, tmp_path: Path):
    said = try_cell(world, layout, tmp_path)
    found = said if said == "loads" else general(said)
    assert found == CELLS[layout, world.title], "run `python -m tools.layouts`"
