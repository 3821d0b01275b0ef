"""``--target hf:FOLDER``: an image model that transformers runs, from its files and a few settings.

A folder holds config.json, safetensors and tokenizer.json as ``save_pretrained`` writes them, and ``lanternbench.yaml``
(``Settings``).  Images are decoded by the model's ``vqmodel``, or by an image tokeniser of LlamaGen's kind in
``vq``; without either, speed alone is measured.  Slower than a family of ours: transformers' layers are not fused, and
each forward passes through its checks.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor
from yaml import YAMLError

from lanternbench.errors import UserError
from lanternbench.models.entries import Entry
from lanternbench.models.family import Family, drafters_in
from lanternbench.models.grids import Grid, size, written
from lanternbench.models.huggingface.model import TransformersDecoder
from lanternbench.models.loading import dtype_for, explain_errors, load_into, read_state
from lanternbench.models.target import Target, Tokeniser
from lanternbench.models.token_decoder import TokenDecoderConfig, llama_sizes
from lanternbench.models.token_prompts import IdTokeniser, PromptFrame
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.registry import register
from lanternbench.utils import yaml_text

SETTINGS = "lanternbench.yaml"
PREFIX = "hf:"
REMARK = (
    "the target runs through transformers' own layers, which are slower than a target family's: compare methods of "
    "this run with each other alone"
)
_EXAMPLE = (
    "grid: 24, image_tokens: '<|visual token {:06d}|>', prompt: '<bos>{caption}<image>', unconditional: '<bos><image>'"
)
_NUMBERED = re.compile(r"[^{}]*\{(:0\dd)?\}[^{}]*")
Side = Annotated[int, Field(ge=2, le=128)]  # tokens


class Settings(BaseModel):
    """Settings that transformers' files do not contain.

    ``grid``: rows and columns of image tokens, or one number for both.
    ``image_tokens``: how the tokeniser names image token i, or [id of the first, how many].  ``prompt``,
    ``unconditional``: what stands before the first image token; names of special tokens count as such.  ``row_end``:
    the token that the model writes after each row, if it does.  ``pad``: a token for shorter prompts of a batch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    grid: tuple[Side, Side]
    image_tokens: str | tuple[int, int]
    prompt: str = "{caption}"
    unconditional: str = ""
    row_end: str | None = None
    pad: str | None = None
    guidance: float = Field(3.0, ge=0, le=1000)
    top_k: int = Field(0, ge=0)

    @field_validator("grid", mode="before")
    @classmethod
    def _square(cls, value: Any) -> Any:
        return (value, value) if isinstance(value, int) else value


@register("target", "transformers")
class TransformersFamily(Family):
    """Has no rows in the catalogue: the folder describes the target."""

    rows = Path(__file__).with_name("catalogue.yaml")

    def reads(self, folder: Path) -> bool:
        return str(folder).startswith(PREFIX)

    def located(self, path: Path) -> Path:
        return Path(str(path).removeprefix(PREFIX))

    def load(self, row: Entry, folder: Path, device: str, dtype: torch.dtype | None = None) -> Target:
        chosen = settings(folder)
        before, place, after = chosen.prompt.partition("{caption}")
        if not place:
            raise UserError(f"the prompt in {folder / SETTINGS} has no {{caption}}: write it where the caption goes")
        special = [name for name in (chosen.row_end, chosen.pad) if name]
        text = IdTokeniser(folder / "tokenizer.json", special, (before, after))
        ids = image_ids(chosen.image_tokens, text.names)
        net = network(folder, dtype or dtype_for(device)).to(device).eval().requires_grad_(False)
        with explain_errors(folder / "config.json", "describes no decoder of the usual kind"):
            config = shape(net, chosen.grid, len(ids))
        if int(ids.max()) >= config.prompt_ids:
            raise UserError(f"image_tokens go up to id {int(ids.max())} but the model has {config.prompt_ids} ids")
        model = TransformersDecoder(net, config, ids.to(device))
        return Target(
            folder.name,
            model,
            image_tokeniser(net, folder, device, len(ids)),
            text,
            chosen.guidance,
            chosen.top_k,
            drafters=drafters_in(folder, model, device),
            condition=PromptFrame([], [], text.encode("", chosen.unconditional), text.ids.get(chosen.pad or "", 0)),
            row_end=text.ids[chosen.row_end] if chosen.row_end else None,
            prompt_template=chosen.prompt,
            remark=REMARK,
        )


