"""Components: each is a frozen pydantic model, so that its fields are its options.

The field of an option has its default, bounds, help and symbol in labels.  The command line, YAML,
the check of options and the table of ``lanternbench methods`` are derived from the fields.
``resolve`` fills options that are not set; ``build``, which each kind of component has, returns
the runtime that decodes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

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
    """Return a field that users set.

    ``symbol``: its name in labels.
    ``in_label``: whether labels show it even at its default.
    ``small``: the value that ``verify`` uses instead of a larger one, to enumerate all outcomes.
    ``also``: a second value for ``verify``, which reaches formulas that the default does not.
    ``target_key``: the name in a target's options of the value for a default of None (default: the
    option's name); ``unset``: the value if the target has none.
    """
    extra = {
        "symbol": symbol,
        "in_label": in_label,
        "also": also,
        "unset": unset,
        "target_key": target_key,
    }
    if small is not ...:
        extra["small"] = small
    return Field(default, description=description, json_schema_extra=extra, **field)


class Component(BaseModel):
    """Base of proposals, tree policies and acceptance rules."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    lossless: ClassVar[bool] = True  # a method with this component can be lossless
    inexact: ClassVar[tuple[str, ...]] = ()  # but not in these variants
    # the fidelity loss bounds the total variation of images
    bounded: ClassVar[bool] = True
    unbounded: ClassVar[tuple[str, ...]] = ()  # but not in these variants
    tuned: ClassVar[dict[str, tuple[Any, ...]]] = {}  # sizes that `tune` tries, by option

    variant: Literal["paper", "reference"] = option(
        "paper", "paper, or reference: as the public code does (sjd: also lumina-2)"
    )

    @classmethod
    def has_variant(cls, variant: object) -> bool:
        return variant in get_args(cls.model_fields["variant"].annotation)

    @property
    def keeps_target(self) -> bool:
        """Return whether a method with this component can be lossless."""
        return self.lossless and self.variant not in self.inexact

    def refuses(self, choices: Choices) -> str | None:
        """Return why it cannot be combined with ``choices``, as a clause; None if it can."""
        return None

    def unread(self) -> set[str]:
        """Return the options that make no difference, given the others."""
        return set()

    def unread_beside(self, choices: Choices) -> set[str]:
        """Return the options that make no difference in a method of these ``choices``."""
        return set()

    def resolve(self, defaults: Mapping[str, Any]) -> Self:
        """Return this component with every option set; ``defaults``: the target's options."""
        values = {}
        for name, extra in self._extras():
            if getattr(self, name) is None:
                values[name] = defaults.get(extra["target_key"] or name, extra["unset"])
        return self.model_copy(update=values)

    def small(self) -> Self:
        """Return this component with larger sizes reduced to those that can be enumerated."""
        sizes = {}
        for name, extra in self._extras():
            value = getattr(self, name)
            small = extra.get("small", ...)
            if small is not ... and value is not None and (small is None or value > small):
                sizes[name] = small
        return self.model_copy(update=sizes)

    def _extras(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the arguments of ``option`` for each field."""
        fields: Any = type(self).model_fields
        return [(name, field.json_schema_extra or {}) for name, field in fields.items()]
