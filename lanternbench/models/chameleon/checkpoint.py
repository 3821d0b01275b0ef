"""Anole and Lumina-mGPT at their published sizes: from published files, or random weights to measure speed alone.

A folder holds one sub-folder per role: ``model`` (config.json, tokenizer.json, safetensors; or Meta's params.json,
text_tokenizer.json, consolidated.pth), ``eagle`` (the drafter in LANTERN's layout), and ``vq`` (Meta's vqgan.ckpt)
where the model's own checkpoint has no image decoder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from lanternbench.errors import UserError
from lanternbench.models.chameleon import vocab as chameleon_vocab
from lanternbench.models.chameleon import vqgan as chameleon_vqgan
from lanternbench.models.chameleon.model import (
    Chameleon,
    ChameleonConfig,
    config_from_hf,
    config_from_official,
    drafter_from_published,
    drafter_to_published,
    from_hf,
    from_official,
    image_tables,
)
from lanternbench.models.chameleon.prompt_ids import ROW_END
from lanternbench.models.chameleon.tokenizer import ChameleonText, anole_prefix, hashed_ids, lumina_prefix
from lanternbench.models.chameleon.vocab import Vocabulary
from lanternbench.models.drafters.eagle import Eagle, shape_of
from lanternbench.models.loading import State, load_into, load_layers, read_state
from lanternbench.models.published import dtype_for, present, random_net
from lanternbench.models.target import Prefix, Target
from lanternbench.models.vq import VQConfig, VQModel

NEEDS = ("model",)
VQ = VQConfig(codebook_size=8192, codebook_dim=256, attention=False)  # of every published Chameleon


class Dialect(NamedTuple):
    """What tells one fine-tune of Chameleon from another."""

    prefix: Callable[[Vocabulary, Target, list[str], bool], Prefix]
    options: dict[str, Any]  # LANTERN's trees; its other defaults are the engine's
    row_end: int | None = None


DIALECTS = {
    "anole": Dialect(anole_prefix, {"static": "naive_extend_57"}),
    "lumina": Dialect(lumina_prefix, {"static": "mc_sim_7b_63"}, ROW_END),
}


def load(
    name: str,
    shape: dict[str, Any],
    guidance: float,
    top_k: int,
    folder: Path,
    device: str,
    dtype: torch.dtype | None = None,
) -> Target:
    """A target from the files in ``folder``.  Raises UserError for what is missing, damaged or of another shape.

    ``shape``: of the decoder where config.json does not say, and its ``dialect``.
    """
    dialect, words = parted(shape)[1], tokeniser(folder / "model")
    vocab = chameleon_vocab.read(words)
    text = ChameleonText(words, vocab)
    vq = image_tokeniser(folder, device)
    model = decoder(shape, folder, device, dtype)
    drafters: dict[str, nn.Module] = {}
    if present(folder, "eagle"):
        drafters["eagle"] = eagle_drafter(model, folder / "eagle", device)
    return Target(
        name,
        model,
        vq,
        text,
        guidance,
        top_k,
        options=dict(dialect.options),
        drafters=drafters,
        condition=partial(dialect.prefix, vocab),
        pixels=chameleon_vqgan.to_pixels,
        row_end=dialect.row_end,
    )


def decoder(shape: dict[str, Any], folder: Path, device: str, dtype: torch.dtype | None = None) -> Chameleon:
    """The decoder of images alone.  Raises UserError."""
    here = folder / "model"
    official = is_official(here)
    published = read_config(here / ("params.json" if official else "config.json"))
    cfg = replace(config_from_official(published) if official else config_from_hf(published), **parted(shape)[0])
    to_id = chameleon_vocab.read(tokeniser(here)).to_id

    def convert(part: State) -> State:
        return image_tables((from_official if official else from_hf)(part, cfg.decoder), to_id) | {"image_ids": to_id}

    return load_layers(lambda: Chameleon(cfg), here, convert, device, dtype or dtype_for(device))


def random_decoder(shape: dict[str, Any], device: str, dtype: torch.dtype | None = None) -> Chameleon:
    """The same with random weights."""
    cfg = ChameleonConfig(**parted(shape)[0])
    return random_net(lambda: Chameleon(cfg), device, dtype or dtype_for(device))


def eagle_drafter(model: Chameleon, path: Path, device: str, dtype: torch.dtype | None = None) -> Eagle:
    """LANTERN's layout -> a drafter for ``model``, in its dtype; its own table, if it has one, is of all ids.

    Raises UserError, also for one of another width and for a tensor that has no place in it.
    """
    cfg, bias, layers, ids = shape_of(path, model.cfg)
    dtype, to_id = dtype or model.tok_embeddings.weight.dtype, model.image_ids.cpu()

    def make() -> Eagle:
        return Eagle(cfg, bias, cfg.norm_eps, layers, *(len(to_id), model.config.prompt_ids) if ids else ())

    return load_layers(make, path, lambda part: drafter_from_published(part, cfg, to_id), device, dtype, True)


def new_eagle(model: Chameleon) -> Eagle:
    """A drafter for ``model`` that has learnt nothing."""
    return Eagle(model.cfg, norm_eps=model.cfg.norm_eps)


def eagle_state(net: Eagle) -> State:
    """A drafter in LANTERN's layout."""
    return drafter_to_published(net.state_dict(), net.cfg)


