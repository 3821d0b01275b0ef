"""The VQ-16 tokeniser: decode, encode, and the codebook's neighbour lists."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from golden_checks.common import IMAGE, Found, Vectors, close, read, same
from lanternbench.methods.acceptance.lantern import nearest
from lanternbench.models.vq import VQConfig, VQModel


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "vq16.safetensors")
    vq = model(vectors)
    tokens, code = vectors["in.indices"], vectors["state.quantize.embedding.weight"]
    table = nearest(code, len(code))
    distance = torch.cdist(
        code.double(), code.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )
    return [
        close(
            "codebook entries",
            vq.quantize.codes()[tokens].permute(0, 3, 1, 2),
            vectors["out.codebook_entry"],
        ),
        close("decoded image", vq.decode(tokens), vectors["out.decoded"], IMAGE),
        same("nearest: each token is its own first", table[:, 0], torch.arange(len(code))),
        # near ties may swap, so the lists are compared by the distances that they name
        close(
            "nearest: distances",
            distance.gather(1, table[:, 1:]),
            distance.gather(1, vectors["out.nearest"].long()),
        ),
    ]


def check_encoder(folder: Path) -> list[Found]:
    vectors = read(folder / "vq16_encoder.safetensors")
    vq = model(vectors, read(folder / "vq16.safetensors"))
    latent = vq.latents(vectors["in.image"])
    tokens = vq.encode(vectors["in.image"])
    return [
        close("latent", latent, vectors["out.enc_latent"]),
        same("indices", tokens, vectors["out.enc_indices"]),
        close(
            "quantised", vq.quantize.codes()[tokens].permute(0, 3, 1, 2), vectors["out.enc_quant"]
        ),
        close("reconstruction", vq.decode(tokens), vectors["out.recon"], IMAGE),
    ]


def model(*parts: Vectors) -> VQModel:
    """The tokeniser with the recorded weights; what no part holds keeps its random ones."""
    config = parts[0].meta["config"]
    vq = VQModel(
        VQConfig(
            ch=config["ch"],
            ch_mult=tuple(config["decoder_ch_mult"]),
            z_channels=config["z_channels"],
            codebook_size=config["codebook_size"],
            codebook_dim=config["codebook_embed_dim"],
        )
    )
    given = {k: v for part in parts for k, v in _state(part).items()}
    missing, unexpected = vq.load_state_dict(given, strict=False)
    absent = ("encoder.", "quant_conv.") if len(parts) == 1 else ()
    if unexpected or any(not k.startswith(absent) for k in missing):
        raise KeyError(f"keys do not match: unexpected {unexpected[:3]}, missing {missing[:3]}")
    return vq.eval().requires_grad_(False)


def _state(part: Vectors) -> dict[str, Tensor]:
    scales = part.under("q8scale.")
    convolutions = {k: v.float() * scales[k] for k, v in part.under("q8.").items()}
    return part.under("state.") | convolutions
