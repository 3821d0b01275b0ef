"""Options that commands share, and options derived from settings and components."""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from pydantic.fields import FieldInfo
from typer import Option

from lanternbench.errors import UserError
from lanternbench.methods import presets
from lanternbench.methods.method import PARTS, preset
from lanternbench.models.entries import check_target
from lanternbench.registry import components
from lanternbench.settings import RESULTS, Flags, Settings, checked
from lanternbench.utils.files import load_yaml
from lanternbench.utils.text import listed, one_line

Results = Annotated[Path, Option(help=RESULTS)]
AsRows = Annotated[bool, Option("--json", help="Print JSON.")]
AsJson = Annotated[bool, Option("--json", help="Print the summary as JSON.")]
DryRun = Annotated[
    bool, Option("--dry-run", help="Print the plan and an estimate of the time it takes.")
]

PANEL = "Options of methods"
PREFIX = "method_option_"
COMPONENTS = {
    "proposal": "Where drafts come from",
    "tree": "Tree policy",
    "acceptance": "Acceptance rule",
    "residual": "What is sampled after a rejection",
    "order": "Order of the tokens",
}

Given = dict[str, Any]  # settings that were given, by name
Parameters = list[inspect.Parameter]


class Group(NamedTuple):
    """The options of an argument, and the function that makes the argument's value of them."""

    parameters: Parameters
    collect: Callable[[Given], object]


class Mark(Protocol):
    """Marks an argument of a command as one that stands for options."""

    def group(self, name: str, kind: type) -> Group: ...


@dataclass(frozen=True)
class Takes:
    """Marks an argument whose fields are options.

    ``settings``: the class that a ``Given`` is for.  ``defaults``: whether help shows defaults.
    ``only``: the fields that are options (default: all).
    """

    settings: type[Settings] | None = None
    defaults: bool = True
    only: Sequence[str] = ()

    def group(self, name: str, kind: type) -> Group:
        if is_dataclass(kind):
            hints = get_type_hints(kind, include_extras=True)
            parameters = [keyword(f.name, hints[f.name], f.default) for f in fields(kind)]
            return Group(parameters, lambda values: kind(**values))
        settings: type[Settings] = self.settings or kind
        known = settings.model_fields
        shown = {n: known[n] for n in self.only or known if known[n].description}
        parameters = [setting(n, field, self.defaults) for n, field in shown.items()]

        def collect(values: Given) -> object:
            given = {n: value for n, value in values.items() if is_given(shown[n], value)}
            return given if self.settings else checked(kind, given)

        return Group(parameters, collect)


@dataclass(frozen=True)
class From:
    """Marks an argument that is the option of a setting of the same name; None if not given."""

    settings: type[Settings]

    def group(self, name: str, kind: type) -> Group:
        field = self.settings.model_fields[name]

        def collect(values: Given) -> object:
            given = {n: value for n, value in values.items() if value is not None}
            chosen = checked(self.settings, given)
            return getattr(chosen, name) if given else None

        return Group([setting(name, field, True)], collect)


class TakesMethodOptions:
    """Marks an argument that stands for ``--set`` and the options of every component."""

    def group(self, name: str, kind: type) -> Group:
        further = Option(
            "--set", help="Any other option of the method, NAME=VALUE.", rich_help_panel=PANEL
        )
        parameters = [keyword("option", Annotated[list[str] | None, further])]
        for part, what in COMPONENTS.items():
            names = [name for name in components(part) if not name.endswith("-reference")]
            text = f"{what}: {', '.join(names)}."
            parameters.append(parameter(PREFIX + part, [f"--{part}"], [], text, panel=PANEL))
        for name, owned in owners_of_options().items():
            same = list(owned.values())
            flags = [f"--{same[0].alias or name}"]
            text = help_text(name, owned)
            parameters.append(parameter(PREFIX + name, flags, same, text, panel=PANEL))
        return Group(parameters, method_options)


MethodOptions = Annotated[Given, TakesMethodOptions()]
MARKS = (Takes, From, TakesMethodOptions)


def whole_numbers(flag: str, text: str, limit: int) -> list[int]:
    """Return the numbers of a comma-separated option, each once.  Raises UserError."""
    try:
        numbers = [int(part) for part in listed(text)]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= number <= limit for number in numbers):
        given = one_line(text, 40)
        raise UserError(
            f"{flag} {given} cannot be read: give whole numbers from 1 to {limit}, such as 2,8,64"
        )
    return list(dict.fromkeys(numbers))


def marks_of(command: Callable[..., None]) -> dict[str, tuple[type, Mark]]:
    """Return the type and the mark of each argument of a command that has one of ``MARKS``."""
    marked: dict[str, tuple[type, Mark]] = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        kind, mark = get_args(hint)[:2]
        if isinstance(mark, MARKS):
            marked[name] = (get_origin(kind) or kind, mark)
    return marked


def takes_method_options(command: Callable[..., None]) -> bool:
    return any(isinstance(mark, TakesMethodOptions) for _, mark in marks_of(command).values())


