"""What one batch of prompts owns while it is decoded: cache, tokens, lengths, uniforms.  Nothing here grows.

B prompts, R rows (2B with guidance), L image tokens, P prefix slots, N tree nodes, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.sampling import BELOW_ONE, Warp, draw
from lanternbench.engine.timing import Clock
from lanternbench.engine.tree import inner_index
from lanternbench.engine.verify import Draft, Verdict
from lanternbench.models.cached_stack import CachedStack, additive
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.row_ends import with_row_ends
from lanternbench.models.target import Prefix, Target


class Fresh(NamedTuple):
    """What the last step committed, for drafters that read the target's hidden states."""

    hidden: Tensor  # [R, A, dim] of the positions before each new token
    tokens: Tensor  # [B, A] the new tokens; entries past ``advance`` are void
    advance: Tensor  # [B] how many
    advances: list[int]  # the host's copy
    closing: Tensor | None = None  # [R, A, dim] of the token before, where ``hidden`` is that of a row end


class Settled(NamedTuple):
    """What a verdict means for a session, made on the device."""

    new: Tensor  # [B, D + 1] tokens; entries past ``advance`` are void
    hidden: Tensor  # [R, D + 1, dim] of the positions before each
    length: Tensor  # [B] committed tokens, these included
    advance: Tensor  # [B]
    source: Tensor | None = None  # places in the cache whose entries move to ``target``
    target: Tensor | None = None
    closing: Tensor | None = None  # see ``Fresh``


class Trace:
    """The target's and drafter's distributions at every committed position, kept for measures taken afterwards."""

    def __init__(self, batch: int, length: int, vocab: int, width: int, device: torch.device):
        self.q = torch.zeros(batch, length, vocab, device=device)
        self.p = torch.zeros(batch, length, vocab, device=device)
        self.children = torch.full((batch, length, width), -1, device=device)  # tokens, in draft order
        self.tried = torch.zeros(batch, length, dtype=torch.long, device=device)
        self.depth = torch.zeros(batch, length, dtype=torch.long, device=device)  # of the node's children

    def cut(self, length: int) -> None:
        """Drop what lies past the image."""
        for name, store in vars(self).items():
            setattr(self, name, store[:, :length])


def alike(lengths: list[int]) -> bool:
    """Are all prompts equally far?  Then slots and positions are slices that the host knows."""
    return min(lengths) == max(lengths)


