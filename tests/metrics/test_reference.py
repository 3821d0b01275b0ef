"""Real images: folders as they come from cameras and archives, and statistics that others wrote."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import mistake
from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics import Setup, scorers_for, set_distances
from lanternbench.metrics.features import Net, features, plain_image
from lanternbench.metrics.images import ImageFiles, images_below, images_in
from lanternbench.metrics.metric import ENOUGH
from lanternbench.metrics.reference import described, read_moments

WIDTH = 2048


def means(x: torch.Tensor) -> torch.Tensor:
    """uint8 images -> their mean colours."""
    return x.double().mean((2, 3))


def grey(shade: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new("RGB", size, (shade, shade // 2, 255 - shade))


@pytest.fixture
def folder(tmp_path):
    """Six images in sub-folders, and what other programs leave next to them."""
    root = tmp_path / "real"
    for name in ("n01/a.PNG", "n01/b.JPEG", "n02/c.Jpg", "n02/deep/d.webp", "e.png", "f.BMP"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        grey(ord(name[-5])).save(root / name)
    (root / "n01/._a.PNG").write_bytes(b"no image")
    (root / ".thumbnails").mkdir()
    grey(0).save(root / ".thumbnails/a.png")
    (root / "notes.txt").write_text("no image")
    return root


def test_images_are_found_in_subfolders_whatever_the_case_of_their_endings(folder):
    assert len(images_below(folder)) == 6
    assert [path.name for path in images_in(folder)] == ["e.png", "f.BMP"]
    assert described(folder)["images"] == 6
    assert images_below(None) == images_below(folder / "nothing") == []


def test_the_hash_of_real_images_is_of_those_in_subfolders_too(folder):
    before = described(folder)["hash"]
    (folder / ".thumbnails/a.png").unlink()
    assert described(folder)["hash"] == before
    (folder / "n01/a.PNG").rename(folder / "n02/a.PNG")
    assert described(folder)["hash"] != before


def test_a_metric_compares_with_images_in_subfolders(folder, no_caches):
    (scorer,) = scorers_for(["precision-recall-tiny"], "full", Setup(folder))
    assert scorer.available() is None
    assert scorer.score_set(ImageFiles(images_below(folder))).value == 1.0


# --- statistics ---


@pytest.fixture
def statistics(tmp_path):
    """Files as pytorch-fid and clean-fid, and as guided-diffusion, write them."""
    rng = np.random.default_rng(0)
    known = rng.normal(size=(3, WIDTH))
    spread = np.cov(known, rowvar=False)
    np.savez(tmp_path / "fid.npz", mu=known.mean(0), sigma=spread)
    guided = {"mu": known.mean(0).astype(np.float32), "sigma": spread, "mu_s": np.zeros(2023)}
    np.savez(tmp_path / "guided.NPZ.npz", **guided, sigma_s=np.zeros((9, 9)))
    (tmp_path / "guided.NPZ.npz").rename(tmp_path / "guided.NPZ")
    return known, tmp_path / "fid.npz", tmp_path / "guided.NPZ"


def test_moments_of_statistics_are_those_of_the_features(statistics):
    known, *paths = statistics
    wanted = set_distances.Moments.of(torch.from_numpy(known))
    for path, tolerance in zip(paths, (1e-12, 1e-6)):
        found = read_moments(path, WIDTH)
        assert torch.allclose(found.mean, wanted.mean, atol=tolerance)
        assert torch.allclose(found.covariance, wanted.covariance, atol=1e-12)
        assert found.count is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fid-legacy", "fid-clean", "fid"])
def test_fid_compares_with_statistics_and_says_what_they_do_not(name, statistics, no_caches):
    known, path, _ = statistics
    (scorer,) = scorers_for([name], "full", Setup(path, random=True))
    table = torch.from_numpy(known) + 0.5
    scorer.net = Net(lambda x: table[: len(x)], plain_image)
    assert scorer.available() is None
    score = scorer.score_set([grey(i) for i in range(3)])
    assert score.value == pytest.approx(WIDTH * 0.25, rel=1e-4)
    assert "3 images (fewer than 5000)" in score.note.text
    assert "real images" not in score.note.text
    scaled = "use fid-legacy for pytorch-fid's and guided-diffusion's" in score.note.text
    assert scaled == (name == "fid")
    assert described(path)["images"] is None


def test_what_looks_at_images_says_that_statistics_are_none(statistics, no_caches):
    for name in ("precision-recall", "cmmd"):
        (scorer,) = scorers_for([name], "full", Setup(statistics[1], random=True))
        assert "holds statistics, not images; give one: " in scorer.available().text
        assert scorer.score_set([grey(1)] * 3).value is None


@pytest.mark.parametrize("damage", ["text", "torn", "other", "narrow", "infinite", "objects"])
def test_a_damaged_or_other_file_of_statistics_is_a_users_mistake(damage, statistics, tmp_path):
    path = tmp_path / "bad.npz"
    whole = statistics[1].read_bytes()
    square = np.eye(WIDTH)
    if damage in ("text", "torn"):
        path.write_bytes(b"no statistics" if damage == "text" else whole[: len(whole) // 2])
    elif damage == "objects":
        np.savez(path, mu=np.array([{}], dtype=object), sigma=square)
    elif damage == "other":
        np.savez(path, arr_0=np.zeros(3))
    elif damage == "narrow":
        np.savez(path, mu=np.zeros(64), sigma=np.eye(64))
    else:
        np.savez(path, mu=np.full(WIDTH, np.nan), sigma=square)
    with pytest.raises(UserError, match=r"bad\.npz") as error:
        read_moments(path, WIDTH)
    assert len(str(error.value).splitlines()) == 1


def test_a_reference_that_is_nothing_is_a_users_mistake(tmp_path, monkeypatch, capfd):
    (tmp_path / "made").mkdir()
    grey(1).save(tmp_path / "made/a.png")
    (tmp_path / "x.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    for name in ("nowhere", "x.txt", "nowhere.npz"):
        said = mistake(monkeypatch, capfd, "score", "made", "--reference", name)
        assert f"no folder {name}: give --reference the folder of real images, or an .npz" in said


# --- cautions ---


def compared(folder, made: list[Image.Image], tmp_path) -> str:
    """What FID says of some images."""
    (scorer,) = scorers_for(["fid"], "full", Setup(folder, random=True))
    scorer.net = Net(means, plain_image)
    (tmp_path / "made").mkdir()
    for number, image in enumerate(made):
        image.save(tmp_path / f"made/{number}.png")
    note = scorer.score_set(ImageFiles(images_in(tmp_path / "made"))).note
    return note.text


def test_few_generated_and_few_real_images_are_both_cautioned(folder, tmp_path, no_caches):
    text = compared(folder, [grey(i) for i in range(4)], tmp_path)
    assert f"FID over 4 images and 6 real images (fewer than {ENOUGH})" in text
    assert "pixels" not in text


def test_few_real_images_are_cautioned_where_generated_ones_are_enough(folder, no_caches):
    (scorer,) = scorers_for(["precision-recall"], "full", Setup(folder, random=True))
    scorer.real_features = features(Net(means, plain_image), ImageFiles(images_below(folder)))
    assert scorer.few_images(ENOUGH) == (
        f"precision and recall over 6 real images (fewer than {ENOUGH}) compare only at equal "
        "numbers"
    )
    scorer.real_features = torch.zeros(ENOUGH, 3)
    assert scorer.few_images(ENOUGH) == ""


def test_other_sizes_of_generated_and_real_images_are_said(folder, tmp_path, no_caches):
    made = [grey(i, (64, 64)) for i in range(4)]
    text = compared(folder, made, tmp_path)
    assert "the generated images have 64×64 pixels, the real ones 8×8: how they were" in text
