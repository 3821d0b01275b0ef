"""The registry of everything that plug-ins can add: proposals, orders, trees, acceptance rules,
residuals, presets, metrics, targets and prompt sources.

``@register(kind, name)`` adds a component.  Other packages name their modules as entry points in
the group ``lanternbench.plugins``.  These are imported when names are listed, and when a name is
looked up that is not built in.  One that cannot be loaded stops only what looks for a name that no
other has.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from lanternbench.errors import UserError, unknown
from lanternbench.utils.memory import is_out_of_memory

# by kind: the package that registers the built-in components, or lists their modules
_BUILT_IN = {
    "proposal": "lanternbench.methods.proposals",
    "order": "lanternbench.methods.orders",
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
    """Register the decorated component.  Raises UserError for an unknown kind or a name in use."""
    if kind not in _components:
        raise UserError(
            f"there are no components of kind '{kind}': use one of {', '.join(_components)}"
        )

    def add(component: Component) -> Component:
        module = _modules(kind).get(name, component.__module__)
        known = _components[kind].setdefault(name, component)
        if module != component.__module__ or known is not component:
            raise UserError(f"the {kind} '{name}' is registered already: choose another name")
        return component

    return add


@cache
def _modules(kind: str) -> Mapping[str, str]:
    """Return the modules of built-in components that are imported one by one, by name."""
    package = import_module(_BUILT_IN[kind])
    paths = getattr(package, "MODULES", {})
    return {name: f"{package.__name__}.{path}" for name, path in paths.items()}


@cache
def plugins() -> tuple[EntryPoint, ...]:
    """Return the installed plug-ins.  Finding them reads the metadata of all packages."""
    return tuple(entry_points(group=PLUGINS))


@cache
def _load_plugin(point: EntryPoint) -> UserError | None:
    """Import a plug-in; return why it cannot be loaded."""
    try:
        point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plug-in that calls sys.exit must not end the command
        return UserError(
            f"the plug-in '{point.name}' ({point.value}) cannot be loaded ({_cause(error)}): "
            "fix or uninstall it"
        )
    return None


def _cause(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


@cache
def _leave_out(error: UserError) -> None:
    """Say once on stderr that a plug-in is left out."""
    print(f"lanternbench: {error}; its components are left out", file=sys.stderr)


def load_plugins() -> None:
    """Import all plug-ins; one that cannot be loaded is left out, with a line on stderr."""
    for point in plugins():
        error = _load_plugin(point)
        if error is not None:
            _leave_out(error)


def find_in_plugins(kind: str, name: str) -> None:
    """Import plug-ins one by one until they register ``name``, first one that is called so.

    Raises UserError if none does and one cannot be loaded.
    """
    failed: UserError | None = None
    for point in sorted(plugins(), key=lambda point: point.name != name):
        if name not in _components[kind]:
            failed = failed or _load_plugin(point)
    if failed is not None and name not in _components[kind]:
        raise failed


@contextmanager
def plugin_errors(*parts: object) -> Iterator[None]:
    """Turn errors of plug-ins' components, sys.exit included, into a UserError that names them.

    ``parts``: the components that work inside; errors of built-in ones are raised unchanged.  So
    is a lack of memory, which callers answer with smaller batches.
    """
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit, UserError):
        raise
    except BaseException as error:
        if is_out_of_memory(error):
            raise
        modules = [getattr(part, "__module__", "lanternbench") for part in parts]
        foreign = [name for name in modules if name.partition(".")[0] != "lanternbench"]
        if not foreign:
            raise
        raise UserError(
            f"the plug-in module '{foreign[0]}' failed ({_cause(error)}): fix or uninstall it"
        ) from error


class Components(Mapping[str, Any]):
    """The components of a kind by name, built-in ones first; imported when they are needed."""

    def __init__(self, kind: str):
        self.kind = kind
        self._modules = _modules(kind)

    def __getitem__(self, name: str) -> Any:
        if name in self._modules and name not in _components[self.kind]:
            import_module(self._modules[name])
        elif name not in self._modules:
            find_in_plugins(self.kind, name)
        return _components[self.kind][name]

    def __contains__(self, name: object) -> bool:
        if name not in self._modules:
            find_in_plugins(self.kind, str(name))
        return name in self._modules or name in _components[self.kind]

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(dict.fromkeys([*self._modules, *_components[self.kind]]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def components(kind: str) -> Mapping[str, Any]:
    """Return all components of a kind by name, built-in ones first."""
    return Components(kind)


def component(kind: str, name: str) -> Any:
    """Return the component called ``name``.  Raises UserError with the known names."""
    known = components(kind)
    if not isinstance(name, str) or name not in known:
        raise unknown(f"there is no {kind} called '{name}'", str(name), known)
    return known[name]


@contextmanager
def temporary(replaced: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[None]:
    """Restore the registry afterwards.

    ``replaced``: kind -> name -> component, which replaces or joins the registered ones inside.
    All components and plug-ins are imported first, because no import is repeated.
    """
    before = {kind: dict(components(kind)) for kind in _components}
    for kind, known in (replaced or {}).items():
        _components[kind].update(known)
    try:
        yield
    finally:
        for kind, known in before.items():
            _components[kind].clear()
            _components[kind].update(known)
