"""How people like an image: HPSv2, PickScore, ImageReward, and LAION's aesthetic predictor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from lanternbench.metrics import files
from lanternbench.metrics.clip import MEAN, STD, Encoder, clip_encoder, openai_pixels
from lanternbench.metrics.metric import ImageMetric, ScoreFunction
from lanternbench.metrics.pretrained import filled, linear_head, pretrained
from lanternbench.metrics.setup import seeded
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

END = 49407  # the token whose state is PickScore's embedding of a caption
TEXT = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24}
VISION = {"hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 16, "num_hidden_layers": 32}


def letterbox(image: Image.Image, size: int = 224) -> Tensor:
    """RGB image of any size -> float [3, size, size]: the longer side to ``size``, the rest filled with black.

    As in the authors' code, pixels are scaled after the change to [0, 1] and padded before the normalisation.  That
    code does not pad an image whose longer side is already ``size``, and fails unless it is square; this pads it.
    """
    import torch
    import torch.nn.functional as F

    pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255
    height, width = pixels.shape[1:]
    scale = size / max(height, width)
    if scale != 1:
        new = [max(round(side * scale), 1) for side in (height, width)]
        pixels = F.interpolate(pixels[None], new, mode="bicubic", align_corners=False, antialias=True)[0]
    down, right = size - pixels.shape[1], size - pixels.shape[2]
    pixels = F.pad(pixels, (right // 2, right - right // 2, down // 2, down - down // 2))
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


@register("metric", "hpsv2")
class HpsV2(ImageMetric):
    """HPSv2, checkpoint v2.0: the cosine of image and caption by a ViT-H/14 tuned on preferences, about 0.2…0.35."""

    paper = "Wu et al. 2023, arXiv 2306.09341"
    title, weights = "HPSv2", files.published("hpsv2")

    def load(self) -> ScoreFunction:
        return clip_encoder(self.setup, self.weights[0], "ViT-H-14", letterbox).cosine()


@register("metric", "hpsv2.1")
class HpsV21(HpsV2):
    """HPSv2 with the checkpoint of v2.1, whose scale is another."""

    title, weights, extra = "HPSv2.1", files.published("hpsv2.1"), True


@register("metric", "aesthetic")
class Aesthetic(ImageMetric):
    """LAION's improved predictor (sac+logos+ava1), a linear head on CLIP ViT-L/14, about 1…10; no caption counts."""

    paper = "LAION 2022, github.com/christophschuhmann/improved-aesthetic-predictor"
    title, form, captions = "Aesthetic", ".3f", False
    weights = files.published("aesthetic", "clip-l14")

    def load(self) -> ScoreFunction:
        head, clip = self.weights
        return aesthetic_score(clip_encoder(self.setup, clip, "ViT-L-14-quickgelu"), self.setup.find(head))


def aesthetic_score(encoder: Encoder, path: Path | None, width: int = 768) -> ScoreFunction:
    """The head in ``path``, or a random one, on unit embeddings [B, width].  Raises UserError for another file."""

    def read(path: Path, title: str) -> dict[str, Tensor]:
        return {name.removeprefix("layers."): tensor for name, tensor in files.tensors(path, title).items()}

    with seeded():
        head = linear_head(width)
    filled(head, path, Aesthetic.weights[0].title, encoder.device, read)
    return lambda images, captions: head(encoder.images(images)).squeeze(-1)


@register("metric", "pickscore")
class PickScore(ImageMetric):
    """CLIP ViT-H/14 tuned on the choices of users between two images of one prompt: a scaled cosine, about 18…23."""

    paper = "Kirstain et al. 2023, arXiv 2305.01569"
    title, form, weights = "PickScore", ".3f", files.published("pickscore")

    def load(self) -> ScoreFunction:
        """exp(logit_scale) · cos(image, caption) by the official weights in transformers' CLIP."""
        import open_clip
        import torch
        from transformers import CLIPModel

        (weights,), device = self.weights, self.setup.device
        model = pretrained(CLIPModel, pickscore_config(), self.setup.find(weights), weights.title, device)
        pixels, tokenize = openai_pixels(), open_clip.get_tokenizer("ViT-H-14")

        def score(images: list[Image.Image], captions: list[str]) -> Tensor:
            prepared = torch.stack([pixels(image) for image in images])
            out = model(input_ids=tokenize(captions).to(device), pixel_values=prepared.to(device))
            return model.logit_scale.exp() * (out.image_embeds * out.text_embeds).sum(-1)  # of unit length

        return score


def pickscore_config(text: dict[str, Any] = TEXT, vision: dict[str, Any] = VISION, width: int = 1024) -> Any:
    """transformers' ``CLIPConfig`` of ViT-H/14 with GELU and a joint space of ``width`` dimensions."""
    from transformers import CLIPConfig

    both = {"hidden_act": "gelu", "projection_dim": width}
    return CLIPConfig(
        text_config={"eos_token_id": END} | both | text,
        vision_config={"patch_size": 14, "image_size": 224} | both | vision,
        projection_dim=width,
    )


@register("metric", "image-reward")
class ImageReward(ImageMetric):
    """ImageReward: BLIP with a head trained on people's comparisons, a z-score, about −2…2, by transformers' BLIP."""

    paper = "Xu et al. 2023, arXiv 2304.05977"
    title, weights = "ImageReward", files.published("image-reward", "bert-vocabulary")

    def load(self) -> ScoreFunction:
        from lanternbench.metrics import blip_reward

        weights, vocabulary = map(self.setup.find, self.weights)
        return blip_reward.score_function(weights, vocabulary, self.setup.device)
