"""Train the two embedded evaluators, CLIP-tiny and the feature net of FID-tiny, on real and
VQ-decoded scenes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

from lanternbench.models.tiny import evaluators
from lanternbench.models.tiny.checkpoint import write_tensors
from lanternbench.models.tiny.evaluators import FEATURES, WIDTHS, FeatureNet
from lanternbench.models.vq import VQModel
from lanternbench.training import loop
from lanternbench.utils.files import WORK, replacing
from tools.train_tiny import data, scenes
from tools.train_tiny import target as target_training

BATCH = 64
COUNT = 40000  # scenes: the ones that the target is trained on
DECODED = 8000  # how many of them are also seen as the VQ decodes them
SHARE = 0.35  # of a batch that is VQ-decoded
CLIP_SEED, FID_SEED = 3, 4
REFERENCE_SEED = 778  # of the scenes for the statistics of real images
REFERENCE = 5000  # scenes behind those statistics
VOCABULARY: tuple[tuple[str, ...], ...] = tuple(
    tuple(words)
    for words in (
        scenes.TEXTURES,
        scenes.COLOURS,
        scenes.SHAPES,
        scenes.COLOURS,
        scenes.RADII,
        scenes.PLACES,
    )
)
ATTRIBUTES = sum(len(v) for v in VOCABULARY)


def attributes(scene: scenes.Scene) -> Tensor:
    """float [37] of 0 and 1: texture, background, and the shapes, colours, sizes and places that
    are present.
    """
    present = (
        {scene.texture},
        {scene.background},
        *({i[n] for i in scene.items} for n in (0, 1, 2, 3)),
    )
    return torch.tensor(
        [
            float(word in found)
            for words, found in zip(VOCABULARY, present, strict=True)
            for word in words
        ]
    )


def near_miss(scene: scenes.Scene, rng: np.random.Generator) -> scenes.Scene:
    """A scene that differs in one word: the caption that an image must be told apart from."""

    def other(values, value):
        rest = [v for v in values if v != value]
        return rest[int(rng.integers(len(rest)))]

    kind = int(rng.integers(6))
    if kind == 0:
        return replace(scene, texture=other(scenes.TEXTURES, scene.texture))
    if kind == 1:
        return replace(scene, background=other(scenes.COLOURS, scene.background))
    items, at = list(scene.items), int(rng.integers(len(scene.items)))
    if len(items) == 2 and items[0][:3] != items[1][:3] and rng.random() < 0.3:  # who stands where
        items = [items[0]._replace(place=items[1].place), items[1]._replace(place=items[0].place)]
    else:
        field = ("shape", "colour", "size", "place")[kind - 2]
        values = (scenes.SHAPES, scenes.COLOURS, scenes.RADII, scenes.PLACES)[kind - 2]
        items[at] = items[at]._replace(**{field: other(values, getattr(items[at], field))})
    return replace(scene, items=tuple(items))


@torch.no_grad()
def vq_decoded_scenes(folder: Path, vq: VQModel, count: int) -> np.ndarray:
    """The first scenes as the VQ decodes them, uint8 [count, 64, 64, 3]; kept on disk.

    In every second one up to 12 % of the tokens are swapped for others of the image: generated
    samples have flaws.
    """
    path = folder / f"decoded-{data.SEED}-{count}.npy"
    if not path.exists():
        known = folder / f"tokens-{data.SEED}-{COUNT}.pt"
        tokens = target_training.tokens(folder, vq, COUNT if known.exists() else count)[
            :count
        ].long()
        rng = np.random.default_rng([data.SEED, 5])
        for row in tokens[1::2]:
            hit = torch.from_numpy(rng.integers(256, size=int(rng.integers(1, 31))))
            row[hit] = row[torch.from_numpy(rng.integers(256, size=len(hit)))]
        side = scenes.SIZE >> (len(vq.config.ch_mult) - 1)
        blocks = [to_images(vq.decode(t.view(-1, side, side))) for t in tokens.split(64)]
        with replacing(path, WORK) as file:
            np.save(file, np.concatenate(blocks))
    return np.load(path, mmap_mode="r")


def to_images(x: Tensor) -> np.ndarray:
    """float [B, 3, H, W] in −1…1 -> uint8 [B, H, W, 3]."""
    return ((x.clamp(-1, 1) + 1) * 127.5 + 0.5).byte().permute(0, 2, 3, 1).numpy()


def augment(x: Tensor, rng: np.random.Generator) -> Tensor:
    """[B, 3, 64, 64] in −1…1: up to 2 pixels of shift, mild tone, noise, and now and then a blur."""
    gen = torch.Generator().manual_seed(int(rng.integers(2**31)))
    dy, dx = rng.integers(0, 5, 2)
    x = F.pad(x, (2, 2, 2, 2), mode="replicate")[
        :, :, dy : dy + scenes.SIZE, dx : dx + scenes.SIZE
    ]
    gain, shift, noise, blur = torch.rand(4, len(x), 1, 1, 1, generator=gen)
    x = torch.where(blur < 0.2, F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), x)
    x = x * (0.92 + 0.16 * gain) + 0.16 * (shift - 0.5)
    return x + 0.08 * noise.square() * torch.randn(x.shape, generator=gen)


class Batches:
    """Batch ``step``: augmented images [64, 3, 64, 64], a third of them VQ-decoded, and their
    scenes.
    """

    def __init__(self, folder: Path, vq: VQModel, count: int, known: int):
        self.real, self.vq_decoded_scenes = (
            data.images(folder, count),
            vq_decoded_scenes(folder, vq, known),
        )

    def __call__(
        self, seed: int, step: int
    ) -> tuple[Tensor, list[scenes.Scene], np.random.Generator]:
        rng = np.random.default_rng([seed, step])
        n = round(SHARE * BATCH)
        real, again = (
            rng.integers(len(self.real), size=BATCH - n),
            rng.integers(len(self.vq_decoded_scenes), size=n),
        )
        pixels = np.concatenate([self.real[real], self.vq_decoded_scenes[again]])
        # channels last, as stored
        x = evaluators.to_float(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        return augment(x, rng), [data.scene(int(i)) for i in (*real, *again)], rng


class _ClipTask(nn.Module):
    """CLIP-tiny and a head, shared by both towers, that names attributes: it aligns them early and
    is then dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clip = evaluators.build()
        self.clip.visual.to(memory_format=torch.channels_last)
        self.head = nn.Linear(evaluators.FEATURES, ATTRIBUTES)

    def forward(self, x: Tensor, captions: list[str], labels: Tensor) -> dict[str, Tensor]:
        """x [B, 3, 64, 64], the B captions and B near misses, labels [B, 37] -> losses."""
        n = len(x)
        image, words = (
            self.clip.encode_image(x),
            self.clip.encode_text(evaluators.tokenize(captions)),
        )
        scale = self.clip.logit_scale.clamp(max=4.6).exp()
        logits = scale * F.normalize(image, dim=-1) @ F.normalize(words, dim=-1).T  # [B, 2B]
        own = torch.arange(n)
        contrast = (F.cross_entropy(logits, own) + F.cross_entropy(logits[:, :n].T, own)) / 2
        named = F.binary_cross_entropy_with_logits(self.head(image), labels)
        named = named + F.binary_cross_entropy_with_logits(self.head(words[:n]), labels)
        hits = (logits.argmax(1) == own).float().mean()
        return {
            "loss": contrast + named,
            "contrast": contrast.detach(),
            "named": named.detach(),
            "top1": hits,
        }


