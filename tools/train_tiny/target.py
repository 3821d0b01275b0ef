"""Train the embedded target, a LlamaGen decoder, on tokens of captioned scenes; the text encoder
stays as it is.

It learns at half its depth first, where a step costs half as much, is then doubled and learns on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lanternbench.models.llamagen.checkpoint import (
    CaptionEmbedding,
    LlamaGen,
    LlamaGenConfig,
    left_pad,
)
from lanternbench.models.tiny import checkpoint as text
from lanternbench.models.transformer import Layer
from lanternbench.models.vq import VQModel
from lanternbench.training import loop
from tools.train_tiny import data, scenes
from tools.train_tiny.vq import to_float

CONFIG = LlamaGenConfig(
    dim=128,
    n_layer=32,
    n_head=4,
    vocab_size=1024,
    caption_dim=text.WIDTH,
    cls_token_num=text.WORDS,
    multiple_of=32,
)
HALF = replace(CONFIG, n_layer=CONFIG.n_layer // 2)
BATCH = 8
Log = Callable[[str], None]
MIDDLE = 3  # the layer whose state must tell where on the grid it is, at half depth
CAPTION_DROPOUT = 0.1  # rows that learn the unconditional model, for classifier-free guidance


class TextToImage(nn.Module):
    """Captions -> features (frozen) -> prefix -> image tokens."""

    def __init__(self, encoder: text.TextEncoder | None = None, cfg: LlamaGenConfig = CONFIG):
        super().__init__()
        self.text = (encoder or text.TextEncoder()).eval().requires_grad_(False)
        self.target = LlamaGen(cfg)
        self.target.apply(_initialise)
        nn.init.normal_(self.target.tok_embeddings.weight, std=0.3)
        # for training alone: row and column of the next token
        self.where = nn.Linear(cfg.dim, 2 * cfg.grid[0])

    def features(self, captions: list[str], drop: Tensor) -> tuple[Tensor, Tensor]:
        """Captions -> left-padded features [B, T, c] and their mask [B, T]; ``drop`` [B] marks
        unconditional rows.
        """
        features, valid = left_pad(*self.text(text.tokenize(captions)))
        uncond = cast(CaptionEmbedding, self.target.cls_embedding).uncond_embedding
        return torch.where(drop[:, None, None], uncond, features), valid


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


@torch.no_grad()
def tokens(folder: Path, vq: VQModel, count: int) -> Tensor:
    """The scenes as tokens, int16 [count, 256]; kept on disk."""
    path = folder / f"tokens-{data.SEED}-{count}.pt"
    if not path.exists():
        images = data.images(folder, count)
        found = [
            vq.encode(to_float(images[i : i + 64])).flatten(1).short() for i in range(0, count, 64)
        ]
        loop.save_atomically(torch.cat(found), path)
    return loop.load_saved(path)


def caption(index: int, rng: np.random.Generator, seed: int) -> str:
    """A random wording for image ``index`` of this seed."""
    wordings = data.scene(index, seed).captions()
    return wordings[int(rng.integers(len(wordings)))]


def lengths(count: int) -> dict[int, Tensor]:
    """Words in a caption -> the (image, wording) pairs [n, 2] that have so many: a batch of them
    needs no padding.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for i in range(count):
        for j, wording in enumerate(data.scene(i, data.SEED).captions()):
            found.setdefault(len(text.words_read(wording)), []).append((i, j))
    return {n: torch.tensor(pairs) for n, pairs in found.items()}


def weights(scene: scenes.Scene) -> Tensor:
    """What a token counts in the loss, [256]: known from the caption alone, so that the optimum
    stays where it is.

    Where shapes are named, much is to be learnt; the first tokens teach to read the caption; pure
    noise teaches little.
    """
    side = CONFIG.grid[0]
    found = torch.full((side, side), 0.3 if scene.texture == "noisy" else 1.0)
    at = (torch.arange(side) + 0.5) / side
    for item in scene.items:
        (x, y), reach = scenes.PLACES[item.place], scenes.RADII[item.size] * 1.1 + 0.05
        found += 3 * ((at - y).abs() < reach)[:, None] * ((at - x).abs() < reach)
    return found.flatten() + 10 * torch.exp(-torch.arange(side * side) / 4)


def position_loss(logits: Tensor, side: int) -> Tensor:
    """Cross entropies of the next token's row and column, summed: logits [B, side², 2 · side]."""
    rows, columns = torch.arange(side).repeat_interleave(side), torch.arange(side).repeat(side)
    return sum(
        (
            F.cross_entropy(part.flatten(0, 1), at.repeat(len(logits)))
            for part, at in zip(logits.chunk(2, -1), (rows, columns), strict=True)
        ),
        torch.zeros(()),
    )


