"""Families of targets: a folder each, with a loader and rows of the catalogue, registered as
``target`` components.

``Family`` is the interface that the catalogue uses.  ``PublishedFamily`` implements most of it for
checkpoints with a sub-folder per role: a subclass says how each part is read.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models import loading
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters import dflash, eagle
from lanternbench.models.entries import Entry, present
from lanternbench.models.target import Pads, Target
from lanternbench.models.token_decoder import IdTokeniser, WordIds, image_ids
from lanternbench.models.vq import VQConfig, VQModel, from_vqgan
from lanternbench.settings import Sampling

Drafter = eagle.Eagle | dflash.DFlash
# entries of a drafter's config.json that name the layers of the target that it reads, and what
# makes an id the number of layers before it: EAGLE-3's, as vLLM reads them, and DFlash's
LAYER_IDS = {
    "eagle_aux_hidden_state_layer_ids": 0,
    "aux_hidden_state_layer_ids": 0,
    "layers_to_capture": 0,
    "target_layers": 0,
    "target_layer_ids": 1,
}


def drafter_at(
    path: Path, model: ImageDecoder, device: str, dtype: torch.dtype | None = None
) -> Drafter:
    """The drafter that a file or folder holds, by default of the dtype of ``model``.  Raises
    UserError, also where its config.json says that it reads other layers of the target.
    """
    kind = dflash if "target_layers" in loading.read_state(path) else eagle
    drafter = kind.load(path, model, device, dtype or model.dtype)
    config = (path if path.is_dir() else path.parent) / "config.json"
    named = layers_named(loading.read_config(config)) if config.is_file() else None
    last = model.config.decoder.n_layer
    read = (*drafter.aux_layers(model), last)
    if named is not None and tuple(named) not in (read, read[:-1]):
        raise UserError(
            f"{config} says that the drafter reads the target's states after the layers {named}, "
            f"but this one is run on those after {[*read]}: it cannot be used"
        )
    return drafter


def layers_named(config: Mapping[str, object]) -> list[object] | None:
    """The layers of the target after which a drafter's config.json says that it reads states; None
    where it says nothing.
    """
    for key, value in config.items():
        if isinstance(value, dict) and (inner := layers_named(value)) is not None:
            return inner
        if key in LAYER_IDS:
            ids = value if isinstance(value, list) else [value]
            return [n + LAYER_IDS[key] if type(n) is int else n for n in ids]
    return None


def drafters_in(folder: Path, model: ImageDecoder, device: str) -> dict[str, nn.Module]:
    """The drafters among the roles in ``folder``, by what they are.  Raises UserError."""
    roles = [role for role in ("eagle", "eagle-3", "dflash") if present(folder, role)]
    return {net.kind: net for net in (drafter_at(folder / role, model, device) for role in roles)}


def random_drafters(model: ImageDecoder, device: str, dtype: torch.dtype) -> dict[str, nn.Module]:
    makes: Any = (
        model.new_eagle,
        partial(model.new_eagle, True),
        partial(dflash.DFlash.untrained, model),
    )
    return {net.kind: net for net in (loading.random_net(make, device, dtype) for make in makes)}


class Family:
    """How targets of one kind are loaded.  Methods raise UserError for what is missing, damaged or
    of another size.
    """

    # YAML of catalogue rows by name, without ``family``; ours: catalogue.yaml in their folder
    rows: ClassVar[Path]
    needs: ClassVar[tuple[str, ...]] = ("model",)  # roles without which nothing can be decoded
    defaults: ClassVar[dict[str, Any]] = {}  # of methods' options

    def load(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> Target:
        """A target from the files in ``folder``, or with random weights; ``dtype``: of decoder and
        drafters.
        """
        raise NotImplementedError

    def random_target(self, row: Entry, device: str, dtype: torch.dtype | None = None) -> Target:
        """The same architecture with random weights and drafters: its images are noise, its speed
        is real.
        """
        return self.load(row, None, device, dtype)

    def decoder(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> ImageDecoder:
        """The decoder alone, to draft for another target; with random weights where ``folder`` is
        None.
        """
        raise NotImplementedError

    def options(self, row: Entry) -> dict[str, Any]:
        """The target's defaults of methods' options (``Target.options``)."""
        return dict(self.defaults)

    def home(self, row: Entry) -> Path:
        """The default folder of a row's files."""
        return row.folder

    def missing(self, row: Entry, folder: Path) -> list[str]:
        """Roles that are incomplete in ``folder``; with drafters, though a target works without
        them.
        """
        return row.absent(folder)

    def reads(self, path: Path) -> Path | None:
        """The folder of a target of this family that describes itself, without a row, where
        ``path`` names one.
        """
        return None


def decoder_shape(row: Entry) -> dict[str, Any]:
    """The row's shape without that of the image tokeniser, and without the dialect of its prompts."""
    return {k: v for k, v in row.shape.items() if k not in ("vq", "dialect")}


