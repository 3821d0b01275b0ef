"""MoVQGAN's decoder, as Lumina-mGPT 2.0 decodes images of any size."""

from __future__ import annotations

from pathlib import Path

from transformers import Emu3VQVAEConfig

from golden_checks.common import IMAGE, Found, Vectors, close, loaded, read
from golden_checks.vq16 import _state
from lanternbench.models.movq import MoVQ, from_movq
from lanternbench.models.target import rounded


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "movqgan_decode.safetensors")
    net = decoder(vectors)
    found = []
    for name, size in (("dec", "decode_hw"), ("square", "square_hw")):
        rows, columns = vectors.meta[size]
        tokens = vectors[f"{name}.codes"].view(1, rows, columns)
        codes = net.quantize.codes()[tokens].permute(0, 3, 1, 2)
        latents = net.post_quant_conv(codes)
        image = net.decode(tokens)
        found += [
            close(f"{name}: codebook rows", codes, vectors[f"{name}.latent"]),
            close(f"{name}: latents", latents, vectors[f"{name}.post_quant"]),
            close(f"{name}: image", image, vectors[f"{name}.image"], IMAGE),
            # a value between two levels may fall on either side
            close(f"{name}: levels", rounded(image)[0], vectors[f"{name}.uint8"], 1),
        ]
    twice = net.decode(vectors["dec.codes"].view(1, *vectors.meta["decode_hw"]).repeat(2, 1, 1))
    return [
        *found,
        close("dec: two images at once", twice, vectors["dec.image"].repeat(2, 1, 1, 1), IMAGE),
    ]


def decoder(vectors: Vectors) -> MoVQ:
    """The network with the recorded weights, at the recorded size."""
    config = vectors.meta["config"]
    shape = config["ddconfig"]
    widths = shape["ch_mult"]
    levels = [
        level
        for level in range(len(widths))
        if shape["resolution"] >> level in shape["attn_resolutions"]
    ]
    net = MoVQ(
        Emu3VQVAEConfig(
            codebook_size=config["n_embed"],
            embed_dim=config["embed_dim"],
            latent_channels=shape["z_channels"],
            base_channels=shape["ch"],
            channel_multiplier=widths,
            num_res_blocks=shape["num_res_blocks"],
            attn_resolutions=levels,
            hidden_size=shape["ch"] * widths[-1],
            temporal_downsample_factor=1,
        )
    )
    return loaded(net, from_movq(_state(vectors)))
