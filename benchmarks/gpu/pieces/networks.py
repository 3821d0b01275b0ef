"""Images a second of the networks behind FID and CLIP score: full size, random weights."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result
from lanternbench.metrics import Setup
from lanternbench.metrics.clip import clip_encoder
from lanternbench.metrics.features import inception
from lanternbench.metrics.files import published

TABLE = "images a second, float32"


@torch.inference_mode()
def measure(machine: Machine, result: Result) -> None:
    count = 1 if machine.small else 64
    noise = np.random.default_rng(0).integers(0, 256, (count, 256, 256, 3), np.uint8)
    images = [Image.fromarray(pixels) for pixels in noise]
    device = "cpu" if machine.small else machine.device
    clip = clip_encoder(
        Setup(device=device, random=True), published("clip")[0], "ViT-B-32-quickgelu"
    )
    ready = clip.prepare(images).to(device)
    score = clip.cosine
    times = {
        "CLIP ViT-B/32, the network": machine.seconds(lambda: clip.model.encode_image(ready), 5),
        "CLIP score, from images and captions": machine.seconds(
            lambda: score(images, ["a cat"] * count), 1
        ),
    }
    net = inception(None).to(device)
    batch = torch.from_numpy(noise).permute(0, 3, 1, 2).to(device)
    times["Inception-V3 (FID), resizing included"] = machine.seconds(lambda: net(batch), 1)
    for what, seconds in times.items():
        result.row(TABLE, network=what, batch=count, rate=round(count / seconds, 1))
