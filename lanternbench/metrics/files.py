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
    sha256: str  # the whole digest, its first digits where only these are published, or nothing where none is
    elsewhere: tuple[str, ...] = ()  # other paths, ~ and $VARIABLES expanded
    hub: tuple[str, str] | None = None  # (repository, file) on the Hugging Face hub

    def find(self) -> Path | None:
        """The file, or None; looks only on this machine."""
        for path in (cache_dir() / self.file, *(Path(os.path.expandvars(p)).expanduser() for p in self.elsewhere)):
            if path.is_file():
                return path
        if self.hub:
            from huggingface_hub import try_to_load_from_cache

            found = try_to_load_from_cache(*self.hub)
            if isinstance(found, str):
                return Path(found)
        return None

    def missing(self) -> str | None:
        """None when the file is here, else one sentence with the command that gets it."""
        return missing(self)


def missing(*wanted: Weights) -> str | None:
    """None when all files are here, else one sentence with the one command that gets those that are not."""
    absent = [w for w in wanted if not w.find()]
    if not absent:
        return None
    titles = " and ".join(w.title for w in absent)
    return f"the files of {titles} are not here; get them: lanternbench fetch {' '.join(w.name for w in absent)}"


def tensors(path: Path, title: str) -> dict[str, Tensor]:
    """The state dict of a .safetensors file or of a PyTorch file, also when it lies under "state_dict".

    Raises UserError when the file is another, is damaged, or holds code.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)  # refuses a pickle that runs code
        found = found.get("state_dict", found)
        return {name: tensor for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}
    except (OSError, RuntimeError, EOFError, ValueError, AttributeError, KeyError) as error:
        raise wrong_file(path, title, error) from None
    except (pickle.UnpicklingError, SafetensorError) as error:
        raise wrong_file(path, title, error) from None


def wrong_file(path: Path, title: str, error: Exception) -> UserError:
    """What to say of a file that cannot be used."""
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(f"{path} is not the {title.partition(' (')[0]} file ({cause[:200]}); download it again.")


CLIP_VIT_B32 = Weights(
    name="clip",
    title="CLIP ViT-B/32 (OpenAI)",
    file="ViT-B-32.pt",
    url="https://openaipublic.azureedge.net/clip/models/"
    "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af/ViT-B-32.pt",
    sha256="40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af",
    elsewhere=("~/.cache/clip/ViT-B-32.pt",),
    hub=("timm/vit_base_patch32_clip_224.openai", "open_clip_model.safetensors"),
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
)

CLIP_VIT_L14 = Weights(
    name="clip-l14",
    title="CLIP ViT-L/14 (OpenAI)",
    file="ViT-L-14.pt",
    url="https://openaipublic.azureedge.net/clip/models/"
    "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836/ViT-L-14.pt",
    sha256="b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836",
    elsewhere=("~/.cache/clip/ViT-L-14.pt",),
    hub=("timm/vit_large_patch14_clip_224.openai", "open_clip_model.safetensors"),
)
AESTHETIC = Weights(
    name="aesthetic",
    title="LAION's aesthetic predictor",
    file="sac+logos+ava1-l14-linearMSE.pth",
    url="https://github.com/christophschuhmann/improved-aesthetic-predictor/raw/main/"
    "sac%2Blogos%2Bava1-l14-linearMSE.pth",
    sha256="",
)
IMAGE_REWARD = Weights(
    name="image-reward",
    title="ImageReward",
    file="ImageReward.pt",
    url="https://huggingface.co/THUDM/ImageReward/resolve/main/ImageReward.pt",
    sha256="",
    elsewhere=("~/.cache/ImageReward/ImageReward.pt",),
    hub=("THUDM/ImageReward", "ImageReward.pt"),
)
BERT_VOCABULARY = Weights(
    name="bert-vocabulary",
    title="the vocabulary of BERT (uncased)",
    file="bert-base-uncased-vocab.txt",
    url="https://huggingface.co/google-bert/bert-base-uncased/resolve/main/vocab.txt",
    sha256="",
    hub=("google-bert/bert-base-uncased", "vocab.txt"),
)
HPS_V2 = Weights(
    name="hpsv2",
    title="HPSv2",
    file="HPS_v2_compressed.pt",
    url="https://huggingface.co/xswu/HPSv2/resolve/main/HPS_v2_compressed.pt",
    sha256="",
    hub=("xswu/HPSv2", "HPS_v2_compressed.pt"),
)
HPS_V21 = Weights(
    name="hpsv2.1",
    title="HPSv2.1",
    file="HPS_v2.1_compressed.pt",
    url="https://huggingface.co/xswu/HPSv2/resolve/main/HPS_v2.1_compressed.pt",
    sha256="",
    hub=("xswu/HPSv2", "HPS_v2.1_compressed.pt"),
)


PUBLISHED = (
    CLIP_VIT_B32, INCEPTION, CLIP_VIT_L14, AESTHETIC, IMAGE_REWARD, BERT_VOCABULARY, HPS_V2, HPS_V21
)  # fmt: skip


def embedded(name: str) -> Path:
    """The package's own weights file ``name``."""
    return WEIGHTS / name


def stamp(path: Path) -> str:
    """Name, size and time of a file: another text when the file is another; just the name where there is none."""
    if not path.is_file():
        return path.name
    about = path.stat()
    return f"{path.name} {about.st_size} {about.st_mtime_ns}"


def embedded_missing(name: str, title: str) -> str | None:
    """None when the package's own weights file is here, else one sentence with the command that makes it."""
    if embedded(name).is_file():
        return None
    return f"the embedded {title} is not in this installation; make it with `lanternbench train tiny`"
