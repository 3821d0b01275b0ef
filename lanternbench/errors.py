"""The exception for users' mistakes, and their wording."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_WHOLE_NUMBER = "must be a whole number"
_LIST = "must be a list"
_REASONS = {  # by pydantic's type of an error
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "int_type": _WHOLE_NUMBER,
    "int_parsing": _WHOLE_NUMBER,
    "int_parsing_size": _WHOLE_NUMBER,
    "int_from_float": _WHOLE_NUMBER,
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "json_invalid": "is not valid JSON",
    "list_type": _LIST,
    "tuple_type": _LIST,
    "named_tuple_type": _LIST,
    "is_instance_of": _LIST,
    "sequence_str": _LIST,
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "path_type": "must be a path",
    "missing": "is missing",
    "extra_forbidden": "is unknown",
    "too_short": "has too few entries",
    "too_long": "has too many entries",
    "string_pattern_mismatch": "has characters that it must not have",
}


class UserError(Exception):
    """A user's mistake: one sentence with the cause and the fix.  The exit code is 2."""


def unknown(what: str, name: str, known: Collection[str]) -> UserError:
    """Return the error for an unknown name, which suggests the closest of the ``known`` or all."""
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean '{close[0]}'?" if close else f"choose one of {', '.join(known)}"
    return UserError(f"{what}: {hint}")


def first_mistake(error: ValidationError) -> tuple[str, str]:
    """Return the field that pydantic complains about first, and why, in plain English."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    return field, reason(first)


def cause(error: Exception) -> str:
    """Return what is wrong first in a value that pydantic refuses, and where; else the message."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return " ".join(first_mistake(error)).strip()
    return str(error)


def reason(error: ErrorDetails) -> str:
    """Return why a value is wrong: our own words, or else a translation of pydantic's."""
    if error["type"] == "value_error":
        message = error["msg"].removeprefix("Value error, ")
        return message[:1].lower() + message[1:]
    bounds = {name: _number(bound) for name, bound in error.get("ctx", {}).items()}
    return _REASONS.get(error["type"], "cannot be used").format(**bounds)


def _number(value: object) -> object:
    """Return a whole number without its decimal point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
