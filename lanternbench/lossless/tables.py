"""A world small enough to be enumerated: target and drafter are random tables, the decoder around them is the real one.

Every prefix of image tokens has its own target distribution q and drafter distribution p.  ``TableSession`` is the
engine's session with the model forward replaced by a look-up; trees, verification, commits, cache moves and traces are
the code that decodes images.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lanternbench.engine.state import Fresh, Session, Settled, Trace
from lanternbench.engine.timing import Clock
from lanternbench.engine.verify import Draft, Verdict, parents
from lanternbench.methods.presets import Method
from lanternbench.models.kv_cache import KVCache
from lanternbench.models.slot_layout import SlotLayout


def random_rows(count: int, vocab: int, kind: str, generator: torch.Generator) -> Tensor:
    """[count, vocab] distributions: ``dense``; with ``zeros``; ``one-token`` each; ``mixed``: some rows of each."""
    logits = 1.5 * torch.randn(count, vocab, generator=generator, dtype=torch.float64)
    smallest, second = logits == logits.amin(-1, keepdim=True), logits < logits.amax(-1, keepdim=True)
    which = {"dense": 0, "zeros": 1, "one-token": 2}.get(kind)
    if which is None:
        draws = torch.rand(count, 1, generator=generator)
        style = (draws > 0.5).long() + (draws > 0.8).long()  # half dense, 3 in 10 with a zero, 2 in 10 one token
    else:
        style = torch.full((count, 1), which)
    banned = ((style == 1) & smallest) | ((style == 2) & second)
    return logits.masked_fill(banned, -torch.inf).softmax(-1)


class Tables:
    """q and p [prefixes, V] of every prefix of up to ``length`` tokens, and the target's joint distribution."""

    def __init__(self, vocab: int, length: int, seed: int, kind: str = "mixed"):
        generator = torch.Generator().manual_seed(seed)
        self.vocab, self.length = vocab, length
        count = sum(vocab**n for n in range(length))
        self.q = random_rows(count, vocab, kind, generator)
        self.p = random_rows(count, vocab, kind, generator)
        self.codebook = torch.randn(vocab, 2, generator=generator)

    def rows(self, code: Tensor, length: Tensor) -> Tensor:
        """Which row belongs to a prefix of ``length`` tokens read as a number ``code`` in base V."""
        first = (self.vocab**length - 1) // (self.vocab - 1)  # how many prefixes are shorter
        return (first + code) % len(self.q)  # past the image's end any row will do

    def joint(self) -> Tensor:
        """P(sequence) under the target: [V ** L], sequences read as numbers in base V."""
        total = torch.ones(1, dtype=self.q.dtype)
        for n in range(self.length):
            code = torch.arange(self.vocab**n)
            total = (total[:, None] * self.q[self.rows(code, torch.tensor(n))]).flatten()
        return total


class TableWarp:
    """Tables give log-probabilities, so that warping is exp, in double precision."""

    def __init__(self, greedy: bool = False):
        self.greedy, self.temperature, self.top_k, self.top_p = greedy, 0.0 if greedy else 1.0, 0, 1.0

    def __call__(self, logits: Tensor) -> Tensor:
        return logits.exp()


