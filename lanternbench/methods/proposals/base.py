"""Proposals: where a step's draft tree comes from."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lanternbench.engine.sampling import Warp
from lanternbench.engine.state import Session
from lanternbench.engine.tree import Tree
from lanternbench.engine.verify import Draft, Verdict
from lanternbench.methods.proposals.drafters import Drafter


class Proposal(Protocol):
    """Where draft trees come from, for one batch."""

    nodes: int  # most nodes of a tree, the root included
    uniforms: int  # uniforms it consumes a step
    width: int  # widest family of siblings
    reach: int  # most slots behind the committed ones that a step writes
    fixed: bool  # is drafting one computation of one shape in every step, so that it may be recorded?

    def begin(self, session: Session, hidden: Tensor) -> None:
        """After the target's prefill."""

    def draft(self, session: Session, u: Tensor) -> Draft:
        """The next tree; u [B, uniforms]."""

    def learn(self, session: Session, draft: Draft, verdict: Verdict, q: Tensor, u: Tensor) -> None:
        """From a step: a Jacobi window before its commit, a tree policy after it."""

    def keep(self, rows: Tensor, prompts: list[int]) -> None:
        """The session goes on with these prompts alone, whose rows [R'] these are."""


class Growth(Protocol):
    """A tree policy.

    It may also have ``begin(session)``, ``learn(session, draft, verdict)``, ``keep(prompts)``, and ``sizes()`` where
    prompts have trees of their own.
    """

    nodes: int
    fixed: bool

    @property
    def uniforms(self) -> int: ...

    def grow(self, drafter: Drafter, logits: Tensor, root: Tensor, warp: Warp, u: Tensor) -> Draft: ...


class Alone:
    """Autoregressive decoding: a tree of the root alone."""

    nodes, uniforms, width, reach, fixed = 1, 0, 0, 1, False

    def begin(self, session: Session, hidden: Tensor) -> None:
        zero = torch.zeros(1, 1, dtype=torch.long, device=session.device)
        self.tree = Tree(zero, zero[..., None][..., :0], torch.ones_like(zero, dtype=torch.bool)[None], 0)

    def draft(self, session: Session, u: Tensor) -> Draft:
        return Draft(session.root[:, None], self.tree)

    def learn(self, session: Session, draft: Draft, verdict: Verdict, q: Tensor, u: Tensor) -> None:
        pass

    def keep(self, rows: Tensor, prompts: list[int]) -> None:
        pass


class Drafted:
    """A drafter and a tree policy."""

    def __init__(self, drafter: Drafter, growth: Growth, width: int, reach: int):
        self.drafter, self.growth, self.width, self.reach = drafter, growth, width, reach
        self.nodes, self.uniforms, self.fixed = growth.nodes, growth.uniforms, growth.fixed

    def begin(self, session: Session, hidden: Tensor) -> None:
        self.drafter.begin(session, hidden)
        if hasattr(self.growth, "begin"):
            self.growth.begin(session)

    def draft(self, session: Session, u: Tensor) -> Draft:
        return self.growth.grow(self.drafter, self.drafter.root(), session.root, session.warp, u)

    def learn(self, session: Session, draft: Draft, verdict: Verdict, q: Tensor, u: Tensor) -> None:
        if hasattr(self.growth, "learn"):
            self.growth.learn(session, draft, verdict)

    def keep(self, rows: Tensor, prompts: list[int]) -> None:
        self.drafter.keep(rows)
        if hasattr(self.growth, "keep"):
            self.growth.keep(prompts)

    def sizes(self) -> list[tuple[int, int]] | None:
        """Depth and nodes of each prompt's tree; None where all have the same."""
        return self.growth.sizes() if hasattr(self.growth, "sizes") else None
