"""Chameleon's image tokeniser: indices to image, image to indices, pixels, and the ids of image
tokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from image_ids import codes_of, of_names
from PIL import Image
from torch import Tensor

from golden_checks.common import IMAGE, Found, Vectors, close, loaded, read, same
from lanternbench.models.chameleon import checkpoint as chameleon
from lanternbench.models.target import truncated
from lanternbench.models.vq import VQConfig, VQModel, from_vqgan

CLEAR = 1e-4  # where the second-best code is nearer than this, rounding decides


def from_pixels(pixels: np.ndarray) -> Tensor:
    """uint8 [H, W, 3] -> [1, 3, H, W] in −1…1."""
    return torch.from_numpy(pixels / 255.0 * 2 - 1).permute(2, 0, 1).float()[None]


def on_white(image: Image.Image) -> Image.Image:
    """Any image -> RGB; transparency shows white.  Blended in float and truncated, as the official
    code does.
    """
    if image.mode == "RGB":
        return image
    rgba = np.array(image.convert("RGBA"))
    alpha = rgba[..., 3:] / 255.0
    return Image.fromarray(((1 - alpha) * 255 + alpha * rgba[..., :3]).astype(np.uint8))


def centre_square(image: Image.Image, size: int) -> Image.Image:
    """Shorter side to ``size`` pixels (Lanczos), then the centre square: how Anole reads an image."""
    scale = size / min(image.size)
    width, height = (round(side * scale) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = image.resize((width, height), Image.Resampling.LANCZOS)
    return resized.crop((left, top, left + size, top + size))


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "chameleon_vqgan.safetensors")
    cfg = VQConfig.described(vectors.meta["config"], chameleon.VQ)
    vq = loaded(VQModel(cfg, comparison="distance"), from_vqgan(vectors.under("sd."), cfg))
    return [
        *decoded(vq, vectors),
        *encoded(vq, vectors),
        *(f for name in ("vocab", "vocab_shuffled") for f in vocabulary(vectors, name)),
    ]


def decoded(vq: VQModel, vectors: Vectors) -> list[Found]:
    grids = vectors["dec.indices"].view(-1, *vectors.meta["decode_hw"])
    wide = vq.decode(vectors["dec_nonsquare.indices"].view(1, *vectors.meta["nonsquare_hw"]))
    return [
        close("latent", vq.quantize.codes()[grids].permute(0, 3, 1, 2), vectors["dec.latent"]),
        close("image", vq.decode(grids), vectors["dec.image"], IMAGE),
        close("image, not square", wide, vectors["dec_nonsquare.image"], IMAGE),
        same(
            "image as pixels",
            truncated(vectors["dec_nonsquare.image"])[0],
            vectors["dec_nonsquare.uint8"],
        ),
    ]


def encoded(vq: VQModel, vectors: Vectors) -> list[Found]:
    x = from_pixels(vectors["enc.image_uint8"].numpy())
    clear = vectors["enc.margin"] > CLEAR
    indices = vq.encode(x)
    quantised = vq.quantize.codes()[vectors["enc.indices"].view_as(indices)].permute(0, 3, 1, 2)
    white = on_white(Image.fromarray(vectors["rgba.image_uint8"].numpy()))
    square = centre_square(
        Image.fromarray(vectors["anole_pre.image_uint8"].numpy()),
        vectors.meta["anole_target_image_size"],
    )
    return [
        close("input", x, vectors["enc.input"]),
        close("latent before quantisation", vq.latents(x), vectors["enc.prequant"]),
        same(
            "indices where one code is clearly nearest",
            indices.flatten()[clear],
            vectors["enc.indices"][clear],
        ),
        same("indices that are near ties", int((~clear).sum()), 0),
        close("quantised", quantised, vectors["enc.quantized"]),
        close(
            "reconstruction",
            vq.decode_latents(vectors["enc.quantized"]),
            vectors["enc.reconstruction"],
            IMAGE,
        ),
        same("transparency on white", pixels(white), vectors["rgba.whitened_uint8"]),
        same(
            "transparency on white: indices",
            vq.encode(from_pixels(pixels(white).numpy())),
            grid(vectors, "rgba"),
        ),
        close("Anole's crop", from_pixels(pixels(square).numpy()), vectors["anole_pre.tensor"]),
        same(
            "Anole's crop: indices",
            vq.encode(vectors["anole_pre.tensor"]),
            grid(vectors, "anole_pre"),
        ),
    ]


def pixels(image: Image.Image) -> Tensor:
    width, height = image.size
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, 3)


def grid(vectors: Vectors, name: str) -> Tensor:
    indices = vectors[f"{name}.indices"]
    side = int(len(indices) ** 0.5)
    return indices.view(1, side, side)


def vocabulary(vectors: Vectors, name: str) -> list[Found]:
    names = vectors.meta[f"{name}_json"]["model"]["vocab"]
    vocab, want = of_names(names), vectors.under(f"{name}.")
    ids = want["image_token_ids"]
    framing = (
        chameleon.BOS,
        "</s>",
        chameleon.IMAGE_START,
        "<eoss>",
        chameleon.PAD,
        chameleon.TURN_END,
    )
    named = [vocab.ids[name] for name in framing]
    special = {name for name in names if chameleon.is_special(name)}
    # the reference's batch conversion pairs sorted ids with sorted indices, which is right for
    # monotone maps only
    paired = torch.searchsorted(ids, want["convert_bpe2img.in"])
    found = [
        same("image ids", vocab.to_id.sort().values, ids),
        same("id to index", codes_of(ids, vocab), want["bpe2img_of_image_token_ids"]),
        same("index to id", vocab.to_id, want["img2bpe_table"]),
        same(
            "index to id, any shape",
            vocab.to_id[want["convert_img2bp2.in"]],
            want["convert_img2bp2.out"],
        ),
        same(
            "the reference's id to index, which pairs ranks", paired, want["convert_bpe2img.out"]
        ),
        same("framing ids", named, want["named_ids"]),
        same(
            "special tokens",
            sorted(names[n] for n in special),
            want["special_tokens"].sort().values,
        ),
        same(
            "text tokens",
            sorted(i for n, i in names.items() if is_text(n, special)),
            want["text_tokens"].sort().values,
        ),
    ]
    return [f._replace(group=f"{name}: {f.group}") for f in found]


def is_text(name: str, special: set[str]) -> bool:
    return name not in special and not name.startswith("IMGIMG")
