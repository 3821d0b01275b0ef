"""Published checkpoint files -> modules: memory-mapped, no weight held twice, nothing executed,
every failure named.

Their key names and layouts -> ours, too, of decoders and of their EAGLE drafters.  Published
layouts rotate halves of a head, as transformers does; here pairs are interleaved, as in LlamaGen
and Meta's.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lanternbench.errors import UserError
from lanternbench.models.state_files import State, mappable, read_state, state_files
from lanternbench.models.transformer import DecoderConfig
from lanternbench.utils.damage import damage
from lanternbench.utils.device import hardware, has_bfloat16
from lanternbench.utils.files import WEIGHTS
from lanternbench.utils.json_values import read_object

Net = TypeVar("Net", bound=nn.Module)
Convert = Callable[[State], State]  # of key names
Moved = Callable[[Tensor], Tensor]  # to the device, in the dtype asked for
MAX_CONFIG = 2**24  # bytes of a config.json
MAX_MODULES, MAX_BUFFERED = 3000, 2**28  # of a network: twice those of the largest published
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LAYER = re.compile(r"\blayers\.\d+\.")
# what code raises that trusts the numbers and names in a file
ODD = (
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    AssertionError,
)
# our fused matrices -> their parts: in transformers' names, and in the official ones of LlamaGen
# and Chameleon
HF = {
    "attention.wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "feed_forward.w13": ("mlp.gate_proj", "mlp.up_proj"),
}
OFFICIAL = {
    "attention.wqkv": ("attention.wq", "attention.wk", "attention.wv"),
    "feed_forward.w13": ("feed_forward.w1", "feed_forward.w3"),
}
_RENAMED = {
    "self_attn.o_proj": "attention.wo",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "mlp.gate_up_proj": "feed_forward.w13",  # GLM's, fused as here
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_self_attn_layernorm": "attention_out_norm",  # GLM's, with ``sandwich_norm``
    "post_mlp_layernorm": "ffn_out_norm",
}
# rotary frequencies, which are not read
_COMPUTED = ("rotary_emb.inv_freq", "rope.freqs", "freqs_cis")
TABLE = "embed_tokens.weight"  # of all ids


class Undrawn(TorchFunctionMode):
    """Normal initial values are not drawn: on the meta device that would import much of PyTorch,
    for seconds.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.normal_, nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def empty_parameters() -> Iterator[None]:
    """Modules built inside have their buffers, but parameters on the meta device."""

    def without_memory(
        module: nn.Module, name: str, parameter: nn.Parameter | None
    ) -> nn.Parameter | None:
        return (
            parameter
            if parameter is None
            else nn.Parameter(parameter.to("meta"), requires_grad=False)
        )

    register = torch.nn.modules.module.register_module_parameter_registration_hook
    handle = register(without_memory)  # type: ignore[arg-type]  # its annotation forbids what it documents
    try:
        with Undrawn():
            yield
    finally:
        handle.remove()


def load_into(
    make: Callable[[], Net], state: State, where: Path, device: str, dtype: torch.dtype
) -> Net:
    """The module of ``make`` with ``state``, which is emptied.  Raises UserError for another
    architecture or size.
    """
    return _filled(make, [state], where, lambda value: value.to(device, dtype), device)


def load_layers(
    make: Callable[[], Net],
    path: Path,
    convert: Convert,
    device: str,
    dtype: torch.dtype,
    strict: bool = False,
) -> Net:
    """As ``load_into`` from the checkpoint at ``path``, with no more than one layer of it in
    memory at a time.

    ``convert`` renames the tensors of one layer, or all that belong to none.  ``strict``: raises
    UserError also for a tensor that the module has no place for.
    """
    on_disk: set[int] = set()  # storages of the current layer that lie in the file

    def moved(value: Tensor) -> Tensor:
        return value.to(device, dtype, copy=value.untyped_storage().data_ptr() in on_disk)

    def parts() -> Iterator[State]:
        state = read_state(path)
        count = len(state)
        layers: dict[str, list[str]] = defaultdict(list)
        for key in state:
            layers[layer.group() if (layer := _LAYER.search(key)) else ""].append(key)
        in_place = all(map(mappable, state_files(path)))
        for keys in layers.values():
            # what was read of a file leaves memory with the last tensor of that reading
            if in_place:
                state = read_state(path)
            part = {key: state.pop(key) for key in keys}
            if in_place:
                state.clear()
                on_disk.clear()
                on_disk.update(value.untyped_storage().data_ptr() for value in part.values())
            try:
                with explain_errors(path, "is of another architecture or size"):
                    part = convert(part)
            except AbsentPartError as absent:
                lost = [str(absent)]
                raise UserError(_lacks(path, lost, count + len(lost), "decoder")) from None
            yield part

    return _filled(make, parts(), path, moved, device, strict)


