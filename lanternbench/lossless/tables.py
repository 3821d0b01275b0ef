"""A world small enough to be enumerated: target and drafter are random tables, the decoder around them is the real one.

Every prefix of image tokens has its own target distribution q and drafter distribution p.  ``TableStack`` is the
engine's stack with attention replaced by a look-up of the prefix that its cache holds; state, trees, verification,
commits, cache moves and traces are the code that decodes images.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.proposal import DraftedTree, Drafter, Proposer
from lanternbench.engine.state import DecodeState, LastCommit, Progress
from lanternbench.engine.timing import Clock
from lanternbench.engine.trace import Trace
from lanternbench.methods.method import Method
from lanternbench.models.cached_stack import Lengths
from lanternbench.models.image_stack import ImageStack, Mask, TreeStates
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


class TableModel:
    """A target whose states are row numbers of the tables: embedding and head are look-ups."""

    def __init__(self, tables: Tables):
        self.tables = tables

    def tok_embeddings(self, tokens: Tensor) -> Tensor:
        return tokens[..., None].double()

    def logits(self, states: Tensor, guidance: float = 1.0) -> Tensor:
        return self.tables.q[states[..., 0].long()].log()


def table_target(tables: Tables) -> Any:
    """What the engine asks of a target, with trees that can be enumerated as its defaults."""
    small = [[0], [1], [2], [0, 0], [0, 1]]
    options: dict[str, Any] = {"chain": "chain-2", "static": small, "medusa": small, "near": 3}
    options |= {"depth": 2, "draft_top_k": 2, "total_nodes": 4, "depth_range": (0, 2)}
    options |= {"width_range": (1, 2), "l_k": 1}
    net = SimpleNamespace(heads=8, misfit=lambda target: None)  # never run: the table drafts
    return SimpleNamespace(
        name="tables",
        vocab=tables.vocab,
        length=tables.length,
        grid=(-(-tables.length // 2), 2),  # two tokens a row
        device=torch.device("cpu"),
        codebook=tables.codebook,
        near={},
        graphs=None,
        layout=SlotLayout(0, tables.length),
        model=TableModel(tables),
        options=options,
        top_k=0,
        guidance=1.0,
        drafters={"eagle": net, "model": net, "medusa": net},
    )


def shrunk(method: Method) -> Method:
    """The method with sizes that can be enumerated, as its options state them; what it does with them stays."""
    return method.with_parts(lambda part: part.small())


def with_tables(proposer: Proposer, tables: Tables) -> Proposer:
    """``proposer`` with the table in place of its drafter, if it has one."""
    return DraftedTree(TableDrafter(tables), proposer.tree) if isinstance(proposer, DraftedTree) else proposer


class Codes(NamedTuple):
    """The prefixes that end in the nodes of one level, read as numbers in base V."""

    codes: Tensor  # [B, m]


class TableDrafter(Drafter):
    """The drafter's table: logits after the root and after drafted nodes."""

    def __init__(self, tables: Tables):
        self.tables = tables

    def root(self, state: DecodeState, own: Any) -> tuple[Tensor, Codes]:
        assert isinstance(state.stack, TableStack)
        codes = state.stack.prefix_codes(state.now.length) * self.tables.vocab + state.now.root
        return self._logits(codes, state, 0), Codes(codes[:, None])

    def expand(
        self, state: DecodeState, own: Any, cursor: Codes, tokens: Tensor, parent: Tensor | None,
        visible: Tensor | None, depth: int,
    ) -> tuple[Tensor, Codes]:  # fmt: skip
        if depth == 1 or parent is None:
            before = cursor.codes[:, :1].expand_as(tokens)
        elif parent.ndim == 1:
            before = cursor.codes[:, parent]
        else:
            before = cursor.codes.gather(1, parent)
        codes = before * self.tables.vocab + tokens
        return self._logits(codes, state, depth), Codes(codes)

    def _logits(self, codes: Tensor, state: DecodeState, depth: int) -> Tensor:
        length = state.now.length.device.view(-1, *[1] * (codes.ndim - 1))
        return self.tables.p[self.tables.rows(codes, length + depth)].log()


