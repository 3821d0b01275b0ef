"""Published checkpoint files -> modules: memory-mapped, no weight held twice, every failure
named.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lanternbench.errors import UserError
from lanternbench.models.key_names import AbsentPartError
from lanternbench.models.places import folder_of
from lanternbench.models.state_files import State, mappable, read_state, state_files
from lanternbench.utils.damage import damage
from lanternbench.utils.device import hardware, has_bfloat16
from lanternbench.utils.files import WEIGHTS
from lanternbench.utils.json_values import read_object
from lanternbench.utils.memory import is_out_of_memory

Net = TypeVar("Net", bound=nn.Module)
Convert = Callable[[State], State]  # of key names
Moved = Callable[[Tensor], Tensor]  # to the device, in the dtype asked for
Json = dict[str, Any]  # the content of a config.json
MAX_CONFIG = 2**24  # bytes of a config.json
# of a network: twice those of the largest published
MAX_MODULES = 3000
MAX_BUFFERED = 2**28  # numbers
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LAYER = re.compile(r"\blayers\.\d+\.")


class Undrawn(TorchFunctionMode):
    """Normal initial values are not drawn: on the meta device that would import much of PyTorch,
    for seconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        named = kwargs or {}
        if func in (Tensor.normal_, nn.init.normal_):
            return args[0] if args else named["tensor"]
        return func(*args, **named)


@contextmanager
def empty_parameters() -> Iterator[None]:
    """Modules built inside have their buffers, but parameters on the meta device."""

    def without_memory(
        module: nn.Module, name: str, parameter: nn.Parameter | None
    ) -> nn.Parameter | None:
        if parameter is None:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=False)

    register = torch.nn.modules.module.register_module_parameter_registration_hook
    # torch's annotation forbids the None that its documentation allows
    handle = register(without_memory)  # type: ignore[arg-type]
    try:
        with Undrawn():
            yield
    finally:
        handle.remove()


def load_into(
    make: Callable[[], Net], state: State, where: Path, device: str, dtype: torch.dtype
) -> Net:
    """Return the module of ``make`` with ``state``, which is emptied.

    Raises UserError for another architecture or size.
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
    """Return the module of ``make`` with the checkpoint at ``path``, of which at most one layer is
    in memory at a time.

    ``convert`` renames the tensors of one layer, or all that belong to none.  ``strict``: a tensor
    that the module has no place for is a UserError too.
    """
    layers = Layers(path, convert, device, dtype)
    return _filled(make, layers, path, layers.moved, device, strict)


@dataclass
class Layers:
    """The tensors of a checkpoint, converted layer by layer; those of no layer come together.

    Pages of a file leave memory with the last tensor of one reading, so a file that can stay on
    disk is opened anew for each layer.
    """

    path: Path
    convert: Convert
    device: str
    dtype: torch.dtype
    # storages of the current layer that lie in the file
    on_disk: set[int] = field(default_factory=set)

    def moved(self, value: Tensor) -> Tensor:
        """Return a tensor on the device, copied only where it would stay in the file."""
        is_mapped = value.untyped_storage().data_ptr() in self.on_disk
        return value.to(self.device, self.dtype, copy=is_mapped)

    def __iter__(self) -> Iterator[State]:
        in_place = all(map(mappable, state_files(self.path)))
        state = read_state(self.path)
        count = len(state)
        for keys in _by_layer(state):
            if in_place:
                state = read_state(self.path)
            part = {key: state.pop(key) for key in keys}
            if in_place:
                state.clear()
                self.on_disk = {value.untyped_storage().data_ptr() for value in part.values()}
            yield self._converted(part, count)

    def _converted(self, part: State, count: int) -> State:
        """Return the tensors of one layer under our names; ``count``: of the whole checkpoint."""
        with explain_errors(f"{self.path} is of another architecture or size"):
            try:
                return self.convert(part)
            except AbsentPartError as absent:
                raise UserError(_lacks(self.path, [str(absent)], count + 1, "decoder")) from None


def _by_layer(state: State) -> Iterable[list[str]]:
    """Return the names of each layer's tensors, and of those that belong to none."""
    layers: dict[str, list[str]] = defaultdict(list)
    for key in state:
        layer = _LAYER.search(key)
        layers[layer.group() if layer else ""].append(key)
    return layers.values()


def count_layers(names: Iterable[str], prefixes: tuple[str, ...] = ()) -> int:
    """Return how many layers tensors of these names have; a prefix may precede each name."""
    any_prefix = "|".join(map(re.escape, prefixes))
    layer = re.compile(rf"(?:{any_prefix})?layers\.(\d+)\.")
    numbers = [int(found[1]) for found in map(layer.match, names) if found]
    return 1 + max(numbers, default=-1)


