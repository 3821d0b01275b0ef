"""``--target hf:FOLDER``: an image model that transformers runs over the engine's cache, from its
files and settings.

A folder holds config.json, safetensors and tokenizer.json as ``save_pretrained`` writes them, and
``lanternbench.yaml`` (``Settings``).  Images are decoded by the model's ``vqmodel``, or by an
image tokeniser of LlamaGen's kind in ``vq``; without either, speed alone is measured.
transformers' code computes every layer.  The engine's cache and mask are arguments of its forward
pass, so trees, batches and commits work as with decoders of ours.  It is slower than these: layers
are not fused, and each forward pass runs through its checks.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch
from pydantic import BeforeValidator, Field, ValidationError
from torch import Tensor, nn
from torch.nn.functional import pad

from lanternbench.errors import UserError, first_mistake
from lanternbench.models.entries import Entry
from lanternbench.models.family import Family, drafters_in
from lanternbench.models.grids import Grid, size, written
from lanternbench.models.loading import (
    dtype_for,
    explain_errors,
    load_into,
    read_config,
    read_state,
    sketch,
)
from lanternbench.models.places import locate
from lanternbench.models.target import Target
from lanternbench.models.token_decoder import (
    VARIANTS,
    IdTokeniser,
    PromptFrame,
    TokenDecoder,
    TokenDecoderConfig,
)
from lanternbench.models.transformer import ALIGNMENT, Depths, Mask, Put, additive, rope_1d
from lanternbench.models.vq import Codebook, ImageTokeniser, VQConfig, VQModel
from lanternbench.registry import register
from lanternbench.settings import Guidance, Sampling
from lanternbench.utils.files import read_yaml

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SETTINGS = "lanternbench.yaml"
PREFIX = "hf:"
MOST_ABSENT = 3  # times what the files hold: weights that are tied or absent count too
MOST_POSITIONS = 2**20
PROBED = 8  # ids on which the head over image tokens is compared with the model's logits
REMARK = (
    "the target runs through transformers' own layers, which are slower than a target family's: "
    "compare methods of this run with each other alone"
)
_EXAMPLE = (
    "{grid: 24, image_tokens: '<|visual token {:06d}|>', prompt: '<bos>{caption}<image>', "
    "unconditional: '<bos><image>'}"
)
_NUMBERED = re.compile(r"[^{}]*\{(:0\dd)?\}[^{}]*")
Side = Annotated[int, Field(ge=2, le=128)]  # tokens


def both_sides(value: object) -> object:
    """Return the sides of a grid; a square may be one number."""
    return (value, value) if type(value) is int else value


class Settings(Sampling):
    """The settings that transformers' files lack; names in prompts count as special tokens."""

    grid: Annotated[tuple[Side, Side], BeforeValidator(both_sides)]
    # the name of image token i in the tokeniser, or [id of the first, their number]
    image_tokens: str | tuple[int, int]
    prompt: str = "{caption}"  # the text before the first image token
    unconditional: str = ""
    row_end: str | None = None  # the token that the model writes after each row, if it does
    pad: str | None = None  # a token for shorter prompts of a batch
    guidance: Guidance = 3.0


class EngineCache:
    """The engine's cache in one forward pass, with the methods of transformers' caches."""

    def __init__(self, put: Put):
        self.put = put

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, ...]:
        """Store a layer's keys and values [R, H, N, d]; return all that are read [R, H, span, d]."""
        width = keys.shape[-1]
        kv = torch.cat([keys, values], 1)
        if width % ALIGNMENT:
            kv = pad(kv, (0, -width % ALIGNMENT))
        return self.put(layer, kv)[..., :width].chunk(2, 1)

    def get_seq_length(self, layer: int = 0) -> int:
        return 0  # positions are given