def layers_at(path: Path, prefixes: tuple[str, ...]) -> int:
    """Return how many layers of a decoder the checkpoint at ``path`` has, whose names begin with
    one of ``prefixes``, or with nothing.
    """
    numbers = [-1]
    for key in read_state(path):
        prefix = next((p for p in prefixes if key.startswith(p)), "")
        if found := re.match(r"layers\.(\d+)\.", key.removeprefix(prefix)):
            numbers.append(int(found[1]))
    return 1 + max(numbers)


def _filled(
    make: Callable[[], Net],
    parts: Iterable[State],
    where: Path,
    moved: Moved,
    device: str,
    strict: bool = False,
) -> Net:
    (kind, shapes), values = _sketch(make, where), {}
    for state in parts:
        for name in shapes.keys() & state.keys():
            if state[name].shape != shapes[name]:
                raise UserError(
                    f"'{name}' in {where} is {list(state[name].shape)} but this target needs {list(shapes[name])}: "
                    "it is the checkpoint of another size"
                )
            values[name] = _checked(state.pop(name), name, where, moved)
        if strict and state:
            raise UserError(
                f"{where} has a '{min(state)}' that a {kind} of this kind has no place for: use another"
            )
    # what Emu3's tokeniser has no use for
    wanted = [k for k in shapes if not k.endswith("num_batches_tracked")]
    if lost := [k for k in wanted if k not in values]:
        raise UserError(_lacks(where, lost, len(wanted), kind))
    with empty_parameters():
        net = make()
    net.load_state_dict(values, strict=False, assign=True)
    return net.to(device).eval()  # tables that no checkpoint has are still on the host


def _lacks(where: Path, lost: list[str], wanted: int, kind: str) -> str:
    """Return the sentence on a checkpoint without some weights: it is damaged, or of another
    model where most are absent.
    """
    verb = "is" if len(lost) == 1 else "are"
    share = f"{len(lost)} of {wanted} weights {verb} absent"
    if 2 * len(lost) < wanted:
        return f"{where} is damaged: {share}, such as '{lost[0]}': fetch it again"
    return f"{where} has no '{lost[0]}' ({share}): it is not a {kind}"


def _sketch(make: Callable[[], nn.Module], where: Path) -> tuple[str, dict[str, torch.Size]]:
    """The module's class name, and each tensor's shape by name, at no cost.  Raises UserError for
    impossible sizes.
    """
    count = 0

    def counted(*_: object) -> None:
        nonlocal count
        if (count := count + 1) > MAX_MODULES:
            raise ValueError(f"more than {MAX_MODULES} modules")

    # arithmetic on the meta device imports much of PyTorch, for seconds, and the sizes of our own
    # files are known
    unallocated = empty_parameters() if where.is_relative_to(WEIGHTS) else torch.device("meta")
    handle = torch.nn.modules.module.register_module_module_registration_hook(counted)
    try:
        with explain_errors(where, "says sizes of which no network can be made"), unallocated:
            net = make()
            if (size := sum(buffer.numel() for buffer in net.buffers())) > MAX_BUFFERED:
                raise ValueError(f"tables of {size} numbers")
    finally:
        handle.remove()
    return type(net).__name__, {name: value.shape for name, value in net.state_dict().items()}