def table_target(tables: Tables) -> Any:
    """What the engine asks of a target, with trees that can be enumerated as its defaults."""
    small = [[0], [1], [2], [0, 0], [0, 1]]
    options: dict[str, Any] = {"chain": "chain-2", "static": small, "medusa": small, "near": 3}
    options |= {"depth": 2, "draft_top_k": 2, "total_nodes": 4, "width_range": (1, 2), "l_k": 1}
    net = SimpleNamespace(heads=8, weight=torch.empty(1))  # never run: the table drafts
    return SimpleNamespace(
        name="tables",
        vocab=tables.vocab,
        length=tables.length,
        grid=(-(-tables.length // 2), 2),  # two tokens a row
        device=torch.device("cpu"),
        codebook=tables.codebook,
        near={},
        model=SimpleNamespace(cfg=SimpleNamespace(dim=1)),
        options=options,
        top_k=0,
        guidance=1.0,
        drafters={"eagle": net, "model": net, "medusa": net},
    )


def shrunk(method: Method) -> Method:
    """The method with sizes that can be enumerated; what it does with them stays."""
    sizes: dict[str, Any] = dict.fromkeys(("shape", "depth", "draft_top_k", "total_nodes", "width_range", "l_k", "k"))
    sizes |= {"window": 2, "depth_range": (0, 2)}
    sizes |= {"fixed_depth": method.fixed_depth and 2, "fixed_width": method.fixed_width and 2}
    return method.model_copy(update=sizes)


class TableDrafter:
    """The drafter's table: logits after the root and after drafted nodes."""

    def __init__(self, tables: Tables):
        self.tables = tables

    def begin(self, session: TableSession, hidden: Tensor) -> None:
        self.session = session

    def root(self) -> Tensor:
        self.codes = self.session.prefix_codes()[:, None]  # [B, 1]
        return self._logits(0)[:, 0]

    def expand(self, tokens: Tensor, came_from: Tensor | None, visible: Tensor | None, depth: int) -> Tensor:
        if depth == 1 or came_from is None:
            parent = self.codes[:, :1].expand_as(tokens)
        elif came_from.ndim == 1:
            parent = self.codes[:, came_from]
        else:
            parent = self.codes.gather(1, came_from)
        self.codes = parent * self.tables.vocab + tokens
        return self._logits(depth)

    def _logits(self, depth: int) -> Tensor:
        return self.tables.p[self.tables.rows(self.codes, self.session.length[:, None] + depth)].log()


class TableSession(Session):
    """The engine's session over tables.  ``memory`` [B, slots] stands for the KV cache: the tokens it holds."""

    def __init__(self, tables: Tables, warp: TableWarp, tokens: Tensor, length: Tensor, memory: Tensor, nodes: int):
        """tokens [B, ≥ L] of which ``length`` [B] are committed; ``nodes``: most nodes of a tree."""
        self.tables, self.warp, self.guidance = tables, warp, 1.0  # type: ignore[assignment]
        self.target = table_target(tables)
        self.batch, self.limit, self.offset = len(tokens), tables.length, 0
        self.device, self.rows = tokens.device, SlotLayout(0, tables.length)
        self.seeds = [0] * self.batch
        self.prompts = torch.arange(self.batch)[:, None]
        self.tokens, self.length, self.lengths = tokens.clone(), length.clone(), length.tolist()
        self.columns = torch.arange(nodes + 1)
        self.steps = self.syncs = 0
        self.clock = Clock(self.device)
        self.trace = self.graphs = None
        self.recorded, self.health = False, torch.zeros(())
        self._visible = None
        cache = KVCache(1, self.batch, memory.shape[1], 1, 1, memory)
        cache.store[0, :, 0, :, 0] = memory
        self.stack = SimpleNamespace(cache=cache, per_row=lambda x: x, dtype=memory.dtype)  # type: ignore[assignment]
        last = torch.zeros(self.batch, 1, 1, dtype=memory.dtype)
        self.root = self.tokens.gather(1, (self.length - 1)[:, None])[:, 0]
        self.fresh = Fresh(last, self.root[:, None], torch.ones_like(length), [1] * self.batch)
        self.first = tables.q[:1].expand(self.batch, -1)

    @property
    def memory(self) -> Tensor:
        return self.stack.cache.store[0, :, 0, :, 0]

    def keep_trace(self, width: int) -> None:
        self.trace = Trace(self.batch, 2 * self.limit + 64, self.tables.vocab, max(width, 1), self.device)
        self.trace.q, self.trace.p = self.trace.q.double(), self.trace.p.double()

    def prefix_codes(self) -> Tensor:
        """[B] the committed tokens as a number: all but the last out of the cache, as attention would read them."""
        return self._cached_codes() * self.tables.vocab + self.root

    def _cached_codes(self) -> Tensor:
        code = torch.zeros_like(self.length)
        for slot in range(max(self.lengths) - 1):
            code = torch.where(slot < self.length - 1, code * self.tables.vocab + self.memory[:, slot].long(), code)
        return code

    def forward(self, draft: Draft, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """Write the nodes' tokens to the cache; q of each node by its path from the root: [B, N, V]."""
        tree, tokens = draft.tree, draft.tokens
        depth, parent = tree.depth.expand_as(tokens), parents(tree).clamp(min=0).expand_as(tokens)
        code = torch.zeros_like(tokens)
        code[:, 0] = self._cached_codes() * self.tables.vocab + tokens[:, 0]
        for d in range(1, tree.max_depth + 1):
            code = torch.where(depth == d, code.gather(1, parent) * self.tables.vocab + tokens, code)
        slots = (self.length - 1)[:, None] + torch.arange(tree.nodes)
        self.memory.scatter_(1, slots, tokens.to(self.memory.dtype))
        rows = self.tables.rows(code, self.length[:, None] + depth.clamp(min=0))
        q = self.warp(self.tables.q[rows].log())
        return code[..., None].double(), q

    def commit(self, draft: Draft, verdict: Verdict, q: Tensor, settled: Settled) -> None:
        self.seen = (draft, verdict)
        super().commit(draft, verdict, q, settled)
