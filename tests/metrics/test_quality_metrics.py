"""The papers' metrics: right on small nets whose answer is known, and clear about what is missing."""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np
import open_clip
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.experiment.fetching import plain_files
from lanternbench.metrics import (
    ImageMetric,
    Setup,
    blip_reward,
    clip,
    columns,
    files,
    metric,
    metric_class,
    read_image,
    scorers_for,
    set_distances,
)
from lanternbench.metrics.clip import MEAN, STD, Encoder, clip_encoder, openai_pixels
from lanternbench.metrics.feature_metric import InceptionScore
from lanternbench.metrics.features import Net, clean_image, features, inception_net, plain_image
from lanternbench.metrics.files import linear_head, seeded
from lanternbench.metrics.images import ImageFiles
from lanternbench.metrics.set_distances import Moments
from lanternbench.utils.files import cache_dir, replacing

GREY = Image.new("RGB", (8, 8), "gray")


class Means(torch.nn.Module):
    """uint8 images -> their mean colours, a net of three features."""

    num_features = 3

    def forward(self, x):
        return x.double().mean((2, 3))


def coloured(count: int, seed: int, mean: float = 120.0) -> list[Image.Image]:
    colours = (
        np.random.default_rng(seed).normal(mean, 30, (count, 3)).clip(0, 255).astype(np.uint8)
    )
    return [Image.new("RGB", (2, 2), tuple(map(int, c))) for c in colours]