def cause(error: Exception) -> str:
    """The type of an exception and what it says, on one line; of a missing key its name."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@contextmanager
def explain_errors(where: Path, what: str) -> Iterator[None]:
    """Turns exceptions from code that interprets a file into a UserError: ``where``, ``what`` and
    the cause.
    """
    try:
        yield
    except ODD as error:
        raise UserError(
            f"{where} {what} ({cause(error)}): use the official file of this target"
        ) from None


def _checked(value: Tensor, name: str, where: Path, moved: Moved) -> Tensor:
    """``moved(value)``.  Raises UserError for quantised numbers, NaN and infinity: a drafter with
    them is only slow.
    """
    if value.dtype not in _PLAIN and not name.endswith("num_batches_tracked"):
        raise UserError(
            f"'{name}' in {where} is quantised ({value.dtype}): use one in float16, bfloat16 or float32"
        )
    value = moved(value)
    if (
        value.dtype.is_floating_point
        and not value.sum(dtype=torch.float32).isfinite()
        and not value.isfinite().all()
    ):
        raise UserError(
            f"'{name}' in {where} has values that are NaN or infinite: fetch the file again, or train anew"
        )
    return value


def random_net(make: Callable[[], Net], device: str, dtype: torch.dtype) -> Net:
    """A module filled in place, on its device: nothing is held twice.  On ``meta`` it has a shape
    and no weights.
    """
    with empty_parameters():
        net = make()
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)

    values = {
        name: torch.empty(p.shape, device=device, dtype=dtype)
        for name, p in net.named_parameters()
    }
    for name, value in values.items():
        if "norm" in name:
            value.fill_(float(name.rpartition(".")[2] == "weight"))
        else:
            value.normal_(std=0.02, generator=generator)
    net.load_state_dict(values, strict=False, assign=True)
    return net.to(device).eval()


def read_config(path: Path) -> dict[str, Any]:
    """The model's config.json or params.json.  Raises UserError."""
    if wrong := damage(path):
        raise UserError(f"{path} {wrong}")
    try:
        if path.is_file() and path.stat().st_size > MAX_CONFIG:
            raise ValueError("it is too large")
        return read_object(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read {path} ({error}); use the {path.name} published with the weights"
        ) from None


def dtype_for(device: str) -> torch.dtype:
    """Return float32 on a CPU, and bfloat16 on a GPU, as the papers run.

    GPUs that cannot compute in bfloat16 get float16.
    """
    if device == "cpu":
        return torch.float32
    return torch.bfloat16 if has_bfloat16(device) else torch.float16


def dtype_named(name: str, device: str = "cpu") -> torch.dtype:
    """Return the dtype of a name.  Raises UserError for one that the device does not have."""
    if name not in DTYPES:
        raise UserError(f"unknown dtype '{name}': use {', '.join(DTYPES)}")
    if name == "bfloat16" and not has_bfloat16(device):
        raise UserError(f"{hardware(device)} has no bfloat16: give --dtype float16 or float32")
    return DTYPES[name]


class AbsentPartError(Exception):
    """A tensor of several that are one matrix here is not in a checkpoint."""


def fused(state: State) -> State:
    """Parts of matrices, where there are any, concatenated.  Raises AbsentPartError where some of
    several are absent.
    """
    result = dict(state)
    for whole, parts in (*HF.items(), *OFFICIAL.items()):
        keys = [key.replace(part, whole) for part in parts for key in state if f"{part}." in key]
        for key in dict.fromkeys(keys):
            names = [key.replace(whole, part) for part in parts]
            if absent := [name for name in names if name not in state]:
                raise AbsentPartError(absent[0])
            result[key] = torch.cat([result.pop(name) for name in names])
    return result


def split(state: State, layout: dict[str, tuple[str, ...]]) -> State:
    """The inverse of ``fused``."""
    result = dict(state)
    for whole, parts in layout.items():
        for key in [k for k in state if f"{whole}." in k]:
            value, beside = result.pop(key), f"{key.partition(whole)[0]}attention.wo.weight"
            queries = state[beside].shape[1] if len(parts) == 3 else 0
            # keys and values may have fewer heads than queries
            shared = (len(value) - queries) // 2
            pieces = value.split([queries, shared, shared][-len(parts) :])
            result |= {
                key.replace(whole, part): x.contiguous()
                for part, x in zip(parts, pieces, strict=True)
            }
    return result