def train_clip(
    folder: Path,
    vq: VQModel,
    steps: int = 2400,
    count: int = COUNT,
    log: Callable[[str], None] = print,
) -> nn.Module:
    """CLIP-tiny trained contrastively, every image against 64 captions and 64 near misses."""
    torch.manual_seed(CLIP_SEED)
    task, batches = _ClipTask(), Batches(folder, vq, count, min(count, DECODED))

    def step_fn(step: int) -> dict[str, Tensor]:
        x, found, rng = batches(13, step)
        wordings = rng.integers(3, size=(2, BATCH))
        captions = [s.captions()[w] for s, w in zip(found, wordings[0], strict=True)]
        captions += [
            near_miss(s, rng).captions()[w] for s, w in zip(found, wordings[1], strict=True)
        ]
        return task(x, captions, torch.stack([attributes(s) for s in found]))

    loop.fit("clip", task, loop.optimizers(task, 1.5e-3), step_fn, steps, folder, log=log)
    return task.clip


class _FidTask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = FeatureNet().to(memory_format=torch.channels_last)
        self.head = nn.Linear(FEATURES, ATTRIBUTES)


def train_fid(
    folder: Path,
    vq: VQModel,
    steps: int = 2400,
    count: int = COUNT,
    log: Callable[[str], None] = print,
) -> FeatureNet:
    """The feature net, trained to name the attributes of a scene."""
    torch.manual_seed(FID_SEED)
    task, batches = _FidTask(), Batches(folder, vq, count, min(count, DECODED))

    def step_fn(step: int) -> dict[str, Tensor]:
        x, found, _ = batches(17, step)
        labels = torch.stack([attributes(s) for s in found])
        logits = task.head(task.net.features(x))
        hits = ((logits > 0) == (labels > 0)).all(1).float().mean()
        return {"loss": F.binary_cross_entropy_with_logits(logits, labels), "all right": hits}

    loop.fit("fid", task, loop.optimizers(task, 2e-3), step_fn, steps, folder, log=log)
    return task.net


