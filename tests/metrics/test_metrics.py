"""Metrics: CLIP score, FID, robust image reading, and what is said when something is missing."""

from __future__ import annotations

import io
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.embedded_world import retrieval
from lanternbench.errors import UserError
from lanternbench.metrics import (
    ImageMetric,
    SetMetric,
    Setup,
    column,
    columns,
    files,
    names,
    read_image,
    scorers_for,
)
from lanternbench.metrics.clip import Encoder
from lanternbench.metrics.feature_metric import Fid
from lanternbench.metrics.features import Net, features, inception, inception_net, plain_image
from lanternbench.metrics.set_distances import Moments
from tools.train_tiny import data, scenes

SEED = 4242  # scenes that no training saw


@pytest.fixture(scope="module")
def world() -> tuple[list[Image.Image], list[str]]:
    """64 scenes with captions all different, and their images."""
    found = {data.scene(i, SEED).captions()[0]: i for i in range(80)}
    picked = list(found.items())[:64]
    return [Image.fromarray(scenes.sample(SEED, i)[0]) for _, i in picked], [c for c, _ in picked]


def metric(name: str, setup: Setup | None = None):
    return scorers_for([name], "full", setup)[0]


def distance(net: Net, real: list[Image.Image], images: list[Image.Image]):
    """FID of images, all features from ``net``."""
    scorer = metric("fid")
    scorer.net, scorer.real = net, Moments.of(features(net, real))
    return scorer.compute(images)


