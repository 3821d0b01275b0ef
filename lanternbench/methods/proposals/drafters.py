"""Drafters at work: EAGLE, an independent small model, Medusa heads.

A drafter answers two calls a step: ``root`` (what follows the committed tokens) and ``expand`` (what follows a set of
drafted nodes).  Both give guided logits; tree policies turn them into trees.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lanternbench.engine.sampling import guide
from lanternbench.engine.state import Session, alike
from lanternbench.models.cached_stack import CachedStack, additive, causal
from lanternbench.models.chameleon.model import Chameleon
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.drafters.medusa import Medusa
from lanternbench.models.llamagen.model import LlamaGen, prefix_mask


class Drafter(Protocol):
    """What a tree policy asks of a drafter."""

    def begin(self, session: Session, hidden: Tensor) -> None:
        """After the target's prefill: its prefix hidden states [R, P, dim]."""

    def keep(self, rows: Tensor) -> None:
        """The session goes on with these rows [R'] alone."""

    def root(self) -> Tensor:
        """Read what the last step committed (``session.fresh``) -> logits [B, V] after the last token."""

    def expand(self, tokens: Tensor, came_from: Tensor | None, visible: Tensor | None, depth: int) -> Tensor:
        """Logits [B, m, V] after the nodes ``tokens`` [B, m] at ``depth``.

        ``came_from`` [m] or [B, m]: their parents' places among the nodes of the last call (at depth 1: the root);
        ``visible`` additive [b, m, T + m] over all nodes expanded this step.
        """


def at_last_new(session: Session, hidden: Tensor, count: Tensor) -> Tensor:
    """The state that goes with each prompt's last new entry: [R, A, dim], count [B] -> [R, dim]."""
    if session.batch == 1 and session.graphs is None:
        return hidden[:, -1]
    last = (count - 1).clamp(min=0)  # a finished prompt has nothing new
    index = session.stack.per_row(last)[:, None, None]
    return hidden.gather(1, index.expand(len(hidden), 1, hidden.shape[-1]))[:, 0]


class Columns(NamedTuple):
    """A block of a drafter's cache behind what is committed."""

    first: int  # nodes ``first`` … ``stop`` − 1 of this step, where node 0 is the root
    stop: int
    void: Tensor | None = None  # [B] for the row ends behind these nodes: where none follows


