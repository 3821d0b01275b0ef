"""Where the evaluators' weights lie and how they are read: the embedded in the package, the papers' in local caches.

Nothing is downloaded, and no file is opened in a way that could run code from it.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lanternbench.errors import UserError
from lanternbench.utils.files import WEIGHTS, cache_dir

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """A published weights file, and the places where it may already lie."""

    name: str
    title: str
    file: str
    url: str
    sha256: str = ""  # the whole digest, its first digits where only these are published, or nothing where none is
    elsewhere: tuple[str, ...] = ()  # other paths, ~ and $VARIABLES expanded
    hub: tuple[str, str] | None = None  # (repository, file) on the Hugging Face hub
    gigabytes: float = 0.0  # about; 0: unknown, or next to nothing

    def find(self) -> Path | None:
        """The file, or None; looks only on this machine."""
        for path in (cache_dir() / self.file, *(Path(os.path.expandvars(p)).expanduser() for p in self.elsewhere)):
            if path.is_file():
                return path
        if self.hub:
            from huggingface_hub import try_to_load_from_cache

            stored = try_to_load_from_cache(*self.hub)
            return Path(stored) if isinstance(stored, str) else None
        return None


class Embedded(Weights):
    """A weights file of a small network, included in the package."""

    def find(self) -> Path | None:
        path = embedded(self.file)
        return path if path.is_file() else None


def on_hub(
    name: str, title: str, repository: str, remote: str, gigabytes: float, file: str = "", elsewhere: str = ""
) -> Weights:
    """A file of the Hugging Face hub; ``file``: its local name, where it differs."""
    url = f"https://huggingface.co/{repository}/resolve/main/{remote}"
    other = (elsewhere,) if elsewhere else ()
    return Weights(name, title, file or remote, url, "", other, (repository, remote), gigabytes)


def openai_archive(name: str, title: str, file: str, sha256: str, timm: str, gigabytes: float) -> Weights:
    """OpenAI's archive of a CLIP, which open_clip's own copy on the hub can stand in for."""
    url = f"https://openaipublic.azureedge.net/clip/models/{sha256}/{file}"
    hub = (f"timm/{timm}.openai", "open_clip_model.safetensors")
    return Weights(name, title, file, url, sha256, (f"~/.cache/clip/{file}",), hub, gigabytes)


CLIP_TINY = Embedded("", "CLIP-tiny", "clip.safetensors", "")
FID_TINY = Embedded("", "FID net", "fid.safetensors", "")
CLIP_VIT_B32 = openai_archive(
    "clip", "CLIP ViT-B/32 (OpenAI)", "ViT-B-32.pt",
    "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af", "vit_base_patch32_clip_224", 0.35,
)  # fmt: skip
CLIP_VIT_L14 = openai_archive(
    "clip-l14", "CLIP ViT-L/14 (OpenAI)", "ViT-L-14.pt",
    "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836", "vit_large_patch14_clip_224", 0.93,
)  # fmt: skip
CLIP_VIT_L14_336 = openai_archive(
    "clip-l14-336", "CLIP ViT-L/14 at 336 pixels (OpenAI)", "ViT-L-14-336px.pt",
    "3035c92b350959924f9f00213499208652fc7ea050643e8b385c2dac08641f02", "vit_large_patch14_clip_336", 0.93,
)  # fmt: skip
AESTHETIC = Weights(
    name="aesthetic",
    title="LAION's aesthetic predictor",
    file="sac+logos+ava1-l14-linearMSE.pth",
    url="https://github.com/christophschuhmann/improved-aesthetic-predictor/raw/main/sac%2Blogos%2Bava1-l14-linearMSE.pth",
    gigabytes=0.004,
)
INCEPTION = Weights(
    name="inception",
    title="Inception-V3 (FID, 2048 features)",
    file="weights-inception-2015-12-05-6726825d.pth",
    url="https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/weights-inception-2015-12-05-6726825d.pth",
    sha256="6726825d",
    elsewhere=(
        "$TORCH_HOME/hub/checkpoints/weights-inception-2015-12-05-6726825d.pth",
        "~/.cache/torch/hub/checkpoints/weights-inception-2015-12-05-6726825d.pth",
    ),
    gigabytes=0.1,
)
HPS_V2 = on_hub("hpsv2", "HPSv2", "xswu/HPSv2", "HPS_v2_compressed.pt", 2)
HPS_V21 = on_hub("hpsv2.1", "HPSv2.1", "xswu/HPSv2", "HPS_v2.1_compressed.pt", 2)
PICK_SCORE = on_hub(
    "pickscore", "PickScore v1", "yuvalkirstain/PickScore_v1", "model.safetensors", 3.9, "PickScore_v1.safetensors"
)
IMAGE_REWARD = on_hub(
    "image-reward", "ImageReward", "THUDM/ImageReward", "ImageReward.pt", 1.8,
    elsewhere="~/.cache/ImageReward/ImageReward.pt",
)  # fmt: skip
BERT_VOCABULARY = on_hub(
    "bert-vocabulary", "the vocabulary of BERT (uncased)", "google-bert/bert-base-uncased", "vocab.txt", 0.0003,
    "bert-base-uncased-vocab.txt",
)  # fmt: skip
MASK2FORMER = on_hub(
    "mask2former", "Mask2Former Swin-S (COCO instances)", "facebook/mask2former-swin-small-coco-instance",
    "model.safetensors", 0.28, "mask2former-swin-small-coco-instance.safetensors",
)  # fmt: skip


def missing(*wanted: Weights) -> str | None:
    """None when all files are present, else a sentence with the command that fetches the missing ones."""
    absent = [w for w in wanted if not w.find()]
    if not absent:
        return None
    if isinstance(absent[0], Embedded):
        return f"the embedded {absent[0].title} is not in this installation; make it with `lanternbench train tiny`"
    titles = " and ".join(w.title for w in absent)
    return f"the files of {titles} are not here; get them: lanternbench fetch {' '.join(w.name for w in absent)}"


def tensors(path: Path, title: str) -> dict[str, Tensor]:
    """The state dict of a .safetensors file or of a PyTorch file, also when it lies under "state_dict".

    Raises UserError for another file, a damaged one, or one with code.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    broken = (OSError, RuntimeError, EOFError, ValueError, AttributeError, KeyError)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)  # refuses a pickle that runs code
        state = state.get("state_dict", state)
        return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
    except (*broken, pickle.UnpicklingError, SafetensorError) as error:
        raise wrong_file(path, title, error) from None


def wrong_file(path: Path, title: str, error: Exception) -> UserError:
    """The error for a file that cannot be used."""
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(f"{path} is not the {title.partition(' (')[0]} file ({cause[:200]}); download it again.")


def embedded(name: str) -> Path:
    """The package's weights file ``name``."""
    return WEIGHTS / name


def stamp(path: Path) -> str:
    """Name, size and time of a file: differs between files; only the name of a missing file."""
    if not path.is_file():
        return path.name
    about = path.stat()
    return f"{path.name} {about.st_size} {about.st_mtime_ns}"
