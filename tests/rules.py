"""Components prepared by hand, without a target."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lanternbench.engine.plain import PlainRule, TreeSpec, WindowSpec
from lanternbench.engine.verify import AcceptanceRule
from lanternbench.lossless.plain.drafts import MethodSpec, WindowMethod
from lanternbench.methods.acceptance.exact import Annealed, Exact
from lanternbench.methods.acceptance.lantern import Lantern, LanternPP, Neighbourly
from lanternbench.methods.residuals import PLAIN
from lanternbench.registry import component

EXACT = Exact()


def annealed(omega: list[float]) -> Annealed:
    return Annealed().ready(omega=torch.tensor([math.nan, *omega]))


def lantern(near: Tensor, bound: str, limit: float, barred: Tensor | None = None) -> Neighbourly:
    """``near`` [V, k]; ``bound``: tvd, jsd or multiplicative; ``barred``: of the public code's
    form.
    """
    variant: Any = {"variant": "paper" if barred is None else "reference"}
    if bound == "multiplicative":
        rule: Neighbourly = LanternPP(lam=limit, **variant)
    else:
        rule = Lantern(delta=limit, divergence=bound, **variant)  # type: ignore[arg-type]
    return rule.ready(near=near, barred=barred, group_size=near.shape[1])


def on_codes(
    name: str, codebook: Any = ((0.0,),) * 3, depth: int = 1, **options: Any
) -> AcceptanceRule:
    """A registered rule on a codebook [V, d], for drafts of ``depth`` levels."""
    codes = torch.as_tensor(codebook, dtype=torch.float64)
    target: Any = SimpleNamespace(codebook=codes, near={}, vocab=len(codes), device=codes.device)
    return component("acceptance", name)(**options).prepare(target, depth)


def drafted(
    tree: TreeSpec,
    rule: PlainRule = EXACT,
    residual: str = "standard",
    sampled: bool = True,
    block: Any = None,
) -> MethodSpec:
    """The plain definition of a drafted method."""
    return MethodSpec(tree, rule, PLAIN[residual], sampled, block)


def chain(length: int) -> TreeSpec:
    return TreeSpec(paths=tuple((0,) * d for d in range(1, length + 1)))


def windowed(rule: PlainRule = EXACT, residual: str = "standard", **spec: Any) -> WindowMethod:
    """The plain definition of a Jacobi window."""
    return WindowMethod(WindowSpec(**spec), rule, PLAIN[residual])
