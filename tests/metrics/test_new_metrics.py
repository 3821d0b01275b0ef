"""PickScore, CMMD and GenEval: each against an independent computation on random weights or by
hand.
"""

from __future__ import annotations

import json
import math
from functools import partial

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from lanternbench.errors import UserError
from lanternbench.experiment import Sample, sample_key
from lanternbench.measure.figures import Figures
from lanternbench.measure.run_record import RunRecord
from lanternbench.measure.summary import summarise
from lanternbench.metrics import (
    Setup,
    clip,
    detector,
    geneval,
    read_image,
    scorers_for,
    set_distances,
)
from lanternbench.metrics.clip import Encoder, openai_pixels
from lanternbench.metrics.files import pretrained
from lanternbench.metrics.geneval import COLOURS
from lanternbench.metrics.geneval_rules import Detection, confident, correct, relations
from lanternbench.prompts.sources import GenEvalLine

GREY = Image.new("RGB", (40, 30), "gray")
STD = [0.26862954, 0.26130258, 0.27577711]  # of CLIP's pixels


@pytest.fixture
def photographs(shared) -> list[Image.Image]:
    return [read_image(path) for path in sorted((shared / "coco" / "val2017").glob("*.jpg"))[:5]]


# PickScore

TOWER = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
}


@pytest.fixture
def small_pickscore(monkeypatch, put_weights, tmp_path):
    """PickScore at a small size, its weights in a file; the scorer, and the same weights in
    open_clip's own class.
    """
    from transformers import CLIPConfig, CLIPModel

    whole = clip.pickscore_config().to_dict()
    small = {
        side: whole[side] | TOWER | {"projection_dim": 24}
        for side in ("text_config", "vision_config")
    }
    config = partial(CLIPConfig.from_dict, whole | small | {"projection_dim": 24})
    torch.manual_seed(0)
    model = CLIPModel(config())
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.15)
    state = model.state_dict()
    save_file(state, tmp_path / "pick.safetensors")
    monkeypatch.setattr(clip, "pickscore_config", config)
    put_weights({"pickscore": tmp_path / "pick.safetensors"})
    scorer = clip.PickScore("pickscore", Setup())
    tower = {"layers": 2, "width": 32}
    text = tower | {"context_length": 77, "vocab_size": 49408, "heads": 2}
    theirs = open_clip.CLIP(
        24, tower | {"patch_size": 14, "head_width": 16, "image_size": 224}, text
    ).eval()
    theirs.load_state_dict(to_open_clip(state, theirs.state_dict()))
    return scorer, theirs


def to_open_clip(state: dict, wanted: dict) -> dict:
    """Weights of transformers' CLIP under open_clip's names."""
    found = {}
    for key in wanted:
        vision = key.startswith("visual.")
        tower, name = ("vision_model" if vision else "text_model"), key.removeprefix("visual.")
        if name.startswith("transformer.resblocks."):
            _, _, i, *rest = name.split(".")
            rest, layer = ".".join(rest), f"{tower}.encoder.layers.{i}"
            if rest.startswith("attn.in_proj_"):
                end = rest.removeprefix("attn.in_proj_")
                found[key] = torch.cat([state[f"{layer}.self_attn.{n}_proj.{end}"] for n in "qkv"])
                continue
            for theirs, ours in (
                ("ln_1", "layer_norm1"), ("ln_2", "layer_norm2"), ("mlp.c_fc", "mlp.fc1"), ("mlp.c_proj", "mlp.fc2"),
                ("attn.out_proj", "self_attn.out_proj"),
            ):  # fmt: skip
                rest = rest.replace(theirs, ours)
            found[key] = state[f"{layer}.{rest}"]
            continue
        simple = {
            "logit_scale": "logit_scale",
            "positional_embedding": f"{tower}.embeddings.position_embedding.weight",
            "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
            "class_embedding": "vision_model.embeddings.class_embedding",
            "conv1.weight": "vision_model.embeddings.patch_embedding.weight",
        }
        norms = {"ln_pre": "vision_model.pre_layrnorm", "ln_post": "vision_model.post_layernorm"}
        norms |= {"ln_final": "text_model.final_layer_norm"}
        if name in ("proj", "text_projection"):
            found[key] = state[f"{'visual' if vision else 'text'}_projection.weight"].T
        elif name in simple:
            found[key] = state[simple[name]]
        else:
            norm, end = name.split(".")
            found[key] = state[f"{norms[norm]}.{end}"]
    return found


