"""``codebook``: what it says of a codebook is true of it."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from lanternbench.cli.main import main
from lanternbench.errors import UserError
from lanternbench.measure import code_swaps as codebook
from lanternbench.methods.acceptance.lantern import nearest
from lanternbench.models import catalogue

CAPTIONS = ["a red circle on a blue background", "$x^{2$ [bold] <b>a green star</b>"]


def test_a_token_gives_way_to_one_of_its_k_nearest_and_never_to_itself():
    codes = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    table, tokens = nearest(codes, 6), torch.arange(50).repeat(40, 1)
    swap_codes = codebook.swap_codes(tokens, table, 6, torch.Generator().manual_seed(1))
    assert not (swap_codes == tokens).any()
    for token in range(50):
        assert set(swap_codes[:, token].tolist()) == set(
            table[token, 1:].tolist()
        )  # 40 draws of 5: missed in 1 of 1,500


def test_larger_neighbourhoods_hold_more_probability_and_change_images_more(shallow):
    found = codebook.study_codebook(shallow, CAPTIONS, [2, 10, 100, shallow.vocab])
    mass, noise = [x.mass for x in found.likenesses], [x.psnr for x in found.likenesses]
    distance = [x.distance for x in found.likenesses]
    assert mass == sorted(mass)
    assert mass[-1] == pytest.approx(1, abs=1e-5)
    assert noise == sorted(noise, reverse=True)
    assert distance == sorted(distance)
    assert (found.codes, found.width) == tuple(shallow.codebook.shape)
    assert [len(row) for row in found.images] == [5, 5]


@pytest.mark.slow
def test_near_codes_are_better_substitutes_than_random_ones(target):
    near, other = (
        codebook.study_codebook(target, CAPTIONS[:1], [10], p).likenesses[0]
        for p in ("l2", "random")
    )
    assert near.psnr > other.psnr + 5
    assert near.mass > 2 * other.mass


def test_codes_that_coincide_are_counted_and_change_nothing(shallow, monkeypatch):
    half = shallow.vocab // 2
    codes = shallow.vq.quantize.embedding.weight
    monkeypatch.setattr(codes, "data", torch.cat([codes.data[:half], codes.data[:half]]))
    found = codebook.study_codebook(shallow, CAPTIONS[:1], [2])
    assert found.twins == half
    assert found.likenesses[0].psnr is None
    assert found.likenesses[0].distance == 0


@pytest.mark.parametrize("k", [1, 0, -3, 5000])
def test_a_neighbourhood_without_neighbours_is_refused(target, k):
    with pytest.raises(UserError, match="neighbours are 2 to 1024"):
        codebook.study_codebook(target, CAPTIONS, [k])


def test_the_command_prints_one_json_object_and_writes_the_picture(
    shallow_8x8, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(catalogue, "load_target", lambda *_, **__: shallow_8x8)
    out = tmp_path / "codebook.png"
    monkeypatch.setattr(
        "sys.argv",
        ["lanternbench", "codebook", "--k", "5,2", "-n", "1", "--json", "--out", str(out)],
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert [row["k"] for row in json.loads(capsys.readouterr().out)["neighbourhoods"]] == [2, 5]
    with Image.open(out) as picture:
        assert picture.width > picture.height


@pytest.mark.parametrize(
    ("given", "reason"),
    [(["--k", "2,x"], "cannot be read"), (["--out", "file/a.png"], "cannot write")],
)
def test_mistakes_are_one_sentence_before_anything_is_drawn(
    given, reason, tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").touch()
    monkeypatch.setattr(codebook, "study_codebook", lambda *_: pytest.fail("drawn"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lanternbench", "codebook", "-n", "1", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("lanternbench: ")
    assert reason in said
