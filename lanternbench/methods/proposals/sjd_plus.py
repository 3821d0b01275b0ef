"""SJD++ (arXiv 2512.07503): a Jacobi window that keeps drafts after the first rejection where they are likely enough.

A kept draft's law is the old distribution restricted to the tokens that pass, which no later test corrects: the method
is not exact, and no fidelity loss that its tests show bounds it.  The exact counterpart is ``scd``.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lanternbench.component import option
from lanternbench.engine.plain import WindowSpec
from lanternbench.engine.proposal import TreePolicy
from lanternbench.engine.state import DecodeState, StepResult
from lanternbench.engine.verify import at
from lanternbench.methods.proposals.jacobi import Jacobi, Window
from lanternbench.registry import register


@register("proposal", "sjd++")
class SjdPlus(Jacobi):
    """the target itself: SJD's window, which keeps likely drafts after a rejection"""

    lossless: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    no_joint_sample: ClassVar[str | None] = "kept drafts are no sample of the distribution recorded for them"

    theta: float = option(0.5, "keep a draft x where p_new(x)/p_old(x) > θ", symbol="θ", in_label=True, also=0.1, ge=0)

    def plain(self, tree: TreePolicy) -> WindowSpec | None:
        return None if self.variant == "reference" else WindowSpec(self.window, self.init, "keep", theta=self.theta)

    def redraw(self, state: DecodeState, window: Window, result: StepResult) -> tuple[Tensor, Tensor]:
        tokens, p = super().redraw(state, window, result)
        if state.warp.greedy:
            return tokens, p
        old, p_old = result.draft.tokens[:, 1:], result.draft.p
        assert p_old is not None
        kept = at(result.q[:, :-1], old) > self.theta * at(p_old, old)
        tokens = torch.cat([torch.where(kept, old, tokens[:, :-1]), tokens[:, -1:]], 1)
        return tokens, torch.cat([torch.where(kept[..., None], p_old, p[:, :-1]), p[:, -1:]], 1)
