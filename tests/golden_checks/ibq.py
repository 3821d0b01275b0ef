"""IBQ, Emu3.5's image tokeniser: codes to pixels and pixels to codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from golden_checks.common import IMAGE, Found, Vectors, close, loaded, read, same
from lanternbench.models.emu3.checkpoint import IBQ
from lanternbench.models.target import truncated
from lanternbench.models.vq import VQConfig, VQModel, from_vqgan


def published_weights(vectors: Vectors) -> dict[str, Tensor]:
    """The weights under their published names; convolutions are stored as bytes and a scale."""
    scales = vectors.under("q8scale.")
    weights = {name: q.float() * scales[name] for name, q in vectors.under("q8.").items()}
    return weights | vectors.under("state.")


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "ibq_decode.safetensors")
    config = VQConfig.described(vectors.meta["config"], IBQ)
    state = from_vqgan(published_weights(vectors), config)
    ibq = loaded(VQModel(config, "product"), state)
    codes = vectors["dec.codes"]
    latents = ibq.quantize.codes()[codes].permute(0, 3, 1, 2)
    images = ibq.decode(codes)
    inputs = vectors["enc.input"]
    height, width = vectors["enc.z"].shape[-2:]
    return [
        close("codes of a picture", latents, vectors["dec.quantised"]),
        close(
            "after the 1 × 1 convolution", ibq.post_quant_conv(latents), vectors["dec.post_quant"]
        ),
        *levels(ibq, latents, vectors),
        close("image", images, vectors["dec.image"], IMAGE),
        same("image as pixels", truncated(vectors["dec.image"])[0], vectors["dec.uint8_first"]),
        close("latent before quantisation", ibq.latents(inputs), vectors["enc.z"]),
        same("codes", ibq.encode(inputs), vectors["enc.codes"].view(-1, height, width)),
        close(
            "reconstruction",
            ibq.decode_latents(vectors["enc.quantised"]),
            vectors["enc.recon"],
            IMAGE,
        ),
    ]


def levels(ibq: VQModel, latents: Tensor, vectors: Vectors) -> list[Found]:
    """Means of the features after each level, from the coarsest to the finest."""
    decoder: Any = ibq.decoder
    x = decoder.mid(decoder.conv_in(ibq.post_quant_conv(latents)))
    means = []
    absolute = []
    for level in decoder.conv_blocks:
        x = level(x)
        means.append(x.mean())
        absolute.append(x.abs().mean())
    return [
        close("means after each level", x.new_tensor(means), vectors["dec.level_means"]),
        close("means of magnitudes", x.new_tensor(absolute), vectors["dec.level_absmeans"]),
    ]