class TableStack(ImageStack):
    """The cache holds tokens, one per slot; a node's state is the row of the prefix that it attends to."""

    def __init__(self, tables: Tables, memory: Tensor):
        """memory [B, slots]: the tokens in the cache."""
        cache = KVCache(1, len(memory), memory.shape[1], 1, 1, memory)
        cache.store[0, :, 0, :, 0] = memory
        stack: Any = SimpleNamespace(
            cache=cache, per_row=lambda x: x, all_rows=lambda x: x, dtype=memory.dtype, device=memory.device
        )
        super().__init__(stack, SlotLayout(0, tables.length), 0)
        self.tables = tables

    @property
    def memory(self) -> Tensor:
        return self.stack.cache.store[0, :, 0, :, 0]

    def prefix_codes(self, lengths: Lengths) -> Tensor:
        """[B] the committed tokens but the last as a number, out of the cache, as attention would read them."""
        length, code = lengths.device, torch.zeros_like(lengths.device)
        for slot in range(max(lengths.host or (1,)) - 1):
            code = torch.where(slot < length - 1, code * self.tables.vocab + self.memory[:, slot].long(), code)
        return code

    def tree(self, x: Tensor, depth: Tensor, mask: Mask, lengths: Lengths) -> TreeStates:
        tokens, depth = x[..., 0].long(), depth.expand(len(x), -1)
        n = tokens.shape[1]
        code = self.prefix_codes(lengths)[:, None].expand_as(tokens)
        ancestors = mask.ancestors.expand(len(x), -1, -1)
        for level in range(mask.max_depth + 1):  # each node reads its ancestors from the root down
            on_path = ancestors & (depth == level)[:, None]  # [B, N, N], one node at most
            there = on_path.any(-1)
            token = (on_path * tokens[:, None]).sum(-1)
            code = torch.where(there, code * self.tables.vocab + token, code)
        slots = (lengths.device - 1)[:, None] + torch.arange(n)
        self.memory.scatter_(1, slots, tokens.to(self.memory.dtype))
        rows = self.tables.rows(code, lengths.device[:, None] + depth.clamp(min=0))
        return TreeStates(rows[..., None].double())


def table_state(
    tables: Tables, warp: TableWarp, tokens: Tensor, length: Tensor, memory: Tensor, uniforms: Tensor, nodes: int
) -> DecodeState:
    """The engine's state in the middle of decodes.

    tokens [B, ≥ L] of which ``length`` [B] are committed; memory [B, slots]; uniforms [B, steps, U]; ``nodes``: most
    nodes of a tree.
    """
    batch, device = len(tokens), tokens.device
    prefix: Any = None
    given: Any = warp
    state = DecodeState(
        table_target(tables), given, 1.0, [0] * batch, prefix, TableStack(tables, memory), uniforms, nodes, nodes,
        Clock(device),
    )  # fmt: skip
    root = tokens.gather(1, (length - 1)[:, None])[:, 0]
    ones = Lengths(torch.ones_like(length), PerPrompt((1,) * batch))
    states = torch.zeros(batch, 1, 1, dtype=torch.float64)
    state.now = Progress(
        Lengths(length.clone(), PerPrompt(length.tolist())),
        root,
        tokens.clone(),
        LastCommit(states, root[:, None], ones),
    )
    state.first = tables.q[:1].expand(batch, -1)
    return state


def table_trace(tables: Tables, batch: int, width: int) -> Trace:
    trace = Trace(batch, 2 * tables.length + 64, tables.vocab, max(width, 1), torch.device("cpu"))
    trace.q, trace.p = trace.q.double(), trace.p.double()
    return trace