class _Cached:
    """What EAGLE and an independent model share: a cached stack fed with what is committed, then with drafted nodes.

    Where the target writes row ends, one more forward reads the row end behind a row's last token.
    """

    def attach(self, session: Session, words: LlamaGen | Chameleon, stack: CachedStack, behind: int) -> None:
        """``words``: whose embeddings and head are used; ``behind``: by how many slots it lags behind the target."""
        self.session, self.words, self.stack, self.behind = session, words, stack, behind
        self.row_end = self.row_end_embedding() if session.rows.width else None

    @property
    def lead(self) -> int:
        """Committed slots before image token 0."""
        return self.session.offset - self.behind

    def keep(self, rows: Tensor) -> None:
        self.stack.keep(rows)

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [B, m] -> [R, m, dim]."""
        return self.stack.all_rows(self.words.tok_embeddings(tokens))

    def row_end_embedding(self) -> Tensor:
        """[dim]."""
        return self.session.target.row_end_embedding(self.words)

    def read_row_end(self, hidden: Tensor) -> Tensor:
        """The states [R, m, dim] at rows' last tokens -> what the stack is given for the row ends [R, m, dim]."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, …, dim] -> guided logits [B, …, V]."""
        logits = self.words.output(guide(hidden, self.session.guidance))
        self.session.clock.tick("draft")
        return logits

    def committed(self, x: Tensor, before: Tensor | None) -> Tensor:
        """Append the step's new tokens, x [R, A, dim] -> hidden at the last one, or at its row end [R, 1, dim].

        ``before`` [R, A, dim]: the state at the token before each, where a row end lies between them.
        """
        s, rows = self.session, self.session.rows
        count, counts, n = s.fresh.advance, s.fresh.advances, x.shape[1]
        self.drafted, self.columns = 0, [Columns(0, 1)]
        if s.unseen:
            start = s.length - count + s.offset  # the position of the first new token
            slot = start[:, None] + torch.arange(n, device=s.device)
            hidden = self.stack.forward(x, slot, [], start - self.behind, 0, causal(n, x.dtype, x.device))
            return at_last_new(s, hidden, count)[:, None]
        filled = [rows.behind(m) - rows.behind(m - c) for m, c in zip(s.lengths, counts, strict=True)]
        bases = [rows.behind(m - c, self.lead) for m, c in zip(s.lengths, counts, strict=True)]
        between = filled != counts  # a row end lies before one of the new tokens
        base: Tensor | None = None
        at = bases[0] - self.lead + s.offset
        position: Tensor | range = range(at, at + n)
        if between or not alike(bases):
            n = n if not between else max(filled) if s.graphs is None else n + 1 + n // rows.width
            start = s.length - count
            base = rows.behind(start, self.lead)
            slot = rows.behind(start)[:, None] + torch.arange(n, device=s.device)
            position = slot + s.offset
        if between:
            assert before is not None
            x = self._with_row_ends(x, self.read_row_end(before), slot, start)
            count = rows.behind(s.length) - rows.behind(start)
        visible = None if n == 1 else causal(n, x.dtype, x.device)
        alone = s.batch == 1 and s.graphs is None  # else entries past ``count`` are void
        hidden = self.stack.forward(x, position, bases, base, 0, visible, last=alone)
        return self._past_row_end(at_last_new(s, hidden, count)[:, None], None, 0)

    def _with_row_ends(self, x: Tensor, ends: Tensor, slot: Tensor, start: Tensor) -> Tensor:
        """Tokens from ``start`` [B] on and the row ends before them [R, A, dim] -> in slots [B, n]: [R, n, dim]."""
        token, is_end = self.session.rows.token(slot)
        index = self.stack.per_row((token - start[:, None]).clamp(0, x.shape[1] - 1))[..., None]
        index = index.expand(x.shape[0], -1, x.shape[-1])
        return torch.where(self.stack.per_row(is_end)[..., None], ends.gather(1, index), x.gather(1, index))

    def nodes(self, x: Tensor, visible: Tensor | None, depth: int) -> Tensor:
        """x [R, m, dim] -> hidden [R, m, dim], at the row end where one follows."""
        first = self.columns[-1].stop
        self.columns.append(Columns(first, first + x.shape[1]))
        hidden = self._place(x, visible, depth - 1)
        return self._past_row_end(hidden, visible, depth)

    def _past_row_end(self, hidden: Tensor, visible: Tensor | None, depth: int) -> Tensor:
        """The states [R, m, dim] at the nodes last placed -> those at their row ends, where ``depth`` ends a row."""
        s, rows = self.session, self.session.rows
        at = [m - 1 + depth for m in s.lengths]
        if not rows.any_follow(at):
            return hidden
        ends = rows.follow(s.length + (depth - 1))  # [B]
        everywhere = all(map(rows.follow, at))
        self.columns.append(self.columns[-1]._replace(void=None if everywhere else ~ends))
        after = self._place(self.read_row_end(hidden), visible, depth - 1, 1)
        return after if everywhere else torch.where(self.stack.per_row(ends)[:, None, None], after, hidden)

    def _place(self, x: Tensor, visible: Tensor | None, ahead: int, past: int = 0) -> Tensor:
        """Run x [R, m, dim] in the next free slots, all at the position ``past`` image token length + ``ahead``."""
        s, m = self.session, x.shape[1]
        bases: list[int] = []
        base: Tensor | None = None
        if not s.unseen:
            bases = [s.rows.behind(n, self.lead) for n in s.lengths]
        if s.unseen or not alike(s.lengths):
            base = s.rows.behind(s.length, self.lead)
            position: Tensor | range = (s.rows.slot(s.length, ahead, s.offset) + past)[:, None]
        else:
            at = s.rows.slot(s.lengths[0], ahead, s.offset) + past
            position = range(at, at + 1)
        hidden = self.stack.forward(x, position, bases, base, self.drafted, self._seen(visible, m))
        self.drafted += m
        return hidden

    def _seen(self, visible: Tensor | None, m: int) -> Tensor | None:
        """A mask over nodes -> over the cache: whoever sees a node sees the row end behind it as well."""
        blocks = self.columns[1:]
        if self.drafted + m == self.columns[-1].stop - 1 or (visible is None and all(b.void is None for b in blocks)):
            return visible
        if visible is None:
            visible = torch.zeros(1, m, self.columns[-1].stop - 1, device=self.session.device)
        seen = torch.nn.functional.pad(visible, (1, 0)).expand(self.session.batch, -1, -1)  # all see the root
        parts = []
        for block in blocks:
            part = seen[..., block.first : block.stop]
            parts.append(part if block.void is None else part.masked_fill(block.void[:, None, None], -torch.inf))
        return torch.cat(parts, -1)


