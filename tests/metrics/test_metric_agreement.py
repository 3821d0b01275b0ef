"""The metrics agree with what others compute: a closed form, torchmetrics' own class,
transformers' own CLIP.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

from lanternbench import prompts
from lanternbench.metrics import Setup, files, read_image, scorers_for, set_distances
from lanternbench.metrics.features import (
    RESIZES,
    Net,
    features,
    inception,
    inception_net,
    plain_image,
)
from lanternbench.metrics.images import ImageFiles

if TYPE_CHECKING:
    from transformers import CLIPTokenizer


class Looked(torch.nn.Module):
    """A net that looks up the features of an image by the number that its first two colours spell."""

    def __init__(self, table: torch.Tensor):
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, images):
        return self.table[images[:, 0, 0, 0].long() * 256 + images[:, 1, 0, 0].long()]


def distance(net: Net, real, made) -> float:
    return set_distances.fid(features(net, made), set_distances.Moments.of(features(net, real)))


def drawn(count: int, mean: torch.Tensor, root: torch.Tensor, seed: int) -> torch.Tensor:
    """Normal features [count, D] whose own mean is ``mean`` and whose own covariance is root², to
    rounding.
    """
    x = torch.randn(
        count, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    x = x - x.mean(0)
    return (
        torch.linalg.solve_triangular(torch.linalg.cholesky(torch.cov(x.T)), x.T, upper=False).T
        @ root
        + mean
    )


def test_fid_of_two_gaussians_is_the_closed_form():
    width, count = 6, 400
    turn, _ = torch.linalg.qr(
        torch.randn(width, width, generator=torch.Generator().manual_seed(1)).double()
    )
    a, b = torch.linspace(0.5, 2, width).double(), torch.linspace(3, 0.1, width).double()
    shift = torch.arange(width).double()
    roots = [turn @ torch.diag(v.sqrt()) @ turn.T for v in (a, b)]
    table = torch.cat([drawn(count, shift, roots[0], 2), drawn(count, 0 * shift, roots[1], 3)])
    images = [Image.new("RGB", (2, 2), (n // 256, n % 256, 0)) for n in range(2 * count)]
    found = distance(Net(Looked(table), plain_image), images[count:], images[:count])
    # covariances with the same eigenvectors: |μ₁ − μ₂|² + Σ (√a − √b)²
    assert found == pytest.approx(
        float(shift.square().sum() + (a.sqrt() - b.sqrt()).square().sum()), rel=1e-9
    )


@pytest.fixture(scope="module")
def inception_file(tmp_path_factory):
    """FID's Inception-V3 with random weights, as a file that torchmetrics reads."""
    path = tmp_path_factory.mktemp("weights") / "inception.pth"
    torch.save(inception(None).state_dict(), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("resize", RESIZES)
def test_fid_of_photographs_is_that_of_torchmetrics_own_class(
    shared, no_caches, put_weights, inception_file, resize, monkeypatch
):
    from torchmetrics.image.fid import FrechetInceptionDistance

    paths = sorted((shared / "coco" / "val2017").glob("*.jpg"))
    assert len(paths) == 159
    real, made = paths[:80], paths[80:]
    put_weights({"inception": inception_file})
    monkeypatch.setitem(files._ROWS["inception"], "sha256", "")
    net = inception_net(Setup(), resize, features="64")
    of_real = features(net, ImageFiles(real))
    found = set_distances.fid(features(net, ImageFiles(made)), set_distances.Moments.of(of_real))
    theirs = FrechetInceptionDistance(
        64, feature_extractor_weights_path=str(inception_file), antialias=resize != "-legacy"
    ).set_dtype(torch.float64)
    theirs.inception.float()
    theirs.inception._dtype = torch.float32
    prepare = RESIZES[resize][0]
    for path in paths:
        theirs.update(prepare(read_image(path))[None], real=path in real)
    assert found == pytest.approx(float(theirs.compute()), rel=1e-4)
    assert found > 0
    assert set_distances.fid(of_real, set_distances.Moments.of(of_real)) < 1e-4 * found


def to_transformers(state: dict[str, torch.Tensor], layers: int = 12) -> dict[str, torch.Tensor]:
    """Weights of open_clip's ViT CLIP under transformers' names."""
    out = {
        "logit_scale": state["logit_scale"],
        "text_projection.weight": state["text_projection"].T,
        "visual_projection.weight": state["visual.proj"].T,
        "text_model.embeddings.token_embedding.weight": state["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": state["positional_embedding"],
        "vision_model.embeddings.class_embedding": state["visual.class_embedding"],
        "vision_model.embeddings.position_embedding.weight": state["visual.positional_embedding"],
        "vision_model.embeddings.patch_embedding.weight": state["visual.conv1.weight"],
    }
    norms = {
        "text_model.final_layer_norm": "ln_final",
        "vision_model.pre_layrnorm": "visual.ln_pre",
    }
    pairs = norms | {"vision_model.post_layernorm": "visual.ln_post"}
    for tower, theirs in (("text_model", "transformer"), ("vision_model", "visual.transformer")):
        for i in range(layers):
            here, there = f"{tower}.encoder.layers.{i}", f"{theirs}.resblocks.{i}"
            parts = {
                "layer_norm1": "ln_1",
                "layer_norm2": "ln_2",
                "mlp.fc1": "mlp.c_fc",
                "mlp.fc2": "mlp.c_proj",
            }
            parts |= {"self_attn.out_proj": "attn.out_proj"}
            pairs |= {f"{here}.{a}": f"{there}.{b}" for a, b in parts.items()}
            for end in ("weight", "bias"):
                split = state[f"{there}.attn.in_proj_{end}"].chunk(3)
                out |= {
                    f"{here}.self_attn.{n}_proj.{end}": part
                    for n, part in zip("qkv", split, strict=True)
                }
    return out | {
        f"{a}.{end}": state[f"{b}.{end}"] for a, b in pairs.items() for end in ("weight", "bias")
    }


def tokenizer() -> CLIPTokenizer:
    """transformers' tokenizer over the byte pairs that come with open_clip."""
    from transformers import CLIPTokenizer

    ours = open_clip.get_tokenizer("ViT-B-32-quickgelu")
    merges = [
        " ".join(pair) for pair, _ in sorted(ours.bpe_ranks.items(), key=lambda item: item[1])
    ]
    marks = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {marks.get(word, word): number for word, number in ours.encoder.items()}
    return CLIPTokenizer(vocab=vocabulary, merges=[tuple(m.split()) for m in merges])


@pytest.mark.slow
def test_clip_score_is_that_of_transformers_own_clip_on_the_same_random_weights(shared, no_caches):
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    coco = shared / "coco"
    texts = {p.image: p.text for p in prompts.load(f"coco2017:{coco}/captions_val2017.json")}
    paths = sorted((coco / "val2017").glob("*.jpg"))[:6]
    images = [
        *map(read_image, paths),
        Image.new("RGB", (1, 1), "red"),
        read_image(paths[0]).rotate(90, expand=True),
    ]
    captions = [*(texts[p.name] for p in paths), "word " * 1000, "<b>a fox</b> 🦊 &amp; قطة"]
    (scorer,) = scorers_for(["clip"], "full", Setup(random=True))
    assert scorer.name == "clip-random"
    ours = scorer.score(images, captions)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the seed of random weights
        state = open_clip.CLIP(**open_clip.get_model_config("ViT-B-32-quickgelu")).state_dict()
    text = {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "eos_token_id": 49407,
    }
    model = CLIPModel(CLIPConfig(text_config=text, vision_config={"patch_size": 32})).eval()
    missing, unexpected = model.load_state_dict(to_transformers(state), strict=False)
    assert not unexpected
    assert all(name.endswith("position_ids") for name in missing)
    # as OpenAI's own code reads captions
    unescaped = [html.unescape(caption) for caption in captions]
    words = tokenizer()(
        unescaped, padding="max_length", max_length=77, truncation=True, return_tensors="pt"
    )
    pixels = CLIPImageProcessor(use_fast=False)(images, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        seen = model.visual_projection(model.vision_model(pixels).pooler_output)
        read = model.text_projection(model.text_model(**words).pooler_output)
    theirs = torch.nn.functional.cosine_similarity(seen, read)
    assert ours == pytest.approx(theirs.tolist(), abs=1e-4)
    assert np.std(ours) > 1e-3  # the same for all would prove nothing