def row_seed(seed: int, key: str, method: str) -> int:
    """The seed of one image: a function of (seed, prompt, method) and of nothing else."""
    digest = hashlib.blake2b(f"{seed}\0{key}\0{method}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Session:
    """What one batch is decoded in: the target with its cache, the committed tokens, uniforms and clock."""

    def __init__(
        self,
        target: Target,
        prefix: Prefix,
        warp: Warp,
        guidance: float,
        seeds: list[int],
        nodes: int,
        uniforms: int,
        trace: bool = False,
        trace_width: int = 1,
        reach: int = 0,
    ):
        """``nodes``: most nodes of a tree; ``uniforms``: how many a step consumes, verification's first; ``reach``:
        most slots that drafting fills behind what is committed.
        """
        self.target, self.warp, self.guidance = target, warp, guidance
        self.batch, self.limit, self.prefix, self.seeds = len(seeds), target.length, prefix, seeds
        self.device = target.device
        rows, self.offset = prefix.valid.shape
        self.rows = target.rows
        self.reach = max(nodes, reach)
        slots = self.offset + self.rows.slots(self.reach)
        like = prefix.embeddings
        self.graphs = target.graphs if self.batch == 1 else None
        self.stack = CachedStack(
            target.model, target.model.config.decoder, rows, slots, target.model.rope, like, self.graphs
        )
        self.stack.hide_pads(prefix.valid)
        self.tokens = torch.zeros(self.batch, self.limit + nodes + 1, dtype=torch.long, device=self.device)
        self.length = torch.zeros(self.batch, dtype=torch.long, device=self.device)
        self.lengths = [0] * self.batch
        self.columns = torch.arange(nodes + 1, device=self.device)  # 0 … D of any tree
        self.steps = 0
        self.syncs = 0
        self.health = torch.zeros((), device=self.device)  # becomes NaN with any distribution that does
        draws = [torch.rand(self.limit + 1, uniforms, generator=torch.Generator().manual_seed(s)) for s in seeds]
        self.uniforms = torch.stack(draws).clamp_(max=BELOW_ONE).to(self.device)  # [B, L + 1, U]
        self.clock = Clock(self.device)
        if self.graphs is not None:
            self.graphs.aside = self.clock.aside
        slack = self.limit + nodes + 1
        self.trace = Trace(self.batch, slack, target.vocab, trace_width, self.device) if trace else None
        self._visible: Tensor | None = None
        self.start = torch.full((1,), self.offset, device=self.device)
        self.recorded = self.graphs is not None and not self.rows.width  # whole phases, not forwards alone
        self.origin = list(range(self.batch))  # which prompts are still here
        self.prompts = torch.arange(self.batch, device=self.device)[:, None]  # the same
        self.images = torch.zeros(self.batch, self.limit, dtype=torch.long, device=self.device)  # of those that are not
        self.fresh: Fresh
        self.first: Tensor  # [B, V] the distribution of token 0
        self.root: Tensor  # [B] the last committed token: the root of the next tree

    def begin(self) -> Tensor:
        """Prefill and first token; returns the prefix's hidden states [R, P, dim]."""
        mask = additive(prefix_mask(self.prefix.valid, self.offset, self.target.pad_rows)[:, 0])
        hidden = self.stack.prefill(self.prefix.embeddings, range(self.offset), mask)
        q = self.warp(self.target.model.logits(hidden[:, -1:], self.guidance))  # [B, 1, V]
        first = q[:, 0].argmax(-1) if self.warp.greedy else draw(q[:, 0], self.uniforms[:, -1, 0])
        self.tokens[:, 0] = first
        self.length.fill_(1)
        self.lengths = [1] * self.batch
        self.fresh = Fresh(hidden[:, -1:], first[:, None], self.length.clone(), [1] * self.batch)
        self.first, self.root = q[:, 0], first
        if self.trace is not None:
            self.trace.q[:, 0] = self.first
        return hidden

    def active(self) -> bool:
        return min(self.lengths) < self.limit

    def unfinished(self) -> list[int] | None:
        """The prompts to go on with, once at least half of them are finished; None while there is nothing to drop."""
        left = [i for i, n in enumerate(self.lengths) if n < self.limit]
        return left if left and 2 * len(left) <= self.batch else None

    def keep(self, prompts: list[int]) -> Tensor:
        """Go on with these prompts alone; returns the rows [R'] that are theirs."""
        self.finish()
        index = torch.tensor(prompts, device=self.device)
        rows = index if self.stack.cache.rows == self.batch else torch.cat([index, index + self.batch])
        self.stack.keep(rows)
        for name in ("tokens", "length", "uniforms", "prompts", "root"):
            setattr(self, name, getattr(self, name)[index])
        for name in ("lengths", "seeds", "origin"):
            setattr(self, name, [getattr(self, name)[i] for i in prompts])
        hidden, tokens, advance, advances, closing = self.fresh
        advances = [advances[i] for i in prompts]
        most = max(advances)
        closing = None if closing is None else closing[rows, :most]
        self.fresh = Fresh(hidden[rows, :most], tokens[index, :most], advance[index], advances, closing)
        self.batch = len(prompts)
        return rows

    def finish(self) -> Tensor:
        """All images [B, L], those of dropped prompts too."""
        self.images[self.origin] = self.tokens[:, : self.limit]
        return self.images

    def step_uniforms(self) -> Tensor:
        """[B, U] for this step."""
        return self.uniforms[:, self.steps]

    @property
    def unseen(self) -> bool:
        """Is a phase being recorded, in which ``lengths`` means nothing?"""
        return self.graphs is not None and self.graphs.span is not None

    def spans(self) -> list[int]:
        """To how many slots this step attends if it is recorded, and later ones."""
        return self.stack.spans(self.offset + self.lengths[0] + self.reach)

    @contextmanager
    def standing(self, **state: Any) -> Iterator[None]:
        """While a phase is recorded, its arguments stand for the session's own ``length``, ``offset``, …"""
        own = {name: getattr(self, name) for name in state}
        vars(self).update(state)
        try:
            yield
        finally:
            vars(self).update(own)

    def visible(self, draft: Draft) -> Tensor | None:
        """Additive ancestor mask [b, N, N] of a tree, None for a lone root; a shared tree's is made once."""
        if draft.tree.nodes == 1:
            return None
        if draft.static is None:
            return additive(draft.tree.ancestors, self.stack.dtype)
        if self._visible is None:
            self._visible = additive(draft.tree.ancestors, self.stack.dtype)
        return self._visible

    def forward(self, draft: Draft, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """The target over all nodes at once: hidden [R, N, dim] and q [B, N, V].

        Where a row end may follow a node, one follows each in the same forward: hidden is [R, 2N, dim], and q is what
        comes after it.
        """
        self.clock.tick("other")
        tree, rows = draft.tree, self.rows
        known = not self.unseen
        base = None if known and alike(self.lengths) else rows.slot(self.length, -1, self.offset)
        self.bases = [rows.slot(n, -1, self.offset) for n in self.lengths] if known else []
        x = self.stack.all_rows(self.target.model.tok_embeddings(draft.tokens))
        if rows.any_follow([n - 1 for n in self.lengths], tree.max_depth):
            at = self.length[:, None] - 1 + tree.depth  # the image token that a node drafts
            slot, ends = rows.slot(at, 0, self.offset), rows.follow(at)
            x = torch.cat([x, self.target.row_end_embedding(self.target.model).expand_as(x)], 1)
            visible = additive(with_row_ends(tree.ancestors, ends), self.stack.dtype)
            hidden = self.stack.forward(x, torch.cat([slot, slot + 1], 1), self.bases, base, 0, visible)
            last = self._past_row_ends(hidden, ends)
        else:
            if base is not None:
                position: Tensor | range = base[:, None] + tree.depth
            else:
                first = self.bases[0]
                position = range(first, first + tree.nodes) if draft.is_chain else tree.depth + first
            hidden = last = self.stack.forward(x, position, self.bases, base, 0, visible)
        logits = self.target.model.logits(last, self.guidance)
        self.clock.tick("verify")
        return hidden, self.warp(logits)

    def settle(self, draft: Draft, verdict: Verdict, hidden: Tensor) -> Settled:
        """What accepting the verdict's path makes of tokens, states, lengths and cache; changes nothing yet."""
        path, accepted, token = verdict.path, verdict.accepted, verdict.token[:, None]
        columns = self.columns[: path.shape[1]]  # 0 … D
        new = token  # [B, D + 1]
        if path.shape[1] > 1:
            drafted = (draft.tokens if draft.is_chain else draft.tokens.gather(1, path))[:, 1:]
            new = torch.cat([drafted, token], 1).scatter_(1, accepted[:, None], token)
        source = target = closing = None
        if hidden.shape[1] > draft.tree.nodes:
            hidden, closing, source, target = self._settle_rows(path, columns, hidden)
        elif not draft.is_chain and path.shape[1] > 1:
            base = self.stack.per_row(self.rows.slot(self.length, -1, self.offset)[:, None])
            source = self.stack.cache.places(base + self.stack.per_row(path))
            target = self.stack.cache.places(base + columns)
            rows = self.stack.per_row(path)[..., None].expand(hidden.shape[0], -1, hidden.shape[-1])
            hidden = hidden.gather(1, rows)
        length = (self.length + accepted).add_(1).clamp_(max=self.limit)
        return Settled(new, hidden, length, length - self.length, source, target, closing)

    def commit(self, draft: Draft, verdict: Verdict, q: Tensor, settled: Settled) -> None:
        """Write tokens, move cache entries, advance.  The step's only host synchronisation is here."""
        self._write(settled.new)
        if settled.source is not None and settled.target is not None:
            self.stack.cache.move(settled.source, settled.target)
        if self.trace is not None:
            with self.clock.aside("commit"):
                self._record(self.trace, draft, verdict, q)
        was = self.lengths
        self.length.copy_(settled.length)
        self.root = verdict.token
        self.lengths = self.length.tolist()
        self.syncs += 1
        self.steps += 1
        counts = [n - o for n, o in zip(self.lengths, was, strict=True)]
        new, hidden, closing = settled.new, settled.hidden, settled.closing
        if self.graphs is None:  # what is recorded has one shape
            most = max(counts)
            new, hidden, closing = new[:, :most], hidden[:, :most], None if closing is None else closing[:, :most]
        self.fresh = Fresh(hidden, new, settled.advance, counts, closing)
        self.clock.tick("commit")

    def _write(self, tokens: Tensor) -> None:
        """Put tokens [B, n] behind what is committed."""
        n = tokens.shape[1]
        if alike(self.lengths):
            self.tokens[:, self.lengths[0] : self.lengths[0] + n] = tokens
        else:
            self.tokens.scatter_(1, self.length[:, None] + self.columns[:n], tokens)

    def _past_row_ends(self, hidden: Tensor, ends: Tensor) -> Tensor:
        """States of nodes and of their row ends [R, 2N, dim] -> those that predict the next image token [R, N, dim]."""
        own, after = hidden.chunk(2, 1)
        return torch.where(self.stack.per_row(ends)[..., None], after, own)

    def _settle_rows(self, path: Tensor, columns: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The states of the path [B, D + 1], past row ends and its own; what moves where, row ends included."""
        at, nodes = self.length[:, None] - 1 + columns, hidden.shape[1] // 2
        ends, slot = self.rows.follow(at), self.rows.slot(at, 0, self.offset)
        base = self.rows.slot(self.length, -1, self.offset)[:, None]
        nowhere = self.stack.cache.slots - 1
        source = torch.cat([base + path, base + nodes + path], 1)
        target = torch.cat([slot, torch.where(ends, slot + 1, nowhere)], 1)
        source, target = (self.stack.cache.places(self.stack.per_row(x)) for x in (source, target))
        index = self.stack.per_row(path)[..., None].expand(hidden.shape[0], -1, hidden.shape[-1])
        own, after = (half.gather(1, index) for half in hidden.chunk(2, 1))
        return torch.where(self.stack.per_row(ends)[..., None], after, own), own, source, target

    def _record(self, trace: Trace, draft: Draft, verdict: Verdict, q: Tensor) -> None:
        """File q, p and the examined children of every node on the path under the position that it decided.

        What is filed past the accepted path is overwritten by the next step, or lies in the slack past the image.
        """
        path, tree = verdict.path, draft.tree
        columns = self.columns[: path.shape[1]]
        chain = draft.is_chain

        def file(store: Tensor, rows: Tensor) -> None:
            store[self.prompts, self.length[:, None] + self.columns[: rows.shape[1]]] = rows

        def on_path(of_node: Tensor) -> Tensor:
            return of_node if chain else of_node.gather(1, _over(path, of_node))

        file(trace.q, on_path(q))
        if draft.p is not None and draft.static is not None:
            inner = inner_index(draft.static.inner, tree.nodes, self.device)[path].clamp(min=0)
            file(trace.p, draft.p if chain else draft.p.gather(1, _over(inner, draft.p)))
        if tree.width:
            ids = tree.children.expand(self.batch, -1, -1)
            tokens = draft.tokens.gather(1, ids.clamp(min=0).flatten(1)).view_as(ids)
            spare = trace.children.shape[-1] - tree.width  # an adaptive tree may be narrower than the widest
            named = torch.nn.functional.pad(torch.where(ids >= 0, tokens, -1), (0, spare), value=-1)
            file(trace.children, on_path(named))
        tried = torch.where(columns <= verdict.accepted[:, None], on_path(verdict.tried), 0)
        file(trace.tried, tried)
        file(trace.depth, on_path(tree.depth.expand(self.batch, -1)) + 1)


def _over(index: Tensor, rows: Tensor) -> Tensor:
    """An index [B, n] repeated over the further dimensions of ``rows`` [B, N, …]."""
    return index.view(*index.shape, *[1] * (rows.ndim - 2)).expand(*index.shape, *rows.shape[2:])