class TransformersDecoder(TokenDecoder):
    """A decoder of transformers: ``body`` is it without its head; ``rope`` is for drafters."""

    compiles = False
    places: Tensor
    body: Any

    def __init__(self, net: PreTrainedModel, config: TokenDecoderConfig, image_ids: Tensor):
        """``net``: a model with a linear head over a decoder of ids.  Raises UserError for any
        other.
        """
        nn.Module.__init__(self)  # the layers are those of ``body``
        self.config = config
        self.body = net.get_decoder()
        self.cls_embedding = cast(nn.Embedding, net.get_input_embeddings())
        table = self.cls_embedding.weight.detach()
        self.tok_embeddings = nn.Embedding.from_pretrained(table[image_ids])
        head = net.get_output_embeddings()
        self.output = nn.Linear(config.dim, len(image_ids), bias=head.bias is not None)
        for name, parameter in head.named_parameters():
            rows = parameter.detach()[image_ids]
            setattr(self.output, name, nn.Parameter(rows, requires_grad=False))
        tables = {
            "image_ids": image_ids,
            "rope": rope_1d(config.positions, config.head_dim, config.rope_base),
            "places": torch.arange(config.positions)[:, None],
        }
        for name, table in tables.items():
            self.register_buffer(name, table.to(self.device), persistent=False)
        self._compare(net)

    @torch.no_grad()
    def _compare(self, net: PreTrainedModel) -> None:
        """Raise UserError if the head over image tokens gives other logits than the model."""
        n = min(PROBED, len(self.image_ids))
        logits = net(input_ids=self.image_ids[None, :n], use_cache=False).logits
        wanted = logits[..., self.image_ids].float()
        x = self.tok_embeddings.weight[None, :n]
        found = self.logits(self(x, self.places[None, :n, None], "causal")).float()
        tolerance = 1e-3 if self.dtype == torch.float32 else 0.1
        if not torch.allclose(found, wanted, atol=tolerance * float(wanted.abs().max()), rtol=0):
            raise UserError(
                f"the logits of {type(net).__name__} are not a linear head on its decoder's "
                "states over embedded ids: such a model needs a target family of its own, see "
                "docs/extend.md"
            )

    def position_table(self, prompt: int) -> Tensor:
        """The positions [positions, 1]: transformers computes its rotary embedding from them."""
        return self.places

    @property
    def layers(self) -> nn.ModuleList:  # type: ignore[override]
        return self.body.layers

    @property
    def about(self) -> str:
        return f"{type(self.body).__name__} of transformers, {self.config.n_layer} layers"

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Mask,
        put: Put | None = None,
        last: bool = False,
        aux_layers: Depths = (),
    ) -> Tensor:
        """As ``Stack.forward``; ``rope`` [R|1, N|1, 1, 1] holds positions."""
        rows, n, _ = x.shape
        if mask is None:
            # transformers' default is causal
            mask = torch.zeros(1, 1, 1, 1, dtype=x.dtype, device=x.device)
        elif isinstance(mask, str):
            mask = torch.full((1, 1, n, n), -torch.inf, dtype=x.dtype, device=x.device).triu(1)
        elif mask.dtype == torch.bool:
            mask = additive(mask, x.dtype)
        output = self.body(
            inputs_embeds=x,
            attention_mask=mask,
            position_ids=rope[..., 0, 0].expand(rows, n),
            use_cache=put is not None,
            past_key_values=None if put is None else EngineCache(put),
            output_hidden_states=bool(aux_layers),
        )
        states = output.last_hidden_state
        if aux_layers:
            inner = [output.hidden_states[number] for number in aux_layers]
            return torch.cat([states, *inner], -1)
        return states[:, -1:] if last else states


@register("target", "transformers")
class TransformersFamily(Family):
    """Targets that a folder describes, without rows in the catalogue."""

    def reads(self, path: Path) -> Path | None:
        if not str(path).startswith(PREFIX):
            return None
        return Path(str(path).removeprefix(PREFIX)).expanduser()

    def load(
        self, row: Entry, folder: Path | None, device: str, dtype: torch.dtype | None = None
    ) -> Target:
        if folder is None:
            raise UserError(f"target '{row.name}' has no random weights: name its folder")
        chosen = settings(folder)
        special = [name for name in (chosen.row_end, chosen.pad) if name]
        text = IdTokeniser(folder / "tokenizer.json", special, template(chosen, folder))
        ids = image_ids(chosen.image_tokens, text.names)
        net = network(folder, dtype or dtype_for(device))
        nn.Module.to(net, device).eval().requires_grad_(False)
        with explain_errors(f"{folder / 'config.json'} describes no decoder of the usual kind"):
            config = shape(net, chosen.grid, len(ids))
        if int(ids.max()) >= config.prompt_ids:
            raise UserError(
                f"image_tokens go up to id {int(ids.max())} "
                f"but the model has {config.prompt_ids} ids"
            )
        model = TransformersDecoder(net, config, ids.to(device))
        vq = image_tokeniser(net, folder, device, len(ids))
        unconditional = text.encode("", chosen.unconditional)
        return Target(
            folder.name,
            model,
            vq,
            text,
            chosen.part(Sampling),
            drafters=drafters_in(locate({}, folder), model, device),
            condition=PromptFrame([], [], unconditional, text.ids.get(chosen.pad or "", 0)),
            row_end=text.ids.get(chosen.row_end or ""),
            prompt_template=chosen.prompt,
            remark=REMARK,
        )


def settings(folder: Path) -> Settings:
    """Return the settings of a folder.  Raises UserError if they are absent or wrong."""
    path = folder / SETTINGS
    if not path.exists():
        raise UserError(
            f"{path} is missing: write what the model's own files do not say, such as {_EXAMPLE}"
        )
    try:
        return Settings.model_validate(read_yaml(path, "a file of settings"))
    except ValidationError as error:
        field, reason = first_mistake(error)
        raise UserError(
            f"{path} is wrong ({field} {reason}): write settings such as {_EXAMPLE}"
        ) from None


def template(chosen: Settings, folder: Path) -> tuple[str, str]:
    """Return the text before and after a caption.  Raises UserError for a prompt without one."""
    before, caption, after = chosen.prompt.partition("{caption}")
    if not caption:
        raise UserError(
            f"the prompt in {folder / SETTINGS} has no {{caption}}: "
            "write it where the caption goes"
        )
    return before, after


