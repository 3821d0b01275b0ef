"""What ``fetch`` brings suffices: every target of the catalogue loads from the files that its row
names, as from whole copies of their repositories.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import slow_but

from lanternbench.errors import UserError
from lanternbench.models.catalogue import load_unpacked
from lanternbench.models.entries import Entry, catalogue, entry
from lanternbench.models.target import Target
from lanternbench.models.token_decoder import IdTokeniser, PromptFrame
from tools.layouts import alone, clones, fetched
from tools.small_targets import WORLDS, World, small_rows

ROWS = [row for row in catalogue().values() if row.files]
OPTIONAL = ("diffusion",)  # without which there are tokens and no images


def world_of(row: Entry) -> World:
    """Return who writes small repositories of a row's kind, under the row's names of files."""
    family = [world for world in WORLDS if world.row.family == row.family]
    whole = [world for world in family if world.role is None and not world.sources]
    for key in ("dialect", "model_type"):
        wanted = row.shape.get(key)
        same = [world for world in whole if catalogue()[world.name].shape.get(key) == wanted]
        whole = same or whole
    return replace(whole[0], name=row.name)


def load(world: World, place: Path) -> Target:
    return load_unpacked(f"{world.name}={place}")


NAMES = [row.name for row in ROWS]


@pytest.mark.parametrize("name", slow_but(NAMES[::4], NAMES))
def test_a_target_loads_from_what_fetch_brings_as_from_whole_repositories(name, tmp_path):
    world = world_of(catalogue()[name])
    hub = tmp_path / "hub"
    world.write(hub)
    for repository in hub.glob("*/*"):  # what nobody names changes nothing
        (repository / "notes.json").write_text("{}")
    with alone(tmp_path), small_rows(world):
        brought = fetched(world, hub, tmp_path / "place")
        target = load(world, brought)
        whole = load(world, clones(world, hub, tmp_path / "clones"))
    absent = [role for role in world.row.absent(brought) if role not in OPTIONAL]
    assert absent == []
    wanted = whole.model.state_dict()
    for key, value in target.model.state_dict().items():
        assert torch.equal(value, wanted[key]), key
    assert target.drafters.keys() == whole.drafters.keys()
    assert (target.vq is None) == (whole.vq is None)
    if isinstance(target.text, IdTokeniser) and isinstance(whole.text, IdTokeniser):
        assert target.text.encode("a red circle") == whole.text.encode("a red circle")
    if isinstance(target.condition, PromptFrame):
        assert target.condition == whole.condition


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_a_file_that_the_row_names_is_needed(name, tmp_path):
    """A row whose model's first file is left out does not load: the check above can fail."""
    world = world_of(catalogue()[name])
    hub = tmp_path / "hub"
    world.write(hub)
    model = world.row.files["model"]
    for file in sorted((hub / model.repo).glob(model.files[0])):
        if file.is_file():
            file.unlink()
    with alone(tmp_path), small_rows(world), pytest.raises(UserError):
        load(world, fetched(world, hub, tmp_path / "place"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x-omni", "FLUX.1-dev"),
        ("X-Omni-En", "FLUX.1-dev"),
        ("tar-7b", "TA-Tok"),
        ("ar-dtok", "TA-Tok"),
        ("target", "unknown target 'target'"),
    ],
)
def test_a_model_that_cannot_run_yet_is_refused_with_what_is_missing(name, says):
    with pytest.raises(UserError, match=re.escape(says)):
        entry(name)
