"""The embedded world can be remade from its seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import of_side

from lanternbench.models import token_decoder
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.training import loop, losses
from tools.train_tiny import drafters, rollouts, scenes
from tools.train_tiny import target as target_training
from tools.train_tiny import text as text_training
from tools.train_tiny.world import train


def test_a_scene_is_a_function_of_seed_and_index():
    image, caption, scene = scenes.sample(3, 5)
    again, same, _ = scenes.sample(3, 5)
    assert np.array_equal(image, again)
    assert caption == same
    assert caption in scene.captions()
    assert not np.array_equal(image, scenes.sample(3, 6)[0])
    assert image.shape == (64, 64, 3)


def test_scene_words_have_ids_of_their_own():
    vocabulary = {
        w
        for i in range(300)
        for c in scenes.sample(0, i)[2].captions()
        for w in token_decoder.words(c)
    } - {","}
    assert len({token_decoder.word_id(w) for w in vocabulary}) == len(vocabulary) > 30


@pytest.mark.parametrize(
    "caption",
    ["", "   ", "🦄 🌈", "كلب أحمر", "word " * 1000, "<script>alert(1)</script>", "\ud800"],
)
def test_the_text_encoder_takes_any_caption(target, caption):
    features, mask = target.text([caption])
    assert features.shape == (1, tiny.WORDS, tiny.WIDTH)
    assert bool(features.isfinite().all())
    assert int(mask.sum()) >= 1


def test_word_order_matters_to_the_text_encoder(target):
    one, two = (
        "a small red circle and a large blue star",
        "a large red circle and a small blue star",
    )
    assert not torch.allclose(target.text([one])[0], target.text([two])[0], atol=1e-2)


def test_muon_orthogonalises():
    g = torch.randn(3, 20, 50, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(loop.orthogonalise(g))
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.5


def test_the_first_layer_starts_out_counting_rows_and_columns():
    torch.manual_seed(0)
    model = target_training.TextToImage().target
    target_training.count_rows_and_columns(model)
    seen = []
    model.layers[0].attention.register_forward_hook(
        lambda module, inputs, output: seen.append(output)
    )
    words = 12
    with torch.no_grad():
        prefix, tokens = (
            torch.zeros(1, tiny.WORDS, model.config.decoder.dim),
            torch.randint(0, 1024, (1, 256)),
        )
        model.teacher_forced(
            prefix, (torch.arange(tiny.WORDS) >= tiny.WORDS - words)[None], tokens
        )
    share = seen[0][0, words:, 1:3] / 9  # of attention on image tokens, at image tokens 0 … 254
    at = torch.arange(255)
    for axis, count in ((0, at % 16 + 1), (1, at // 16 + 1)):
        wanted = count / (count + words)
        assert float((share[:, axis] - wanted).abs().mean()) < 0.05
        assert float(torch.corrcoef(torch.stack([share[:, axis], wanted]))[0, 1]) > 0.95


def test_a_doubled_target_starts_as_the_same_function_and_its_new_layers_learn():
    torch.manual_seed(0)
    half = target_training.TextToImage(cfg=replace(target_training.HALF, n_layer=2))
    deep = target_training.with_doubled_depth(half)
    assert deep.target.config == replace(half.target.config, n_layer=4)
    prefix, tokens = (
        torch.randn(1, 4, half.target.config.decoder.dim),
        torch.randint(0, 1024, (1, 256)),
    )
    valid = torch.ones(1, 4, dtype=torch.bool)
    found = deep.target.teacher_forced(prefix, valid, tokens)
    assert torch.equal(found, half.target.teacher_forced(prefix, valid, tokens))
    found.square().sum().backward()
    added = deep.target.layers[1]
    assert float(added.attention.wo.weight.grad.abs().max()) > 0
    assert float(added.feed_forward.w2.weight.grad.abs().max()) > 0


def test_what_a_token_weighs_depends_on_its_caption_alone():
    images = [scenes.sample(1, i) for i in range(40)]
    for _, caption, scene in images:
        assert caption in scene.captions()
        weight = target_training.weights(scene)
        assert weight.shape == (256,)
        assert float(weight.min()) > 0
        x, y = scenes.PLACES[scene.items[0].place]
        middle = weight.view(16, 16)[int(y * 16), int(x * 16)]
        assert float(middle) > 2.9


def test_batches_of_one_caption_length_need_no_padding():
    groups = target_training.lengths(50)
    assert sum(len(pairs) for pairs in groups.values()) == 150
    for count, pairs in groups.items():
        for i, j in pairs.tolist():
            wording = target_training.data.scene(i).captions()[j]
            assert int((tiny.tokenize([wording]) != 0).sum()) == count


def test_padding_that_all_rows_share_changes_nothing(target):
    model, tokens = target.model, torch.arange(256).view(1, -1)
    features, valid = target_training.left_pad(
        *target.text(["a red ring on the left, plain blue background"])
    )
    prefix = model.cls_embedding(features)
    with torch.no_grad():
        cut = model.teacher_forced(prefix, valid, tokens)
        longer = (
            torch.cat([prefix, prefix]),
            torch.cat([valid, torch.ones_like(valid)]),
            tokens.repeat(2, 1),
        )
        padded = model.teacher_forced(*longer)[:1]  # the second row has no padding, so none is cut
    assert torch.allclose(cut, padded, atol=1e-3 * float(padded.abs().max()))


@pytest.mark.slow
def test_training_that_was_stopped_continues_as_if_it_was_not(tmp_path):
    whole = text_training.train(tmp_path / "whole", steps=4)

    class Stop(Exception):
        pass

    def interrupt(line: str) -> None:
        raise Stop

    honest = loop.fit

    def frequent(*args, **kwargs):
        return honest(*args, **kwargs | {"plan": kwargs["plan"]._replace(save_every=2)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "fit", frequent)
        with pytest.raises(Stop):  # after two steps and their checkpoint
            text_training.train(tmp_path / "parts", steps=4, log=interrupt)
        assert torch.load(tmp_path / "parts/text.pt")["step"] == 2
        resumed = text_training.train(tmp_path / "parts", steps=4)
    for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def sampled(folder, target) -> rollouts.Rollouts:
    """Four samples of the target, kept in ``folder``."""
    aux_layers = target.drafters["eagle-3"].aux_layers(target.model)
    return rollouts.sample(folder, target, 4, log=lambda line: None, aux_layers=aux_layers)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Four samples of the embedded target, of 8 × 8 tokens, and the folder that holds them."""
    folder = tmp_path_factory.mktemp("rollouts")
    return folder, sampled(folder, of_side(tiny.load(), 8))


