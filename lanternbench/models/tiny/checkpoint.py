"""The bundled target, its text encoder and its drafters: safetensors in LlamaGen's and LANTERN's
key names.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models import token_decoder
from lanternbench.models.drafters.dflash import Medusa
from lanternbench.models.drafters.kinds import FILED
from lanternbench.models.entries import Entry, entry
from lanternbench.models.family import Family, drafter_at
from lanternbench.models.key_names import from_published
from lanternbench.models.llamagen.checkpoint import LlamaGen, LlamaGenConfig
from lanternbench.models.loading import Json, State, explain_errors, load_into
from lanternbench.models.target import Options, Target
from lanternbench.models.token_decoder import BUCKETS, word_id, words
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.registry import register
from lanternbench.settings import Sampling
from lanternbench.utils.files import OUT, WEIGHTS, make_folder, write_file

WORDS = 24  # features per caption (LlamaGen: 120)
WIDTH = 128
# the options that suit a machine on which every verified node costs, by the costs and acceptance
# that `tune` measures
OPTIONS: Options = {
    "static": "chain-5",
    "chain": "chain-3",
    "medusa": "twig-8",
    "depth": 2,
    "draft_top_k": 4,
    "total_nodes": 5,
    "depth_range": (0, 4),
    "width_range": (1, 5),
    "l_k": 1,
    "near": 64,
}


def words_read(caption: str) -> list[str]:
    """Return the words that the encoder reads; an empty caption keeps one neutral word."""
    return [word for word in words(caption)[:WORDS] if word != ","] or [""]


def padded(rows: list[list[int]], length: int) -> Tensor:
    """Return int64 [B, length], with zeros on the right."""
    ids, _ = token_decoder.padded(rows)
    return F.pad(ids, (0, length - ids.shape[1]))


def tokenize(captions: list[str]) -> Tensor:
    """Return ids of words, int64 [B, WORDS], right-padded with 0."""
    rows = [list(map(word_id, words_read(caption))) for caption in captions]
    return padded(rows, WORDS)


class TextEncoder(nn.Module):
    """Two bidirectional layers over hashed words in place of Flan-T5; every position carries the
    caption's mean.

    LlamaGen's image tokens attend to all caption positions alike, so they could see no more than
    the mean.
    """

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(BUCKETS, WIDTH, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(WORDS, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(
            layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids [B, WORDS] -> features [B, WORDS, WIDTH], mask [B, WORDS] (1 = word),
        right-padded.
        """
        mask = ids != 0
        x = self.body(self.word(ids) + self.place, src_key_padding_mask=~mask)
        mean = (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        return mean * mask[..., None], mask.long()


def write(path: Path, state: State, **meta: object) -> None:
    """Write half-precision safetensors with ``meta`` as JSON strings in the header."""
    halves = {k: v.detach().half().contiguous() for k, v in state.items()}
    write_tensors(path, halves, {k: json.dumps(v) for k, v in meta.items()})


def write_tensors(path: Path, state: State, meta: dict[str, str]) -> None:
    """Write safetensors, under their name only when whole.

    Raises UserError if the disk is full or not writable.
    """
    make_folder(path.parent, OUT)
    write_file(path, save(state, meta), OUT)


def read(path: Path) -> tuple[State, Json]:
    """Return the tensors and header of a bundled file.  Raises UserError if it is missing or
    damaged.
    """
    fix = "reinstall, or run `lanternbench train tiny`"
    with explain_errors(f"cannot read {path}", fix), safe_open(path, "pt") as file:
        meta = {k: json.loads(v) for k, v in (file.metadata() or {}).items()}
        return {k: file.get_tensor(k) for k in file.keys()}, meta  # noqa: SIM118


def _llamagen(path: Path, device: str, dtype: torch.dtype) -> LlamaGen:
    state, meta = read(path)
    with explain_errors(f"{path} does not say what it is"):
        config = LlamaGenConfig(**meta["config"])
        weights = from_published(state)
    return load_into(lambda: LlamaGen(config), weights, path, device, dtype)


@register("target", "tiny")
class TinyFamily(Family):
    """The bundled model; a folder that ``train tiny`` wrote is a target too."""

    defaults = OPTIONS

    def home(self, row: Entry) -> Path:
        return WEIGHTS

    def missing(self, row: Entry, folder: Path) -> list[str]:
        return [] if self.reads(folder) else ["model"]

    def reads(self, path: Path) -> Path | None:
        return path if (path / "target.safetensors").is_file() else None

    def load(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> Target:
        return load(folder or WEIGHTS, device, dtype)

    def decoder(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> LlamaGen:
        """Return the decoder; without a folder, with the trained weights of the package."""
        file = (folder or WEIGHTS) / "target.safetensors"
        return _llamagen(file, device, dtype or torch.float32)

    def random_target(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Target:
        raise UserError(
            f"target '{row.name}' comes with trained weights: leave out --random-weights"
        )


def load(folder: Path = WEIGHTS, device: str = "cpu", dtype: torch.dtype | None = None) -> Target:
    """Return the bundled target with all its drafters.

    ``dtype``: that of model and drafters, by default float32.
    """
    dtype = dtype or torch.float32
    model = _llamagen(folder / "target.safetensors", device, dtype)
    text = folder / "text.safetensors"
    encoder = load_into(TextEncoder, read(text)[0], text, device, torch.float32)
    file = folder / "vq.safetensors"
    state, meta = read(file)
    with explain_errors(f"{file} does not say what it is"):
        shape = VQConfig(**meta["config"])
    vq = load_into(lambda: VQModel(shape), state, file, device, torch.float32)
    drafters: dict[str, nn.Module] = {}
    for kind in FILED:
        file = folder / f"{kind}.safetensors"
        if kind == "eagle" or file.exists():  # earlier versions trained no other
            drafters[kind] = drafter_at(file, model, device)
    drafters["medusa"] = _medusa(folder / "medusa.safetensors", model, device, dtype)
    drafters["model"] = _llamagen(folder / "model.safetensors", device, dtype)
    return assemble(model, encoder, vq, drafters)


def _medusa(path: Path, model: LlamaGen, device: str, dtype: torch.dtype) -> Medusa:
    heads, _ = read(path)
    with explain_errors(f"{path} holds no Medusa heads"):
        count = len(heads["weight"])
    return load_into(lambda: Medusa(model.config.dim, count), heads, path, device, dtype)


def assemble(
    model: LlamaGen, encoder: TextEncoder, vq: VQModel, drafters: dict[str, nn.Module]
) -> Target:
    """Return the bundled target of its parts, on whatever device they are."""
    for net in (model, encoder, vq, *drafters.values()):
        net.eval().requires_grad_(False)

    def features(captions: list[str]) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            states, mask = encoder(tokenize(captions).to(model.device))
        return states.to(model.dtype), mask

    return Target(
        "tiny",
        model,
        vq,
        features,
        entry("tiny").part(Sampling),
        evaluators="tiny",
        options=OPTIONS,
        drafters=drafters,
    )