def train(
    folder: Path,
    out: Path,
    vq: VQModel,
    clip_steps: int,
    fid_steps: int,
    count: int = COUNT,
    log: Callable[[str], None] = print,
) -> None:
    """Both evaluators, trained on ``count`` scenes in ``folder`` and written to ``out``."""
    export_clip(train_clip(folder, vq, clip_steps, count, log), out, clip_steps)
    export_fid(train_fid(folder, vq, fid_steps, count, log), out, fid_steps, min(REFERENCE, count))


def _halves(module: nn.Module) -> dict[str, Tensor]:
    state = module.state_dict()
    return {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in state.items()}


def export_clip(clip: nn.Module, out: Path, steps: int) -> None:
    """Write ``out/clip.safetensors``: float16 weights; how they came about as metadata."""
    about = {
        "model": "CLIP-tiny",
        "config": json.dumps(evaluators.CONFIG),
        "seed": str(CLIP_SEED),
        "steps": str(steps),
    }
    write_tensors(
        out / "clip.safetensors", _halves(clip), about | {"scenes": f"{COUNT} of seed {data.SEED}"}
    )


def export_fid(net: FeatureNet, out: Path, steps: int, count: int = REFERENCE) -> None:
    """Write ``out/fid.safetensors``: float16 weights and the statistics of ``count`` held-out real
    scenes.
    """
    rounded = FeatureNet()
    rounded.load_state_dict(
        {k: v.float() if v.is_floating_point() else v for k, v in _halves(net).items()}
    )
    metric = FrechetInceptionDistance(feature=rounded.eval())
    for start in range(0, count, 100):
        block = [
            scenes.sample(REFERENCE_SEED, i)[0] for i in range(start, min(start + 100, count))
        ]
        metric.update(torch.from_numpy(np.stack(block)).permute(0, 3, 1, 2), real=True)
    tensors = _halves(rounded) | {
        "reference.total": metric.real_features_sum,
        "reference.products": metric.real_features_cov_sum,
        "reference.count": torch.tensor(count),
    }
    about = {"model": "FID-tiny", "config": json.dumps({"widths": WIDTHS, "features": FEATURES})}
    about |= {"seed": str(FID_SEED), "steps": str(steps), "scenes": f"{COUNT} of seed {data.SEED}"}
    write_tensors(
        out / "fid.safetensors",
        tensors,
        about | {"reference": f"{count} scenes of seed {REFERENCE_SEED}"},
    )