def _filled(
    make: Callable[[], Net],
    parts: Iterable[State],
    where: Path,
    moved: Moved,
    device: str,
    strict: bool = False,
) -> Net:
    kind, shapes = sketch(make, where)
    values: State = {}
    for state in parts:
        for name in [name for name in shapes if name in state]:
            _check_shape(state[name].shape, shapes[name], name, where)
            values[name] = _checked(state.pop(name), name, where, moved)
        if strict and state:
            raise UserError(
                f"{where} has a '{min(state)}' that a {kind} of this kind has no place for: "
                "use another"
            )
    # Emu3's tokeniser has no use for those counts
    wanted = [name for name in shapes if not name.endswith("num_batches_tracked")]
    if lost := [name for name in wanted if name not in values]:
        raise UserError(_lacks(where, lost, len(wanted), kind))
    with empty_parameters():
        net = make()
    net.load_state_dict(values, strict=False, assign=True)
    return net.to(device).eval()  # tables that no checkpoint has are still on the host


def _check_shape(found: torch.Size, wanted: torch.Size, name: str, where: Path) -> None:
    if found != wanted:
        raise UserError(
            f"'{name}' in {where} is {list(found)} but this target needs {list(wanted)}: "
            "it is the checkpoint of another size"
        )


def _lacks(where: Path, lost: list[str], wanted: int, kind: str) -> str:
    """Return the sentence on a checkpoint without some weights: it is damaged, or of another model
    if most are absent.
    """
    verb = "is" if len(lost) == 1 else "are"
    share = f"{len(lost)} of {wanted} weights {verb} absent"
    if len(lost) == 1 or 10 * len(lost) <= wanted:
        return f"{where} is damaged: {share}, such as '{lost[0]}': fetch it again"
    return f"{where} has no '{lost[0]}' ({share}): it is not a {kind}"


def sketch(make: Callable[[], nn.Module], where: Path) -> tuple[str, dict[str, torch.Size]]:
    """Return the module's class name, and each tensor's shape by name, at no cost.

    Raises UserError for impossible sizes.
    """
    count = 0

    def counted(*_: object) -> None:
        nonlocal count
        count += 1
        if count > MAX_MODULES:
            raise ValueError(f"more than {MAX_MODULES} modules")

    # arithmetic on the meta device imports much of PyTorch, for seconds, and the sizes of our own
    # files are known
    unallocated = empty_parameters() if where.is_relative_to(WEIGHTS) else torch.device("meta")
    handle = torch.nn.modules.module.register_module_module_registration_hook(counted)
    try:
        with explain_errors(f"{where} says sizes of which no network can be made"), unallocated:
            net = make()
            size = sum(buffer.numel() for buffer in net.buffers())
            if size > MAX_BUFFERED:
                raise ValueError(f"tables of {size} numbers")
    finally:
        handle.remove()
    return type(net).__name__, {name: value.shape for name, value in net.state_dict().items()}


def cause(error: Exception) -> str:
    """Return the type and message of an exception on one line; of a missing key its name."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@contextmanager
def explain_errors(
    reason: str, fix: str = "use the official file of this target"
) -> Iterator[None]:
    """Turn exceptions of code that interprets a file, ours or a library's, into a UserError:
    ``reason``, the cause and ``fix``.
    """
    try:
        yield
    except Exception as error:  # odd numbers and names in a file raise anything
        if isinstance(error, UserError) or is_out_of_memory(error):
            raise
        raise UserError(f"{reason} ({cause(error)}): {fix}") from None


def _checked(value: Tensor, name: str, where: Path, moved: Moved) -> Tensor:
    """Return ``moved(value)``.

    Raises UserError for quantised numbers, NaN and infinity: a drafter with them is only slow.
    """
    if value.dtype not in _PLAIN and not name.endswith("num_batches_tracked"):
        raise UserError(
            f"'{name}' in {where} is quantised ({value.dtype}): "
            "use one in float16, bfloat16 or float32"
        )
    value = moved(value)
    is_checkable = value.dtype.is_floating_point and not value.is_meta
    if not is_checkable or value.sum(dtype=torch.float32).isfinite():
        return value
    if not value.isfinite().all():
        raise UserError(
            f"'{name}' in {where} has values that are NaN or infinite: "
            "fetch the file again, or train anew"
        )
    return value


def random_net(make: Callable[[], Net], device: str, dtype: torch.dtype) -> Net:
    """Return a module with random weights, made on its device: nothing is held twice.

    On ``meta`` it has a shape and no weights.
    """
    with empty_parameters():
        net = make()
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)
    values: State = {}
    for name, parameter in net.named_parameters():
        value = torch.empty(parameter.shape, device=device, dtype=dtype)
        values[name] = value
        if device == "meta":  # arithmetic there imports much of PyTorch, for seconds
            continue
        if "norm" not in name:
            value.normal_(std=0.02, generator=generator)
        elif name.endswith(".weight"):
            value.fill_(1.0)
        else:
            value.zero_()
    net.load_state_dict(values, strict=False, assign=True)
    return net.to(device).eval()


def read_config(path: Path) -> Json:
    """Return the content of a config.json or params.json.  Raises UserError."""
    if wrong := damage(path):
        raise UserError(f"{path} {wrong}")
    fix = f"use the {path.name} published with the weights"
    with explain_errors(f"cannot read {path}", fix):
        if path.is_file() and path.stat().st_size > MAX_CONFIG:
            raise ValueError("it is too large")
        return read_object(path)


def config_next_to(weights: Path) -> Json:
    """Return the content of the config.json in the folder of weights, or nothing."""
    path = folder_of(weights) / "config.json"
    return read_config(path) if path.is_file() else {}


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
