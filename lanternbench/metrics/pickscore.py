"""PickScore (arXiv 2305.01569): CLIP ViT-H/14 tuned on the choices of users between two images of one prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import Image

from lanternbench.metrics import files
from lanternbench.metrics.clip import openai_pixels
from lanternbench.metrics.metric import ImageMetric, ScoreFunction
from lanternbench.metrics.pretrained import pretrained
from lanternbench.registry import register

if TYPE_CHECKING:
    from torch import Tensor

PICK_SCORE = files.Weights(
    name="pickscore",
    title="PickScore v1",
    file="PickScore_v1.safetensors",
    gigabytes=3.9,
    url="https://huggingface.co/yuvalkirstain/PickScore_v1/resolve/main/model.safetensors",
    sha256="",
    hub=("yuvalkirstain/PickScore_v1", "model.safetensors"),
)
END = 49407  # the token whose state is the caption's embedding
TEXT = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24}
VISION = {"hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 16, "num_hidden_layers": 32}


def config(text: dict[str, Any] = TEXT, vision: dict[str, Any] = VISION, width: int = 1024) -> Any:
    """transformers' ``CLIPConfig`` of ViT-H/14 with GELU and a joint space of ``width`` dimensions."""
    from transformers import CLIPConfig

    both = {"hidden_act": "gelu", "projection_dim": width}
    return CLIPConfig(
        text_config={"eos_token_id": END} | both | text,
        vision_config={"patch_size": 14, "image_size": 224} | both | vision,
        projection_dim=width,
    )


def score_function(model: Any, device: str = "cpu") -> ScoreFunction:
    """Scores by a ``CLIPModel``: exp(logit_scale) · cos(image, caption)."""
    import open_clip
    import torch
    from torch.nn.functional import normalize

    pixels, tokenize = openai_pixels(), open_clip.get_tokenizer("ViT-H-14")

    def values(images: list[Image.Image], captions: list[str]) -> Tensor:
        seen = model.vision_model(torch.stack([pixels(i) for i in images]).to(device)).pooler_output
        read = model.text_model(tokenize(captions).to(device)).pooler_output
        image, caption = normalize(model.visual_projection(seen)), normalize(model.text_projection(read))
        return model.logit_scale.exp() * (image * caption).sum(-1)

    return values


@register("metric", "pickscore")
class PickScore(ImageMetric):
    """About 18…23."""

    paper = "Kirstain et al. 2023, arXiv 2305.01569"
    title, form, weights = "PickScore", ".3f", (PICK_SCORE,)

    def load(self) -> ScoreFunction:
        """The official weights in transformers' CLIP."""
        from transformers import CLIPModel

        path, device = self.setup.find(PICK_SCORE), self.setup.device
        return score_function(pretrained(CLIPModel, config(), path, PICK_SCORE.title, device), device)
