"""Every setting: its name, help text, bounds and default.

Options of commands, sweep files, ``generate`` in Python, run.json, the recipes of the suite and the
reports derive from these classes.  A setting is added by adding a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lanternbench.errors import UserError

MIN_TEMPERATURE = 1e-3  # or 0, which is greedy
MAX_TEMPERATURE = 10.0


class Recorded(NamedTuple):
    """Says when run.json has a setting; by default always, with the value that was used."""

    when: Literal["as given", "unless default"]


AS_GIVEN = Recorded("as given")  # None if it was not set
UNLESS_DEFAULT = Recorded("unless default")
Guidance = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Part = TypeVar("Part", bound="Settings")


class Settings(BaseModel):
    """Base class of settings: a value that cannot be changed and knows which fields were set."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (kind, *get_args(kind)):
            raise ValueError("must not be true or false")
        return value

    def part(self, kind: type[Part]) -> Part:
        """Return the fields that were inherited from ``kind`` as a value of that class."""
        values = {name: getattr(self, name) for name in kind.model_fields}
        return kind.model_construct(self.model_fields_set & values.keys(), **values)

    def updated(self, changes: Settings) -> Self:
        """Return a copy with the fields that were set in ``changes``."""
        return self.model_copy(update=changes.model_dump(exclude_unset=True))


def checked(
    kind: type[Part], values: Mapping[str, object], where: str = "the command line"
) -> Part:
    """Return validated settings.  Raises UserError that names the field and what is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
    field = ".".join(map(str, first["loc"])) or "the file"
    if first["type"] == "extra_forbidden":
        names = ", ".join(kind.model_fields)
        raise UserError(f"{where} has no setting '{field}': the settings are {names}")
    raise UserError(f"{where}: '{field}' is wrong ({first['msg']}); correct it")


class Sampling(Settings):
    """How tokens are drawn from logits.  Fields that are not set are the target's."""

    guidance: Guidance = Field(1.0, description="CFG scale (default: the target's).")
    temperature: float = Field(
        1.0, ge=0, le=MAX_TEMPERATURE, description="0 is greedy (default: the target's)."
    )
    top_k: Annotated[int, AS_GIVEN] = Field(
        0, ge=0, le=2**31, description="0 for all tokens (default: the target's)."
    )
    top_p: float = Field(1.0, gt=0, le=1, description="Default: the target's.")

    @model_validator(mode="before")
    @classmethod
    def _drop_what_is_unset(cls, values: object) -> object:
        """Read None as a field that is not set."""
        if not isinstance(values, Mapping):
            return values
        names = Sampling.model_fields
        return {k: v for k, v in values.items() if v is not None or k not in names}

    @field_validator("temperature")
    @classmethod
    def _greedy_is_zero(cls, value: float) -> float:
        if 0 < value < MIN_TEMPERATURE:
            raise ValueError(f"must be 0, which is greedy, or at least {MIN_TEMPERATURE:g}")
        return value

    def record(self, of_target: Sampling) -> dict[str, float | None]:
        """Return what run.json keeps of these settings and the target's."""
        used = of_target.updated(self)
        values: dict[str, float | None] = {}
        for name, field in Sampling.model_fields.items():
            values[name] = getattr(used, name)
            if AS_GIVEN in field.metadata and name not in self.model_fields_set:
                values[name] = None
            elif UNLESS_DEFAULT in field.metadata and values[name] == field.default:
                del values[name]
        return values


TARGETS_OWN = Sampling()
GREEDY = Sampling(temperature=0.0)
