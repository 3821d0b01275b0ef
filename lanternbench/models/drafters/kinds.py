"""The table of drafter kinds; a method's proposal names the kind that it needs."""

from collections.abc import Collection
from importlib import import_module
from types import ModuleType
from typing import NamedTuple


class Sizes(NamedTuple):
    """The sizes of a new drafter, of which a kind reads its own."""

    block: int = 6
    layers: int = 1
    causal: bool = False


class DrafterKind(NamedTuple):
    """A row of the table.

    ``module``, with functions ``load``, ``untrained`` and ``to_file``, has the code of a kind that
    a file can hold; other kinds have none.
    """

    name: str
    module: str = ""
    tensor: str = ""  # in its files, and in those of no other kind
    recipe: str = ""  # name of the training that makes it
    starts: tuple[str, ...] = ()  # other kinds that this training can go on from
    is_bundled: bool = True  # with the bundled target

    @property
    def code(self) -> ModuleType:
        return import_module(self.module)


EAGLE = DrafterKind("eagle", f"{__package__}.eagle", recipe="eagle-1")
_ROWS = (
    EAGLE,
    DrafterKind("eagle-3", f"{__package__}.eagle", recipe="eagle-3", starts=("eagle",)),
    DrafterKind(
        "dflash",
        f"{__package__}.dflash",
        tensor="target_layers",
        recipe="dflash",
        is_bundled=False,
    ),
    DrafterKind(
        "flashar",
        f"{__package__}.flashar",
        tensor="hv_gate_mlp.0.weight",
        recipe="flashar",
        is_bundled=False,
    ),
    DrafterKind("model"),  # a target by itself
    DrafterKind("medusa"),
)
KINDS = {kind.name: kind for kind in _ROWS}
FILED = tuple(kind.name for kind in _ROWS if kind.module)  # kinds that a file can hold
BY_RECIPE = {kind.recipe: kind for kind in _ROWS if kind.recipe}


def kind_of(tensors: Collection[str]) -> DrafterKind:
    """Return the kind of a file with these tensors; EAGLE's loader tells it from EAGLE-3."""
    for kind in _ROWS:
        if kind.tensor and kind.tensor in tensors:
            return kind
    return EAGLE