def image_ids(named: str | tuple[int, int], names: dict[str, int]) -> Tensor:
    """Return the id of each image token [V].  Raises UserError if there are none."""
    if not isinstance(named, str):
        first, count = named
        if first < 0 or count < 2:
            raise UserError(
                f"image_tokens [{first}, {count}] is no range of ids: "
                "give the first id and how many"
            )
        return torch.arange(first, first + count)
    if _NUMBERED.fullmatch(named) is None:
        raise UserError(
            f"image_tokens '{named[:80]}' has no place for a number: write one, such as {{:06d}}"
        )
    ids: list[int] = []
    name = named.format(0)
    while name in names:
        ids.append(names[name])
        name = named.format(len(ids))
    if len(ids) < 2:
        raise UserError(f"the tokeniser has no token '{name}': correct image_tokens in {SETTINGS}")
    return torch.tensor(ids)


def network(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of the class that config.json names.

    Raises UserError, also for a folder with code, and before anything is allocated for one whose
    config.json describes a larger model than its files hold.
    """
    import transformers

    path = folder / "config.json"
    config = read_config(path)
    code = sorted(file.name for file in folder.glob("*.py"))
    if code or "auto_map" in config:
        found = code[0] if code else "auto_map in config.json"
        raise UserError(
            f"{folder} has code ({found}), which is never run: use a model that transformers has,"
            " without it"
        )
    with explain_errors(f"{path} names no class"):
        name = str((config.get("architectures") or [None])[0])
    kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise UserError(
            f"transformers {transformers.__version__} has no model class '{name}' "
            "that config.json names"
        )
    check_size(folder, kind)
    load: Any = kind.from_pretrained
    with explain_errors(f"transformers cannot load {folder}", "correct it"):
        net, info = load(
            folder,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    if absent := sorted(info["missing_keys"]):
        raise UserError(
            f"the checkpoint in {folder} has no '{absent[0]}' ({len(absent)} weights are absent)"
        )
    return net


def check_size(folder: Path, kind: type[PreTrainedModel]) -> None:
    """Raise UserError if config.json describes a much larger model than the folder's files hold."""
    path = folder / "config.json"
    reads_config: Any = kind.config_class
    with explain_errors(f"{path} cannot be read by transformers", "correct it"):
        config = reads_config.from_pretrained(folder, local_files_only=True)
    _, shapes = sketch(lambda: kind(config), path)
    described = sum(shape.numel() for shape in shapes.values())
    held = sum(tensor.numel() for tensor in read_state(folder).values())
    if described > MOST_ABSENT * held:
        raise UserError(
            f"{path} describes a model of {described:,} numbers, and the files next to it hold"
            f" {held:,}: correct it"
        )


def shape(net: PreTrainedModel, grid: Grid, vocab: int) -> TokenDecoderConfig:
    """Return the configuration of a model.  Raises UserError for one without the usual fields."""
    text = net.config.get_text_config().to_dict()
    fields = TokenDecoderConfig.llama_fields(text, VARIANTS)
    fields["vocab_size"] = vocab
    fields["positions"] = text["max_position_embeddings"]
    fields["prompt_ids"] = net.get_input_embeddings().num_embeddings
    config = TokenDecoderConfig(**fields, grid=grid)
    if config.positions > MOST_POSITIONS:
        raise UserError(
            f"the model has {config.positions} positions; at most {MOST_POSITIONS} fit"
        )
    if config.positions < size(grid):
        raise UserError(
            f"the model has {config.positions} positions, too few for {written(grid)} image tokens"
        )
    return config


class InnerTokeniser:
    """The image tokeniser of a model of transformers."""

    def __init__(self, net: Any):
        table = net.float().quantize.embedding.weight.detach()
        self.quantize = Codebook(len(table), table.shape[1], comparison="distance")
        self.quantize.embedding.weight.data = table
        self.decode = net.decode


def image_tokeniser(
    net: PreTrainedModel, folder: Path, device: str, vocab: int
) -> ImageTokeniser | None:
    """Return the model's image tokeniser, or that of ``folder``; None without either.

    Raises UserError unless it has ``vocab`` codes.
    """
    inner = getattr(getattr(net, "model", net), "vqmodel", None)
    where = folder / "vq"
    tokeniser: ImageTokeniser
    if inner is not None and hasattr(inner, "decode"):
        tokeniser = InnerTokeniser(inner)
    elif where.exists():
        state = read_state(where)
        config = VQConfig()
        table = state.get("quantize.embedding.weight")
        if table is not None and table.ndim == 2:
            config = replace(config, codebook_size=len(table), codebook_dim=table.shape[1])
        tokeniser = load_into(lambda: VQModel(config), state, where, device, torch.float32)
    else:
        return None
    count = len(tokeniser.quantize.codes())
    if count != vocab:
        raise UserError(
            f"the tokeniser has {count} codes but its image_tokens are {vocab} tokens: "
            f"correct {SETTINGS}"
        )
    return tokeniser