def _saved(tmp_path, image: Image.Image, name: str, **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


# CLIP


def test_clip_tiny_finds_the_right_caption_among_64(world):
    assert retrieval(*world) >= 0.9


def test_clip_tiny_finds_nothing_when_captions_are_shifted(world):
    images, captions = world
    assert retrieval(images, captions[1:] + captions[:1]) <= 0.1


def test_clip_tiny_scores_the_own_caption_higher_and_is_a_cosine(world):
    images, captions = world
    scorer = metric("clip-tiny")
    own, other = scorer.score(images, captions), scorer.score(images, captions[1:] + captions[:1])
    assert all(-1 <= v <= 1 for v in own + other)
    assert np.mean(own) > np.mean(other) + 0.2


def test_clip_tiny_values_do_not_depend_on_the_batch(world):
    images, captions = world
    scorer = metric("clip-tiny")
    alone = [scorer.score([i], [c])[0] for i, c in zip(images[:3], captions[:3], strict=True)]
    assert alone == pytest.approx(scorer.score(images, captions)[:3], abs=1e-5)


@pytest.mark.parametrize(
    "caption", ["", "   ", "🦊🌈", "красный круг", "円" * 500, "\u0000\ud800", "a " * 5000]
)
def test_clip_tiny_takes_any_caption_and_any_size(caption):
    (value,) = metric("clip-tiny").score([Image.new("RGB", (1, 300), "red")], [caption])
    assert value is not None
    assert math.isfinite(value)


def test_clip_score_of_nothing_is_nothing_and_lengths_must_agree():
    assert metric("clip-tiny").score([], []) == []
    with pytest.raises(ValueError, match="1 images but 0 captions"):
        metric("clip-tiny").score([Image.new("RGB", (2, 2))], [])


def test_undefined_cosine_is_missing_not_zero():
    class Broken:
        def encode_image(self, x):
            return torch.full((len(x), 2), float("nan"))

        encode_text = encode_image

    encoder = Encoder(
        Broken(),
        lambda images: torch.zeros(len(images), 1),
        lambda captions: torch.zeros(len(captions)),
    )

    class Score(ImageMetric):
        def load(self):
            return encoder.cosine

    scorer = Score("x", Setup())
    assert scorer.score([Image.new("RGB", (2, 2))], ["a"]) == [None]


def test_missing_clip_weights_are_reported_with_the_command_and_scored_none(no_caches):
    scorer = metric("clip")
    assert "`lanternbench fetch clip` gets" in scorer.available().text
    assert scorer.score([Image.new("RGB", (2, 2))], ["a"]) == [None]


@pytest.mark.parametrize("name", ["ViT-B-32.pt", "open_clip_model.safetensors"])
def test_a_wrong_clip_file_is_a_users_mistake(no_caches, put_weights, name):
    wrong = no_caches / name
    wrong.write_bytes(b"not weights")
    put_weights({"clip": wrong})
    with pytest.raises(UserError, match="is not the CLIP ViT-B/32 file"):
        metric("clip").score([Image.new("RGB", (2, 2))], ["a"])


# FID


def test_fid_tiny_orders_sets_by_how_far_they_are_from_real_scenes(world):
    images, _ = world
    scorer = metric("fid-tiny")
    rng = np.random.default_rng(0)
    noisy = [
        Image.fromarray(
            np.clip(np.asarray(i) + rng.normal(0, 40, (64, 64, 3)), 0, 255).astype("u1")
        )
        for i in images
    ]
    real, worse, grey = (
        scorer.score_set(s) for s in (images, noisy, [Image.new("RGB", (64, 64), "gray")] * 64)
    )
    assert 0 <= real.value < worse.value < grey.value
    assert real.count == 64


def test_fid_says_when_samples_are_few_and_needs_two(world):
    images, _ = world
    scorer = metric("fid-tiny")
    assert "biased" in scorer.score_set(images[:10]).note.text
    alone = scorer.score_set(images[:1])
    assert alone.value is None
    assert "at least 2" in alone.note.text
    assert scorer.score_set([]).value is None


def test_fid_from_stored_statistics_is_torchmetrics_from_images(world):
    from torchmetrics.image.fid import FrechetInceptionDistance

    images, _ = world
    net = Net(_mean_net(), plain_image)
    metric = FrechetInceptionDistance(feature=net.module)
    batch = [torch.stack([plain_image(i) for i in part]) for part in (images[:30], images[30:])]
    metric.update(batch[0], real=True)
    metric.update(batch[1], real=False)
    expected = float(metric.compute())
    assert distance(net, images[:30], images[30:]).value == pytest.approx(expected, rel=1e-9)


def test_fid_of_a_set_with_itself_is_zero(world):
    images, _ = world
    net = Net(_mean_net(), plain_image)
    result = distance(net, images, images)
    assert result.value == pytest.approx(0, abs=1e-4)


def _mean_net() -> torch.nn.Module:
    class Means(torch.nn.Module):
        num_features = 3

        def forward(self, x):
            return x.double().mean((2, 3))

    return Means()


def test_a_reference_folder_is_looked_at_once_and_again_when_it_changes(
    world, tmp_path, no_caches
):
    images, _ = world
    folder = tmp_path / "real"
    folder.mkdir()
    for n, image in enumerate(images[:4]):
        image.resize((32 + n, 40)).save(folder / f"{n}.png")
    (folder / "notes.txt").write_text("no image")
    means, seen = _mean_net(), []

    def real() -> Moments:
        scorer = metric("fid", Setup(folder))
        scorer.net = Net(lambda x: seen.extend(x) or means(x).float(), plain_image, "means")
        return scorer.real

    first = real()
    assert (first.count, len(seen)) == (4, 4)
    assert torch.equal(real().covariance, first.covariance)
    assert len(seen) == 4
    images[5].save(folder / "more.png")
    assert (real().count, len(seen)) == (5, 4 + 5)


def test_missing_inception_and_missing_reference_are_reported(no_caches, put_weights):
    assert "`lanternbench fetch inception` gets" in metric("fid").available().text
    result = metric("fid").score_set([Image.new("RGB", (8, 8))] * 3)
    assert result.value is None
    assert "Inception" in result.note.text
    weights = no_caches / "inception.pth"
    weights.write_bytes(b"x")
    put_weights({"inception": weights})
    assert "--reference" in metric("fid").available().text


def test_an_inception_file_that_would_run_code_is_refused(no_caches, put_weights, world):
    class Harm:
        def __reduce__(self):
            return (open, (str(no_caches / "harmed"), "w"))

    weights, folder = no_caches / "inception.pth", no_caches / "real"
    torch.save({"a": Harm()}, weights)
    folder.mkdir()
    for n, image in enumerate(world[0][:2]):
        image.save(folder / f"{n}.png")
    put_weights({"inception": weights})
    with pytest.raises(UserError, match="is not the Inception-V3 file"):
        metric("fid", Setup(folder)).score_set(world[0][:2])
    assert not (no_caches / "harmed").exists()


@pytest.mark.parametrize("place", ["cache", "torch/hub/checkpoints"])
def test_inception_is_found_under_pytorch_fids_name(no_caches, place):
    path = no_caches / place / "pt_inception-2015-12-05-6726825d.pth"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    assert files.published("inception")[0].find() == path


def test_an_inception_file_of_another_digest_is_refused(no_caches, put_weights):
    weights = no_caches / "weights-inception-2015-12-05-6726825d.pth"
    torch.save(inception(None).state_dict(), weights)
    put_weights({"inception": weights})
    with pytest.raises(UserError, match=r"the Inception-V3 file \(its SHA-256 is .*6726825d…"):
        inception_net(Setup())


# the registry


def test_names_on_the_tiny_world_mean_the_embedded_evaluators():
    assert [s.name for s in scorers_for(["fid", "clip", "clip-tiny"], "tiny")] == [
        "fid-tiny",
        "clip-tiny",
    ]
    assert [s.name for s in scorers_for(["clip", "fid"], "full")] == ["clip", "fid"]
    assert [s.name for s in scorers_for(None, "tiny")] == ["clip-tiny", "fid-tiny"]


def test_scorers_are_what_the_protocols_say():
    clip, fid = scorers_for(["clip", "fid"], "tiny")
    assert isinstance(clip, ImageMetric)
    assert isinstance(fid, SetMetric)
    assert not isinstance(clip, SetMetric)
    assert isinstance(fid, Fid)


def test_an_unknown_metric_is_a_users_mistake_with_a_suggestion():
    with pytest.raises(UserError, match="did you mean 'clip-tiny'"):
        scorers_for(["clip-tny"])


def test_every_column_says_how_to_title_it_and_which_way_is_better():
    known = columns()
    assert {
        known[key].higher_is_better for key in ("fid", "fid-clean", "fid-inf-tiny", "fid-random")
    } == {False}
    assert all(
        known[key].higher_is_better for key in ("clip", "recall", "precision-tiny", "image-reward")
    )
    assert (known["recall-tiny"].metric, known["recall-tiny"].title) == (
        "precision-recall-tiny",
        "Recall-tiny",
    )
    assert all(
        known[key].embedded for key in ("clip-tiny", "fid-tiny", "fid-inf-tiny", "recall-tiny")
    )
    assert not any(known[key].embedded for key in ("clip", "fid", "fid-random"))
    assert known["clip-random"].random
    assert not any(c.random and c.embedded for c in known.values())
    assert {c.metric for c in known.values()} == set(names())
    for name in ("clip:ViT-L-14/openai", "clip:ViT-L-14/openai-random"):
        assert column(name).higher_is_better
        assert column(name).random == name.endswith("random")
    assert column("something of a plug-in that is gone").higher_is_better is None


def test_the_column_of_every_scorer_is_known():
    for random in (False, True):
        for name in names():
            if not (random and columns_of(name)[0].embedded):
                scorer = metric(name, Setup(random=random))
                assert columns()[scorer.name] in scorer.columns(name, random)


def columns_of(name: str):
    return [c for c in columns().values() if c.metric == name]


def test_importing_the_metrics_imports_no_network_library():
    code = "import sys, lanternbench.metrics, lanternbench.prompts; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "lanternbench.metrics.clip" in loaded
    assert not {"torch", "transformers", "torchmetrics", "open_clip", "timm", "matplotlib"} & set(
        loaded
    )


def test_missing_embedded_weights_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "WEIGHTS", tmp_path)
    for scorer in scorers_for(None, "tiny"):
        assert "lanternbench train tiny" in scorer.available().text


