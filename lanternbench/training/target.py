"""Train the embedded target, a LlamaGen decoder, on tokens of captioned scenes; the text encoder stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.models import text
from lanternbench.models.llamagen import CaptionEmbedding, LlamaGen, LlamaGenConfig, left_pad
from lanternbench.models.vq import VQModel
from lanternbench.training import data, loop
from lanternbench.training.vq import to_float

CONFIG = LlamaGenConfig(
    dim=128, n_layer=16, n_head=4, vocab_size=1024, caption_dim=text.WIDTH, cls_token_num=text.WORDS, multiple_of=32
)
BATCH = 8
PRIOR_STEPS = 2200  # at first without captions: what images look like
CAPTION_DROPOUT = 0.1  # afterwards: rows that learn the unconditional model, for classifier-free guidance


class TextToImage(nn.Module):
    """Captions -> features (frozen) -> prefix -> image tokens."""

    def __init__(self, encoder: text.TextEncoder | None = None, cfg: LlamaGenConfig = CONFIG):
        super().__init__()
        self.text = (encoder or text.TextEncoder()).eval().requires_grad_(False)
        self.target = LlamaGen(cfg)
        self.target.apply(_initialise)

    def features(self, captions: list[str], drop: Tensor) -> tuple[Tensor, Tensor]:
        """Captions -> left-padded features [B, T, c] and their mask [B, T]; ``drop`` [B] marks unconditional rows."""
        features, valid = left_pad(*self.text(text.tokenize(captions)))
        uncond = cast(CaptionEmbedding, self.target.cls_embedding).uncond_embedding
        return torch.where(drop[:, None, None], uncond, features), valid


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


@torch.no_grad()
def tokens(folder: Path, vq: VQModel, count: int, seed: int = data.SEED) -> Tensor:
    """The scenes as tokens, int16 [count, 256]; kept on disk."""
    path = folder / f"tokens-{seed}-{count}.pt"
    if not path.exists():
        images = data.images(folder, count, seed)
        found = [vq.encode(to_float(images[i : i + 64])).flatten(1).short() for i in range(0, count, 64)]
        loop.save_atomically(torch.cat(found), path)
    return torch.load(path, weights_only=True)


def caption(index: int, rng: np.random.Generator, seed: int = data.SEED) -> str:
    """A random wording for training image ``index``."""
    wordings = data.scene(index, seed).captions()
    return wordings[int(rng.integers(len(wordings)))]


def train(
    folder: Path,
    vq: VQModel,
    encoder: text.TextEncoder,
    steps: int = 5000,
    count: int = 40000,
    log: Callable[[str], None] = print,
) -> TextToImage:
    """The target, trained on the tokens of ``count`` scenes and the encoder's features of their captions."""
    torch.manual_seed(2)
    model = TextToImage(encoder)
    prior = min(PRIOR_STEPS, steps // 2)
    grid = tokens(folder, vq, count)
    # what follows a few tokens hardly needs the caption; the first ones do, and teach the model to read it
    weight = 1 + 15 * torch.exp(-torch.arange(256) / 4)

    def step_fn(step: int) -> dict[str, Tensor]:
        rng = np.random.default_rng([11, step])
        picked = rng.integers(count, size=BATCH)
        drop = torch.from_numpy(rng.random(BATCH) < (CAPTION_DROPOUT if step >= prior else 1.0))
        truth = grid[picked].long()
        features, valid = model.features([caption(int(i), rng) for i in picked], drop)
        prefix = model.target.cls_embedding(features)
        logits = model.target.output(model.target.teacher_forced(prefix, valid, truth))
        each = F.cross_entropy(logits.flatten(0, 1), truth.flatten(), reduction="none").view(BATCH, -1)
        return {"loss": (each * weight).mean(), "tokens": each.mean().detach(), "first": each[:, 0].mean().detach()}

    loop.fit("target", model, loop.optimizers(model, 1e-3, 0.01), step_fn, steps, folder, warmup=50, log=log)
    return model
