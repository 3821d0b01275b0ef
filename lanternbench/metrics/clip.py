"""CLIP score: the cosine of an image's and its caption's embeddings, by CLIP-tiny or by the papers' CLIP ViT-B/32.

The papers print the plain cosine (0.32, say), and so does this; torchmetrics' ``CLIPScore`` is 100 times that, clipped
below at 0.  Values of different backbones are not comparable, so they have different names: "clip-tiny", "clip", and
"clip:MODEL/TAG" for any other model of open_clip.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.metric import ImageMetric, ScoreFunction
from lanternbench.metrics.setup import Setup, seeded
from lanternbench.registry import register
from lanternbench.utils.digests import digest

if TYPE_CHECKING:
    from torch import Tensor

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of pixels, as CLIP has them
CLIP_TINY = files.Embedded("clip.safetensors", "CLIP-tiny")
CLIP_VIT_B32 = files.Weights(
    name="clip",
    title="CLIP ViT-B/32 (OpenAI)",
    file="ViT-B-32.pt",
    gigabytes=0.35,
    url="https://openaipublic.azureedge.net/clip/models/"
    "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af/ViT-B-32.pt",
    sha256="40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af",
    elsewhere=("~/.cache/clip/ViT-B-32.pt",),
    hub=("timm/vit_base_patch32_clip_224.openai", "open_clip_model.safetensors"),
)
CLIP_VIT_L14 = files.Weights(
    name="clip-l14",
    title="CLIP ViT-L/14 (OpenAI)",
    file="ViT-L-14.pt",
    gigabytes=0.93,
    url="https://openaipublic.azureedge.net/clip/models/"
    "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836/ViT-L-14.pt",
    sha256="b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836",
    elsewhere=("~/.cache/clip/ViT-L-14.pt",),
    hub=("timm/vit_large_patch14_clip_224.openai", "open_clip_model.safetensors"),
)


class Encoder(NamedTuple):
    """An open_clip model with what prepares its inputs."""

    model: Any  # open_clip's CLIP, in evaluation mode
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

    def cosine(self) -> ScoreFunction:
        """The cosine of image and caption, −1…1."""
        return lambda images, captions: (self.images(images) * self.captions(captions)).sum(-1)


@cache
def tiny_encoder() -> Encoder:
    """The embedded CLIP."""
    from lanternbench.models.tiny import clip as clip_tiny

    return Encoder(clip_tiny.load(files.embedded(CLIP_TINY.file)), clip_tiny.pixels, clip_tiny.tokenize)


def openai_pixels() -> Callable[[Image.Image], Tensor]:
    """OpenAI's preparation: shorter side to 224 (bicubic), centre crop, CLIP's mean and deviation -> [3, 224, 224]."""
    from open_clip.transform import PreprocessCfg, image_transform_v2

    return image_transform_v2(PreprocessCfg(), is_train=False)


def openai_clip(path: Path | None, weights: files.Weights, config: str, device: str = "cpu") -> Encoder:
    """OpenAI's CLIP through open_clip (``config``), from its official archive or open_clip's own safetensors.

    Without a path its weights are random.  Raises UserError when the file is another.
    """
    import open_clip

    # not through ``create_model(pretrained=…)``: that may go online when it cannot use what it finds
    with seeded():
        model = open_clip.CLIP(**open_clip.get_model_config(config))
    if path is not None:
        state = files.tensors(path, weights.title) if path.suffix == ".safetensors" else _archive(path, weights)
        filled(model, state, path, weights)
    return encoder(model, openai_pixels(), open_clip.get_tokenizer(config), device)


def encoder(model: Any, pixels: Callable[[Image.Image], Tensor], tokenizer: Any, device: str) -> Encoder:
    """A model of open_clip that sees each image as ``pixels`` prepares it."""
    import torch

    return Encoder(model.eval().to(device), lambda images: torch.stack([pixels(i) for i in images]), tokenizer, device)


def filled(model: Any, state: dict[str, Tensor], path: Path, weights: files.Weights) -> None:
    """Put a state dict into a model.  Raises UserError when the file is another."""
    try:
        model.load_state_dict({k: state[k].float() for k in model.state_dict()})
    except (RuntimeError, KeyError) as error:
        raise files.wrong_file(path, weights.title, error) from None


def _archive(path: Path, weights: files.Weights) -> dict[str, Tensor]:
    """A TorchScript archive holds code, so only the official one is opened."""
    import torch

    try:
        if digest(path) != weights.sha256:
            raise ValueError("its SHA-256 is another")
        return torch.jit.load(str(path), map_location="cpu").state_dict()
    except (OSError, RuntimeError, ValueError) as error:
        raise files.wrong_file(path, weights.title, error) from None


@register("metric", "clip")
class Clip(ImageMetric):
    """OpenAI's ViT-B/32."""

    paper = "Hessel et al. 2021, arXiv 2104.08718"
    title, stand_in, weights = "CLIP", "clip-tiny", (CLIP_VIT_B32,)

    def load(self) -> ScoreFunction:
        path = self.setup.find(CLIP_VIT_B32)
        return openai_clip(path, CLIP_VIT_B32, "ViT-B-32-quickgelu", self.setup.device).cosine()