def gaussian(
    count: int, width: int, mean: float = 0.0, deviation: float = 1.0, seed: int = 0
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + deviation * torch.randn(count, width, generator=generator, dtype=torch.float64)


def scorer_by(judge: metric.ScoreFunction) -> ImageMetric:
    """A metric that needs no file."""

    class By(ImageMetric):
        def load(self):
            return judge

    return By("by", Setup())


def inception_score(kinds: torch.nn.Module) -> InceptionScore:
    """With another net in place of Inception."""
    made = InceptionScore("inception-score", Setup(random=True))
    made.net = Net(kinds, plain_image)
    return made


# FID


def test_the_distance_of_two_gaussians_is_the_closed_form():
    width = 5
    turned, _ = torch.linalg.qr(gaussian(width, width, seed=3))
    first, second = torch.rand(2, width, dtype=torch.float64) + 0.5
    shift = torch.arange(width, dtype=torch.float64)
    # covariances with the same eigenvectors: |shift|² + Σ (√a − √b)²
    a, b = (turned @ torch.diag(values) @ turned.T for values in (first, second))
    expected = float(shift.square().sum() + (first.sqrt() - second.sqrt()).square().sum())
    assert set_distances.frechet(
        shift, a, torch.zeros(width, dtype=torch.float64), set_distances.root(b)
    ) == pytest.approx(expected, rel=1e-9)


def test_fid_infinity_removes_the_bias_of_few_images():
    width = 16
    reference_set = Moments.of(gaussian(10_000, width))
    truth = width * (0.3**2 + (1.1 - 1) ** 2)
    found = [gaussian(20 * width, width, 0.3, 1.1, seed) for seed in range(1, 6)]
    extrapolations = [set_distances.fid_infinity(f, reference_set) for f in found]
    plain = np.mean([set_distances.fid(f, reference_set) for f in found])
    assert plain > truth * 1.15
    assert abs(np.mean(extrapolations) - truth) < 0.3 * (plain - truth)
    assert set_distances.fid_infinity(found[0], reference_set) == extrapolations[0]


def test_fid_infinity_needs_enough_images_and_says_how_many():
    net = Net(Means(), plain_image)
    (scorer,) = scorers_for(["fid-inf-tiny"])
    scorer.net, scorer.real = net, Moments.of(features(net, coloured(30, 0)))
    few, enough = scorer.score_set(coloured(11, 1)), scorer.score_set(coloured(60, 1))
    assert few.value is None
    assert "at least 12 images; there are 11" in few.note.text
    assert np.isfinite(enough.value)
    assert scorer.score_set([]).value is None


class Counting(Means):
    """Counts the images that it sees, and stops when there are too many."""

    def __init__(self, most: int = 10**6):
        super().__init__()
        self.seen, self.most = 0, most

    def forward(self, x):
        if self.seen + len(x) > self.most:
            raise KeyboardInterrupt
        self.seen += len(x)
        return super().forward(x).float()


@pytest.fixture
def saved(tmp_path, no_caches):
    """150 image files."""
    (tmp_path / "images").mkdir()
    for n, image in enumerate(coloured(150, 0)):
        image.save(tmp_path / "images" / f"{n:03d}.png")
    return sorted((tmp_path / "images").iterdir())


def test_features_are_stored_by_files_and_settings(saved):
    nets_of = {settings: Net(Counting(), plain_image, settings) for settings in ("a", "b")}
    for settings in ("a", "a", "b", "b"):
        features(nets_of[settings], ImageFiles(saved[:3]))
    assert [net.module.seen for net in nets_of.values()] == [3, 3]
    assert len(list(cache_dir().glob("features/*"))) == 2


@pytest.mark.parametrize("damage", ["torn", "empty", "other tensors", "other shapes", "text"])
def test_damaged_features_are_computed_again(saved, tmp_path, damage):
    net = Net(Counting(), plain_image, "means")
    first = features(net, ImageFiles(saved[:3]))
    (stored,) = cache_dir().glob("features/*.safetensors")
    whole = stored.read_bytes()
    save_file({"total": torch.ones(3)}, tmp_path / "tensors")
    save_file({"features": torch.ones(3)}, tmp_path / "shapes")
    contents = {"torn": whole[: len(whole) // 2], "empty": b"", "text": b"no tensors"}
    contents |= {f"other {name}": (tmp_path / name).read_bytes() for name in ("tensors", "shapes")}
    stored.write_bytes(contents[damage])
    assert torch.equal(features(net, ImageFiles(saved[:3])), first)
    assert net.module.seen == 6
    assert load_file(stored)["features"].shape == (3, 3)


def test_processes_that_fill_one_cache_do_not_disturb_each_other(saved):
    """Two writers of one entry are stopped in the middle of their writing, in either order."""

    # another process computes and stores the same meanwhile
    def nested(x: torch.Tensor) -> torch.Tensor:
        features(Net(Means(), plain_image, "s"), ImageFiles(saved[:1]))
        return Means()(x)

    assert features(Net(nested, plain_image, "s"), ImageFiles(saved[:1])).shape == (1, 3)
    (stored,) = cache_dir().glob("features/*")
    names = set()
    with replacing(stored, "", shared=True) as one:
        names |= {p.name for p in stored.parent.iterdir()}
        with replacing(stored, "", shared=True) as two:
            names |= {p.name for p in stored.parent.iterdir()}
            two.write(b"two")
        one.write(b"one")
    assert len(names) == 3
    assert stored.read_bytes() == b"one"
    assert list(stored.parent.iterdir()) == [stored]


def test_features_are_kept_and_an_interrupted_computation_continues(saved):
    with pytest.raises(KeyboardInterrupt):
        features(Net(Counting(140), plain_image, "a"), ImageFiles(saved))
    net = Net(Counting(), plain_image, "a")
    found = features(net, ImageFiles(saved))
    assert net.module.seen == 150 - 128
    assert torch.equal(
        found, features(Net(Means(), plain_image), map(read_image, saved)).float().double()
    )
    assert torch.equal(features(net, ImageFiles(saved)), found)
    features(net, ImageFiles(saved[:64]))
    assert net.module.seen == 150 - 128
    other = Net(Counting(), plain_image, "b")
    features(other, ImageFiles(saved))
    assert other.module.seen == 150
    GREY.save(saved[0])
    features(other, ImageFiles(saved))
    assert other.module.seen == 150 + 64


def test_features_that_cannot_be_kept_are_a_users_mistake_naming_the_place(saved):
    cache_dir().write_text("a file where the folder should be")
    with pytest.raises(UserError, match="set LANTERNBENCH_HOME") as error:
        features(Net(Means(), plain_image, "a"), ImageFiles(saved[:2]))
    assert str(cache_dir()) in str(error.value)


def test_an_unreadable_image_is_left_out_of_kept_features_and_told_every_time(saved):
    saved[70].write_bytes(b"torn")
    net = Net(Counting(), plain_image, "a")
    for _ in range(2):
        images = ImageFiles(saved)
        assert len(features(net, images)) == 149
        assert [saved[70].name in told for told in images.broken] == [True]
    with pytest.raises(UserError, match="070"):
        features(net, ImageFiles(saved, strict=True))


def test_fid_of_few_images_names_their_number_and_what_takes_the_bias_off():
    (scorer,) = scorers_for(["fid-tiny"])
    scorer.net, scorer.real = Net(Means(), plain_image), Moments.of(gaussian(50, 3))
    kind, about, note, *_ = scorer.score_set(coloured(30, 1)).note
    assert (kind, about) == ("warning", "fid-tiny")
    assert "over 30 images (fewer than 5000)" in note
    assert "with the metric fid-inf" in note
    scorer.real = Moments(torch.zeros(2048), torch.zeros(2048, 2048), 50)
    assert "fid-inf, which takes the bias off, needs 8192" in scorer.few_images(4999)


def test_the_clean_resize_is_pillows_bicubic_and_never_leaves_the_range():
    rng = np.random.default_rng(0)
    # no overshoot to clip
    noise = Image.fromarray(rng.integers(100, 156, (90, 700, 3), dtype=np.uint8))
    clean = clean_image(noise)
    assert (clean.shape, clean.dtype) == ((3, 299, 299), torch.uint8)
    eight_bit = plain_image(noise.resize((299, 299), Image.Resampling.BICUBIC))
    assert int((clean.int() - eight_bit.int()).abs().max()) <= 1
    assert clean_image(Image.new("RGB", (1, 1), "white")).min() == 255


# precision and recall


def test_precision_and_recall_of_a_set_with_itself_are_one_and_of_far_sets_zero():
    found = gaussian(50, 4)
    assert set_distances.precision_recall(found, found) == (1.0, 1.0)
    assert set_distances.precision_recall(found, found + 100) == (0.0, 0.0)


def test_a_set_that_shows_one_kind_only_is_precise_and_recalls_little():
    two_kinds = torch.cat([gaussian(100, 4), gaussian(100, 4, mean=50.0)])
    precise, recalled = set_distances.precision_recall(two_kinds, gaussian(100, 4, seed=1))
    assert precise > 0.7
    assert 0.3 < recalled <= 0.5
    assert set_distances.precision_recall(gaussian(100, 4, seed=1), two_kinds) == (
        recalled,
        precise,
    )


def test_precision_is_what_the_definition_says(monkeypatch):
    real, made = gaussian(23, 3), gaussian(17, 3, 0.5, seed=1)
    expected = 0
    for point in made:
        for centre in real:
            # the 0th is itself
            radius = sorted(float((centre - other).norm()) for other in real)[3]
            if float((point - centre).norm()) <= radius:
                expected += 1
                break
    monkeypatch.setattr(set_distances, "CHUNK", 5)
    assert set_distances.precision_recall(real, made)[0] == pytest.approx(expected / 17)


# Inception Score


class Kinds(torch.nn.Module):
    """A net that is sure of one of ten kinds, by the brightness of the image; or that sees no
    difference.
    """

    def __init__(self, sure: float = 100.0):
        super().__init__()
        self.sure = sure

    def forward(self, x):
        return self.sure * torch.nn.functional.one_hot(x[:, 0, 0, 0].long() % 10, 10).double()


def test_the_inception_score_is_the_number_of_kinds_or_one():
    images = [Image.new("RGB", (2, 2), (n % 10,) * 3) for n in range(2000)]
    scorer = inception_score(Kinds())
    state = torch.random.get_rng_state()
    score = scorer.score_set(images)
    assert score.value == pytest.approx(10, rel=0.05)
    assert "2000 images (fewer than 5000)" in score.note.text
    assert inception_score(Kinds(0.0)).score_set(images[:20]).value == pytest.approx(1)
    torch.manual_seed(5)
    assert scorer.score_set(images) == score
    torch.random.set_rng_state(state)


@pytest.mark.parametrize("count", [11, 32, 64])
def test_the_inception_score_has_ten_even_splits_however_many_images(count):
    images = [Image.new("RGB", (2, 2), (n % 10,) * 3) for n in range(count)]
    value = inception_score(Kinds()).score_set(images).value
    with seeded():
        kinds = torch.arange(count)[torch.randperm(count)] % 10
    by_hand = []
    for i in range(10):  # of one-hot predictions exp KL is exp of the marginal's entropy
        share = kinds.tensor_split(10)[i].bincount(minlength=10) / len(kinds.tensor_split(10)[i])
        by_hand.append(float(torch.special.entr(share).sum().exp()))
    assert value == pytest.approx(sum(by_hand) / 10, rel=1e-4)
    assert {len(part) for part in kinds.tensor_split(10)} <= {count // 10, count // 10 + 1}


def test_the_inception_score_of_a_handful_is_missing():
    few = inception_score(Kinds()).score_set([GREY] * 9)
    assert few.value is None
    assert "at least 10" in few.note.text


# ImageReward

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "red", "##s"]


@pytest.fixture
def small_reward(tmp_path, monkeypatch):
    """ImageReward at a tiny size, as its two files."""
    vision = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text = vision | {
        "vocab_size": 11,
        "encoder_hidden_size": 8,
        "bos_token_id": 2,
        "sep_token_id": 3,
    }
    monkeypatch.setattr(blip_reward, "RewardModel", partial(blip_reward.RewardModel, vision, text))
    monkeypatch.setitem(blip_reward.TEXT, "vocab_size", 11)
    torch.manual_seed(0)
    model = blip_reward.RewardModel()
    for weights in model.parameters():  # as BLIP begins, it is all but blind
        torch.nn.init.normal_(weights, std=0.2)
    state = dict(model.state_dict())
    back = {new: old for old, new in _official_names(state).items()}
    torch.save(
        {back[k]: v for k, v in state.items()} | {"blip.text_proj.bias": torch.zeros(1)},
        tmp_path / "r.pt",
    )
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return tmp_path / "r.pt", tmp_path / "vocab.txt"


def image_reward_of(put_weights, weights, words):
    """The scorer that reads these two files."""
    put_weights({"image-reward": weights, "bert-vocabulary": words})
    return clip.ImageReward("image-reward", Setup())


def _official_names(state) -> dict[str, str]:
    """Official name -> ours, for one layer of each kind."""
    blocks = {"norm1": "layer_norm1", "norm2": "layer_norm2", "attn.qkv": "self_attn.qkv"}
    blocks |= {"attn.proj": "self_attn.projection", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
    names = {
        "cls_token": "embeddings.class_embedding",
        "pos_embed": "embeddings.position_embedding",
    }
    pairs = {f"blocks.0.{a}": f"encoder.layers.0.{b}" for a, b in blocks.items()}
    pairs |= {"patch_embed.proj": "embeddings.patch_embedding", "norm": "post_layernorm"}
    for end in ("weight", "bias"):
        names |= {f"{a}.{end}": f"{b}.{end}" for a, b in pairs.items()}
    found = {f"blip.visual_encoder.{a}": f"vision.{b}" for a, b in names.items()}
    found |= {
        k.replace("text.", "blip.text_encoder.", 1): k for k in state if k.startswith("text.")
    }
    return found | {
        k.replace("head.", "mlp.layers.", 1): k for k in state if k.startswith("head.")
    }


def test_image_reward_reads_its_official_files_image_and_caption(put_weights, small_reward):
    scorer = image_reward_of(put_weights, *small_reward)
    assert scorer.available() is None
    red = Image.new("RGB", (30, 20), "red")
    a, b, c = scorer.score([red, red, GREY], ["a cat", "a red", "a cat"])
    assert len({a, b, c}) == 3
    assert scorer.score([red], ["a cat"]) == pytest.approx([a], abs=1e-5)


@pytest.mark.parametrize(
    "caption", ["", "🦊🌈", "円" * 500, "\ud800 a", "cat " * 999, "[DEC] [SEP]"]
)
def test_image_reward_takes_any_caption_and_a_single_pixel(put_weights, small_reward, caption):
    (value,) = image_reward_of(put_weights, *small_reward).score(
        [Image.new("RGB", (1, 1))], [caption]
    )
    assert np.isfinite(value)


def test_a_wrong_vocabulary_or_weights_file_is_a_users_mistake(
    put_weights, small_reward, tmp_path
):
    weights, words = small_reward
    other = tmp_path / "other.txt"
    for content in (b"a\nb\n", b"\xff\xfe"):
        other.write_bytes(content)
        with pytest.raises(UserError, match=r"other\.txt is not the BERT vocabulary file"):
            image_reward_of(put_weights, weights, other).score([GREY], ["a"])
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"other\.pt is not the ImageReward file"):
        image_reward_of(put_weights, tmp_path / "other.pt", words).score([GREY], ["a"])


class Harm:
    """A pickle that would run code."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("content", [b"", b"no weights", b"PK\x03\x04 torn", "harm", [1]])
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_weights_file_that_is_torn_or_would_run_code_is_refused(tmp_path, content, name):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(
            {"state_dict": Harm(tmp_path / "harmed")} if content == "harm" else content, path
        )
    with pytest.raises(UserError, match="is not the HPSv2 file") as error:
        files.tensors(path, "HPSv2")
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "harmed").exists()


# HPSv2


@pytest.mark.parametrize(
    "size", [(1, 1), (1, 3000), (3000, 1), (224, 100), (100, 224), (224, 224), (7, 500)]
)
def test_any_size_fits_the_letterbox_and_its_margin_is_black(size):
    pixels = clip.letterbox(Image.new("RGB", size, "white"))
    assert pixels.shape == (3, 224, 224)
    black, white = ((v - torch.tensor(MEAN)) / torch.tensor(STD) for v in (0, 1))
    assert torch.allclose(pixels[:, 111:113, 111:113].amax((1, 2)), white, atol=1e-4)
    if size[0] != size[1]:
        assert torch.allclose(pixels[:, 0, 0], black, atol=1e-4)


def test_hpsv2_is_the_cosine_of_its_checkpoint(tmp_path, monkeypatch, put_weights):
    import open_clip

    tower = {"layers": 1, "width": 16}
    text = tower | {"context_length": 77, "vocab_size": 49408, "heads": 2}
    config = {
        "embed_dim": 8,
        "vision_cfg": tower | {"patch_size": 32, "head_width": 8},
        "text_cfg": text,
    }
    torch.manual_seed(0)
    model = open_clip.CLIP(**config).eval()
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, tmp_path / "hps.pt")
    monkeypatch.setattr("open_clip.get_model_config", lambda name: config)
    put_weights({"hpsv2": tmp_path / "hps.pt"})
    (scorer,) = scorers_for(["hpsv2"], "full")
    (value,) = scorer.score([GREY], ["a grey square"])
    with torch.inference_mode():
        image = model.encode_image(clip.letterbox(GREY)[None], normalize=True)
        caption = model.encode_text(
            open_clip.get_tokenizer("ViT-H-14")(["a grey square"]), normalize=True
        )
    assert value == pytest.approx(float((image * caption).sum()), abs=1e-5)
    monkeypatch.setattr("open_clip.get_model_config", lambda name: config | {"embed_dim": 4})
    with pytest.raises(UserError, match="is not the HPSv2 file"):
        clip_encoder(Setup(), *files.published("hpsv2"), "ViT-H-14")


# aesthetic


def test_the_aesthetic_score_is_the_published_head_on_the_image_embedding(tmp_path):
    torch.manual_seed(0)
    head = linear_head(8).requires_grad_(False)
    torch.save({f"layers.{k}": v for k, v in head.state_dict().items()}, tmp_path / "head.pth")

    class Model:
        def encode_image(self, pixels):
            return pixels.mean((2, 3)).repeat(1, 3)[:, :8]

    encoder = Encoder(
        Model(), lambda images: torch.stack([openai_pixels()(i) for i in images]), None
    )  # type: ignore
    scorer = scorer_by(clip.aesthetic_score(encoder, tmp_path / "head.pth", 8))
    red = Image.new("RGB", (8, 8), "red")
    values = scorer.score([red, GREY, red], ["a", "b", "c"])
    assert values[0] == values[2] != values[1]
    assert values[0] == pytest.approx(
        float(head(encoder.images([red]).clone()).squeeze()), abs=1e-5
    )
    with pytest.raises(UserError, match="is not the LAION's aesthetic predictor file"):
        clip.aesthetic_score(encoder, tmp_path / "head.pth", 9)


def test_the_published_heads_have_the_layers_that_their_files_name():
    shapes = {
        k: tuple(v.shape) for k, v in linear_head(768).state_dict().items() if k.endswith("weight")
    }
    assert shapes == {
        "0.weight": (1024, 768), "2.weight": (128, 1024), "4.weight": (64, 128), "6.weight": (16, 64),
        "7.weight": (1, 16),
    }  # fmt: skip


# what is missing


READS_FILES = {
    c.metric for c in columns().values() if metric_class(c.metric).weights and not c.embedded
}


@pytest.mark.parametrize("name", sorted(READS_FILES))
def test_every_metric_says_how_to_get_what_it_lacks_and_scores_nothing(no_caches, name):
    (scorer,) = scorers_for([name], "full")
    kind, about, reason, *_ = scorer.available()
    assert (kind, about) == ("missing", scorer.name)
    command = re.search("`lanternbench fetch (.*)` gets them", reason)[1].split()
    assert reason.endswith(f"into {cache_dir()}")
    assert all(w.file in reason for w in scorer.weights)
    named = {remote.path.name for word in command for remote in plain_files(word) or []}
    assert {w.file.rpartition("/")[2] for w in scorer.weights} == named
    assert len(reason.splitlines()) == 1
    if isinstance(scorer, ImageMetric):
        assert scorer.score([GREY], ["a"]) == [None]
    else:
        assert scorer.score_set([GREY] * 20).value is None


def test_any_model_of_open_clip_is_a_metric_that_says_how_to_get_it(no_caches):
    (scorer,) = scorers_for(["clip:ViT-L-14/openai"], "tiny")
    assert scorer.name == "clip:ViT-L-14/openai"
    assert "`lanternbench fetch clip:ViT-L-14/openai` gets" in scorer.available().text
    (remote,) = plain_files("clip:ViT-L-14/openai")
    assert remote.path.name == scorer.weights[0].file.rpartition("/")[2]
    assert remote.url.startswith(
        "https://huggingface.co/timm/vit_large_patch14_clip_224.openai/resolve/main/"
    )
    for name in ("clip:ViT-L-14", "clip:ViT-L-14/nobody", "clip:nothing/openai"):
        with pytest.raises(UserError, match="clip:MODEL/TAG"):
            scorers_for([name], "full")


def test_a_model_of_open_clip_scores_from_its_file(no_caches, monkeypatch):
    import open_clip

    tower = {"layers": 1, "width": 16}
    config = {
        "embed_dim": 8,
        "vision_cfg": tower | {"patch_size": 32, "head_width": 8, "image_size": 64},
    }
    config |= {"text_cfg": tower | {"context_length": 77, "vocab_size": 49408, "heads": 2}}
    monkeypatch.setattr(
        "open_clip.factory.get_model_config", lambda name: json.loads(json.dumps(config))
    )
    torch.manual_seed(0)
    model = open_clip.CLIP(**config).eval()
    (scorer,) = scorers_for(["clip:ViT-B-16/datacomp_xl_s13b_b90k"])
    path = cache_dir() / scorer.weights[0].file
    path.parent.mkdir(parents=True)
    save_file(model.state_dict(), path)
    (value,) = scorer.score([GREY], ["a grey square"])
    pixels = image_transform_v2(PreprocessCfg(size=64), is_train=False)(GREY)[None]
    with torch.inference_mode():
        caption = model.encode_text(
            open_clip.get_tokenizer("ViT-B-32")(["a grey square"]), normalize=True
        )
        expected = float((model.encode_image(pixels, normalize=True) * caption).sum())
    assert value == pytest.approx(expected, abs=1e-5)


def test_random_weights_need_no_files_carry_their_mark_and_are_the_same_every_time(
    no_caches, tmp_path
):
    names = [
        "clip",
        "fid",
        "image-reward",
        "hpsv2",
        "inception-score",
        "aesthetic",
        "precision-recall",
        "fid-inf",
    ]
    for n in range(2):
        GREY.save(tmp_path / f"{n}.png")
    made = scorers_for(names, "tiny", Setup(tmp_path, random=True))
    assert [s.available() for s in made] == [None] * len(names)
    assert all(s.name.endswith("-random") for s in made)
    assert scorers_for(None, "tiny", Setup(random=True))[0].name == "clip-random"
    with pytest.raises(UserError, match="leave out --random-weights"):
        scorers_for(["fid-tiny"], "tiny", Setup(random=True))
    one, two = (inception_net(Setup(random=True), features="64") for _ in range(2))
    images = coloured(3, 0)
    assert torch.equal(features(one, images), features(two, images))
    assert features(one, images).std(0).max() > 0


def test_one_command_gets_all_files_of_a_metric(no_caches):
    (scorer,) = scorers_for(["image-reward"], "full")
    assert "`lanternbench fetch image-reward bert-vocabulary` gets" in scorer.available().text
    path = cache_dir() / files.published("image-reward")[0].file
    path.parent.mkdir()
    path.write_bytes(b"")
    assert "`lanternbench fetch bert-vocabulary` gets" in scorer.available().text


def test_all_full_metrics_are_there_by_default_but_the_extra_ones():
    names = [s.name for s in scorers_for(None, "full")]
    assert set(names) == {
        "clip", "fid", "image-reward", "hpsv2", "inception-score", "aesthetic", "precision", "pickscore"
    }  # fmt: skip
    assert [s.name for s in scorers_for(["hpsv2.1", "fid-inf", "precision-recall"], "tiny")] == [
        "hpsv2.1", "fid-inf-tiny", "precision-tiny"
    ]  # fmt: skip


def test_the_page_of_a_metric_says_which_file_goes_where(no_caches):
    done = CliRunner().invoke(app, ["metrics", "image-reward", "--json"], catch_exceptions=False)
    by_hand = json.loads(done.stdout)["about"]["by hand"]
    for weights in files.published("image-reward", "bert-vocabulary"):
        assert f"save {weights.url} as {cache_dir() / weights.file}" in by_hand


@pytest.mark.parametrize("name", ["clip-tiny", "image-reward", "clip"])
def test_captions_that_a_metric_cuts_are_noted_with_their_number(name, monkeypatch, no_caches):
    """``load`` at full size would take minutes: only its tokeniser is needed."""
    monkeypatch.setattr(clip, "clip_encoder", lambda *_: Encoder(None, None, open_clip.tokenize))
    monkeypatch.setattr(blip_reward, "score_function", lambda *_: None)
    (scorer,) = scorers_for([name], "full", Setup(random=name != "clip-tiny"))
    scorer.load()
    scorer.score_batch = lambda images, captions: torch.zeros(len(images))
    long = " ".join(["cat"] * 90)
    grey = Image.new("RGB", (64, 64))
    scorer.score([grey] * 3, ["a cat", long, f"{long} and dog"])
    (note,) = scorer.notes()
    assert note.kind == "warning"
    assert note.text.startswith("2 captions are longer than")
    (other,) = scorers_for([name], "full", Setup(random=name != "clip-tiny"))
    other.load()
    other.score_batch = scorer.score_batch
    other.score([grey] * 2, ["a cat", ""])
    assert other.notes() == []
