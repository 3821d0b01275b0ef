"""Scores of an image for its caption, or of how people like it: CLIP score, HPSv2, PickScore,
ImageReward, aesthetics.

The papers print CLIP score as the plain cosine (0.32, say), and so does this; torchmetrics'
``CLIPScore`` is 100 times that, clipped below at 0.  Values of different backbones are not
comparable, so they have different names: "clip-tiny", "clip", and "clip:MODEL/TAG" for any other
model of open_clip.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.metric import ImageMetric, ScoreFunction, Setup
from lanternbench.registry import register

if TYPE_CHECKING:
    from open_clip import CLIP
    from torch import Tensor
    from transformers import CLIPConfig

Pixels = Callable[[Image.Image], "Tensor"]  # an RGB image of any size -> [3, H, W]
# of pixels, as CLIP has them
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
# PickScore's ViT-H/14
TEXT = {
    "eos_token_id": 49407,  # the token whose state is the embedding of a caption
    "hidden_act": "gelu",
    "projection_dim": 1024,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
}
VISION = {
    "patch_size": 14,
    "image_size": 224,
    "hidden_act": "gelu",
    "projection_dim": 1024,
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_hidden_layers": 32,
}


class TwoTowers(Protocol):
    """The part of open_clip's CLIP that is used, in evaluation mode: inputs -> embeddings [B, D]."""

    def encode_image(self, image: Tensor) -> Tensor: ...

    def encode_text(self, text: Tensor) -> Tensor: ...


