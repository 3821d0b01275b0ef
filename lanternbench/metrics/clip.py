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
from lanternbench.metrics.pretrained import filled
from lanternbench.metrics.setup import Setup, seeded
from lanternbench.registry import register
from lanternbench.utils.download import digest

if TYPE_CHECKING:
    from torch import Tensor

Pixels = Callable[[Image.Image], "Tensor"]  # an RGB image of any size -> [3, H, W]
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of pixels, as CLIP has them


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
    from lanternbench.models.tiny import evaluators

    return Encoder(evaluators.load_clip(files.WEIGHTS / files.CLIP_TINY.file), evaluators.pixels, evaluators.tokenize)


def openai_pixels() -> Pixels:
    """OpenAI's preparation: shorter side to 224 (bicubic), centre crop, CLIP's mean and deviation -> [3, 224, 224]."""
    from open_clip.transform import PreprocessCfg, image_transform_v2

    return image_transform_v2(PreprocessCfg(), is_train=False)


def clip_encoder(setup: Setup, weights: files.Weights, config: str, pixels: Pixels | None = None) -> Encoder:
    """open_clip's CLIP of a ``config``, from its file; ``pixels``: or OpenAI's.  Raises UserError for a wrong file."""
    import open_clip

    # not through ``create_model(pretrained=…)``: that may go online when it cannot use what it finds
    with seeded():
        model = open_clip.CLIP(**open_clip.get_model_config(config))
    return _encoder(setup, weights, config, model, pixels or openai_pixels())


def _encoder(setup: Setup, weights: files.Weights, config: str, model: Any, pixels: Pixels) -> Encoder:
    """``model`` with the tensors of its file, and open_clip's tokenizer for ``config``."""
    import open_clip
    import torch

    filled(model, setup.find(weights), weights.title, setup.device, lambda path, _: _state(path, weights))
    tokenize = open_clip.get_tokenizer(config)
    return Encoder(model, lambda images: torch.stack(list(map(pixels, images))), tokenize, setup.device)


def _state(path: Path, weights: files.Weights) -> dict[str, Tensor]:
    """OpenAI's file is a TorchScript archive, which holds code: only the official one is opened."""
    import torch

    if path.suffix == ".safetensors" or not weights.sha256:
        return files.tensors(path, weights.title)
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
    title, stand_in, weights = "CLIP", "clip-tiny", files.published("clip")

    def load(self) -> ScoreFunction:
        return clip_encoder(self.setup, self.weights[0], "ViT-B-32-quickgelu").cosine()


@register("metric", "clip-tiny")
class ClipTiny(Clip):
    """The embedded CLIP, trained on this package's own scenes."""

    title, stand_in, embedded, weights = "CLIP-tiny", "", True, (files.CLIP_TINY,)

    def load(self) -> ScoreFunction:
        return tiny_encoder().cosine()


@register("metric", "clip:MODEL/TAG")
class OpenClip(ImageMetric):
    """Any model of open_clip with its own preparation of images.  Raises UserError for no such."""

    paper = Clip.paper
    extra = True

    def __init__(self, name: str, setup: Setup):
        import open_clip
        from open_clip.pretrained import get_pretrained_cfg

        super().__init__(name, setup)
        self.model, _, tag = name.removeprefix("clip:").partition("/")
        self.about = get_pretrained_cfg(self.model, tag)
        if not self.about:
            known = ", ".join(open_clip.list_pretrained_tags_by_model(self.model)[:4])
            raise UserError(
                f"open_clip has no weights {tag or '(none named)'} of a model {self.model}: write clip:MODEL/TAG, for "
                f"example clip:{f'{self.model}/ with one of {known}' if known else 'ViT-L-14/openai'}."
            )
        owner, repo, file = [*self.about["hf_hub"].strip("/").split("/"), "", "", ""][:3]
        hub = (f"{owner}/{repo}", file or "open_clip_model.safetensors") if owner else None
        url = "https://huggingface.co/{}/resolve/main/{}".format(*hub) if hub else self.about["url"]
        local = f"clip/{self.model}-{tag}{Path(url).suffix}"
        weights = files.Weights(name, f"open_clip's {self.model} ({tag})", local, url, hub=hub)
        self.weights = (weights,)  # type: ignore[misc]

    def load(self) -> ScoreFunction:
        import open_clip
        from open_clip.transform import PreprocessCfg, image_transform_v2

        quick_gelu = bool(self.about.get("quick_gelu"))
        try:
            with seeded():
                net = open_clip.create_model(self.model, pretrained_text=False, force_quick_gelu=quick_gelu)
            open_clip.get_tokenizer(self.model)
        except OSError as error:  # a text tower whose description lies on the hub
            raise UserError(
                f"{self.weights[0].title} needs files from the hub ({str(error).splitlines()[0]}): go online."
            ) from None
        wanted = {k: v for k, v in self.about.items() if k in ("mean", "std", "interpolation", "resize_mode")}
        pixels = image_transform_v2(PreprocessCfg(size=net.visual.image_size, **wanted), is_train=False)
        return _encoder(self.setup, self.weights[0], self.model, net, pixels).cosine()