def from_published(
    state: State, prefixes: tuple[str, ...] | None = None, halves: DecoderConfig | None = None
) -> State:
    """transformers', LANTERN's, official names -> ours; ``prefixes``: a decoder's, longest first;
    None: a drafter's.

    ``halves``: of a decoder whose heads are rotated in halves, see ``rotary_pairs``; image
    encoders are left out.
    """
    encoders = () if prefixes is None else ("vqmodel.", "visual.")
    state = {
        key: value for key, value in state.items() if not any(part in key for part in encoders)
    }
    state = state if halves is None else rotary_pairs(state, halves)
    result = {}
    for key, value in fused(state).items():
        for theirs, ours in _RENAMED.items():
            key = key.replace(theirs, ours)
        if prefixes is not None:
            key = key.removeprefix(next((p for p in prefixes if key.startswith(p)), "")).replace(
                "lm_head", "output"
            )
        if not key.endswith(_COMPUTED):
            result["tok_embeddings.weight" if key == TABLE else key] = value
    return result


def to_published(state: State) -> State:
    """Ours -> LANTERN's key names, with the table of all ids where there is one."""
    result = {}
    for key, value in split(state, HF).items():
        for theirs, ours in _RENAMED.items():
            key = key.replace(ours, theirs)
        result[key] = value
    table = result.pop("tok_embeddings.weight", None)
    table = result.pop("prompt_embeddings.weight", table)
    return result if table is None else result | {TABLE: table}


def rotary_pairs(state: State, cfg: DecoderConfig, back: bool = False) -> State:
    """Published key names, rotate-half -> the same names with queries, keys and their norms in
    interleaved pairs.

    Meta's, whose norms are called ``q_normalization``, are in such pairs already.  Of the d
    dimensions that turn in each head, i and i + d/2 become 2i and 2i + 1.  Queries and keys
    permuted alike have the same products, so a checkpoint in either order gives the same
    attention.  ``back``: the inverse.
    """
    dims, width = torch.arange(cfg.head_dim), cfg.rotary_width or cfg.head_dim
    order = torch.cat([dims[:width].view(2, -1).T.flatten(), dims[width:]])
    order = order.argsort() if back else order
    result = {}
    for key, value in state.items():
        if ".q_norm" in key or ".k_norm" in key:
            rows, heads = (
                value.view(-1, value.shape[-1]),
                cfg.n_head if ".q_norm" in key else cfg.kv_heads,
            )
            if heads % len(rows):
                raise UserError(
                    f"query/key norms have {len(rows)} rows for {heads} heads: use their config.json"
                )
            # a model-parallel shard's row serves its heads
            value = rows.repeat_interleave(heads // len(rows), 0)
            value = value if "_normalization." in key else value[:, order]
        elif ".q_proj." in key or ".k_proj." in key:
            value = value.unflatten(0, (-1, cfg.head_dim))[:, order].flatten(0, 1)
        result[key.replace("_normalization.", "_norm.")] = value
    return result


def image_tables(state: State, to_id: Tensor) -> State:
    """Our key names with tables over all ids -> the same for a decoder of images, whose tokens are
    codebook indices.

    ``to_id`` [V]: the id of each codebook index.  Only image tokens may be drawn, so dropping the
    other rows of ``output`` is the same as masking them; prompts keep the whole table as
    ``cls_embedding``.  Raises UserError for ids that the tables do not have.
    """
    if not {"tok_embeddings.weight", "output.weight"} <= state.keys():
        return state  # the loader reports what is missing
    table, head = state["tok_embeddings.weight"], state["output.weight"]
    if int(to_id.max()) >= min(len(table), len(head)):
        raise UserError(
            f"image tokens up to id {int(to_id.max())} of {len(table)}: use the weights' tokenizer.json"
        )
    return state | {
        "cls_embedding.weight": table,
        "tok_embeddings.weight": table[to_id],
        "output.weight": head[to_id],
    }
