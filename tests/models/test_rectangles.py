"""Images need not be square: every family draws R rows of C tokens, with every kind of drafting."""

from __future__ import annotations

import pytest
import torch
from families import SMALL_VQ, small_row
from test_emu3 import VQ as EMU3_VQ

from lanternbench.engine.decode import generate
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models import catalogue
from lanternbench.models.entries import entry, family
from lanternbench.models.grids import grid_of, written
from lanternbench.models.target import Target
from lanternbench.settings import Sampling

ROWS, COLUMNS = 4, 6
CAPTIONS = ["a red ring", "a blue star on the left"]
WIDTH = {"dim": 32, "n_layer": 3, "n_head": 2, "grid": f"{ROWS}x{COLUMNS}", "vocab_size": 24}
TOKENISER = {"vq": SMALL_VQ}
IDS = WIDTH | {"hidden": 48, "prompt_ids": 8192}
SHAPES = {
    "llamagen": WIDTH | TOKENISER | {"cls_token_num": 4, "caption_dim": 8, "multiple_of": 16},
    "chameleon": IDS | TOKENISER | {"prompt_ids": 65536},
    "lumina": IDS | TOKENISER | {"prompt_ids": 65536, "dialect": "lumina"},
    "janus": IDS | TOKENISER,
    "emu3": IDS | {"n_kv_head": 1, "first_image_id": 100, "vq": EMU3_VQ},
}


@pytest.fixture(params=SHAPES, scope="module")
def rectangle(request) -> Target:
    kind = "chameleon" if request.param == "lumina" else request.param
    torch.manual_seed(0)
    return family(kind).random_target(small_row(SHAPES[request.param]), "cpu")


def tokens(
    target: Target, name: str, captions: list[str], temperature: float = 1.0
) -> list[torch.Tensor]:
    return [
        g.tokens
        for g in generate(build(target, method(name), Sampling(temperature=temperature)), captions)
    ]


@pytest.mark.parametrize("name", ["scd", "eagle-1", "cool-sd", "adt-tree"])
def test_a_rectangle_is_drawn_as_ar_draws_it_at_temperature_0(rectangle, name):
    assert rectangle.grid == (ROWS, COLUMNS)
    assert rectangle.row_width in (0, COLUMNS)
    for made, want in zip(
        tokens(rectangle, name, CAPTIONS, 0), tokens(rectangle, "ar", CAPTIONS, 0), strict=True
    ):
        assert len(made) == ROWS * COLUMNS
        assert torch.equal(made, want)


@pytest.mark.parametrize("name", ["scd", "eagle-1", "cool-sd"])
def test_a_batch_of_rectangles_is_that_of_single_prompts(rectangle, name):
    for made, caption in zip(tokens(rectangle, name, CAPTIONS), CAPTIONS, strict=True):
        assert torch.equal(made, tokens(rectangle, name, [caption])[0])


def test_row_ends_follow_every_row(rectangle):
    slots = ROWS * COLUMNS + (ROWS if rectangle.row_width else 0)
    assert rectangle.image_slots == slots


def test_grids_are_written_rows_first():
    assert [grid_of(x) for x in (4, "4", "4x6", [4, 6])] == [(4, 4), (4, 4), (4, 6), (4, 6)]
    assert written("4x6") == "4×6"
    for wrong in (0, "4x0", "4x", "4x5x6", [4, -1]):
        with pytest.raises(ValueError, match=r"."):
            grid_of(wrong)


def test_a_target_draws_the_grids_that_it_offers_and_random_weights_any():
    row = entry("lumina-mgpt-7b-768")
    assert catalogue.resized(row, "grid=36x64", random_weights=False).shape["grid"] == (36, 64)
    assert catalogue.resized(row, "layers=2,grid=3x5", random_weights=True).shape["grid"] == (3, 5)
    with pytest.raises(
        UserError,
        match="sizes without weights: add --random-weights, or name one of its grids: 36x64",
    ):
        catalogue.load_unpacked("lumina-mgpt-7b-768:grid=36x65")
    with pytest.raises(UserError, match=r"lacks its model in .*lumina-mgpt-7b-768"):
        catalogue.load_unpacked("lumina-mgpt-7b-768:grid=36x64")
