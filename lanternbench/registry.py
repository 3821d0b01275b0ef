"""One registry for all that can be plugged in: proposals, orders, trees, acceptance rules,
residuals, presets, metrics, targets and prompt sources.

``@register(kind, name)`` adds a component.  A package of someone else's names its modules as entry
points in the group ``lanternbench.plugins``; they are imported, and so registered, when names are
listed or one not ours is looked up.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from lanternbench.errors import UserError, unknown
from lanternbench.utils.memory import is_out_of_memory

# kind -> the package that registers the built-in components when it is imported, or names their
# modules
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
    """Decorator: make a component known as ``name``.  Raises UserError for an unknown kind and for
    a taken name.
    """
    if kind not in _components:
        raise UserError(
            f"there are no components of kind '{kind}': use one of {', '.join(_components)}"
        )

    def add(component: Component) -> Component:
        module = _modules(kind).get(name, component.__module__)
        if (
            module != component.__module__
            or _components[kind].setdefault(name, component) is not component
        ):
            raise UserError(f"the {kind} '{name}' is registered already: choose another name")
        return component

    return add


@cache
def _modules(kind: str) -> Mapping[str, str]:
    """The modules of the built-in components that are imported one by one, by name; others come
    with their package.
    """
    package = import_module(_BUILT_IN[kind])
    return {
        name: f"{package.__name__}.{path}"
        for name, path in getattr(package, "MODULES", {}).items()
    }


@cache
def plugins() -> tuple[EntryPoint, ...]:
    """The installed ones, found once a process: the metadata of all packages are read for it."""
    return tuple(entry_points(group=PLUGINS))


@cache
def _load_plugin(point: EntryPoint) -> None:
    try:
        point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plug-in that calls sys.exit must not end the command
        text = f"the plug-in '{point.name}' ({point.value}) cannot be loaded ({type(error).__name__}: {error})"
        raise UserError(f"{text}: fix or uninstall it") from error


def load_plugins(kind: str = "", name: str = "") -> None:
    """Import every plug-in; for a component ``name`` one by one, the one so called first.  Raises
    UserError.
    """
    for point in sorted(plugins(), key=lambda point: point.name != name):
        if not kind or name not in _components[kind]:
            _load_plugin(point)


@contextmanager
def plugin_errors(*parts: Any) -> Iterator[None]:
    """Turns whatever is raised while components of a plug-in work, sys.exit included, into a
    UserError naming it.

    A lack of memory passes, because callers answer it with smaller batches.
    ``parts``: the components at work; where all are built in, nothing changes.
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
    """The components of a kind by name, ours first; plug-ins are imported for a name not ours and
    for a list.
    """

    def __init__(self, kind: str):
        self.kind, self._modules = kind, _modules(kind)

    def __getitem__(self, name: str) -> Any:
        if name in self._modules and name not in _components[self.kind]:
            import_module(self._modules[name])
        elif name not in self._modules:
            load_plugins(self.kind, name)
        return _components[self.kind][name]

    def __contains__(self, name: object) -> bool:
        if name not in self._modules:
            load_plugins(self.kind, str(name))  # which loads none where it is there
        return name in self._modules or name in _components[self.kind]

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(dict.fromkeys([*self._modules, *_components[self.kind]]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def components(kind: str) -> Mapping[str, Any]:
    """All components of a kind by name, built-in ones first."""
    return Components(kind)


def component(kind: str, name: str) -> Any:
    """The component called ``name``.  Raises UserError naming those there are."""
    known = components(kind)
    if not isinstance(name, str) or name not in known:
        raise unknown(f"there is no {kind} called '{name}'", str(name), known)
    return known[name]


@contextmanager
def temporary(replaced: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[None]:
    """Afterwards the registry is as it was before: what is registered inside is gone.

    ``replaced``: kind -> name -> component, used inside in place of the registered one, or beside
    those there are. All components and plug-ins are imported first, since no import is repeated.
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
