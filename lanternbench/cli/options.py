"""Command-line options: those of several commands; those derived from fields, of a configuration
and of components.
"""

import inspect
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic.fields import FieldInfo
from typer import Option

from lanternbench.errors import UserError
from lanternbench.methods import presets
from lanternbench.methods.method import all_options, method, preset
from lanternbench.models.entries import check_target
from lanternbench.registry import components
from lanternbench.utils.files import load_yaml

Results = Annotated[Path, Option(help="Folder of the run folders.")]
Fresh = Annotated[
    bool,
    Option("--fresh/--resume", help="Start a new run beside an existing one, or continue it."),
]
AsRows = Annotated[bool, Option("--json", help="Print JSON.")]
AsJson = Annotated[bool, Option("--json", help="Print the summary as JSON.")]
DryRun = Annotated[bool, Option("--dry-run", help="Print the plan, and how long it takes here.")]
Device = Annotated[str, Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.")]
Threads = Annotated[
    int | None,
    Option(min=1, help="CPU threads (default: 1 if the model is small, else all cores)."),
]

PANEL = "Options of methods"
_PREFIX = "method_option_"
_CHOICES = {
    "proposal": "Where drafts come from",
    "tree": "Tree policy",
    "acceptance": "Acceptance rule",
    "residual": "What is sampled after a rejection",
    "order": "Order of the tokens",
}
# options, and what makes one argument of them
Group = tuple[list[inspect.Parameter], Callable[[dict[str, Any]], Any]]


def listed(text: str | None) -> list[str]:
    """The names in a comma-separated option."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


class Takes(NamedTuple):
    """Marks an argument that stands for options: the named fields of ``model``, or of the
    NamedTuple that it is.

    Its value is a dict of the model's fields that are set, with the defaults if ``defaults``; or a
    checked ``Decoding`` where its type is Any.
    """

    names: str
    model: str = "lanternbench.experiment.config:Sweep"
    defaults: bool = True

    def group(self, kind: Any) -> Group:
        from lanternbench.experiment.config import Decoding
        from lanternbench.settings import checked

        names = self.names.split()
        if kind not in (dict, Any):
            hints = get_type_hints(kind, include_extras=True)
            return [
                _keyword(n, hints[n], kind._field_defaults[n]) for n in names
            ], lambda values: kind(**values)
        fields = {name: resolve_name(self.model).model_fields[name] for name in names}

        def collect(values: dict[str, Any]) -> dict[str, Any]:
            chosen = {
                n: v
                for n, v in values.items()
                if v is not None and (v or fields[n].default is not False)
            }
            return {
                n: listed(v) if fields[n].annotation == list[str] else v for n, v in chosen.items()
            }

        parameters = [_setting(name, field, self.defaults) for name, field in fields.items()]
        return parameters, collect if kind is dict else lambda values: checked(
            Decoding, collect(values)
        )


class TakesMethodOptions:
    """Marks an argument that stands for ``--set`` and an option for every field of every
    component.
    """

    def group(self, _kind: Any) -> Group:
        fields = all_options()
        further = Option(
            "--set", help="Any other option of the method, NAME=VALUE.", rich_help_panel=PANEL
        )
        parameters = [_keyword("option", Annotated[list[str] | None, further])]
        for kind, what in _CHOICES.items():
            names = ", ".join(name for name in components(kind) if not name.endswith("-reference"))
            parameters.append(
                _parameter(_PREFIX + kind, [f"--{kind}"], [], f"{what}: {names}.", panel=PANEL)
            )
        for name, same in fields.items():
            text, flags = (
                "; ".join(dict.fromkeys(f.description or name for f in same)),
                [f"--{same[0].alias or name}"],
            )
            parameters.append(
                _parameter(
                    _PREFIX + name, flags, same, f"{text[0].upper()}{text[1:]}.", panel=PANEL
                )
            )

        def collect(values: dict[str, Any]) -> dict[str, Any]:
            options = pairs(values.pop("option") or [])
            for name, value in (
                (n.removeprefix(_PREFIX), v) for n, v in values.items() if v is not None
            ):
                is_text = name in fields and _plain(fields[name]) == (str, [])
                options[name] = _parsed(f"--{name.replace('_', '-')}", value) if is_text else value
            return options

        return parameters, collect


MethodOptions = Annotated[dict[str, Any], TakesMethodOptions()]


def marked(
    command: Callable[..., None], mark: Any = (Takes, TakesMethodOptions)
) -> dict[str, Any]:
    """The types of the arguments of a command that have such a mark, by name."""
    hints = get_type_hints(command, include_extras=True).items()
    return {
        n: hint for n, hint in hints if isinstance(getattr(hint, "__metadata__", (None,))[0], mark)
    }


def complete(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with the options of its marked arguments; called late, as it imports what has
    their fields.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Group] = {}
    for name, hint in marked(command).items():
        groups[name] = hint.__metadata__[0].group(get_origin(hint.__origin__) or hint.__origin__)
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        parameters += (
            groups[name][0] if name in groups else [parameter.replace(kind=parameter.KEYWORD_ONLY)]
        )

    def run(**values: Any) -> None:
        for name, (options, collect) in groups.items():
            values[name] = collect({option.name: values.pop(option.name) for option in options})
        command(**values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = command.__doc__
    return run


def _setting(name: str, field: FieldInfo, defaults: bool) -> inspect.Parameter:
    """The option of a model's field; one whose description says what the default is shows none
    beside it.
    """
    text, default = field.description or "", field.default
    flags = [f"--{name}/--no-{name}" if default is True else f"--{name}"] + ["-n"] * (
        name == "num_prompts"
    )
    usual = ",".join(default) if isinstance(default, list) else default
    has_default = field.annotation is bool or (defaults and "default" not in text.lower())
    return _parameter(name, flags, [field], text, usual if has_default else None)


def _parameter(
    name: str,
    flags: list[str],
    fields: list[FieldInfo],
    text: str,
    default: Any = None,
    panel: str | None = None,
) -> inspect.Parameter:
    """The option of fields of one name over all components, or of text where there are none."""
    kind, choices = _plain(fields) if fields else (str, [])
    kind = bool if isinstance(default, bool) else kind
    names = [flag.replace("_", "-") for flag in flags]
    option = Option(*names, help=text, metavar="|".join(choices) or None, rich_help_panel=panel)
    return _keyword(name, Annotated[kind | None, option], default)


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _plain(fields: list[FieldInfo]) -> tuple[type, list[str]]:
    """What the command line reads, a number or text; and the values of an option that takes one of
    a few.
    """
    each: list[list[Any]] = []  # the types of each field's values but None
    for field in fields:
        union = get_origin(field.annotation) in (Union, UnionType)
        parts = get_args(field.annotation) if union else (field.annotation,)
        each.append([part for part in parts if part is not NoneType])
    first = each[0]
    number = next((kind for kind in (int, float) if kind in first), str)
    few = [parts[0] for parts in each if len(parts) == 1 and get_origin(parts[0]) is Literal]
    choices = dict.fromkeys(str(value) for literal in few for value in get_args(literal))
    return str if list[float] in first else number, list(choices)


def _parsed(what: str, text: str) -> Any:
    """A value as YAML reads it: a number, a word or a [list].  Raises UserError."""
    try:
        return load_yaml(text)
    except yaml.YAMLError:
        raise UserError(
            f"{what} {text}: the value cannot be read: write a number, a word or a [list]"
        ) from None


def pairs(options: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs, values read as YAML scalars or lists.  Raises UserError."""
    values: dict[str, Any] = {}
    for text in options:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UserError(
                f"--set {text} is no NAME=VALUE: write for example --set total_nodes=30"
            )
        if name in ("method", "preset"):
            raise UserError(f"--set {text}: a method is chosen by --method {value}")
        if name in values:
            raise UserError(f"--set {name} is given twice: give it once")
        values[name] = _parsed(f"--set {name} =", value)
    return values


def specs(names: list[str], options: dict[str, Any]) -> list[dict[str, Any]]:
    """An entry per method, each with the options that it reads; those that no method takes are
    left for the error.
    """
    choices = {key: options[key] for key in _CHOICES if key in options}

    def takes(spec: dict[str, Any], key: str) -> bool:
        try:
            method(spec["method"], **choices | {key: options[key]})
        except UserError:
            return False
        return True

    entries = presets.expanded([{"method": name} for name in names])
    for spec in entries:
        method(spec["method"])  # an unknown name is reported as such
    if len(entries) == 1:
        return [entries[0] | options]
    takers = {
        key: [spec for spec in entries if takes(spec, key)]
        for key in options
        if key not in choices
    }
    return [
        spec | {key: v for key, v in options.items() if spec in (takers.get(key) or entries)}
        for spec in entries
    ]


def check_names(args: Sequence[str], positional: bool = False) -> None:
    """Raises UserError for unknown targets and methods, ``positional`` ones too, before torch is
    imported.
    """
    named = [
        ("-m", name)
        for name in itertools.takewhile(lambda text: positional and not text.startswith("-"), args)
    ]
    named += [
        pair for pair in itertools.pairwise(args) if pair[0] in ("-m", "--method", "--target")
    ]
    joined = (text.partition("=") for text in args if text.startswith(("--method=", "--target=")))
    for flag, value in [*named, *((flag, value) for flag, _, value in joined)]:
        if flag == "--target":
            check_target(value)
        elif not presets.is_file(value):
            preset(value)