@pytest.fixture
def teacher(drawn):
    """Batches of four samples of the embedded target, the target as it is trained (not packed),
    and the samples.
    """
    target, (_, samples) = of_side(tiny.load(), 8), drawn
    return drafters.Batches(target, samples), target, samples


def test_rollouts_are_the_targets_own_samples_with_its_hidden_states(teacher, drawn):
    batches, target, samples = teacher
    assert samples.tokens.shape == (4, 64)
    assert len(samples.captions) == 4
    logits = batches.logits(batches.last(samples.hidden[0, :, batches.prefix - 1 :].float()))[0]
    q = batches.warp(logits).gather(1, samples.tokens[0].long()[:, None])
    # every token was among the top 64 of the distribution that the stored states give
    assert (q > 0).all()
    shuffled = samples.tokens[0].long().roll(1)[:, None]
    assert (batches.warp(logits).gather(1, shuffled) == 0).any()
    # read from disk, nothing is drawn
    again = rollouts.sample(drawn[0], target, 4, log=pytest.fail)
    assert torch.equal(again.tokens, samples.tokens)
    assert again.captions == samples.captions


def test_deeper_levels_see_what_they_will_see_in_decoding(teacher):
    batches, target, samples = teacher
    net, model = target.drafters["eagle"], target.model
    hidden = batches.last(samples.hidden[0].float())
    embedding = model.tok_embeddings(samples.tokens[:1, :40].long()).repeat(2, 1, 1)
    rope = model.rope[1:41, None]
    at = torch.tensor([12, 30])
    fed = losses.Feed(embedding, hidden[:, :41], rope, None, 0, 1)
    first, second, third = losses.levels(net, fed, at, 3)
    for j, s in enumerate(at.tolist()):  # one branch alone, level by level, as one causal sequence
        features = hidden[:, :40].clone()
        features[:, s] = first[:, s - 1]
        alone = net(net.fuse(embedding, features), rope[None], "causal")
        assert torch.allclose(second[:, j], alone[:, s], atol=1e-4)
        features[:, s + 1] = alone[:, s]
        alone = net(net.fuse(embedding, features), rope[None], "causal")
        assert torch.allclose(third[:, j], alone[:, s + 1], atol=1e-4)
        assert not torch.allclose(third[:, j], first[:, s + 1], atol=1e-2)


@pytest.mark.slow
def test_each_drafter_learns_the_rollouts(tmp_path):
    """Of whole images."""
    target = tiny.load()
    samples = sampled(tmp_path, target)
    figures: dict[str, list[float]] = {}

    def log(line: str) -> None:  # "eagle 6/12  loss 9.1  accept-1 0.3  2 steps/s"
        figures.setdefault(line.split()[0], []).append(float(line.split()[3]))

    honest = loop.fit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            loop,
            "fit",
            lambda *a, **k: honest(*a, **k | {"plan": k["plan"]._replace(save_every=6, warmup=2)}),
        )
        patch.setitem(drafters.RATES, "eagle3", 1e-3)  # as the others': twelve steps are few
        drafters.train(
            tmp_path, target, samples, {"eagle": 12, "eagle3": 12, "medusa": 12, "model": 12}, log
        )
    for kind, (early, late) in figures.items():
        assert late < early, kind


@pytest.mark.slow
def test_all_of_it_is_remade_and_loads(tmp_path):
    train(tmp_path / "work", tmp_path / "out", scale=0.0001, log=lambda line: None)
    made = tiny.load(tmp_path / "out")
    assert set(made.drafters) == {"eagle", "eagle-3", "medusa", "model"}
    assert {"clip.safetensors", "fid.safetensors"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }
    assert sum(p.stat().st_size for p in (tmp_path / "out").iterdir()) < 40e6
