"""Components built by hand, without a target."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lanternbench.engine.plain import PlainRule
from lanternbench.engine.verify import ExactTest, RatioTest
from lanternbench.lossless.definitions import plain_rule
from lanternbench.lossless.plain.drafts import TreeMethod, WindowMethod
from lanternbench.methods.acceptance.exact import ScaledTest
from lanternbench.methods.acceptance.lantern import (
    Bound,
    DistanceBound,
    NearbyTest,
    PublicNearbyTest,
    RatioBound,
    jensen_shannon,
    variation,
)
from lanternbench.registry import component

EXACT = ExactTest()


def annealed(omega: list[float]) -> ScaledTest:
    return ScaledTest.of(omega, torch.device("cpu"))


def lantern(near: Tensor, kind: str, limit: float, barred: Tensor | None = None) -> NearbyTest:
    """``near`` [V, k]; ``kind``: tvd, jsd or multiplicative; ``barred``: of the public code's
    form.
    """
    is_below = torch.lt if barred is None else torch.le
    bounds: dict[str, Bound] = {
        "tvd": DistanceBound(variation, limit, is_below),
        "jsd": DistanceBound(jensen_shannon, limit, is_below),
        "multiplicative": RatioBound(limit),
    }
    if barred is None:
        return NearbyTest(near, bounds[kind])
    return PublicNearbyTest(near, bounds[kind], barred)


def on_codes(
    name: str, codebook: Any = ((0.0,),) * 3, depth: int = 1, **options: Any
) -> RatioTest:
    """A registered rule on a codebook [V, d], for drafts of ``depth`` levels."""
    codes = torch.as_tensor(codebook, dtype=torch.float64)
    target: Any = SimpleNamespace(codebook=codes, near={}, vocab=len(codes), device=codes.device)
    return component("acceptance", name)(**options).build(target, depth)


def plainly(name: str, codebook: Any = ((0.0,),) * 3, depth: int = 1, **options: Any) -> PlainRule:
    """The plain definition of a registered rule on a codebook, for drafts of ``depth`` levels."""
    codes = torch.as_tensor(codebook, dtype=torch.float64).tolist()
    rule = plain_rule(component("acceptance", name)(**options), codes, depth)
    assert rule is not None
    return rule


def plain_residual(name: str) -> Any:
    return component("residual", name).plain


def drafted(
    tree: TreeMethod,
    rule: PlainRule | None = None,
    residual: str = "standard",
    sampled: bool = True,
) -> TreeMethod:
    """The plain definition of a drafted method; the rule is exact unless one is given."""
    rule = rule or PlainRule()
    return replace(tree, rule=rule, residual=plain_residual(residual), sampled=sampled)


def chain(length: int) -> TreeMethod:
    return TreeMethod(paths=tuple((0,) * d for d in range(1, length + 1)))


def windowed(
    rule: PlainRule | None = None, residual: str = "standard", **spec: Any
) -> WindowMethod:
    """The plain definition of a Jacobi window."""
    return WindowMethod(rule or PlainRule(), plain_residual(residual), **spec)