def settings(folder: Path) -> Settings:
    """Raises UserError for settings that are absent or wrong."""
    path = folder / SETTINGS
    try:
        return Settings(**yaml_text.load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(
            f"{path} is missing: write what the model's own files do not say, such as {{{_EXAMPLE}}}"
        ) from None
    except (OSError, ValueError, TypeError, YAMLError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error).splitlines()[0]
        raise UserError(f"{path} is wrong ({reason}): write settings such as {{{_EXAMPLE}}}") from None


def image_ids(named: str | tuple[int, int], names: dict[str, int]) -> Tensor:
    """The id of each image token [V].  Raises UserError where there are none."""
    if not isinstance(named, str):
        first, count = named
        if first < 0 or count < 2:
            raise UserError(f"image_tokens [{first}, {count}] is no range of ids: give the first id and how many")
        return torch.arange(first, first + count)
    if _NUMBERED.fullmatch(named) is None:
        raise UserError(f"image_tokens '{named[:80]}' has no place for a number: write one, such as {{:06d}}")
    ids: list[int] = []
    while (name := named.format(len(ids))) in names:
        ids.append(names[name])
    if len(ids) < 2:
        raise UserError(f"the tokeniser has no token '{name}': correct image_tokens in {SETTINGS}")
    return torch.tensor(ids)


def network(folder: Path, dtype: torch.dtype) -> Any:
    """The transformers model in ``folder``, by the class that config.json names; no code of the folder is run.

    Raises UserError for a class that transformers lacks, and for weights that are absent, partial or not safetensors.
    """
    import transformers

    try:
        name = (json.loads((folder / "config.json").read_bytes()).get("architectures") or [None])[0]
    except (OSError, ValueError, AttributeError, IndexError, TypeError):
        raise UserError(f"cannot read {folder / 'config.json'}: give a folder that save_pretrained wrote") from None
    kind = getattr(transformers, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise UserError(f"transformers {transformers.__version__} has no model class '{name}' that config.json names")
    local = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
    load: Any = kind.from_pretrained
    try:
        net, about = load(folder, dtype=dtype, attn_implementation="sdpa", **local)
    except Exception as error:  # transformers has no exception type for an invalid folder
        raise UserError(f"transformers cannot load {folder} ({str(error).splitlines()[0]}): correct it") from None
    if absent := sorted(about["missing_keys"]):
        raise UserError(f"the checkpoint in {folder} has no '{absent[0]}' ({len(absent)} weights are absent)")
    return net


def shape(net: Any, grid: Grid, vocab: int) -> TokenDecoderConfig:
    """Raises UserError for a model without the usual fields."""
    text = net.config.get_text_config().to_dict()
    sizes = llama_sizes(text, TokenDecoderConfig) | {"vocab_size": vocab, "positions": text["max_position_embeddings"]}
    config = TokenDecoderConfig(**sizes, grid=grid, prompt_ids=net.get_input_embeddings().num_embeddings)
    if config.positions < size(grid):
        raise UserError(f"the model has {config.positions} positions, too few for {written(grid)} image tokens")
    return config


def image_tokeniser(net: Any, folder: Path, device: str, vocab: int) -> Tokeniser | None:
    """The model's, or that of ``folder``; None without either.  Raises UserError unless it has ``vocab`` codes."""
    inner, where = getattr(getattr(net, "model", net), "vqmodel", None), folder / "vq"
    if inner is not None and hasattr(inner, "decode"):
        codes = inner.float().quantize.embedding.weight.detach()
        tokeniser: Any = SimpleNamespace(decode=inner.decode, quantize=SimpleNamespace(codes=lambda: codes))
    elif where.exists():
        state = read_state(where)
        shape: tuple[int, ...] = getattr(state.get("quantize.embedding.weight"), "shape", ())
        config = VQConfig(codebook_size=shape[0], codebook_dim=shape[1]) if len(shape) == 2 else VQConfig()
        tokeniser = load_into(lambda: VQModel(config), state, where, device, torch.float32)
    else:
        return None
    if (count := len(tokeniser.quantize.codes())) != vocab:
        raise UserError(
            f"the image tokeniser of {folder} has {count} codes but its image_tokens are {vocab} tokens: correct "
            f"image_tokens in {SETTINGS}, or use the tokeniser that the model was trained with"
        )
    return tokeniser
