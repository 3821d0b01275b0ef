"""Families of targets: a folder each, with a loader and rows of the catalogue, registered as
``target`` components.

``Family`` is the interface that the catalogue uses.  Checkpoints have a sub-folder per role, whose
parts a ``Checkpoint`` reads: ``TokenCheckpoint`` if prompts are ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models import key_names, loading
from lanternbench.models.decoder import ImageConfig, ImageDecoder
from lanternbench.models.drafters import dflash, eagle, flashar
from lanternbench.models.drafters.kinds import FILED, KINDS, Sizes, kind_of
from lanternbench.models.entries import Entry, fingerprints, role_fingerprints
from lanternbench.models.places import NO_FILES, TOKENISERS, Files, folder_of
from lanternbench.models.target import Options, Pads, Target, TextEncoder, truncated
from lanternbench.models.token_decoder import (
    IdTokeniser,
    PromptFrame,
    TokenDecoderConfig,
    WordIds,
    image_ids,
)
from lanternbench.models.vq import Comparison, ImageTokeniser, VQConfig, VQModel, from_vqgan
from lanternbench.settings import Sampling

Drafter = eagle.Eagle | dflash.DFlash | flashar.FlashAR
Config = TypeVar("Config", bound=ImageConfig)
TokenConfig = TypeVar("TokenConfig", bound=TokenDecoderConfig)
# entries of a drafter's config.json that name the layers of the target that it reads, and what
# makes an id the number of layers before it: EAGLE-3's, as vLLM reads them, and DFlash's
LAYER_IDS = {
    "eagle_aux_hidden_state_layer_ids": 0,
    "aux_hidden_state_layer_ids": 0,
    "layers_to_capture": 0,
    "target_layers": 0,
    "target_layer_ids": 1,
}
OWN_SHAPE = ("vq", "dialect")  # entries of a row's shape that are not the decoder's


def drafter_at(
    path: Path, model: ImageDecoder, device: str, dtype: torch.dtype | None = None
) -> Drafter:
    """Return the drafter that a file or folder holds, by default in the dtype of ``model``.

    Raises UserError, also if its config.json says that it reads other layers of the target.
    """
    code = kind_of(loading.read_state(path)).code
    drafter: Drafter = code.load(path, model, device, dtype or model.dtype)
    named = layers_named(loading.config_next_to(path))
    read = [*drafter.aux_layers(model), model.config.n_layer]
    if named is not None and named not in (read, read[:-1]):
        raise UserError(
            f"{folder_of(path) / 'config.json'} says that the drafter reads the target's states "
            f"after the layers {named}, but this one is run on those after {read}: it cannot be used"
        )
    return drafter


def layers_named(config: Mapping[str, object]) -> list[object] | None:
    """Return the layers of the target after which a drafter reads states, by its config.json; None
    if it does not say.
    """
    for key, value in config.items():
        inner = layers_named(value) if isinstance(value, dict) else None
        if inner is not None:
            return inner
        if key in LAYER_IDS:
            ids = value if isinstance(value, list) else [value]
            return [number + LAYER_IDS[key] if type(number) is int else number for number in ids]
    return None


def drafters_in(files: Files, model: ImageDecoder, device: str) -> dict[str, nn.Module]:
    """Return the drafters among the files of a target by kind.  Raises UserError."""
    paths = [files.paths[role] for role in FILED if role in files.paths]
    nets = [drafter_at(path, model, device) for path in paths]
    return {net.kind: net for net in nets}


def random_drafters(model: ImageDecoder, device: str, dtype: torch.dtype) -> dict[str, nn.Module]:
    """Return a drafter of each kind that has files, with random weights."""
    nets = {}
    for kind in FILED:
        new = partial(KINDS[kind].code.untrained, model, kind, Sizes())
        nets[kind] = loading.random_net(new, device, dtype)
    return nets


class Family:
    """Targets of one kind and how they are loaded: by default from published files, which
    ``checkpoint`` reads.

    Methods raise UserError for what is missing, damaged or of another size.
    """

    # YAML of catalogue rows by name, without ``family``; ours: catalogue.yaml in their folder
    rows: ClassVar[Path]
    needs: ClassVar[tuple[str, ...]] = ("model",)  # roles without which nothing can be decoded
    defaults: ClassVar[Options] = {}
    checkpoint: ClassVar[type[Checkpoint]]

    def at(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> Checkpoint:
        """Return a row's files in ``folder``, or random weights."""
        files = NO_FILES if folder is None else row.locate(folder)
        return self.checkpoint(row, files, device, dtype or loading.dtype_for(device))

    def load(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> Target:
        """Return a target from the files in ``folder``, or with random weights.

        ``dtype``: of decoder and drafters.
        """
        target = self.at(row, folder, device, dtype).target()
        target.options = self.options(row)
        return target

    def random_target(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Target:
        """Return the same architecture with random weights and drafters: its images are noise, its
        speed is real.
        """
        return self.load(row, None, device, dtype)

    def decoder(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> ImageDecoder:
        """Return the decoder alone, to draft for another target; without ``folder`` with random
        weights.
        """
        return self.at(row, folder, device, dtype).decoder()

    def options(self, row: Entry) -> Options:
        """Return the target's defaults of methods' options (``Target.options``)."""
        return dict(self.defaults)

    def home(self, row: Entry) -> Path:
        """Return the default folder of a row's files."""
        return row.folder

    def missing(self, row: Entry, folder: Path) -> list[str]:
        """Return the roles that are incomplete in ``folder``, drafters too, though a target works
        without them.
        """
        return row.absent(folder)

    def fingerprints(self, row: Entry, folder: Path) -> dict[str, str]:
        """Return digests of the files by role, or of those in ``folder`` by part if none are
        published.
        """
        if row.files:
            return role_fingerprints(row.locate(folder))
        return fingerprints(folder)

    def reads(self, path: Path) -> Path | None:
        """Return the folder that ``path`` names of a target of this family that describes itself,
        without a row.
        """
        return None


PublishedFamily = Family  # a name that plug-ins may derive from


class Checkpoint(Generic[Config]):
    """A target's published files, or random weights if ``files`` is NO_FILES.

    ``shape`` of a row: that of the decoder; under ``vq`` that of the image tokeniser, if no file
    has it; and the ``dialect`` of the family's prompts.
    """

    network: ClassVar[Any]  # a class of ``ImageDecoder``
    configuration: type[Config]  # of ``network``
    prefixes: ClassVar[tuple[str, ...]] = ("model.",)  # see ``key_names.from_published``
    comparison: ClassVar[Comparison] = "angle"  # of the image tokeniser's codes
    finest_first: ClassVar[bool] = False  # see ``from_vqgan``
    # what to put into ``vq`` if the model's files lack a decoder
    vq_file: ClassVar[str] = "the published tokeniser"
    eagle_pads: ClassVar[Pads] = "alone"  # see ``Target``

    def __init__(self, row: Entry, files: Files, device: str, dtype: torch.dtype):
        self.row = row
        self.files = files
        self.device = device
        self.dtype = dtype
        self.is_random = files is NO_FILES
        self.decoder_shape = {k: v for k, v in row.shape.items() if k not in OWN_SHAPE}
        self.vq_shape = row.shape.get("vq", {})

    @property
    def weights(self) -> Path:
        """The decoder's weights: a file, or a folder."""
        return self.files.get("model")

    @property
    def folder(self) -> Path:
        """The folder of the decoder's weights and of what is published with them."""
        return folder_of(self.weights)

    @cached_property
    def config(self) -> Config:
        """The decoder's configuration: by default from the row alone."""
        return self.configuration(**self.decoder_shape)

    @property
    def network_arguments(self) -> tuple[Config | Tensor, ...]:
        return (self.config,)

    def renamed(self, state: loading.State) -> loading.State:
        """Return the tensors of one layer, or all that belong to none, under our names."""
        return key_names.from_published(state, self.prefixes)

    def decoder(self) -> ImageDecoder:
        """Return the decoder from its files, or with random weights."""
        new = partial(self.network, *self.network_arguments)
        if self.is_random:
            return loading.random_net(new, self.device, self.dtype)
        return loading.load_layers(new, self.weights, self.renamed, self.device, self.dtype)

    @cached_property
    def vq_config(self) -> VQConfig:
        """The shape of an image tokeniser of VQGAN's kind: by default LlamaGen's."""
        return VQConfig(**self.vq_shape)

    def new_vq(self) -> Any:
        """Return an image tokeniser without trained weights."""
        return VQModel(self.vq_config, self.comparison)

    def vq_state(self, where: Path) -> loading.State:
        """Return the image tokeniser's tensors at ``where`` under our names."""
        return from_vqgan(loading.read_state(where), self.vq_config, self.finest_first)

    def vq(self) -> ImageTokeniser | None:
        """Return the image tokeniser in float32; None if images cannot be decoded."""
        if self.is_random:
            return loading.random_net(self.new_vq, self.device, torch.float32)
        where = self.files.paths.get("vq", self.weights)
        with loading.explain_errors(f"{where} holds no image tokeniser of {self.row.name}"):
            state = self.vq_state(where)
        if not any(key.startswith("decoder.") for key in state):
            place = self.files.place / "vq"
            source = self.row.files.get("vq")
            file = f"{', '.join(source.files)} of {source.repo}" if source else self.vq_file
            raise UserError(
                f"the checkpoint in {where} has no image decoder: put {file} into {place}"
            )
        return loading.load_into(self.new_vq, state, where, self.device, torch.float32)

    @cached_property
    def text(self) -> TextEncoder:
        """``Target.text``."""
        raise NotImplementedError

    def complete(self, target: Target) -> None:
        """Set further fields of the target."""

    def target(self) -> Target:
        text = self.text  # small files fail first
        vq = self.vq()
        model = self.decoder()
        target = Target(self.row.name, model, vq, text, self.row.part(Sampling))
        target.eagle_pads = self.eagle_pads
        if self.is_random:
            target.drafters = random_drafters(model, self.device, self.dtype)
            self.complete(target)
            return target
        target.drafters = drafters_in(self.files, model, self.device)
        if target.drafters:
            target.pad_rows = self.eagle_pads
        self.complete(target)
        target.remark = f"{self.unread_layers(model)} {target.remark}".strip()
        return target

    def unread_layers(self, model: ImageDecoder) -> str:
        """Return a remark if the configuration has fewer layers than the checkpoint."""
        used = model.config.n_layer
        found = loading.count_layers(loading.read_state(self.weights), self.prefixes)
        if used >= found:
            return ""
        return f"{used} of {found} layers of this checkpoint are used, as its configuration says."


class TokenCheckpoint(Checkpoint[TokenConfig]):
    """A checkpoint with a config.json and a tokeniser, whose prompts are ids."""

    title: ClassVar[str]  # the model's name in error messages
    tokeniser_class: ClassVar[type[IdTokeniser]] = IdTokeniser
    # the published ids of the tokens around a caption, by name
    special: ClassVar[dict[str, int]] = {}
    image_name: ClassVar[re.Pattern[str]]  # of image tokens, see ``image_ids``
    row_end_name: ClassVar[str] = ""  # of the token after each row of an image, if there is one

    @property
    def named_tokens(self) -> dict[str, int]:
        """``special``, or what replaces it if it depends on the files or the image's size."""
        return self.special

    @property
    def config_file(self) -> Path:
        return self.folder / "config.json"

    @property
    def tokeniser(self) -> Path:
        """The file of the tokeniser of prompts: with the weights, in a folder of its own, or with
        the image tokeniser.
        """
        places = [self.folder / name for name in TOKENISERS]
        if "tokenizer" in self.files.paths:
            places.append(self.files.get("tokenizer"))
        places += [folder_of(self.files.get("vq")) / name for name in TOKENISERS]
        return next(filter(Path.is_file, places), places[0])

    def described(self, config: loading.Json) -> TokenConfig:
        """A config.json -> the decoder's configuration.

        Raises UserError for another architecture or variant.
        """
        raise NotImplementedError

    @cached_property
    def described_config(self) -> TokenConfig:
        """The configuration that config.json describes and the row overrides; with random weights
        the row's.
        """
        if self.is_random:
            return self.configuration(**self.decoder_shape)
        path = self.config_file
        published = loading.read_config(path)
        with loading.explain_errors(f"{path} is no config of {self.title}"):
            return replace(self.described(published), **self.decoder_shape)

    def named_image_ids(self) -> Tensor:
        """Return the prompt id of each image token [V]: by default by names in the tokeniser."""
        return image_ids(self.tokeniser_class(self.tokeniser).names, self.image_name)

    @cached_property
    def image_ids(self) -> Tensor | None:
        """The prompt id of each image token [V]; None without one, and with random weights."""
        return None if self.is_random else self.named_image_ids()

    @cached_property
    def config(self) -> TokenConfig:
        if self.image_ids is None:
            return self.described_config
        return replace(self.described_config, vocab_size=len(self.image_ids))

    @property
    def network_arguments(self) -> tuple[TokenConfig | Tensor, ...]:
        if self.image_ids is None:
            return (self.config,)
        return self.config, self.image_ids

    def renamed(self, state: loading.State) -> loading.State:
        state = key_names.from_published(state, self.prefixes, self.config)
        if self.image_ids is None:
            return state
        return key_names.image_tables(state, self.image_ids)

    @cached_property
    def template(self) -> tuple[str, str]:
        """The text before and after a caption."""
        return "", ""

    @cached_property
    def text(self) -> IdTokeniser:
        """The tokeniser of prompts; no caption can write an image token."""
        if self.is_random:
            return WordIds(self.config.prompt_ids, self.named_tokens)
        text = self.tokeniser_class(self.tokeniser, self.named_tokens, self.template)
        if self.image_ids is not None:
            text.reserved |= set(self.image_ids.tolist())
        return text

    def frame(self) -> PromptFrame:
        """Return what stands around the ids of a caption.  Raises UserError."""
        raise NotImplementedError

    @property
    def row_end(self) -> int | None:
        """``Target.row_end``."""
        return self.text.ids.get(self.row_end_name)

    def complete(self, target: Target) -> None:
        frame = self.frame()
        before, after = self.template
        target.condition = frame
        target.row_end = self.row_end
        target.prompt_template = f"{before}{frame.template}{after}"
        target.pixels = truncated
