"""The embedded evaluators: what they are trained on, and that the shipped ones are small and good."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from lanternbench.metrics import files
from lanternbench.models.tiny import evaluators as embedded
from lanternbench.models.token_decoder import word_id
from lanternbench.models.vq import VQModel
from tools.train_tiny import data, evaluators, scenes
from tools.train_tiny.vq import CONFIG


@pytest.fixture(scope="module")
def vq() -> VQModel:
    torch.manual_seed(0)
    return VQModel(CONFIG).eval()


@pytest.fixture
def short(monkeypatch):
    """Training on few scenes, in small batches, without worker processes."""
    monkeypatch.setattr(evaluators, "BATCH", 8)
    monkeypatch.setattr(evaluators, "DECODED", 8)
    images = np.stack([scenes.sample(data.SEED, i)[0] for i in range(24)])
    monkeypatch.setattr(data, "images", lambda folder, count, seed=data.SEED: images[:count])


@pytest.mark.parametrize("name", ["clip", "fid"])
def test_shipped_weights_are_under_4_mb_and_say_how_they_were_made(name):
    path = files.WEIGHTS / f"{name}.safetensors"
    assert path.stat().st_size < 4e6
    with safe_open(path, "pt") as file:
        about = file.metadata()
    assert {"config", "seed", "steps", "scenes"} <= set(about)
    json.loads(about["config"])


def test_shipped_clip_tells_one_changed_word():
    clip = embedded.load_clip(files.WEIGHTS / "clip.safetensors")
    rng = np.random.default_rng(0)
    found = [data.scene(i, 99) for i in range(100)]
    x = torch.from_numpy(np.stack([scenes.sample(99, i)[0] for i in range(100)])).permute(
        0, 3, 1, 2
    )
    image = clip.encode_image(embedded.to_float(x), normalize=True)
    own, other = (
        clip.encode_text(embedded.tokenize([s.captions()[0] for s in group]), normalize=True)
        for group in (found, [evaluators.near_miss(s, rng) for s in found])
    )
    assert ((image * own).sum(1) > (image * other).sum(1)).float().mean() >= 0.9


def test_shipped_fid_reference_is_a_covariance():
    net, reference = embedded.load_feature_net(files.WEIGHTS / "fid.safetensors")
    n = int(reference["count"])
    mean = reference["total"] / n
    covariance = (reference["products"] - n * mean.outer(mean)) / (n - 1)
    assert n >= 2000
    assert reference["total"].dtype == torch.float64
    assert torch.linalg.eigvalsh(covariance).min() > -1e-6
    assert net(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape == (2, net.num_features)


def test_the_end_mark_is_the_largest_id_and_always_there():
    ids = embedded.tokenize(["a red circle", "", "word " * 100, "🦊"])
    assert ids.shape == (4, embedded.CONTEXT)
    assert (ids.max(1).values == embedded.EOT).all()
    assert ids.argmax(1).tolist() == [3, 0, embedded.CONTEXT - 1, 1]
    assert all(0 < word_id(w) < embedded.EOT for w in ("red", "", "🦊"))


def test_captions_differ_by_words_and_not_by_case():
    one, two, three = embedded.tokenize(["A Red circle", "a red circle", "a red ring"])
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


def test_attributes_name_what_the_scene_holds():
    scene = scenes.Scene("noisy", "red", (scenes.Item("ring", "blue", "small", "at the top"),))
    words = [w for group in evaluators.VOCABULARY for w in group]
    chosen = [w for w, on in zip(words, evaluators.attributes(scene).tolist(), strict=True) if on]
    assert chosen == ["noisy", "red", "ring", "blue", "small", "at the top"]


def test_a_near_miss_is_another_caption_that_shares_most_words():
    rng = np.random.default_rng(0)
    for i in range(300):
        scene = data.scene(i, 5)
        other = evaluators.near_miss(scene, rng)
        assert other.captions()[0] != scene.captions()[0]
        assert (evaluators.attributes(other) != evaluators.attributes(scene)).sum() <= 2


def test_augmentation_depends_on_its_generator_alone_and_stays_close():
    x = torch.zeros(4, 3, 64, 64)
    one, again, two = (evaluators.augment(x, np.random.default_rng(s)) for s in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    assert one.shape == x.shape
    assert one.abs().mean() < 0.2


def test_batches_are_a_function_of_the_step(tmp_path, vq, short):
    batches = evaluators.Batches(tmp_path, vq, 24, 8)
    (x, found, _), (again, _, _), (other, _, _) = batches(1, 5), batches(1, 5), batches(1, 6)
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert len(x) == len(found) == 8
    assert x.shape[1:] == (3, 64, 64)


@pytest.mark.parametrize("name", ["clip", "fid"])
def test_training_resumes_at_its_checkpoint(tmp_path, vq, short, name):
    train = getattr(evaluators, f"train_{name}")
    train(tmp_path, vq, steps=1, count=24)
    assert torch.load(tmp_path / f"{name}.pt", weights_only=True)["step"] == 1
    model = train(tmp_path, vq, steps=2, count=24)
    assert torch.load(tmp_path / f"{name}.pt", weights_only=True)["step"] == 2
    assert not model.training


def test_exported_evaluators_load_as_they_were(tmp_path):
    clip, net = embedded.build().eval(), embedded.FeatureNet().eval()
    evaluators.export_clip(clip, tmp_path, steps=1)
    evaluators.export_fid(net, tmp_path, steps=1, count=20)
    x = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    again, reference = embedded.load_feature_net(tmp_path / "fid.safetensors")
    assert int(reference["count"]) == 20
    assert torch.allclose(again(x), net(x), atol=1e-2)
    image = embedded.load_clip(tmp_path / "clip.safetensors").encode_image(embedded.to_float(x))
    assert torch.allclose(image, clip.encode_image(embedded.to_float(x)), atol=1e-2)