# reading images


def _pixel(path) -> tuple[int, ...]:
    image = read_image(path)
    assert image.mode == "RGB"
    return image.getpixel((0, 0))


@pytest.mark.parametrize(
    ("image", "name", "expected"),
    [
        (Image.new("L", (4, 4), 100), "grey.png", (100, 100, 100)),
        (Image.new("1", (4, 4), 1), "bits.png", (255, 255, 255)),
        (Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "cmyk.tif", (255, 0, 0)),
        (Image.new("RGB", (4, 4), (9, 200, 30)).quantize(4), "palette.png", (9, 200, 30)),
        (Image.fromarray(np.full((4, 4), 128 * 257, np.uint16)), "deep.png", (128, 128, 128)),
        (Image.fromarray(np.full((4, 4), 0.5, np.float32)), "float.tif", (128, 128, 128)),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "clear.png", (255, 255, 255)),
        (Image.new("LA", (4, 4), (0, 0)), "clear-grey.png", (255, 255, 255)),
        (Image.new("RGB", (1, 1), (1, 2, 3)), "pixel.png", (1, 2, 3)),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_any_kind_of_image_is_read_as_rgb(tmp_path, image, name, expected):
    assert _pixel(_saved(tmp_path, image, name)) == pytest.approx(expected, abs=1)


def test_a_transparent_palette_colour_is_white(tmp_path):
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30] * 256)
    assert _pixel(_saved(tmp_path, image, "p.png", transparency=0)) == (255, 255, 255)


def test_exif_rotation_is_applied(tmp_path):
    image = Image.new("RGB", (6, 3), "red")
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_image(_saved(tmp_path, image, "turned.jpg", exif=exif)).size == (3, 6)


def test_of_an_animation_the_first_frame_is_read(tmp_path):
    frames = [Image.new("RGB", (4, 4), c) for c in ("red", "blue")]
    path = tmp_path / "moving.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert _pixel(path) == (255, 0, 0)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif", "tiff", "bmp"])
def test_a_truncated_image_is_a_users_mistake_naming_the_file(tmp_path, kind):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(
        buffer, kind
    )
    whole = buffer.getvalue()
    for length in (0, 5, 30, len(whole) // 2):
        path = tmp_path / f"torn-{length}.{kind}"
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=f"torn-{length}"):
            read_image(path)


def test_a_missing_file_a_folder_and_a_text_are_users_mistakes(tmp_path):
    (tmp_path / "text.png").write_text("hello")
    for name in ("none.png", "", "text.png"):
        with pytest.raises(UserError):
            read_image(tmp_path / name)


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    path = _saved(tmp_path, Image.new("L", (4000, 2000)), "bomb.png")
    for limit in (5_000_000, 3_000_000):  # Pillow warns over the limit, raises over twice of it
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(UserError, match="million pixels"):
            read_image(path)
