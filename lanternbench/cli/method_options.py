"""The options of methods on the command line, derived from the fields of all registered components."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
import yaml
from pydantic.fields import FieldInfo

from lanternbench.errors import UserError
from lanternbench.utils.yaml_text import load

PANEL = "Options of methods"
_PREFIX = "method_option_"
_CHOICES = {
    "proposal": "Where drafts come from",
    "tree": "Tree policy",
    "acceptance": "Acceptance rule",
    "residual": "What is sampled after a rejection",
    "order": "Order of the tokens",
}


def check_names(args: Sequence[str], positional: bool = False) -> None:
    """Raises UserError for an unknown method or target among a command's arguments, before torch is imported.

    ``positional``: do arguments before the first option name methods?
    """
    from lanternbench.methods import preset_file
    from lanternbench.methods.method import preset
    from lanternbench.models.entries import check_target

    leading = list(itertools.takewhile(lambda text: not text.startswith("-"), args)) if positional else []
    given = [(flag, value) for flag, value in itertools.pairwise(args) if flag in ("-m", "--method", "--target")]
    joined = (text.partition("=") for text in args if text.startswith(("--method=", "--target=")))
    given += [(flag, value) for flag, _, value in joined]
    for flag, value in [*(("-m", name) for name in leading), *given]:
        if flag == "--target":
            check_target(value)
        elif not preset_file.is_file(value):
            preset(value)


def with_method_options(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with an option for every field of every component; those given come in as ``method_options``.

    Imports the components, so call it when the command is asked for.
    """
    from lanternbench.methods.method import all_options
    from lanternbench.registry import components

    fields = all_options()
    extra = []
    for kind, what in _CHOICES.items():
        names = ", ".join(name for name in components(kind) if not name.endswith("-reference"))
        extra.append(_parameter(kind, kind, str, f"{what}: {names}."))
    for name, same in fields.items():
        text = "; ".join(dict.fromkeys(field.description or name for field in same))
        flag = same[0].alias or name
        extra.append(_parameter(name, flag, _plain(same[0]), f"{text[0].upper()}{text[1:]}.", _words(same)))

    def run(**values: Any) -> None:
        given = {name: values.pop(_PREFIX + name) for name in (*_CHOICES, *fields)}
        chosen = {name: value for name, value in given.items() if value is not None}
        for name in chosen:
            if name in fields and _plain(fields[name][0]) is str and not _words(fields[name]):
                chosen[name] = _parsed(f"--{name.replace('_', '-')}", chosen[name])
        command(method_options=chosen, **values)

    own = inspect.signature(command, eval_str=True)
    parameters = [p for p in own.parameters.values() if p.name != "method_options"]
    run.__signature__ = own.replace(parameters=[*parameters, *extra])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*parameters, *extra)}
    run.__doc__ = command.__doc__
    return run


def _parameter(name: str, flag: str, kind: type, text: str, words: Sequence[str] = ()) -> inspect.Parameter:
    option = typer.Option(
        "--" + flag.replace("_", "-"), help=text, metavar="|".join(words) or None, rich_help_panel=PANEL
    )
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(_PREFIX + name, keyword, default=None, annotation=Annotated[kind | None, option])


def _plain(field: FieldInfo) -> type:
    """What the command line reads: a number, or text."""
    union = get_origin(field.annotation) in (Union, UnionType)
    parts = get_args(field.annotation) if union else (field.annotation,)
    return next((kind for kind in (int, float) if kind in parts), str)


def _words(fields: list[FieldInfo]) -> list[str]:
    """The values of an option that takes one of a few words, in whichever component."""
    literal = [field.annotation for field in fields if get_origin(field.annotation) is Literal]
    return list(dict.fromkeys(str(value) for annotation in literal for value in get_args(annotation)))


def _parsed(what: str, text: str) -> Any:
    """A value as YAML reads it: a number, a word or a [list].  Raises UserError."""
    try:
        return load(text)
    except yaml.YAMLError:
        raise UserError(f"{what} {text}: the value cannot be read: write a number, a word or a [list]") from None


def pairs(options: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs, values read as YAML scalars or lists.  Raises UserError."""
    found: dict[str, Any] = {}
    for text in options:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UserError(f"--set {text} is no NAME=VALUE: write for example --set total_nodes=30")
        if name in ("method", "preset"):
            raise UserError(f"--set {text}: a method is chosen by --method {value}")
        if name in found:
            raise UserError(f"--set {name} is given twice: give it once")
        found[name] = _parsed(f"--set {name} =", value)
    return found


def specs(names: list[str], options: dict[str, Any]) -> list[dict[str, Any]]:
    """An entry per method, each with the options that it reads; those that no method takes are left for the error."""
    from lanternbench.methods import preset_file
    from lanternbench.methods.method import method

    choices = {key: options[key] for key in _CHOICES if key in options}

    def takes(spec: dict[str, Any], key: str) -> bool:
        try:
            method(spec["method"], **choices | {key: options[key]})
        except UserError:
            return False
        return True

    found = preset_file.expanded([{"method": name} for name in names])
    for spec in found:
        method(spec["method"])  # an unknown name is reported as such
    if len(found) == 1:
        return [found[0] | options]
    takers = {key: [spec for spec in found if takes(spec, key)] for key in options if key not in choices}
    return [spec | {key: v for key, v in options.items() if spec in (takers.get(key) or found)} for spec in found]