class EagleDrafter(_Cached):
    """EAGLE: one layer over the target's hidden states and the next tokens' embeddings, a slot behind the target."""

    def __init__(self, net: Eagle, most_nodes: int):
        self.net, self.most_nodes = net, most_nodes

    def begin(self, session: Session, hidden: Tensor) -> None:
        rows, prefix, _ = hidden.shape
        model, seen = session.target.model, session.prefix.seen
        slots = prefix + session.rows.slots(self.most_nodes)
        stack = CachedStack(self.net, self.net.cfg, rows, slots, model.rope, hidden, session.graphs)
        self.attach(session, model, stack, 1)
        if prefix > 1:  # entry t: the hidden state of position t, with what stands for token t + 1 and its position
            x = self.net.fuse(self.net.embed_prompt(session.prefix.ahead_ids, model), hidden[:, :-1])
            mask = additive(prefix_mask(seen, prefix - 1)[:, 0])
            stack.prefill(x, range(1, prefix), mask)
            stack.hide_pads(seen)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.stack.all_rows(self.net.embed(tokens, self.words))

    def row_end_embedding(self) -> Tensor:
        return self.net.embed_prompt(torch.tensor(self.session.target.row_end, device=self.session.device), self.words)

    def read_row_end(self, hidden: Tensor) -> Tensor:
        assert self.row_end is not None
        return self.net.fuse(self.row_end.expand_as(hidden), hidden)

    def root(self) -> Tensor:
        self.session.clock.tick("other")
        fresh = self.session.fresh
        self.features = self.committed(self.net.fuse(self.embed(fresh.tokens), fresh.hidden), fresh.closing)
        return self.logits(self.features[:, 0])

    def expand(self, tokens: Tensor, came_from: Tensor | None, visible: Tensor | None, depth: int) -> Tensor:
        self.session.clock.tick("other")
        m = tokens.shape[1]
        if depth == 1 or came_from is None:
            parent = self.features.expand(-1, m, -1)
        elif came_from.ndim == 1:
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
        slots = prefix + session.rows.slots(self.most_nodes)
        stack = CachedStack(self.net, self.net.cfg, rows, slots, self.net.rope, x, session.graphs)
        mask = additive(prefix_mask(session.prefix.valid, prefix)[:, 0])
        stack.prefill(x, range(prefix), mask)
        stack.hide_pads(session.prefix.valid)
        self.attach(session, self.net, stack, 0)

    def read_row_end(self, hidden: Tensor) -> Tensor:
        assert self.row_end is not None
        return self.row_end.expand_as(hidden)

    def root(self) -> Tensor:
        self.session.clock.tick("other")
        x = self.embed(self.session.fresh.tokens)
        return self.logits(self.committed(x, x)[:, 0])

    def expand(self, tokens: Tensor, came_from: Tensor | None, visible: Tensor | None, depth: int) -> Tensor:
        self.session.clock.tick("other")
        return self.logits(self.nodes(self.embed(tokens), visible, depth))


class MedusaDrafter:
    """Head d predicts the d-th token after the next from the target's last hidden state (Cai et al. 2024)."""

    def __init__(self, net: Medusa):
        self.net = net

    def begin(self, session: Session, hidden: Tensor) -> None:
        self.session = session

    def keep(self, rows: Tensor) -> None:
        pass

    def root(self) -> Tensor:
        s = self.session
        s.clock.tick("other")
        last = at_last_new(s, s.fresh.hidden, s.fresh.advance)
        self.logits = s.target.model.output(guide(self.net(last), s.guidance))  # [B, heads, V]
        s.clock.tick("draft")
        return self.logits[:, 0]

    def expand(self, tokens: Tensor, came_from: Tensor | None, visible: Tensor | None, depth: int) -> Tensor:
        return self.logits[:, depth : depth + 1].expand(-1, tokens.shape[1], -1)
