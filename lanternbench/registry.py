"""One registry for all that can be plugged in: proposals, trees, acceptance rules, residuals, presets, metrics, targets
and prompt sources.

``@register(kind, name)`` adds a component.  A package of someone else's names its modules as entry points in the group
``lanternbench.plugins``; they are imported, and so registered, before the first look-up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, TypeVar

from lanternbench.errors import UserError, unknown

# kind -> the package that registers the built-in components when it is imported
_BUILT_IN = {
    "proposal": "lanternbench.methods.proposals",
    "tree": "lanternbench.methods.trees",
    "acceptance": "lanternbench.methods.acceptance",
    "residual": "lanternbench.methods.residuals",
    "preset": "lanternbench.methods.presets",
    "metric": "lanternbench.metrics",
    "target": "lanternbench.models",
    "prompts": "lanternbench.prompts",
}
PLUGINS = "lanternbench.plugins"
_components: dict[str, dict[str, Any]] = {kind: {} for kind in _BUILT_IN}
Component = TypeVar("Component")


def register(kind: str, name: str) -> Callable[[Component], Component]:
    """Decorator: make a component known as ``name`` among those of its kind.

    Raises UserError for an unknown kind and for a name that is taken: a plug-in replaces nothing silently.
    """
    if kind not in _components:
        raise UserError(f"there are no components of kind '{kind}': use one of {', '.join(_components)}")

    def add(component: Component) -> Component:
        if _components[kind].setdefault(name, component) is not component:
            raise UserError(f"the {kind} '{name}' is registered already: choose another name")
        return component

    return add


@cache
def _load(kind: str) -> None:
    import_module(_BUILT_IN[kind])


@cache
def load_plugins() -> None:
    """Import every plug-in.  Raises UserError naming the one that cannot be imported."""
    points = entry_points(group=PLUGINS)
    for kind in _BUILT_IN if points else ():  # not without need: some of ours import torch
        _load(kind)  # first ours, so that a name taken by a plug-in is reported as the plug-in's
    for point in points:
        try:
            point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plug-in that calls sys.exit must not end the command
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"the plug-in '{point.name}' ({point.value}) cannot be loaded ({reason}): fix or uninstall it"
            ) from error


@contextmanager
def plugin_errors(*parts: Any) -> Iterator[None]:
    """Turns whatever is raised while components of a plug-in work, sys.exit included, into a UserError naming it.

    A GPU's lack of memory passes, as callers answer it with smaller batches.
    ``parts``: the components at work; where all are built in, nothing changes.
    """
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit, UserError):
        raise
    except BaseException as error:
        if (torch := sys.modules.get("torch")) and isinstance(error, torch.OutOfMemoryError):
            raise
        modules = [getattr(part, "__module__", "lanternbench") for part in parts]
        foreign = [name for name in modules if name.partition(".")[0] != "lanternbench"]
        if not foreign:
            raise
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"the plug-in module '{foreign[0]}' failed ({cause}): fix or uninstall it") from error


def components(kind: str) -> Mapping[str, Any]:
    """All components of a kind by name, built-in ones first."""
    _load(kind)
    load_plugins()
    return MappingProxyType(_components[kind])


def component(kind: str, name: str) -> Any:
    """The component called ``name``.  Raises UserError naming those there are."""
    known = components(kind)
    if not isinstance(name, str) or name not in known:
        raise unknown(f"there is no {kind} called '{name}'", str(name), known)
    return known[name]