def random_target(
    name: str,
    shape: dict[str, Any],
    guidance: float,
    top_k: int,
    device: str,
    vq: VQConfig = VQ,
    dtype: torch.dtype | None = None,
) -> Target:
    """The same architecture with random weights and an EAGLE drafter: its images are noise, its speed is real."""
    dtype, dialect = dtype or dtype_for(device), parted(shape)[1]
    model = random_decoder(shape, device, dtype)
    cfg = model.config
    drafter = random_net(lambda: new_eagle(model), device, dtype)
    return Target(
        name,
        model,
        random_net(lambda: chameleon_vqgan.chameleon_vqgan(vq), device, torch.float32),
        lambda captions: hashed_ids(captions, cfg.prompt_ids),
        guidance,
        top_k,
        options=dict(dialect.options),
        drafters={"eagle": drafter},
        condition=partial(dialect.prefix, chameleon_vocab.published(cfg.vocab_size)),
        pixels=chameleon_vqgan.to_pixels,
        row_end=dialect.row_end,
    )


def parted(shape: dict[str, Any]) -> tuple[dict[str, Any], Dialect]:
    """A catalogue entry's shape -> the decoder's, and the dialect (Anole's where none is named)."""
    return {k: v for k, v in shape.items() if k != "dialect"}, DIALECTS[shape.get("dialect", "anole")]


def read_config(path: Path) -> dict[str, Any]:
    """The model's config.json or params.json.  Raises UserError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}); use the {path.name} published with the weights") from None
    return config


def is_official(here: Path) -> bool:
    """Are these Meta's own files, and not a Hugging Face conversion?"""
    return (here / "params.json").is_file() and not (here / "config.json").is_file()


def tokeniser(here: Path) -> Path:
    """The tokeniser's file, as the hub or as Meta names it."""
    return here / ("text_tokenizer.json" if is_official(here) else "tokenizer.json")


def image_tokeniser(folder: Path, device: str) -> VQModel:
    """The VQGAN from the role ``vq``, or else out of the model's own checkpoint.

    ``vq_config`` of the model's config.json may leave out what all Chameleons share.  Raises UserError where there is
    no decoder: transformers' own conversion drops it.
    """
    where = folder / "model"
    shape = {} if is_official(where) else read_config(where / "config.json").get("vq_config") or {}
    cfg = chameleon_vqgan.config_from_official(shape, VQ)
    if present(folder, "vq"):
        where = folder / "vq"
    made = chameleon_vqgan.from_official(read_state(next(iter(sorted(where.rglob("*.ckpt"))), where)), cfg)
    if not any(key.startswith("decoder.") for key in made):
        raise UserError(f"the checkpoint in {where} has no image decoder: put Meta's vqgan.ckpt into {folder / 'vq'}")
    return load_into(lambda: chameleon_vqgan.chameleon_vqgan(cfg), made, where, device, torch.float32)