def test_pickscore_is_the_scaled_cosine_of_open_clips_own_class_on_the_same_weights(
    small_pickscore, photographs
):
    scorer, theirs = small_pickscore
    captions = ["a cat on a mat", "two dogs", "", "word " * 500, "a fox 🦊"]
    ours = scorer.score(photographs, captions)
    with torch.inference_mode():
        seen = theirs.encode_image(
            torch.stack([openai_pixels()(i) for i in photographs]), normalize=True
        )
        read = theirs.encode_text(open_clip.get_tokenizer("ViT-H-14")(captions), normalize=True)
        expected = theirs.logit_scale.exp() * (seen * read).sum(-1)
    assert ours == pytest.approx(expected.tolist(), abs=1e-4)
    assert np.std(ours) > 1e-2


def test_a_pickscore_file_that_is_another_is_a_users_mistake(
    small_pickscore, put_weights, tmp_path
):
    wrong = tmp_path / "wrong.safetensors"
    save_file({"logit_scale": torch.zeros(())}, wrong)
    put_weights({"pickscore": wrong})
    with pytest.raises(UserError, match="is not the PickScore v1 file") as error:
        clip.PickScore("pickscore", Setup()).score([GREY], ["a"])
    assert len(str(error.value).splitlines()) == 1


def test_the_full_pickscore_has_the_shapes_of_vit_h_14():
    from transformers import CLIPModel

    with torch.device("meta"):
        model = CLIPModel(clip.pickscore_config())
    # 3.94 GB in float32
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(986e6, rel=2e-3)


# CMMD


def gaussian(count: int, width: int, mean: float, seed: int) -> torch.Tensor:
    return mean + torch.randn(
        count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def test_mmd_is_the_sum_over_pairs_of_its_definition(monkeypatch):
    monkeypatch.setattr(set_distances, "CHUNK", 5)
    x, y = gaussian(13, 4, 0, 1), gaussian(9, 4, 0.5, 2)

    def k(a, b):
        return math.exp(
            -sum((float(p) - float(q)) ** 2 for p, q in zip(a, b, strict=True)) / (2 * 10**2)
        )

    across = sum(k(a, b) for a in x for b in y) / (13 * 9)
    biased = (
        sum(k(a, b) for a in x for b in x) / 13**2
        + sum(k(a, b) for a in y for b in y) / 9**2
        - 2 * across
    )
    unbiased = sum(k(x[i], x[j]) for i in range(13) for j in range(13) if i != j) / (13 * 12)
    unbiased += (
        sum(k(y[i], y[j]) for i in range(9) for j in range(9) if i != j) / (9 * 8) - 2 * across
    )
    assert set_distances.mmd2(x, y, unbiased=False) == pytest.approx(1000 * biased, abs=1e-8)
    assert set_distances.mmd2(x, y) == pytest.approx(1000 * unbiased, abs=1e-8)


def test_cmmd_of_two_samples_of_one_distribution_is_zero_in_the_mean_and_the_biased_one_is_not():
    # 40 pairs of samples; the mean of the unbiased estimates has a standard error of 0.4, the bias
    # is 41
    pairs = [(gaussian(60, 8, 0, 2 * s), gaussian(40, 8, 0, 2 * s + 1)) for s in range(40)]
    unbiased = [set_distances.mmd2(x, y) for x, y in pairs]
    error = np.std(unbiased) / math.sqrt(len(pairs))
    assert abs(np.mean(unbiased)) < 4 * error < 5
    # 1 − E k(x, x') of two draws, over each count
    bias = 1000 * (1 - (1 + 2 / 100) ** -4) * (1 / 60 + 1 / 40)
    assert np.mean([set_distances.mmd2(x, y, unbiased=False) for x, y in pairs]) == pytest.approx(
        bias, abs=4 * error
    )


@pytest.fixture
def small_cmmd(monkeypatch, put_weights, tmp_path):
    """CMMD with a small CLIP, against a folder of real images."""
    tower = {"layers": 1, "width": 16}
    config = {
        "embed_dim": 8,
        "vision_cfg": tower | {"patch_size": 48, "head_width": 8, "image_size": 336},
    }
    config |= {"text_cfg": tower | {"context_length": 77, "vocab_size": 49408, "heads": 2}}
    monkeypatch.setattr("open_clip.get_model_config", lambda name: json.loads(json.dumps(config)))
    torch.manual_seed(0)
    model = open_clip.CLIP(**config).eval()
    save_file(model.state_dict(), tmp_path / "clip.safetensors")
    (tmp_path / "real").mkdir()
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "home"))
    put_weights({"clip-l14-336": tmp_path / "clip.safetensors"})
    return model, Setup(tmp_path / "real")


