"""Components: each is a frozen pydantic model, so that its fields are its options.

Default, bounds, symbol in labels and help of an option are stated once, in its field.  The command
line, YAML, the check of options and the table of ``lanternbench methods`` are derived from the
fields.  ``resolve`` fills options that are not set; ``build``, which each kind of component has,
returns the runtime that decodes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field


class Choices(NamedTuple):
    """The names of a method's five components."""

    proposal: str
    tree: str
    acceptance: str = "exact"
    residual: str = "standard"
    order: str = "raster"


def option(
    default: Any,
    description: str,
    *,
    symbol: str | None = None,
    in_label: bool = False,
    small: Any = ...,
    also: Any = None,
    unset: Any = None,
    target_key: str | None = None,
    **field: Any,
) -> Any:
    """A field that users set: ``symbol`` names it in labels, ``in_label`` shows it there even at
    its default.

    ``small``: the value that ``verify`` uses in place of a larger one, so that it can enumerate
    all outcomes. ``also``: a second value that ``verify`` tries, for formulas that the default
    does not reach. ``unset``: where the default is None, what it stands for on a target whose
    options have no ``target_key``, which is by default the option's name.
    """
    extra = {
        "symbol": symbol,
        "in_label": in_label,
        "also": also,
        "unset": unset,
        "target_key": target_key,
    }
    extra |= {} if small is ... else {"small": small}
    return Field(default, description=description, json_schema_extra=extra, **field)


class Component(BaseModel):
    """Base of proposals, tree policies and acceptance rules."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    lossless: ClassVar[bool] = True  # can a method with this component be lossless?
    reference_lossless: ClassVar[bool] = True  # also with ``variant="reference"``?
    # does the fidelity loss of its tests bound what it does to images?
    bounded: ClassVar[bool] = True
    tuned: ClassVar[dict[str, tuple[Any, ...]]] = {}  # sizes that `tune` tries, by option

    variant: Literal["paper", "reference"] = option(
        "paper", "paper, or reference: as the public code does"
    )

    def refuses(self, choices: Choices) -> str | None:
        """Why this component cannot be combined with ``choices``, as a clause; None where it can."""
        return None

    def unread(self) -> set[str]:
        """Options that make no difference, given the others."""
        return set()

    def unread_beside(self, choices: Choices) -> set[str]:
        """Options that make no difference in a method of these ``choices``."""
        return set()

    def resolve(self, defaults: Mapping[str, Any]) -> Self:
        """This component with every option set; ``defaults``: the target's options."""
        unset = {name: extra for name, extra in self._extras() if getattr(self, name) is None}
        values = {
            name: defaults.get(extra["target_key"] or name, extra["unset"])
            for name, extra in unset.items()
        }
        return self.model_copy(update=values)

    def small(self) -> Self:
        """This component with sizes that can be enumerated (see ``option``); what is no larger
        stays.
        """
        sizes = {}
        for name, extra in self._extras():
            value, small = getattr(self, name), extra.get("small", ...)
            if small is not ... and value is not None and (small is None or value > small):
                sizes[name] = small
        return self.model_copy(update=sizes)

    def _extras(self) -> list[tuple[str, dict[str, Any]]]:
        """What ``option`` says of each field."""
        fields: Any = type(self).model_fields
        return [(name, field.json_schema_extra or {}) for name, field in fields.items()]
