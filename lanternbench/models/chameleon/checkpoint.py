"""Anole and Lumina-mGPT at their published sizes: from published files, or random weights to measure speed alone.

A folder holds one sub-folder per role: ``model`` (config.json, tokenizer.json, safetensors; or Meta's params.json,
text_tokenizer.json, consolidated.pth), ``eagle`` (the drafter in LANTERN's layout), and ``vq`` (Meta's vqgan.ckpt)
where the model's own checkpoint has no image decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lanternbench.errors import UserError
from lanternbench.models.chameleon import vocab as chameleon_vocab
from lanternbench.models.chameleon import vqgan as chameleon_vqgan
from lanternbench.models.chameleon.model import (
    Chameleon,
    ChameleonConfig,
    config_from_hf,
    config_from_official,
    from_hf,
    from_official,
)
from lanternbench.models.chameleon.prompt_ids import (
    PIXELS,
    ROW_END,
    ChameleonText,
    anole_prefix,
    check_sizes,
    lumina_prefix,
    lumina_text,
)
from lanternbench.models.chameleon.vocab import Vocabulary
from lanternbench.models.entries import Entry, present
from lanternbench.models.family import PublishedFamily, decoder_shape
from lanternbench.models.loading import (
    State,
    dtype_for,
    explain_errors,
    load_into,
    load_layers,
    read_config,
    read_state,
)
from lanternbench.models.target import Prefix, Target
from lanternbench.models.token_decoder import image_tables
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.registry import register

VQ = VQConfig(codebook_size=8192, codebook_dim=256, attention=False)  # of every published Chameleon


class Dialect(NamedTuple):
    """How one fine-tune of Chameleon differs from another."""

    prefix: Callable[[Vocabulary, Target, list[str], bool], Prefix]
    options: dict[str, Any]  # LANTERN's trees; its other defaults are the engine's
    row_end: int | None = None
    template: Callable[[str, int, int], str] = lambda caption, width, height: caption  # in pixels


DIALECTS = {
    "anole": Dialect(anole_prefix, {"static": "naive_extend_57"}),
    "lumina": Dialect(lumina_prefix, {"static": "mc_sim_7b_63", "row_window": 16}, ROW_END, lumina_text),
}


@register("target", "chameleon")
class ChameleonFamily(PublishedFamily):
    """``shape`` of a row also has the ``dialect``."""

    rows = Path(__file__).with_name("catalogue.yaml")
    network, configuration = Chameleon, ChameleonConfig

    def new_vq(self, row: Entry) -> VQModel:
        return chameleon_vqgan.chameleon_vqgan(replace(VQ, **row.shape.get("vq", {})))

    def vq(self, row: Entry, folder: Path, device: str) -> VQModel:
        return image_tokeniser(folder, device)

    def text(self, row: Entry, folder: Path, device: str, dtype: torch.dtype) -> ChameleonText:
        words = tokeniser(folder / "model")
        text = ChameleonText(words, chameleon_vocab.read(words))
        if dialect_of(row).row_end is not None:
            check_sizes(text.names)
        return text

    def options(self, row: Entry) -> dict[str, Any]:
        return dict(dialect_of(row).options)

    def fields(self, row: Entry, model: Chameleon, text: ChameleonText | None) -> dict[str, Any]:
        vocab = chameleon_vocab.published(model.config.vocab_size) if text is None else text.vocab
        dialect = dialect_of(row)
        return {
            "condition": partial(dialect.prefix, vocab),
            "pixels": chameleon_vqgan.to_pixels,
            "row_end": dialect.row_end,
            "prompt_template": dialect.template("{caption}", *(PIXELS * side for side in reversed(model.config.grid))),
        }

    def decoder(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Chameleon:
        """The decoder of images alone."""
        here = folder / "model"
        official = is_official(here)
        where = here / ("params.json" if official else "config.json")
        published = read_config(where)
        with explain_errors(where, "is no config of a Chameleon"):
            config = replace(
                config_from_official(published) if official else config_from_hf(published),
                **decoder_shape(row),
            )
        to_id = chameleon_vocab.read(tokeniser(here)).to_id

        def convert(part: State) -> State:
            return image_tables((from_official if official else from_hf)(part, config.decoder), to_id)

        return load_layers(lambda: Chameleon(config, to_id), here, convert, device, dtype or dtype_for(device))


def dialect_of(row: Entry) -> Dialect:
    """The fine-tune's: Anole's where the row does not say."""
    return DIALECTS[row.shape.get("dialect", "anole")]


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
    with explain_errors(where / "config.json", "has a vq_config that cannot be read"):
        cfg = chameleon_vqgan.config_from_official(shape, VQ)
    if present(folder, "vq"):
        where = folder / "vq"
    made = chameleon_vqgan.from_official(read_state(next(iter(sorted(where.rglob("*.ckpt"))), where)), cfg)
    if not any(key.startswith("decoder.") for key in made):
        raise UserError(f"the checkpoint in {where} has no image decoder: put Meta's vqgan.ckpt into {folder / 'vq'}")
    return load_into(lambda: chameleon_vqgan.chameleon_vqgan(cfg), made, where, device, torch.float32)
