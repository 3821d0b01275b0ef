"""Drafters at work: EAGLE, an independent small model, Medusa heads.

A drafter answers two calls a step: ``root`` (what follows the committed tokens) and ``expand`` (what follows a set of
drafted nodes).  Both give guided logits; tree policies turn them into trees.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lanternbench.decoding.sampling import guide
from lanternbench.decoding.session import Session
from lanternbench.models.cached import CachedStack, additive, causal
from lanternbench.models.chameleon import Chameleon
from lanternbench.models.eagle import Eagle
from lanternbench.models.llamagen import LlamaGen, prefix_mask
from lanternbench.models.medusa import Medusa


class Drafter(Protocol):
    def begin(self, session: Session, hidden: Tensor) -> None:
        """After the target's prefill: its prefix hidden states [R, P, dim]."""

    def root(self) -> Tensor:
        """Read what the last step committed (``session.fresh``) -> logits [B, V] after the last token."""

    def expand(
        self, tokens: Tensor, came_from: Tensor | list[int] | None, visible: Tensor | None, depth: int
    ) -> Tensor:
        """Logits [B, m, V] after the nodes ``tokens`` [B, m] at ``depth``.

        ``came_from``: their parents' places among the nodes of the last call (None or at depth 1: the root);
        ``visible`` additive [b, m, T + m] over all nodes expanded this step.
        """


def at_last_new(session: Session, hidden: Tensor) -> Tensor:
    """The state that goes with each prompt's last new token: [R, A, dim] -> [R, dim]."""
    if session.batch == 1:
        return hidden[:, -1]
    last = (session.fresh.advance - 1).clamp(min=0)  # a finished prompt has nothing new
    index = session.stack.per_row(last)[:, None, None]
    return hidden.gather(1, index.expand(-1, 1, hidden.shape[-1]))[:, 0]


class _Cached:
    """What EAGLE and an independent model share: a cached stack fed with what is committed, then with drafted nodes."""

    def attach(self, session: Session, words: LlamaGen | Chameleon, stack: CachedStack, lead: int) -> None:
        """``words``: whose embeddings and head are used; ``lead``: committed slots before image token 0."""
        self.session, self.words, self.stack, self.lead = session, words, stack, lead
        self.drafted = 0

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [B, m] -> [R, m, dim]."""
        return self.stack.all_rows(self.words.tok_embeddings(tokens))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, …, dim] -> guided logits [B, …, V]."""
        logits = guide(self.words.output(hidden), self.session.guidance)
        self.session.clock.tick("draft")
        return logits

    def committed(self, x: Tensor) -> Tensor:
        """Append the step's new tokens, x [R, A, dim] -> hidden at the last one [R, dim]."""
        s = self.session
        count, counts = s.fresh.advance, s.fresh.advances
        a = x.shape[1]
        start = s.length - count
        position = start[:, None] + torch.arange(a, device=s.device) + s.offset
        visible = None if a == 1 else causal(a, x)
        bases = [n - c + self.lead for n, c in zip(s.lengths, counts, strict=True)]
        hidden = self.stack.forward(x, position, bases, start + self.lead, 0, visible)
        self.drafted = 0
        return at_last_new(s, hidden)

    def nodes(self, x: Tensor, visible: Tensor | None, depth: int) -> Tensor:
        """x [R, m, dim] -> hidden [R, m, dim]."""
        s = self.session
        position = (s.length[:, None] + (s.offset + depth - 1)).expand(-1, x.shape[1])
        bases = [n + self.lead for n in s.lengths]
        hidden = self.stack.forward(x, position, bases, s.length + self.lead, self.drafted, visible)
        self.drafted += x.shape[1]
        return hidden


