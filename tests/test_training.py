"""The embedded world can be remade from its seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lanternbench.models import text, tiny
from lanternbench.training import loop, muon, scenes
from lanternbench.training import text as text_training
from lanternbench.training.tiny import train


def test_a_scene_is_a_function_of_seed_and_index():
    image, caption, scene = scenes.sample(3, 5)
    again, same, _ = scenes.sample(3, 5)
    assert np.array_equal(image, again)
    assert caption == same
    assert caption in scene.captions()
    assert not np.array_equal(image, scenes.sample(3, 6)[0])
    assert image.shape == (64, 64, 3)


def test_scene_words_have_ids_of_their_own():
    vocabulary = {w for i in range(300) for c in scenes.sample(0, i)[2].captions() for w in text.words(c)} - {","}
    assert len({text.word_id(w) for w in vocabulary}) == len(vocabulary) > 30


@pytest.mark.parametrize(
    "caption", ["", "   ", "🦄 🌈", "كلب أحمر", "word " * 1000, "<script>alert(1)</script>", "\ud800"]
)
def test_the_text_encoder_takes_any_caption(target, caption):
    features, mask = target.text([caption])
    assert features.shape == (1, text.WORDS, text.WIDTH)
    assert bool(features.isfinite().all())
    assert int(mask.sum()) >= 1


def test_word_order_matters_to_the_text_encoder(target):
    one, two = "a small red circle and a large blue star", "a large red circle and a small blue star"
    assert not torch.allclose(target.text([one])[0], target.text([two])[0], atol=1e-2)


def test_muon_orthogonalises():
    g = torch.randn(3, 20, 50, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(muon.orthogonalise(g))
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.5


def test_training_that_was_stopped_continues_as_if_it_was_not(tmp_path):
    whole = text_training.train(tmp_path / "whole", steps=4)

    class Stop(Exception):
        pass

    def interrupt(line: str) -> None:
        raise Stop

    honest = loop.fit

    def frequent(*args, **kwargs):
        return honest(*args, **kwargs | {"save_every": 2})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "fit", frequent)
        with pytest.raises(Stop):  # after two steps and their checkpoint
            text_training.train(tmp_path / "parts", steps=4, log=interrupt)
        assert torch.load(tmp_path / "parts/text.pt")["step"] == 2
        resumed = text_training.train(tmp_path / "parts", steps=4)
    for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_all_of_it_is_remade_and_loads(tmp_path):
    train(tmp_path / "work", tmp_path / "out", scale=0.0008, log=lambda line: None)
    made = tiny.load(tmp_path / "out")
    assert set(made.drafters) == {"eagle", "medusa", "model"}
    assert {"clip.safetensors", "fid.safetensors"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert sum(p.stat().st_size for p in (tmp_path / "out").iterdir()) < 40e6