def complete(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with the options of its marked arguments, and help without line breaks.

    It is called late, because it imports the components that have these options.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {name: mark.group(name, kind) for name, (kind, mark) in marks_of(command).items()}
    parameters: Parameters = []
    for name, one in signature.parameters.items():
        if name in groups:
            parameters += groups[name].parameters
        else:
            parameters.append(one.replace(kind=one.KEYWORD_ONLY))

    def run(**values: object) -> None:
        for name, group in groups.items():
            own = {option.name: values.pop(option.name) for option in group.parameters}
            values[name] = group.collect(own)
        command(**values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__doc__ = "\n\n".join(paragraphs(command))
    return run


def paragraphs(command: Callable[..., None]) -> list[str]:
    """Return the paragraphs of a command's docstring, each on one line."""
    text = inspect.getdoc(command) or ""
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def is_given(field: FieldInfo, value: object) -> bool:
    """Return whether the user gave an option; a switch is given if it is on."""
    if field.annotation is bool and field.default is False:
        return bool(value)
    return value is not None


def setting(name: str, field: FieldInfo, defaults: bool) -> inspect.Parameter:
    """Return the option of a setting.  A default that the help text explains is not shown."""
    text = field.description or ""
    flags = [f"--{name}"]
    if field.default is True:
        flags = [f"--{name}/--no-{name}"]
    for mark in field.metadata:
        if isinstance(mark, Flags):
            flags = list(mark.names)
    default = field.default
    if isinstance(default, list):
        default = ",".join(default)
    if default == {}:
        default = None
    if default is not False and (not defaults or "default" in text.lower()):
        default = None
    return parameter(name, flags, [field], text, default)


def parameter(
    name: str,
    flags: list[str],
    same: list[FieldInfo],
    text: str,
    default: object = None,
    panel: str | None = None,
) -> inspect.Parameter:
    """Return the option for fields of one name, or for a text if there are none."""
    kind, choices = plain(same)
    names = [flag.replace("_", "-") for flag in flags]
    if choices:
        text += f" One of {', '.join(choices)}."
    option = Option(*names, help=text, rich_help_panel=panel)
    return keyword(name, Annotated[kind | None, option], default)


def keyword(name: str, annotation: object, default: object = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def plain(same: list[FieldInfo]) -> tuple[type, list[str]]:
    """Return the type as which the command line reads fields of one name, and the values that they
    may have, if few.
    """
    choices: dict[str, None] = {}
    for field in same:
        match types_of(field):
            case [only] if get_origin(only) is Literal:
                choices |= dict.fromkeys(map(str, get_args(only)))
    types = types_of(same[0]) if same else []
    if list[float] not in types:
        for kind in (bool, int, float):
            if kind in types:
                return kind, list(choices)
    return str, list(choices)


def types_of(field: FieldInfo) -> list[object]:
    """Return the types of a field's values, without None."""
    kind = field.annotation
    is_union = get_origin(kind) in (Union, UnionType)
    return [part for part in (get_args(kind) if is_union else (kind,)) if part is not NoneType]


def owners_of_options() -> dict[str, dict[str, FieldInfo]]:
    """Return every option of every component: its name, and its field in each component."""
    owners: dict[str, dict[str, FieldInfo]] = {}
    for kind in PARTS:
        for owner, component in components(kind).items():
            for name, field in component.model_fields.items():
                owners.setdefault(name, {})[owner] = field
    return owners


def help_text(name: str, owned: Mapping[str, FieldInfo]) -> str:
    """Return one sentence: the usual meaning first, then that of components which differ."""
    owners: dict[str, list[str]] = {}
    for owner, field in owned.items():
        owners.setdefault(field.description or name, []).append(owner)
    sentence = max(owners, key=lambda text: len(owners[text]))
    for text, names in owners.items():
        if not sentence.startswith(text):
            sentence += f"; with {enumerated(names)}, {text}"
    return f"{sentence[:1].upper()}{sentence[1:]}."


def enumerated(names: list[str]) -> str:
    """Return "a", "a or b", "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def method_options(values: Given) -> Given:
    """Return the options of a method, texts read as YAML."""
    options = pairs(values.pop("option") or [])
    for key, value in values.items():
        name = key.removeprefix(PREFIX)
        if value is not None:
            flag = f"--{name.replace('_', '-')}"
            options[name] = parsed(flag, value) if isinstance(value, str) else value
    return options


def parsed(what: str, text: str) -> object:
    """Return a value as YAML reads it: a number, a word or a [list].  Raises UserError."""
    try:
        return load_yaml(text)
    except yaml.YAMLError:
        raise UserError(
            f"{what} {text}: the value cannot be read: write a number, a word or a [list]"
        ) from None


def pairs(options: list[str]) -> Given:
    """Return NAME=VALUE pairs, values read as YAML scalars or lists.  Raises UserError."""
    values: Given = {}
    for text in options:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UserError(
                f"--set {text} is not NAME=VALUE: write for example --set total_nodes=30"
            )
        if name in ("method", "preset"):
            raise UserError(f"--set {text}: a method is chosen by --method {value}")
        if name in values:
            raise UserError(f"--set {name} is given twice: give it once")
        values[name] = parsed(f"--set {name} =", value)
    return values


def check_names(args: Sequence[str], positional: bool = False) -> None:
    """Raise UserError for unknown targets and methods before torch is imported.

    ``positional``: the first arguments are methods too.
    """
    names: list[str] = []
    if positional:
        names += itertools.takewhile(lambda text: not text.startswith("-"), args)
    words: list[str] = []
    for text in args:
        words += text.split("=", 1) if text.startswith("--") else [text]
    for flag, value in itertools.pairwise(words):
        if flag == "--target":
            check_target(value)
        elif flag in ("-m", "--method"):
            names.append(value)
    for name in names:
        if not presets.is_file(name):
            preset(name)