class Encoder(NamedTuple):
    """An open_clip model with what prepares its inputs."""

    model: TwoTowers
    prepare: Callable[[list[Image.Image]], Tensor]  # -> [B, 3, H, W]
    tokenize: Callable[[list[str]], Tensor]  # -> [B, context]
    device: str = "cpu"

    def images(self, images: list[Image.Image]) -> Tensor:
        """-> unit embeddings [B, D]."""
        return self._unit(self.model.encode_image, self.prepare(images))

    def captions(self, captions: list[str]) -> Tensor:
        """-> unit embeddings [B, D]."""
        return self._unit(self.model.encode_text, self.tokenize(captions))

    def _unit(self, encode: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        import torch

        with torch.inference_mode():
            return torch.nn.functional.normalize(encode(inputs.to(self.device)), dim=-1)

    def cosine(self, images: list[Image.Image], captions: list[str]) -> Tensor:
        """Return the cosines of images and captions, −1…1: [B]."""
        return (self.images(images) * self.captions(captions)).sum(-1)


@cache
def tiny_encoder() -> Encoder:
    from lanternbench.models.tiny import evaluators

    return Encoder(
        evaluators.load_clip(files.WEIGHTS / files.CLIP_TINY.file),
        evaluators.pixels,
        evaluators.tokenize,
    )


def openai_pixels() -> Pixels:
    """OpenAI's preparation: shorter side to 224 (bicubic), centre crop, CLIP's mean and deviation
    -> [3, 224, 224].
    """
    from open_clip.transform import PreprocessCfg, image_transform_v2

    return image_transform_v2(PreprocessCfg(), is_train=False)


def clip_encoder(
    setup: Setup,
    weights: files.Weights,
    config: str,
    pixels: Pixels | None = None,
    model: CLIP | None = None,
) -> Encoder:
    """``model``, or open_clip's CLIP of a ``config``, with the tensors of its file, and
    open_clip's tokenizer for it.

    ``pixels``: or OpenAI's.  Raises UserError for a wrong file.
    """
    import open_clip
    import torch

    prepare = pixels or openai_pixels()
    # not through ``create_model(pretrained=…)``: that may go online when it cannot use what it
    # finds
    if model is None:
        with files.seeded():
            model = open_clip.CLIP(**open_clip.get_model_config(config))
    # OpenAI's files are scripts, and are those with a digest
    read = partial(files.tensors, sha256=weights.sha256, script=bool(weights.sha256))
    files.filled(model, setup.find(weights), weights.title, setup.device, read)
    tokenize = open_clip.get_tokenizer(config)
    return Encoder(
        model, lambda images: torch.stack(list(map(prepare, images))), tokenize, setup.device
    )


@register("metric", "clip")
class Clip(ImageMetric):
    """CLIP score: the cosine of an image's and its caption's embeddings, by OpenAI's ViT-B/32, as
    in the papers.
    """

    paper = "Hessel et al. 2021, arXiv 2104.08718"
    title = "CLIP"
    stand_in = "clip-tiny"
    weights = files.published("clip")

    def encoder(self) -> Encoder:
        """Return the network and its preparation of images and captions."""
        return clip_encoder(self.setup, self.weights[0], "ViT-B-32-quickgelu")

    def load(self) -> ScoreFunction:
        encoder = self.encoder()
        self.tokenize = encoder.tokenize
        return encoder.cosine


@register("metric", "clip-tiny")
class ClipTiny(Clip):
    """CLIP score by the bundled CLIP, trained on this package's own scenes."""

    title = "CLIP-tiny"
    stand_in = ""
    embedded = True
    weights = (files.CLIP_TINY,)

    def encoder(self) -> Encoder:
        return tiny_encoder()


@register("metric", "clip:MODEL/TAG")
class OpenClip(Clip):
    """CLIP score by any model of open_clip, with its own preparation of images.  Raises UserError
    for no such.
    """

    title = ""
    extra = True
    stand_in = ""
    weights: ClassVar[tuple[files.Weights, ...]] = ()

    def __init__(self, name: str, setup: Setup):
        from open_clip.pretrained import get_pretrained_cfg

        super().__init__(name, setup)
        self.model, _, tag = name.removeprefix("clip:").partition("/")
        self.about = get_pretrained_cfg(self.model, tag)
        if not self.about:
            raise no_model(self.model, tag)
        hub = None
        url = self.about["url"]
        if place := self.about["hf_hub"].strip("/"):  # owner, repository and maybe a file
            owner, repo, *file = place.split("/")
            hub = (f"{owner}/{repo}", file[0] if file else "open_clip_model.safetensors")
            url = f"https://huggingface.co/{hub[0]}/resolve/main/{hub[1]}"
        local = f"clip/{self.model}-{tag}{Path(url).suffix}"
        title = f"open_clip's {self.model} ({tag})"
        self.weights = (files.Weights(name, title, local, url, hub=hub),)  # type: ignore[misc]

    def encoder(self) -> Encoder:
        import open_clip
        from open_clip.transform import (
            PreprocessCfg,
            image_transform_v2,
            merge_preprocess_dict,
        )

        quick_gelu = bool(self.about.get("quick_gelu"))
        try:
            with files.seeded():
                net = open_clip.create_model(
                    self.model, pretrained_text=False, force_quick_gelu=quick_gelu
                )
            open_clip.get_tokenizer(self.model)
        except OSError as error:  # a text tower whose description lies on the hub
            reason = str(error).splitlines()[0]
            raise UserError(
                f"{self.weights[0].title} needs files from the hub ({reason}): go online."
            ) from None
        preparation = merge_preprocess_dict(self.about, {"size": net.visual.image_size})
        pixels = image_transform_v2(PreprocessCfg(**preparation), is_train=False)
        return clip_encoder(self.setup, self.weights[0], self.model, pixels, net)


def no_model(model: str, tag: str) -> UserError:
    """Return the error for a model or a tag that open_clip does not have."""
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(model)[:4]
    example = f"{model}/ with one of {', '.join(tags)}" if tags else "ViT-L-14/openai"
    return UserError(
        f"open_clip has no weights {tag or '(none named)'} of a model {model}: "
        f"write clip:MODEL/TAG, for example clip:{example}."
    )


def letterbox(image: Image.Image, size: int = 224) -> Tensor:
    """RGB image of any size -> float [3, size, size]: the longer side to ``size``, the rest filled
    with black.

    As in the authors' code, pixels are scaled after the change to [0, 1] and padded before the
    normalisation.  That code does not pad an image whose longer side is already ``size``, and
    fails unless it is square; this pads it.
    """
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as F

    scale = size / max(image.size)
    height = max(round(image.height * scale), 1)
    width = max(round(image.width * scale), 1)
    pixels = F.to_tensor(image.convert("RGB"))
    pixels = F.resize(pixels, [height, width], InterpolationMode.BICUBIC, antialias=True)
    down = size - height
    right = size - width
    pixels = F.pad(pixels, [right // 2, down // 2, right - right // 2, down - down // 2])
    return F.normalize(pixels, MEAN, STD)


@register("metric", "hpsv2")
class HpsV2(Clip):
    """HPSv2, checkpoint v2.0: the cosine of image and caption by a ViT-H/14 tuned on preferences,
    about 0.2…0.35.
    """

    paper = "Wu et al. 2023, arXiv 2306.09341"
    title = "HPSv2"
    stand_in = ""
    weights = files.published("hpsv2")

    def encoder(self) -> Encoder:
        return clip_encoder(self.setup, self.weights[0], "ViT-H-14", letterbox)


@register("metric", "hpsv2.1")
class HpsV21(HpsV2):
    """HPSv2 with the checkpoint of v2.1, on another scale."""

    title = "HPSv2.1"
    weights = files.published("hpsv2.1")
    extra = True


@register("metric", "aesthetic")
class Aesthetic(ImageMetric):
    """LAION's improved predictor (sac+logos+ava1), a linear head on CLIP ViT-L/14, about 1…10; no
    caption counts.
    """

    paper = "LAION 2022, github.com/christophschuhmann/improved-aesthetic-predictor"
    title = "Aesthetic"
    form = ".3f"
    captions = False
    weights = files.published("aesthetic", "clip-l14")

    def load(self) -> ScoreFunction:
        head, clip = self.weights
        encoder = clip_encoder(self.setup, clip, "ViT-L-14-quickgelu")
        return aesthetic_score(encoder, self.setup.find(head))


def aesthetic_score(encoder: Encoder, path: Path | None, width: int = 768) -> ScoreFunction:
    """Return the head in ``path``, or a random one, on unit embeddings [B, width].  Raises UserError
    for another file.
    """

    def read(path: Path, title: str) -> dict[str, Tensor]:
        state = files.tensors(path, title)
        return {name.removeprefix("layers."): tensor for name, tensor in state.items()}

    with files.seeded():
        head = files.linear_head(width)
    files.filled(head, path, Aesthetic.weights[0].title, encoder.device, read)
    return lambda images, captions: head(encoder.images(images)).squeeze(-1)


@register("metric", "pickscore")
class PickScore(ImageMetric):
    """CLIP ViT-H/14 tuned on the choices of users between two images of one prompt: a scaled
    cosine, about 18…23.
    """

    paper = "Kirstain et al. 2023, arXiv 2305.01569"
    title = "PickScore"
    form = ".3f"
    weights = files.published("pickscore")

    def load(self) -> ScoreFunction:
        """exp(logit_scale) · cos(image, caption) by the official weights in transformers' CLIP."""
        import open_clip
        import torch
        from transformers import CLIPModel

        (weights,) = self.weights
        device = self.setup.device
        model = files.pretrained(
            CLIPModel, pickscore_config(), self.setup.find(weights), weights.title, device
        )
        pixels = openai_pixels()
        tokenize = open_clip.get_tokenizer("ViT-H-14")
        self.tokenize = tokenize

        def score(images: list[Image.Image], captions: list[str]) -> Tensor:
            prepared = torch.stack([pixels(image) for image in images])
            out = model(input_ids=tokenize(captions).to(device), pixel_values=prepared.to(device))
            # of unit length
            return model.logit_scale.exp() * (out.image_embeds * out.text_embeds).sum(-1)

        return score


def pickscore_config() -> CLIPConfig:
    """transformers' ``CLIPConfig`` of ViT-H/14 with GELU."""
    from transformers import CLIPConfig

    return CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=1024)


@register("metric", "image-reward")
class ImageReward(ImageMetric):
    """ImageReward: BLIP with a head trained on people's comparisons, a z-score, about −2…2, by
    transformers' BLIP.
    """

    paper = "Xu et al. 2023, arXiv 2304.05977"
    title = "ImageReward"
    weights = files.published("image-reward", "bert-vocabulary")

    def load(self) -> ScoreFunction:
        from lanternbench.metrics import blip_reward

        weights, vocabulary = map(self.setup.find, self.weights)
        bert = blip_reward.tokenizer(blip_reward.vocabulary_tokens(vocabulary))
        self.tokenize = lambda captions: blip_reward.tokenize(bert, captions)[0]
        return blip_reward.score_function(weights, bert, self.setup.device)
