"""Where the evaluators' weights lie: the embedded ones in the package, the papers' in local caches.  No downloads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

EMBEDDED = Path(str(files("lanternbench"))) / "weights"


def cache_dir() -> Path:
    """Where downloaded files lie: $LANTERNBENCH_HOME, by default ~/.cache/lanternbench."""
    return Path(os.environ.get("LANTERNBENCH_HOME") or Path.home() / ".cache" / "lanternbench")


@dataclass(frozen=True)
class Weights:
    """A published weights file, and the places where it may already lie."""

    name: str
    title: str
    file: str
    url: str
    sha256: str  # the whole digest, or its first digits where only these are published
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
        if self.find():
            return None
        target = cache_dir() / self.file
        return f"the weights of {self.title} are not here; get them: curl -L --create-dirs -o {target} {self.url}"


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


def embedded(name: str) -> Path:
    """The package's own weights file ``name``."""
    return EMBEDDED / name


def embedded_missing(name: str, title: str) -> str | None:
    """None when the package's own weights file is here, else one sentence with the command that makes it."""
    if embedded(name).is_file():
        return None
    return f"the embedded {title} is not in this installation; make it with `lanternbench train tiny`"
