"""The registry of everything that plug-ins can add: proposals, orders, trees, acceptance rules,
residuals, presets, metrics, targets and prompt sources.

``@register(kind, name)`` adds a component.  Other packages name their modules as entry points in
the group ``lanternbench.plugins``.  These are imported when names are listed, and when a name is
looked up that is not built in.
"""

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
def _load_plugin(point: EntryPoint) -> None:
    try:
        point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plug-in that calls sys.exit must not end the command
        raise UserError(
            f"the plug-in '{point.name}' ({point.value}) cannot be loaded"
            f" ({type(error).__name__}: {error}): fix or uninstall it"
        ) from error


def load_plugins(kind: str = "", name: str = "") -> None:
    """Import plug-ins: all of them, or one by one until they register ``name``.

    A plug-in of that name is imported first.  Raises UserError if one cannot be loaded.
    """
    for point in sorted(plugins(), key=lambda point: point.name != name):
        if not kind or name not in _components[kind]:
            _load_plugin(point)


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
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(
            f"the plug-in module '{foreign[0]}' failed ({cause}): fix or uninstall it"
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
            load_plugins(self.kind, name)
        return _components[self.kind][name]

    def __contains__(self, name: object) -> bool:
        if name not in self._modules:
            load_plugins(self.kind, str(name))
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
