"""``methods``: every method and its choices; ``methods NAME``: a page on one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lanternbench.cli import options
from lanternbench.cli.output import PAGE, print_json, print_rows
from lanternbench.errors import UserError

if TYPE_CHECKING:
    from lanternbench.methods.method import Method
    from lanternbench.methods.presets import Preset

_WIDEST = {"bounds": 13, "default": 15, "source": 16}  # columns of the page
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A page on this method.")] = None,
    target: Annotated[str | None, typer.Option(help="Show the defaults on this target, and their sources.")] = None,
    as_json: options.AsRows = False,
) -> None:
    """List every method: its five choices, whether it is lossless, and its paper; or all of one method.

    Example: lanternbench methods lantern++
    """
    from lanternbench.methods.method import named, preset
    from lanternbench.models.entries import entry
    from lanternbench.registry import components

    if target is not None and name is None:
        raise UserError("--target is for the page of one method: name it, as in `lanternbench methods eagle-1`")
    if target is not None:
        entry(target)
    if name is not None:
        found, made = preset(name), named(name)
        if as_json:
            print_json(_row(name, found, made) | {"about": option_rows(made, found, target)})
        else:
            _page(name, found, made, target)
        return
    rows: list[dict[str, Any]] = []
    for title, listed in components("preset").items():
        if as_json:
            rows.append(_row(title, listed, named(title)))
            continue
        lossless = named(title).lossless if listed.lossless is None else listed.lossless
        number = listed.paper.rpartition(" ")[2] or "–"  # in arXiv
        rows.append({"method": title, **listed.choices._asdict(), "lossless": lossless, "paper": number})
    print_rows(rows, as_json, "method proposal tree acceptance residual order lossless paper")


def _row(name: str, preset: Preset, made: Method) -> dict[str, Any]:
    row = {"method": name, **preset.choices._asdict(), "lossless": made.lossless, "paper": preset.paper or "–"}
    return row | {"options": {f: v for f, v in sorted(made.read.items()) if v is not None}}


def option_rows(made: Method, preset: Preset, target: str | None = None) -> list[dict[str, str]]:
    """Of each option that a method reads: flag, symbol in labels, default, whose default it is, bounds, meaning.

    With a target: the default that it resolves to there, and the published source of that where there is one.
    """
    from lanternbench.methods.defaults import default_of
    from lanternbench.methods.method import fields_of, flag, symbol
    from lanternbench.models.entries import entry, family

    of_target = family(entry(target).family).options(entry(target)) if target else {}
    fields, rows = fields_of(made.parts), []
    for name, value in (made.resolve(of_target) if target else made).read.items():
        rules = [(sign, getattr(rule, kind, None)) for rule in fields[name].metadata for kind, sign in _SIGNS.items()]
        limits = ", ".join(f"{sign} {bound}" for sign, bound in rules if bound is not None)
        choices = get_args(fields[name].annotation) if get_origin(fields[name].annotation) is Literal else ()
        meaning = fields[name].description or ""
        open_ = fields[name].default is None and name not in preset.options
        shown = "–" if value is None or (open_ and not value) else _text(value)  # or the option is off
        if open_ and shown == "–":
            source = "target" if "the target's" in meaning and not target else "–"
        else:
            source = "preset" if name in preset.options else "target" if open_ and of_target else "component"
        stated = default_of(made.preset, preset.choices, flag(name), target) if target else None
        if stated and stated.says(shown):
            shown, source = stated.default.strip("`"), stated.source.replace("`", "")
        row = {"option": f"--{flag(name).replace('_', '-')}", "symbol": symbol(fields, name)}
        row |= {"default": shown, "source": source}
        rows.append(row | {"bounds": limits or ", ".join(map(str, choices)), "meaning": meaning})
    return rows


def _text(value: Any) -> str:
    return f"{value[0]} to {value[1]}" if isinstance(value, tuple) else str(value)


def _page(name: str, preset: Preset, made: Method, target: str | None) -> None:
    console = Console(width=PAGE, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ("option", "symbol", "default", "source" if target else "of the", "bounds", "meaning"):
        table.add_column(title, overflow="fold", no_wrap=title == "option", max_width=_WIDEST.get(title))
    rows = option_rows(made, preset, target)
    for row in rows:
        shown = row | {"symbol": "" if row["symbol"] == row["option"][2:].replace("-", "_") else row["symbol"]}
        table.add_row(*(Text(value) for value in shown.values()))
    lossless = "lossless" if made.lossless else "not lossless"
    console.print(Text(f"{name}: {lossless}; {preset.paper or 'no paper'}"))
    console.print(Text(", ".join(f"{kind} {choice}" for kind, choice in preset.choices._asdict().items())))
    if target:
        console.print(Text(f"defaults on {target}, whose own are on `lanternbench targets {target}`:"))
    console.print(table)
    first = next((row for row in rows if row["default"] != "–" and row["option"] != "--variant"), None)
    extra = f" {first['option']} {first['default']}" if first else ""
    console.print(Text(f"Example: lanternbench run --method {name}{extra}"))
