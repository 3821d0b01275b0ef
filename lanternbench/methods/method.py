"""A method: proposal × tree × acceptance × residual × order, with their options; a named one is a
preset of the five.

Users give options by flat names (``lam=2``, ``shape="chain-5"``).  An option goes to the chosen
components that have a field of that name; one that none of them reads is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from lanternbench.component import Choices, Component
from lanternbench.errors import UserError, first_mistake, unknown
from lanternbench.methods.presets import Preset
from lanternbench.registry import component, components
from lanternbench.utils.json_values import config_hash
from lanternbench.utils.text import one_line

if TYPE_CHECKING:  # a method's options are read without torch
    from lanternbench.engine.proposal import Proposal, TreePolicy
    from lanternbench.engine.rows import Order
    from lanternbench.engine.verify import AcceptanceRule

KINDS = Choices._fields
# a residual is a function; of options of one name the last counts
PARTS = ("order", "tree", "proposal", "acceptance")


@dataclass(frozen=True)
class Method:
    """One decoder, fully specified.  Unset options take the target's defaults when it is built."""

    preset: str
    choices: Choices
    proposal: Proposal
    tree: TreePolicy
    acceptance: AcceptanceRule
    order: Order
    drafter: str | None = None  # in place of the target's own: as `--drafter` takes it
    mark: str = ""  # ends the label, where another method of the run has the same one
    swept: tuple[str, ...] = ()  # options that the label shows also where they are the default
    # the method that ``resolve`` filled, which has the key and the label
    unresolved: Method | None = None

    @property
    def lossless(self) -> bool:
        """Return whether it claims to keep the target's distribution, see ``verify``."""
        exact = all(part.keeps_target for part in self.parts)
        return exact and component("residual", self.choices.residual).lossless

    @property
    def bounded(self) -> bool:
        """Return whether the fidelity loss bounds how far its images are from the target's."""
        return all(part.bounded and part.variant not in part.unbounded for part in self.parts)

    @property
    def read(self) -> dict[str, Any]:
        """The options that make a difference to this method, by name, with their values;
        ``variant`` last.
        """
        values: dict[str, Any] = {}
        for part in self._parts:
            idle = part.unread() | part.unread_beside(self.choices)
            values |= {
                name: getattr(part, name) for name in type(part).model_fields if name not in idle
            }
        del values["variant"]
        return values | {"variant": self.variant}

    @property
    def variant(self) -> str:
        """The variant of the components that have it."""
        of_parts = (part.variant for part in self._parts)
        return next((name for name in of_parts if name != "paper"), "paper")

    def resolve(self, defaults: Mapping[str, Any]) -> Method:
        """With every option set; ``defaults``: the target's options.  Raises UserError for trees
        that there are not.
        """
        if self.unresolved is not None:
            return self
        # a proposal says which of a target's static trees it takes
        trees = self.proposal.static_trees
        known = {name: value for name, value in defaults.items() if name not in trees}
        known |= {kind: defaults[key] for kind, key in trees.items() if key in defaults}
        return replace(self.with_parts(lambda part: part.resolve(known)), unresolved=self)

    def with_parts(self, change: Callable[[Any], Any]) -> Method:
        """The method with ``change`` applied to each component."""
        return replace(self, **{kind: change(getattr(self, kind)) for kind in PARTS})

    @property
    def parts(self) -> tuple[Component, ...]:
        """Its components but the residual, which is a function."""
        return (self.proposal, self.tree, self.acceptance, self.order)

    @property
    def _parts(self) -> tuple[Component, ...]:
        tree = () if self.proposal.tree_is_own else (self.tree,)
        return (self.order, *tree, self.proposal, self.acceptance)

    @property
    def _drafter(self) -> dict[str, str]:
        return {"drafter": self.drafter} if self.drafter else {}

    @cached_property
    def key(self) -> str:
        """Names the method in the keys of samples and the seeds of draws: a hash of its preset and
        exact options.
        """
        if self.unresolved is not None:
            return self.unresolved.key
        chosen = {kind: name for kind, name in self.choices._asdict().items() if name != "raster"}
        return config_hash(
            {"preset": self.preset, **chosen, "options": self.read | self._drafter}
        )[:16]

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options that labels show, by name: the relaxation, the drafter, and whatever differs
        from the preset.
        """
        if self.unresolved is not None:
            return self.unresolved.options
        base = named(self.preset)
        choices = zip(KINDS, self.choices, base.choices, strict=True)
        in_label: dict[str, Any] = {
            kind: chosen for kind, chosen, usual in choices if chosen != usual
        }
        # another's options have their own defaults
        of_rule = set(type(self.acceptance).model_fields) - {"variant"}
        usual = {
            n: value
            for n, value in base.read.items()
            if "acceptance" not in in_label or n not in of_rule
        }
        fields = fields_of(self._parts)
        for name, value in self.read.items():
            default = usual.get(name, fields[name].default)
            is_swept = name in self.swept and value is not None
            if is_swept or fields[name].json_schema_extra.get("in_label") or value != default:
                in_label[name] = value
        return in_label | self._drafter

    @cached_property
    def label(self) -> str:
        """Return a short name for people: the preset, a rule that replaces its own, its options."""
        in_label, name = dict(self.options), self.preset
        if "acceptance" in in_label:
            name += f"+{in_label.pop('acceptance')}"
            if in_label.get("residual") == self.acceptance.usual_residual:
                del in_label["residual"]
        if self.drafter:  # a folder's name stands for its path
            in_label["drafter"] = PurePath(self.drafter.partition("=")[0]).name or self.drafter
        fields = fields_of(self._parts)
        texts = [f"{symbol(fields, key)}={_compact(value)}" for key, value in in_label.items()]
        return " ".join([name, *texts, *([self.mark] if self.mark else [])])


def fields_of(parts: tuple[Component, ...]) -> dict[str, Any]:
    """The pydantic fields of components by name; where two have the same name, the last one."""
    return {name: field for part in parts for name, field in type(part).model_fields.items()}


def symbol(fields: Mapping[str, Any], name: str) -> str:
    extra = fields[name].json_schema_extra if name in fields else None
    return (extra or {}).get("symbol") or name


def _compact(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list):
        return "[" + ",".join(".".join(map(str, path)) for path in value) + "]"
    return str(value).replace(" ", "")


def options() -> dict[str, Any]:
    """Every option of every registered component: name -> its pydantic field, the first where
    several share a name.
    """
    return {name: fields[0] for name, fields in all_options().items()}


def all_options() -> dict[str, list[Any]]:
    """Every option of every registered component: name -> the fields of that name."""
    fields: dict[str, list[Any]] = {}
    for kind in PARTS:
        for part in components(kind).values():
            for name, field in part.model_fields.items():
                fields.setdefault(name, []).append(field)
    return fields


def takes_lists(name: str) -> bool:
    """Return whether the value of an option may be a list itself."""
    fields = all_options().get(canonical(name), [])
    return any(word in str(field.annotation) for field in fields for word in ("list[", "tuple["))


def preset(name: str) -> Preset:
    """The preset called ``name``.  Raises UserError naming the presets there are."""
    presets: Mapping[str, Preset] = components("preset")
    if name in presets:
        return presets[name]
    if name in components("acceptance"):
        raise UserError(
            f"'{name}' is an acceptance rule: name the method whose drafts it judges, "
            f"--acceptance {name}"
        )
    raise unknown(f"unknown method '{name}'", str(name), presets)


def named(name: str) -> Method:
    """The method that a preset describes."""
    base = preset(name)
    try:
        return _build(name, base.choices, base.options, {})
    except UserError as error:
        raise UserError(f"the preset '{name}' is wrong: {error}") from None


def method(name: str, /, drafter: str | None = None, **overrides: Any) -> Method:
    """A preset with some of its choices and options replaced, and with a ``drafter`` other than
    the target's own.

    Raises UserError for an unknown method or option, a value out of range, and a combination that
    cannot be run.
    """
    base = preset(name)
    chosen = {canonical(key): value for key, value in overrides.items() if value is not None}
    known = set(KINDS) | set(options())
    if unknown := sorted(set(chosen) - known):
        raise UserError(
            f"method '{name}' has no option '{unknown[0]}': `lanternbench methods` lists the options"
        )
    choices = base.choices._replace(**{kind: chosen.pop(kind) for kind in KINDS if kind in chosen})
    if choices.acceptance != base.choices.acceptance and "residual" not in overrides:
        choices = choices._replace(
            residual=component("acceptance", choices.acceptance).usual_residual
        )
    method = _build(name, choices, base.options, chosen)
    if idle := sorted(set(chosen) - set(method.read)):
        read = ", ".join(sorted({flag(n) for n in method.read} - {"variant"})) or "none"
        raise UserError(
            f"method '{method.label}' does not read the option '{flag(idle[0])}' "
            f"(it reads: {read}): leave it out"
        )
    if drafter is not None and method.proposal.drafter_kind is None:
        raise UserError(f"method '{method.label}' drafts without a drafter: leave out 'drafter'")
    return replace(method, drafter=None if drafter is None else str(drafter))


def canonical(key: str) -> str:
    """The field name of an option as users write it, such as ``lambda`` or ``draft-top-k``."""
    key = key.replace("-", "_")
    return next((name for name, field in options().items() if field.alias == key), key)


def flag(name: str) -> str:
    """The name that users write for a field."""
    field = options().get(name)
    return field.alias if field is not None and field.alias else name


def _part(name: str, part: type[Component], options: dict[str, Any]) -> Component:
    """Return a component of the method ``name``.  Raises UserError for a wrong option."""
    try:
        return part(**options)
    except ValidationError as error:
        first = error.errors()[0]
        _, reason = first_mistake(error)
        where = "its options clash"
        if first["loc"]:
            value = one_line(repr(first["input"]), 60)
            where = f"option '{flag(str(first['loc'][0]))}' = {value} is wrong"
        raise UserError(f"method '{name}': {where}: {reason}") from None


def _build(name: str, choices: Choices, usual: dict[str, Any], chosen: dict[str, Any]) -> Method:
    """``usual``: the preset's options, ignored where no component reads them; ``chosen``: the
    user's.
    """
    component("residual", choices.residual)
    values = usual | chosen
    if "depth" in chosen and "shape" not in chosen:
        values.pop("shape", None)
    kinds: dict[str, type[Component]] = {
        kind: component(kind, getattr(choices, kind)) for kind in PARTS
    }
    variant = values.get("variant")
    is_known = any(part.has_variant(variant) for part in kinds.values())
    parts: dict[str, Any] = {}
    for kind, part in kinds.items():
        own = {key: value for key, value in values.items() if key in part.model_fields}
        if is_known and not part.has_variant(variant):
            own.pop("variant")
        parts[kind] = _part(name, part, own)
    whole = Method(name, choices, **parts)
    for options in parts.values():
        if refusal := options.refuses(choices):
            raise UserError(f"method '{whole.preset}' cannot be run: {refusal}")
    return whole