class PublishedFamily(Family):
    """Checkpoints with a sub-folder per role, or, where ``folder`` is None, the same architecture
    with random weights.

    ``shape`` of a row: that of the decoder, under ``vq`` that of the image tokeniser, where no
    file has it, and the ``dialect``: which of ``dialects``, by default the first.
    """

    network: ClassVar[Any]  # a class of ``ImageDecoder``
    configuration: ClassVar[type]  # of ``network``
    title: ClassVar[str] = ""  # the model's name in error messages
    prefixes: ClassVar[tuple[str, ...]] = ("model.",)  # see ``from_published``
    # what to put into ``vq`` where the model's files lack a decoder
    vq_file: ClassVar[str] = "the published tokeniser"
    eagle_pads: ClassVar[Pads] = "alone"  # see ``Target``
    dialects: ClassVar[dict[str, Any]] = {}
    tokeniser_class: ClassVar[type[IdTokeniser]] = IdTokeniser
    # the published ids of the tokens around a caption, by name
    special: ClassVar[dict[str, int]] = {}
    # a function: of a token's name, the index of the image token that the tokeniser calls so, None
    # for other tokens
    image_number: ClassVar[Any] = None

    def dialect(self, row: Entry) -> Any:
        return self.dialects[row.shape.get("dialect", next(iter(self.dialects)))]

    def config(self, row: Entry) -> Any:
        """The decoder's configuration from the row alone."""
        return self.configuration(**decoder_shape(row))

    def weights(self, folder: Path) -> Path:
        """Where the decoder's weights and its config.json are."""
        return folder / "model"

    def tokeniser(self, folder: Path) -> Path:
        """The file of the tokeniser of prompts."""
        return folder / "model" / "tokenizer.json"

    def described(self, config: dict[str, Any], row: Entry) -> Any:
        """A config.json -> the decoder's configuration.  Raises UserError for another architecture
        or variant.
        """
        raise NotImplementedError

    def image_ids(self, folder: Path, config: Any) -> Tensor | None:
        """The prompt id of each image token [V]; None where they have none."""
        return self.image_number and image_ids(
            IdTokeniser(self.tokeniser(folder)).names, self.image_number
        )

    def published(self, row: Entry, folder: Path) -> tuple[Any, Tensor | None]:
        """The decoder's configuration, and ``image_ids``."""
        path = self.config_file(folder)
        published = loading.read_config(path)
        with loading.explain_errors(path, f"is no config of {self.title}"):
            config = replace(self.described(published, row), **decoder_shape(row))
        ids = self.image_ids(folder, config)
        return config if ids is None else replace(config, vocab_size=len(ids)), ids

    def config_file(self, folder: Path) -> Path:
        return self.weights(folder) / "config.json"

    def renamed(
        self, state: loading.State, config: Any, image_ids: Tensor | None
    ) -> loading.State:
        """Tensors of one layer, or all that belong to none, under our names."""
        state = loading.from_published(state, self.prefixes, config)
        return state if image_ids is None else loading.image_tables(state, image_ids)

    def new_vq(self, row: Entry, folder: Path | None) -> Any:
        """An image tokeniser without trained weights: by default of LlamaGen's kind."""
        return VQModel(VQConfig(**row.shape.get("vq", {})))

    def vq_state(self, where: Path, folder: Path) -> loading.State:
        """The image tokeniser's tensors at ``where`` under our names."""
        return from_vqgan(loading.read_state(where))

    def vq(self, row: Entry, folder: Path | None, device: str) -> Any:
        """The image tokeniser in float32; None where image decoding is not implemented."""
        if folder is None:
            return loading.random_net(lambda: self.new_vq(row, None), device, torch.float32)
        where = folder / ("vq" if present(folder, "vq") else "model")
        with loading.explain_errors(where, f"holds no image tokeniser of {row.name}"):
            state = self.vq_state(where, folder)
        if not any(key.startswith("decoder.") for key in state):
            raise UserError(
                f"the checkpoint in {where} has no image decoder: put {self.vq_file} into {folder / 'vq'}"
            )
        return loading.load_into(
            lambda: self.new_vq(row, folder), state, where, device, torch.float32
        )

    def template(self, row: Entry, folder: Path | None) -> tuple[str, str]:
        """The text before and after a caption."""
        return "", ""

    def text(self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype) -> Any:
        """``Target.text``: by default, prompts are ids."""
        if folder is None:
            return WordIds(self.config(row).prompt_ids, self.special)
        text = self.tokeniser_class(
            self.tokeniser(folder), self.special, self.template(row, folder)
        )
        if (ids := self.published(row, folder)[1]) is not None:
            text.reserved |= set(ids.tolist())
        return text

    def fields(self, row: Entry, model: Any, text: Any, folder: Path | None) -> dict[str, Any]:
        """Further fields of the ``Target``."""
        raise NotImplementedError

    def load(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> Target:
        dtype = dtype or loading.dtype_for(device)
        # small files fail first
        text, vq = self.text(row, folder, device, dtype), self.vq(row, folder, device)
        model = self.decoder(row, folder, device, dtype)
        drafters = (
            random_drafters(model, device, dtype)
            if folder is None
            else drafters_in(folder, model, device)
        )
        fields: dict[str, Any] = {
            "options": self.options(row),
            "drafters": drafters,
            "eagle_pads": self.eagle_pads,
        }
        fields["pad_rows"] = self.eagle_pads if folder and drafters else "alone"
        fields["prompt_template"] = "{caption}".join(self.template(row, folder))
        return Target(
            row.name,
            model,
            vq,
            text,
            row.part(Sampling),
            **fields | self.fields(row, model, text, folder),
        )

    def decoder(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> Any:
        dtype = dtype or loading.dtype_for(device)
        if folder is None:
            return loading.random_net(lambda: self.network(self.config(row)), device, dtype)
        config, ids = self.published(row, folder)
        new = partial(self.network, config, *() if ids is None else (ids,))
        convert = partial(self.renamed, config=config, image_ids=ids)
        return loading.load_layers(new, self.weights(folder), convert, device, dtype)