@torch.no_grad()
def count_rows_and_columns(model: LlamaGen) -> None:
    """Let two heads of the first layer start out as counters, so that the model knows where on the
    grid it is.

    Rotary positions are relative; absolute ones come from attention alone, slowly.  All image
    tokens get one feature in common.  From it the heads make rotary logits that are 0 towards
    tokens of the same row (the same column) and very negative towards others; the caption's logits
    are 0 too, so that the share of attention that image tokens get tells how many there were in
    this row (column).
    """
    first, width = cast(Layer, model.layers[0]).attention, model.config.decoder.head_dim
    embeddings = model.tok_embeddings.weight
    embeddings[:, 0] = 3
    unit = 3 * float(embeddings.square().mean(1).rsqrt().mean())  # that feature after the norm
    # per frequency; cos Δ + cos 0.32 Δ - 2 is 0 at Δ = 0 and negative elsewhere
    logits = torch.zeros(width // 4)
    logits[[0, 1, -1]] = torch.tensor([90.0, 90.0, -180.0])
    for head, axis in ((0, 0), (1, 1)):
        pairs = slice(axis * width // 4, (axis + 1) * width // 4)
        q, k, v = (
            first.wqkv.weight.unflatten(0, (3, model.config.decoder.n_head, width))[i, head]
            for i in range(3)
        )
        q.zero_(), k.zero_(), v.zero_()
        strength = logits.abs().sqrt() * width**0.25 / unit
        q.view(width // 2, 2, -1)[pairs, 0, 0] = strength
        k.view(width // 2, 2, -1)[pairs, 0, 0] = strength * logits.sign()
        v[0, 0] = 3 / unit
        first.wo.weight[:, head * width : (head + 1) * width] = 0
        first.wo.weight[1 + axis, head * width] = 3


def with_doubled_depth(model: TextToImage) -> TextToImage:
    """The same function with twice the layers: behind each a copy of it, whose outputs are 0 to
    begin with.

    Source: Wu et al. 2024, "LLaMA Pro", block expansion.
    """
    cfg = model.target.config
    deep = TextToImage(model.text, replace(cfg, n_layer=2 * cfg.n_layer))
    for old, new in ((model.target, deep.target), (model.where, deep.where)):
        own = {k: v for k, v in old.state_dict().items() if not k.startswith("layers.")}
        new.load_state_dict(own, strict=False)
    for i, layer in enumerate(model.target.layers):
        for copy in deep.target.layers[2 * i : 2 * i + 2]:
            copy.load_state_dict(layer.state_dict())
        added = cast(Layer, deep.target.layers[2 * i + 1])
        nn.init.zeros_(added.attention.wo.weight)
        nn.init.zeros_(added.feed_forward.w2.weight)
    return deep


class Batches:
    """Captions and tokens of ``count`` scenes, drawn by (salt, step) so that those of a batch are
    equally long.
    """

    def __init__(self, folder: Path, vq: VQModel, count: int):
        self.tokens = tokens(folder, vq, count)
        self.groups = list(lengths(count).values())
        self.share = np.array([len(g) for g in self.groups]) / sum(len(g) for g in self.groups)

    def __call__(self, step: int, salt: int) -> tuple[list[str], Tensor, Tensor, Tensor]:
        """Captions, which of them to drop [B], tokens [B, 256] and their weights in the loss [B,
        256].
        """
        rng = np.random.default_rng([salt, step])
        group = self.groups[rng.choice(len(self.groups), p=self.share)]
        pairs = group[rng.integers(len(group), size=BATCH)].tolist()
        drawn = [data.scene(i) for i, _ in pairs]
        drop = torch.from_numpy(rng.random(BATCH) < CAPTION_DROPOUT)
        truth = self.tokens[[i for i, _ in pairs]].long()
        wordings = [scene.captions()[j] for scene, (_, j) in zip(drawn, pairs, strict=True)]
        return wordings, drop, truth, torch.stack([weights(scene) for scene in drawn])


def _fit(
    model: TextToImage,
    batches: Batches,
    steps: int,
    salt: int,
    rate: float,
    folder: Path,
    log: Log,
) -> None:
    states: list[Tensor] = []
    layer = MIDDLE * (model.target.config.n_layer // HALF.n_layer)
    hook = model.target.layers[layer].register_forward_hook(
        lambda module, inputs, output: states.append(output)
    )

    def step_fn(step: int) -> dict[str, Tensor]:
        captions, drop, truth, weight = batches(step, salt)
        features, valid = model.features(captions, drop)
        prefix = model.target.cls_embedding(features)
        logits = model.target.output(model.target.teacher_forced(prefix, valid, truth))
        each = F.cross_entropy(logits.flatten(0, 1), truth.flatten(), reduction="none").view(
            BATCH, -1
        )
        loss = (each * weight).sum() / weight.sum()
        state = F.rms_norm(states.pop()[:, -truth.shape[1] :], (CONFIG.dim,))
        where = position_loss(model.where(state), CONFIG.grid[0])
        figures = {"tokens": each.mean(), "first": each[:, 0].mean(), "where": where}
        return {"loss": loss + 0.3 * where, **{k: v.detach() for k, v in figures.items()}}

    optims = loop.optimizers(model, rate, 10 * rate)
    loop.fit("target", model, optims, step_fn, steps, folder, plan=loop.Plan(50, 1.0), log=log)
    hook.remove()


def train(
    folder: Path, encoder: text.TextEncoder, batches: Batches, steps: int, log: Log = print
) -> TextToImage:
    """The target at half its depth."""
    torch.manual_seed(2)
    model = TextToImage(encoder, HALF)
    count_rows_and_columns(model.target)
    _fit(model, batches, steps, 11, 1e-3, folder, log)
    return model


def deepen(
    folder: Path, model: TextToImage, batches: Batches, steps: int, log: Log = print
) -> TextToImage:
    """The target at its whole depth, trained on."""
    torch.manual_seed(4)
    deep = with_doubled_depth(model)
    _fit(deep, batches, steps, 12, 6e-4, folder, log)
    return deep
