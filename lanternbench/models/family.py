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
from lanternbench.models import key_names, loading
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters import dflash, eagle
from lanternbench.models.drafters.kinds import FILED, KINDS, kind_of
from lanternbench.models.entries import Entry, fingerprints, role_fingerprints
from lanternbench.models.places import Files, folder_of
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
    code = kind_of(loading.read_state(path)).code
    drafter: Drafter = code.load(path, model, device, dtype or model.dtype)
    config = folder_of(path) / "config.json"
    named = layers_named(loading.read_config(config)) if config.is_file() else None
    read = [*drafter.aux_layers(model), model.config.decoder.n_layer]
    if named is not None and named not in (read, read[:-1]):
        raise UserError(
            f"{config} says that the drafter reads the target's states after the layers {named}, "
            f"but this one is run on those after {read}: it cannot be used"
        )
    return drafter


def layers_named(config: Mapping[str, object]) -> list[object] | None:
    """The layers of the target after which a drafter's config.json says that it reads states; None
    where it says nothing.
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
    """Return the drafters among the files of a target, by what they are.  Raises UserError."""
    paths = [files.paths[role] for role in FILED if role in files.paths]
    nets = [drafter_at(path, model, device) for path in paths]
    return {net.kind: net for net in nets}


def random_drafters(model: ImageDecoder, device: str, dtype: torch.dtype) -> dict[str, nn.Module]:
    makes = {kind: partial(KINDS[kind].code.untrained, model, kind) for kind in FILED}
    return {kind: loading.random_net(make, device, dtype) for kind, make in makes.items()}


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

    def fingerprints(self, row: Entry, folder: Path) -> dict[str, str]:
        """Return digests of the files in ``folder`` by part."""
        return fingerprints(folder)

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

    def weights(self, files: Files) -> Path:
        """The decoder's weights: a file, or a folder."""
        return files.get("model")

    def config_file(self, files: Files) -> Path:
        return self.model_folder(files) / "config.json"

    def model_folder(self, files: Files) -> Path:
        """The folder of the decoder's weights and of what is published with them."""
        return folder_of(self.weights(files))

    def tokeniser(self, files: Files) -> Path:
        """The file of the tokeniser of prompts."""
        return self.model_folder(files) / "tokenizer.json"

    def described(self, config: dict[str, Any], row: Entry) -> Any:
        """A config.json -> the decoder's configuration.  Raises UserError for another architecture
        or variant.
        """
        raise NotImplementedError

    def image_ids(self, files: Files, config: Any) -> Tensor | None:
        """The prompt id of each image token [V]; None where they have none."""
        if self.image_number is None:
            return None
        return image_ids(self.tokeniser_class(self.tokeniser(files)).names, self.image_number)

    def published(self, row: Entry, files: Files) -> tuple[Any, Tensor | None]:
        """The decoder's configuration, and ``image_ids``."""
        path = self.config_file(files)
        published = loading.read_config(path)
        with loading.explain_errors(path, f"is no config of {self.title}"):
            config = replace(self.described(published, row), **decoder_shape(row))
        ids = self.image_ids(files, config)
        if ids is not None:
            config = replace(config, vocab_size=len(ids))
        return config, ids

    def renamed(
        self, state: loading.State, config: Any, image_ids: Tensor | None
    ) -> loading.State:
        """Tensors of one layer, or all that belong to none, under our names."""
        state = key_names.from_published(state, self.prefixes, config)
        if image_ids is None:
            return state
        return key_names.image_tables(state, image_ids)

    def new_vq(self, row: Entry, files: Files | None) -> Any:
        """An image tokeniser without trained weights: by default of LlamaGen's kind."""
        return VQModel(VQConfig(**row.shape.get("vq", {})))

    def vq_state(self, where: Path, files: Files) -> loading.State:
        """The image tokeniser's tensors at ``where`` under our names."""
        return from_vqgan(loading.read_state(where))

    def vq(self, row: Entry, files: Files | None, device: str) -> Any:
        """The image tokeniser in float32; None where image decoding is not implemented."""
        if files is None:
            return loading.random_net(lambda: self.new_vq(row, None), device, torch.float32)
        where = files.paths.get("vq", self.weights(files))
        with loading.explain_errors(where, f"holds no image tokeniser of {row.name}"):
            state = self.vq_state(where, files)
        if not any(key.startswith("decoder.") for key in state):
            raise UserError(
                f"the checkpoint in {where} has no image decoder: put {self.vq_file} into {files.place / 'vq'}"
            )
        return loading.load_into(
            lambda: self.new_vq(row, files), state, where, device, torch.float32
        )

    def template(self, row: Entry, files: Files | None) -> tuple[str, str]:
        """The text before and after a caption."""
        return "", ""

    def text(self, row: Entry, files: Files | None, device: str, dtype: torch.dtype) -> Any:
        """``Target.text``: by default, prompts are ids."""
        if files is None:
            return WordIds(self.config(row).prompt_ids, self.special)
        text = self.tokeniser_class(self.tokeniser(files), self.special, self.template(row, files))
        if (ids := self.published(row, files)[1]) is not None:
            text.reserved |= set(ids.tolist())
        return text

    def fields(self, row: Entry, model: Any, text: Any, files: Files | None) -> dict[str, Any]:
        """Further fields of the ``Target``."""
        raise NotImplementedError

    def fingerprints(self, row: Entry, folder: Path) -> dict[str, str]:
        return role_fingerprints(row.locate(folder))

    def load(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> Target:
        dtype = dtype or loading.dtype_for(device)
        files = None if folder is None else row.locate(folder)
        # small files fail first
        text = self.text(row, files, device, dtype)
        vq = self.vq(row, files, device)
        model = self.new_decoder(row, files, device, dtype)
        if files is None:
            drafters = random_drafters(model, device, dtype)
        else:
            drafters = drafters_in(files, model, device)
        fields: dict[str, Any] = {
            "options": self.options(row),
            "drafters": drafters,
            "eagle_pads": self.eagle_pads,
            "pad_rows": self.eagle_pads if files and drafters else "alone",
            "prompt_template": "{caption}".join(self.template(row, files)),
        }
        fields |= self.fields(row, model, text, files)
        if files is not None:
            remarks = [self.unread_layers(files, model), fields.get("remark", "")]
            fields["remark"] = " ".join(filter(None, remarks))
        return Target(row.name, model, vq, text, row.part(Sampling), **fields)

    def unread_layers(self, files: Files, model: ImageDecoder) -> str:
        """Return a remark where the configuration has fewer layers than the checkpoint."""
        used = model.config.n_layer
        there = loading.layers_at(self.weights(files), self.prefixes)
        if used >= there:
            return ""
        return f"{used} of {there} layers of this checkpoint are used, as its configuration says."

    def decoder(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> Any:
        files = None if folder is None else row.locate(folder)
        return self.new_decoder(row, files, device, dtype or loading.dtype_for(device))

    def new_decoder(self, row: Entry, files: Files | None, device: str, dtype: torch.dtype) -> Any:
        """The decoder from its files, or with random weights."""
        if files is None:
            return loading.random_net(lambda: self.network(self.config(row)), device, dtype)
        config, ids = self.published(row, files)
        new = partial(self.network, config)
        if ids is not None:
            new = partial(self.network, config, ids)
        convert = partial(self.renamed, config=config, image_ids=ids)
        return loading.load_layers(new, self.weights(files), convert, device, dtype)