def test_cmmd_of_photographs_is_that_of_their_embeddings(small_cmmd, photographs):
    from torchvision.transforms import functional as tv

    model, setup = small_cmmd
    for n, image in enumerate(photographs[:3]):
        image.save(setup.reference / f"{n}.png")

    def embedded(image: Image.Image) -> torch.Tensor:
        side, (width, height) = min(image.size), image.size
        square = tv.crop(image, (height - side) // 2, (width - side) // 2, side, side)
        square = square.resize((336, 336), Image.Resampling.BICUBIC)
        pixels = tv.normalize(tv.to_tensor(square), [0.48145466, 0.4578275, 0.40821073], STD)
        with torch.inference_mode():
            return model.encode_image(pixels[None], normalize=True)[0].double()

    real, made = (
        torch.stack([embedded(i) for i in part]) for part in (photographs[:3], photographs[2:])
    )
    for name, unbiased in (("cmmd", True), ("cmmd-biased", False)):
        (scorer,) = scorers_for([name], "full", setup)
        found = scorer.score_set(photographs[2:])
        assert found.value == pytest.approx(set_distances.mmd2(real, made, unbiased), abs=1e-4)
        assert abs(found.value) > 1e-2
        assert found.count == 3


def test_cmmd_of_one_image_is_missing(small_cmmd, photographs):
    _, setup = small_cmmd
    for n, image in enumerate(photographs[:2]):
        image.save(setup.reference / f"{n}.png")
    (scorer,) = scorers_for(["cmmd"], "full", setup)
    found = scorer.score_set([GREY])
    assert found.value is None
    assert (found.note.kind, found.note.metric) == ("missing", "cmmd")


# GenEval: the rules


@pytest.fixture
def golden(shared) -> dict:
    return json.loads((shared / "golden" / "geneval_rules.json").read_text())


def test_geneval_decides_as_the_public_evaluator_does(golden):
    assert len(golden["cases"]) == 240
    for case in golden["cases"]:
        objects = {
            name: [Detection(b[:4], b[4]) for b in boxes]
            for name, boxes in case["detections"].items()
        }
        colour = {
            id(f): c
            for name, group in objects.items()
            for f, c in zip(group, case["colors"][name], strict=True)
        }
        line = GenEvalLine.model_validate(case["metadata"])
        found = correct(line, objects, lambda group, name, c=colour: [c[id(f)] for f in group])
        assert found == case["correct"], case["reason"]


def test_geneval_sees_positions_as_the_public_evaluator_does(golden):
    assert len(golden["relative_position"]) == 200
    for case in golden["relative_position"]:
        assert relations(case["a"], case["b"]) == set(case["relations"])


def test_geneval_keeps_the_sixteen_best_above_the_tasks_confidence():
    found = [Detection((0, 0, 1, 1), c / 100) for c in range(1, 101)]
    assert [f.confidence for f in confident(found, "colors")] == [
        c / 100 for c in range(100, 84, -1)
    ]
    assert [f.confidence for f in confident(found, "counting")] == [
        c / 100 for c in range(100, 90, -1)
    ]
    assert confident([Detection((0, 0, 1, 1), 0.3)], "position") == []


# GenEval: the detector


def test_an_instance_is_the_box_of_its_mask_with_class_times_mask_confidence():
    masks = torch.full((2, 6, 8), -20.0)
    masks[0, 1:4, 2:7] = 3.0
    masks[1, 5, 0] = 1.0
    # the last column: nothing
    classes = torch.tensor([[5.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0]])
    found = detector.instances(classes, masks, most=2)
    (label, best), *_ = found
    assert label == 0
    assert best.box == [2, 1, 7, 4]
    certain = math.exp(5) / (math.exp(5) + 3) / (1 + math.exp(-3))
    assert best.confidence == pytest.approx(certain, abs=1e-6)
    assert best.mask.sum() == 15
    assert len(found) == 2
    assert found[1][1].confidence < 0.01


@pytest.fixture(scope="module")
def small_detector():
    """Mask2Former at a small size."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    stages = ["stage1", "stage2", "stage3", "stage4"]
    swin = SwinConfig(
        embed_dim=12, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=7, out_features=stages
    )
    sizes = {
        "hidden_dim": 32,
        "feature_size": 32,
        "mask_feature_size": 32,
        "decoder_layers": 2,
        "encoder_layers": 1,
    }
    sizes |= {
        "dim_feedforward": 32,
        "encoder_feedforward_dim": 32,
        "num_attention_heads": 4,
        "num_queries": 20,
    }
    config = Mask2FormerConfig(backbone_config=swin, num_labels=5, **sizes)
    torch.manual_seed(0)
    return Mask2FormerForUniversalSegmentation(config).eval(), config


def test_confidences_are_those_of_transformers_own_instance_segmentation(small_detector):
    from transformers import Mask2FormerImageProcessor
    from transformers.models.mask2former.modeling_mask2former import (
        Mask2FormerForUniversalSegmentationOutput,
    )

    generator = torch.Generator().manual_seed(1)
    classes, masks = (
        torch.randn(1, 8, 6, generator=generator) * 4,
        torch.randn(1, 8, 384, 384, generator=generator),
    )
    out = Mask2FormerForUniversalSegmentationOutput(
        class_queries_logits=classes, masks_queries_logits=masks
    )
    (theirs,) = Mask2FormerImageProcessor().post_process_instance_segmentation(out, threshold=0.0)
    expected = {(s["label_id"], round(s["score"], 4)) for s in theirs["segments_info"]}
    ours = detector.instances(classes[0], masks[0], most=8)
    assert len(expected) >= 5
    assert expected <= {(label, round(one.confidence, 4)) for label, one in ours}


def test_the_detector_reads_published_files_of_older_names_and_refuses_others(
    small_detector, tmp_path
):
    model, config = small_detector
    old = {}
    for key, tensor in model.state_dict().items():
        if "swin.layernorm" not in key:  # unused, and not in the published file
            for now, then in (
                ("encoder.swin.", "encoder."), ("attention.q_proj", "attention.self.query"),
                ("attention.k_proj", "attention.self.key"), ("attention.v_proj", "attention.self.value"),
                ("attention.o_proj", "attention.output.dense"), ("mlp.fc1", "intermediate.dense"),
                ("relative_position_bias.relative_position_bias_table", "self.relative_position_bias_table"),
                ("mlp.fc2", "output.dense"),
            ):  # fmt: skip
                key = key.replace(now, then) if "pixel_level_module.encoder" in key else key
            old[key] = tensor.contiguous()
    assert any("attention.self.query" in key for key in old)
    save_file(old, tmp_path / "old.safetensors")
    unused = ("swin.layernorm",)
    loaded = pretrained(
        type(model), config, tmp_path / "old.safetensors", "Mask2Former", unused=unused
    )
    x = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours, theirs = loaded(pixel_values=x), model(pixel_values=x)
    assert torch.allclose(ours.class_queries_logits, theirs.class_queries_logits, atol=1e-5)
    assert torch.allclose(ours.masks_queries_logits, theirs.masks_queries_logits, atol=1e-4)
    save_file(
        {k: v for k, v in old.items() if "class_predictor" not in k}, tmp_path / "part.safetensors"
    )
    with pytest.raises(UserError, match="is not the Mask2Former file"):
        pretrained(
            type(model), config, tmp_path / "part.safetensors", "Mask2Former", unused=unused
        )


@pytest.mark.parametrize(
    ("size", "seen"),
    [((512, 512), (800, 800)), ((1000, 500), (667, 1333)), ((64, 640), (1333, 133))],
)
def test_the_detector_sees_images_scaled_and_padded(size, seen):
    pixels, inside = detector.pixels(Image.new("RGB", size, (255, 0, 0)))
    assert inside == seen
    assert pixels.shape[1] % 32 == pixels.shape[2] % 32 == 0
    assert pixels[0, 0, 0] == pytest.approx((255 - 123.675) / 58.395, abs=1e-4)
    assert pixels[:, inside[0] :].abs().sum() == pixels[:, :, inside[1] :].abs().sum() == 0


def test_objects_are_found_in_the_images_own_pixels(small_detector, monkeypatch, photographs):
    model, _ = small_detector
    monkeypatch.setattr(detector, "SHORT", 64)
    image = photographs[0].resize((100, 70))
    found = detector.detect(model, image, ["a", "b", "c", "d", "e"])
    assert found
    for group in found.values():
        for one in group:
            assert one.mask.shape == (70, 100)
            x1, y1, x2, y2 = one.box
            assert 0 <= x1 < x2 <= 100
            assert 0 <= y1 < y2 <= 70


def test_the_detectors_classes_have_genevals_names(shared):
    official = (shared / "prompts" / "geneval_object_names.txt").read_text().splitlines()
    assert detector.class_names() == official


# GenEval: the colours


SHADES = (
    (1, 0, 0),
    (1, 0.6, 0),
    (1, 1, 0),
    (0, 0.6, 0),
    (0, 0, 1),
    (0.6, 0, 0.6),
    (1, 0.7, 0.8),
    (0.5, 0.3, 0.1),
)
RGB = dict(zip(COLOURS, [*SHADES, (0, 0, 0), (1, 1, 1)], strict=True))


class Mean:
    """A CLIP whose embeddings are mean colours; its captions name them."""

    def __init__(self):
        self.read = []

    def encode_image(self, pixels):
        return torch.cat([pixels.mean((2, 3)), torch.full((len(pixels), 1), 0.5)], 1)

    def encode_text(self, captions):
        self.read += captions
        named = [
            next(c for c in COLOURS if c in caption.split() or f"{c}-colored" in caption)
            for caption in captions
        ]
        return torch.tensor([[*RGB[c], 0.5] for c in named])


def test_colours_are_those_of_the_objects_without_their_surroundings():
    def prepared(images):
        means = [torch.from_numpy(np.array(i)).float().mean((0, 1)) / 255 for i in images]
        return torch.stack(means)[:, :, None, None]

    model = Mean()
    namer = geneval.colour_names(Encoder(model, prepared, Texts))
    image = Image.new("RGB", (30, 20), "blue")
    image.paste("red", (5, 5, 15, 15))
    mask = np.zeros((20, 30), bool)
    mask[5:15, 5:15] = True
    boxes = [Detection((5, 5, 15, 15), 1.0, mask), Detection((20.4, 0, 30, 10), 1.0, ~mask)]
    assert namer(image, boxes, "car") == ["red", "blue"]
    assert model.read[:3] == [
        "a photo of a red car",
        "a photo of a red-colored car",
        "a photo of a red object",
    ]
    assert len(model.read) == 30
    cut = geneval.crop(image, Detection((0, 0, 15, 15), 1.0, mask))
    assert (cut.size, cut.getpixel((0, 0)), cut.getpixel((7, 7))) == (
        (15, 15),
        (0x99, 0x99, 0x99),
        (255, 0, 0),
    )


class Texts(list):
    """Captions in place of token ids."""

    def to(self, device):
        return self


# GenEval: the whole metric


@pytest.fixture
def small_geneval(monkeypatch, tmp_path):
    """GenEval whose detector sees, in any image, a red car left of a dog."""
    lines = [
        {
            "tag": "colors",
            "include": [{"class": "car", "count": 1, "color": "red"}],
            "prompt": "a photo of a red car",
        },
        {
            "tag": "colors",
            "include": [{"class": "car", "count": 1, "color": "blue"}],
            "prompt": "a photo of a blue car",
        },
        {
            "tag": "counting",
            "include": [{"class": "dog", "count": 1}],
            "prompt": "a photo of one dog",
        },
    ]
    (tmp_path / "geneval_metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(detector, "detector", lambda path, title, device: None)
    seen = {"car": [Detection((0, 0, 9, 9), 0.8)], "dog": [Detection((20, 0, 29, 9), 0.85)]}
    monkeypatch.setattr(detector, "detect", lambda model, image, names: seen)
    monkeypatch.setattr(geneval, "clip_encoder", lambda *a: None)
    monkeypatch.setattr(
        geneval, "colour_names", lambda encoder: lambda image, found, name: ["red"] * len(found)
    )
    return tmp_path / "geneval_metadata.jsonl"


def test_geneval_scores_each_image_by_the_line_of_its_prompt(small_geneval, no_caches):
    (scorer,) = scorers_for([f"geneval:{small_geneval}"], "full", Setup(random=True))
    assert (scorer.name, scorer.available()) == ("geneval-random", None)
    captions = ["a photo of a red car", "a photo of a blue car", "a photo of one dog", "a cat"]
    # the dog is too uncertain for counting
    assert scorer.score([GREY] * 4, captions) == [1.0, 0.0, 0.0, None]
    (note,) = scorer.notes()
    assert note.kind == "missing"
    assert "a cat" in note.text


def test_geneval_names_what_it_lacks_also_with_random_networks(small_geneval, no_caches):
    for name, setup, lacking in (
        ("geneval", Setup(), "mask2former clip-l14 geneval-prompts"),
        ("geneval", Setup(random=True), "geneval-prompts"),
        (f"geneval:{small_geneval}", Setup(), "mask2former clip-l14"),
    ):
        (scorer,) = scorers_for([name], "full", setup)
        assert f"`lanternbench fetch {lacking}` gets them" in scorer.available().text
    with pytest.raises(UserError, match="there is no file"):
        scorers_for(["geneval:nowhere.jsonl"], "full")


def test_genevals_score_is_the_mean_of_the_means_of_its_tasks():
    def sample(i: int, label: str, task: str, value: float) -> Sample:
        scores = {"geneval": value, "clip": value}
        return Sample(
            key=sample_key(str(i), label, 0), prompt_id=str(i), prompt=f"{i}", label=label, method="ar", seed=0,
            tokens=2, steps=2, accept_lengths=[1, 1], decode_s=1.0, category=task, metrics=scores,
        )  # fmt: skip

    tasks = ["colors"] * 6 + ["position"] * 2
    values = {"ar": [1, 1, 1, 1, 1, 0, 0, 1], "sjd": [1, 1, 1, 1, 1, 1, 0, 0]}
    samples = [
        sample(i, label, t, v)
        for label, own in values.items()
        for i, (t, v) in enumerate(zip(tasks, own))
    ]
    rows = {row.label: row for row in summarise(Figures(samples), RunRecord()).rows}
    assert rows["ar"].figure("geneval").value == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert rows["sjd"].figure("geneval").value == pytest.approx(1 / 2)
    assert rows["sjd"].figure("clip").value == pytest.approx(6 / 8)
    low, high = rows["ar"].figure("geneval")[1:3]
    assert low < rows["ar"].figure("geneval").value < high
    assert rows["ar"].figure("geneval").n == 8