@register("metric", "clip-tiny")
class ClipTiny(ImageMetric):
    """The embedded CLIP, trained on this package's own scenes."""

    paper = "Hessel et al. 2021, arXiv 2104.08718"
    title, embedded, weights = "CLIP-tiny", True, (CLIP_TINY,)

    def load(self) -> ScoreFunction:
        return tiny_encoder().cosine()


def open_clip_weights(name: str) -> files.Weights:
    """Where open_clip has the weights of "clip:MODEL/TAG".  Raises UserError for a name that it does not have."""
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg

    model, _, tag = name.removeprefix("clip:").partition("/")
    about = get_pretrained_cfg(model, tag)
    if not about:
        known = ", ".join(open_clip.list_pretrained_tags_by_model(model)[:4])
        raise UserError(
            f"open_clip has no weights {tag or '(none named)'} of a model {model}: write clip:MODEL/TAG, for example "
            f"clip:{f'{model}/ with one of {known}' if known else 'ViT-L-14/openai'}."
        )
    owner, repo, file = [*about["hf_hub"].strip("/").split("/"), "", "", ""][:3]
    hub = (f"{owner}/{repo}", file or "open_clip_model.safetensors") if owner else None
    url = "https://huggingface.co/{}/resolve/main/{}".format(*hub) if hub else about["url"]
    local = f"clip/{model}-{tag}{Path(url).suffix}"
    return files.Weights(name, f"open_clip's {model} ({tag})", local, url, "", hub=hub)


@register("metric", "clip:MODEL/TAG")
class OpenClip(ImageMetric):
    """Any model of open_clip with its own preparation of images.  Raises UserError for no such."""

    paper = "Hessel et al. 2021, arXiv 2104.08718"
    extra = True

    def __init__(self, name: str, setup: Setup):
        super().__init__(name, setup)
        self.wanted = open_clip_weights(name)
        self.weights = (self.wanted,)  # type: ignore[misc]

    def load(self) -> ScoreFunction:
        model, _, tag = self.wanted.name.removeprefix("clip:").partition("/")
        return _open_clip(self.setup.find(self.wanted), self.wanted, model, tag, self.setup.device).cosine()


def _open_clip(path: Path | None, weights: files.Weights, model: str, tag: str, device: str) -> Encoder:
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg
    from open_clip.transform import PreprocessCfg, image_transform_v2

    about = get_pretrained_cfg(model, tag)
    try:
        with seeded():
            net = open_clip.create_model(model, pretrained_text=False, force_quick_gelu=bool(about.get("quick_gelu")))
        tokenizer = open_clip.get_tokenizer(model)
    except OSError as error:  # a text tower whose description lies on the hub
        raise UserError(
            f"{weights.title} needs files from the hub ({str(error).splitlines()[0]}): go online."
        ) from None
    if path is not None:
        filled(net, files.tensors(path, weights.title), path, weights)
    wanted = {k: v for k, v in about.items() if k in ("mean", "std", "interpolation", "resize_mode")}
    pixels = image_transform_v2(PreprocessCfg(size=net.visual.image_size, **wanted), is_train=False)
    return encoder(net, pixels, tokenizer, device)