class EagleDrafter(_Cached):
    def __init__(self, net: Eagle, most_nodes: int):
        self.net, self.most_nodes = net, most_nodes

    def begin(self, session: Session, hidden: Tensor) -> None:
        rows, prefix, _ = hidden.shape
        model, seen = session.target.model, session.prefix.seen
        slots = prefix + session.limit + self.most_nodes + 1
        stack = CachedStack(self.net, self.net.cfg, rows, slots, model.rope, hidden)
        self.attach(session, model, stack, prefix - 1)
        if prefix > 1:  # entry t: the hidden state of position t, with what stands for token t + 1 and its position
            zero = torch.zeros(session.batch, dtype=torch.long, device=hidden.device)
            position = torch.arange(1, prefix, device=hidden.device)[None]
            x = self.net.fuse(session.prefix.ahead, hidden[:, :-1])
            mask = additive(prefix_mask(seen, prefix - 1)[:, 0])
            stack.forward(x, position, [0] * session.batch, zero, 0, mask)
            stack.hide_pads(seen)

    def root(self) -> Tensor:
        self.session.clock.tick("other")
        fresh = self.session.fresh
        feature = self.committed(self.net.fuse(self.embed(fresh.tokens), fresh.hidden))
        self.features = feature[:, None]  # [R, 1, dim]
        return self.logits(feature)

    def expand(
        self, tokens: Tensor, came_from: Tensor | list[int] | None, visible: Tensor | None, depth: int
    ) -> Tensor:
        self.session.clock.tick("other")
        m = tokens.shape[1]
        if depth == 1 or came_from is None:
            parent = self.features[:, :1].expand(-1, m, -1) if m > 1 else self.features
        elif isinstance(came_from, list):
            parent = self.features if m == 1 == self.features.shape[1] else self.features[:, came_from]
        else:
            index = self.stack.per_row(came_from)[..., None]
            parent = self.features.gather(1, index.expand(len(self.features), -1, self.features.shape[-1]))
        self.features = self.nodes(self.net.fuse(self.embed(tokens), parent), visible, depth)
        return self.logits(self.features)


class ModelDrafter(_Cached):
    """An independent, smaller model of the target's kind (Leviathan et al. 2023); it reads the same prompt."""

    def __init__(self, net: LlamaGen | Chameleon, most_nodes: int):
        self.net, self.most_nodes = net, most_nodes

    def begin(self, session: Session, hidden: Tensor) -> None:
        rows, prefix = session.prefix.valid.shape
        x = self.net.cls_embedding(session.prefix.features)
        slots = prefix + session.limit + self.most_nodes + 1
        stack = CachedStack(self.net, self.net.cfg, rows, slots, self.net.rope, x)
        mask = additive(prefix_mask(session.prefix.valid, prefix)[:, 0])
        zero = torch.zeros(session.batch, dtype=torch.long, device=x.device)
        stack.forward(x, torch.arange(prefix, device=x.device)[None], [0] * session.batch, zero, 0, mask)
        stack.hide_pads(session.prefix.valid)
        self.attach(session, self.net, stack, prefix)

    def root(self) -> Tensor:
        self.session.clock.tick("other")
        return self.logits(self.committed(self.embed(self.session.fresh.tokens)))

    def expand(
        self, tokens: Tensor, came_from: Tensor | list[int] | None, visible: Tensor | None, depth: int
    ) -> Tensor:
        self.session.clock.tick("other")
        return self.logits(self.nodes(self.embed(tokens), visible, depth))


class MedusaDrafter:
    """Head d predicts the d-th token after the next from the target's last hidden state (Cai et al. 2024)."""

    def __init__(self, net: Medusa):
        self.net = net

    def begin(self, session: Session, hidden: Tensor) -> None:
        self.session = session

    def root(self) -> Tensor:
        s = self.session
        s.clock.tick("other")
        last = at_last_new(s, s.fresh.hidden)
        self.logits = guide(s.target.model.output(self.net(last)), s.guidance)  # [B, heads, V]
        s.clock.tick("draft")
        return self.logits[:, 0]

    def expand(
        self, tokens: Tensor, came_from: Tensor | list[int] | None, visible: Tensor | None, depth: int
    ) -> Tensor:
        return self.logits[:, depth : depth + 1].expand(-1, tokens.shape[1], -1)
