"""Where acceptance rules, residuals and presets are found: ours, those registered by decorator, and entry points.

An entry point in the group ``lanternbench.methods`` names a module; importing it runs its decorators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.methods import acceptance as rules
from lanternbench.methods.proximity import nearest

NEIGHBOURS = 1000  # of a token, LANTERN's k where neither method nor target says
_ACCEPTANCES: dict[str, Callable[..., rules.Rule]] = {}
_RESIDUALS: dict[str, Callable[..., Tensor]] = dict(rules.RESIDUALS)
_PRESETS: dict[str, dict[str, Any]] = {}


def acceptance(name: str) -> Callable:
    """Register a rule: ``@acceptance("mine")`` above ``def mine(method, target, depth) -> Rule``.

    ``method`` holds the options, ``target`` the model (its ``codebook``, ``device``, ``vocab``), ``depth`` is the
    deepest draft position.
    """

    def register(make: Callable[..., rules.Rule]) -> Callable[..., rules.Rule]:
        _ACCEPTANCES[name] = make
        return make

    return register


def residual(name: str) -> Callable:
    """Register a residual: a function (q, p, x, depth, rule) -> unnormalised [..., V]."""

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        _RESIDUALS[name] = function
        return function

    return register


def preset(name: str, **choices: Any) -> None:
    """Register a named method: its four choices and any options."""
    _PRESETS[name] = choices


@acceptance("exact")
@acceptance("unchanged")
def _exact(method, target, depth: int) -> rules.Rule:
    return rules.Exact()


@acceptance("annealed")
def _annealed(method, target, depth: int) -> rules.Rule:
    lam = 2.0 if method.lam is None else method.lam
    return rules.Annealed(rules.schedule(method.schedule, lam, max(depth, 1), method.nu), target.device)


@acceptance("lantern")
def _lantern(method, target, depth: int) -> rules.Rule:
    return _neighbourly(method, target, method.divergence, 0.1 if method.delta is None else method.delta)


@acceptance("lantern++")
def _lantern_pp(method, target, depth: int) -> rules.Rule:
    return _neighbourly(method, target, "multiplicative", 2.0 if method.lam is None else method.lam)


@acceptance("typical")
def _typical(method, target, depth: int) -> rules.Rule:
    return rules.Typical(method.epsilon)


def _neighbourly(method, target, bound: str, limit: float) -> rules.Rule:
    k = method.k or target.options.get("near", NEIGHBOURS)
    if method.variant == "reference":  # counts k without the token itself, admits equality and bars one token more
        table = _near(target, k + 2, method.proximity)
        return rules.Lantern(table[:, : k + 1], bound, limit, inclusive=True, barred=table)
    return rules.Lantern(_near(target, k, method.proximity), bound, limit)


def _near(target, k: int, proximity: str) -> Tensor:
    """[V, k] nearest codes: the methods of a sweep share one table, which takes long to make for a large codebook."""
    kept = target.near.get(proximity)
    if kept is None or kept.shape[1] < min(k, target.vocab):
        kept = target.near[proximity] = nearest(target.codebook, k, proximity)
    return kept if kept.shape[1] <= k else kept[:, :k].contiguous()


@cache
def _load_plugins() -> None:
    for point in entry_points(group="lanternbench.methods"):
        try:
            point.load()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise UserError(
                f"the plugin '{point.name}' ({point.value}) cannot be loaded ({why}): mend or uninstall it"
            ) from error


def acceptances() -> dict[str, Callable[..., rules.Rule]]:
    _load_plugins()
    return _ACCEPTANCES


def residuals() -> dict[str, Callable[..., Tensor]]:
    _load_plugins()
    return _RESIDUALS


def presets() -> dict[str, dict[str, Any]]:
    _load_plugins()
    return _PRESETS
