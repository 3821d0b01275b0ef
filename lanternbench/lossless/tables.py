"""A world small enough to be enumerated: target and drafter are random tables, the decoder around them is the real one.

Every prefix of image tokens has its own logits, of target and drafter, with and without the prompt.  ``TableCache`` is
the engine's cache with attention replaced by a look-up of the prefix that its cache holds; guidance, temperature, top-k
and top-p, state, trees, verification, commits, cache moves and traces are the code that decodes images.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lanternbench.engine.address import Address, Lengths, raster
from lanternbench.engine.cache import DecoderCache
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.proposal import Drafter, Proposal
from lanternbench.engine.sampling import Warp
from lanternbench.engine.state import DecodeState, LastCommit, Progress
from lanternbench.engine.timing import Clock
from lanternbench.engine.trace import Trace
from lanternbench.lossless.plain.world import Prefix, World
from lanternbench.methods.method import Method
from lanternbench.models.decoder import ImageDecoder


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


class Sampling(NamedTuple):
    """What lies between logits and distributions, of target and drafter alike."""

    guidance: float = 1.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


class Tables:
    """Logits of target and drafter after every prefix of up to ``length`` tokens, with and without the prompt.

    ``q``, ``p`` [prefixes, V]: their conditional distributions before ``sampling``.  ``deep``: trees of three levels.
    """

    def __init__(
        self,
        vocab: int,
        length: int,
        seed: int,
        kind: str = "mixed",
        sampling: Sampling = Sampling(),  # noqa: B008  (immutable)
        deep: bool = False,
    ):
        generator = torch.Generator().manual_seed(seed)
        self.vocab, self.length, self.sampling, self.deep = vocab, length, sampling, deep
        count = sum(vocab**n for n in range(length))
        self.q = random_rows(count, vocab, kind, generator)
        self.p = random_rows(count, vocab, kind, generator)
        self.codebook = 0.5 * torch.randn(vocab, 2, generator=generator)
        without = [random_rows(count, vocab, "dense", generator) for _ in "qp"]
        self.target_logits, self.drafter_logits = (
            torch.stack([given, other]).log() for given, other in zip((self.q, self.p), without, strict=True)
        )  # [2, prefixes, V], conditional rows first
        self.halves = 1 if sampling.guidance == 1.0 else 2

    @property
    def grid(self) -> tuple[int, int]:
        """Two tokens a row."""
        return (-(-self.length // 2), 2)

    def cache(self, memory: Tensor) -> TableCache:
        return TableCache(self, memory)

    def rows(self, code: Tensor, length: Tensor) -> Tensor:
        """Which row belongs to a prefix of ``length`` tokens read as a number ``code`` in base V."""
        first = (self.vocab**length - 1) // (self.vocab - 1)  # how many prefixes are shorter
        return (first + code) % len(self.q)  # past the image's end any row will do

    def states(self, logits: Tensor, code: Tensor, length: Tensor) -> Tensor:
        """The states after prefixes [R, …], of which the upper half of R is conditional: [R, …, V]."""
        half = torch.arange(len(code)) >= len(code) // self.halves
        return logits[half.long().view(-1, *[1] * (code.ndim - 1)), self.rows(code, length)]

    def world(self) -> World:
        """The same world in plain Python, which shares no code with the engine."""
        (target, target_uncond), (drafter, drafter_uncond) = (
            [self._after(rows.tolist()) for rows in both] for both in (self.target_logits, self.drafter_logits)
        )
        guided = self.halves == 2
        return World(
            self.vocab,
            self.length,
            target,
            drafter,
            target_uncond if guided else None,
            drafter_uncond if guided else None,
            **self.sampling._asdict(),
            codebook=self.codebook.double().tolist(),
        )

    def _after(self, rows: list[list[float]]) -> Callable[[Prefix], list[float]]:
        def after(prefix: Prefix) -> list[float]:
            code = 0
            for x in prefix:
                code = code * self.vocab + x
            return rows[int(self.rows(torch.tensor(code), torch.tensor(len(prefix))))]

        return after

    def on_all_images(self, images: dict[Prefix, float]) -> Tensor:
        """[V ** L], images read as numbers in base V."""
        out = torch.zeros(self.vocab**self.length, dtype=torch.float64)
        for image, probability in images.items():
            out[sum(x * self.vocab**i for i, x in enumerate(reversed(image)))] += probability
        return out

    def joint(self) -> Tensor:
        """P(image) under the target, by its plain definition: [V ** L]."""
        return self.on_all_images(self.world().joint())


class TableModel:
    """A target whose hidden states are its logits; its head only applies guidance."""

    dtype, device = torch.float64, torch.device("cpu")

    def tok_embeddings(self, tokens: Tensor) -> Tensor:
        return tokens[..., None].double()

    def output(self, states: Tensor) -> Tensor:
        return states

    def logits(self, states: Tensor, guidance: float = 1.0) -> Tensor:
        model: Any = self
        return ImageDecoder.logits(model, states, guidance)


SMALL = [[0], [1], [2], [0, 0], [0, 1]]
DEEP = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]]


def table_target(tables: Tables, published: bool = False) -> Any:
    """The interface of a target over tables; its default trees can be enumerated, or are the ``published`` ones."""
    paths, levels = (DEEP, 3) if tables.deep else (SMALL, 2)
    options: dict[str, Any] = {
        "chain": f"chain-{levels}",
        "block": f"chain-{levels}",
        "static": paths,
        "medusa": paths,
        "near": 3,
    }
    options |= {"depth": levels, "draft_top_k": 2, "total_nodes": 2 * levels, "width_range": (0, 3), "l_k": 1}
    options |= {"row_window": 1}
    # never run: the table drafts
    net = SimpleNamespace(
        heads=8, aux_layers=lambda model: (), misfit=lambda target: None, block=10, depths=(), causal=False
    )
    return SimpleNamespace(
        name="tables",
        vocab=tables.vocab,
        length=tables.length,
        grid=tables.grid,
        grids=(tables.grid,),
        device=torch.device("cpu"),
        codebook=tables.codebook,
        near={},
        graphs=None,
        row_width=0,
        model=TableModel(),
        options={} if published else options,
        top_k=tables.sampling.top_k,
        guidance=tables.sampling.guidance,
        drafters=dict.fromkeys(("eagle", "eagle-3", "dflash", "model", "medusa"), net),
    )


def with_small_sizes(method: Method) -> Method:
    """The method with sizes that can be enumerated (``option(small=…)``), and otherwise the same."""
    return method.with_parts(lambda part: part.small())


def with_tables(proposal: Proposal, tables: Tables) -> Proposal:
    """The prepared proposal with the table in place of its drafter, if it has one."""
    return (
        proposal
        if proposal.drafter is None
        else proposal.ready(drafter=TableDrafter(tables, proposal.marginals), aux_layers=())
    )


class Codes(NamedTuple):
    """The prefixes that end in the nodes of one level, read as numbers in base V."""

    codes: Tensor  # [R, m]


class TableDrafter(Drafter):
    """The drafter's table: logits after the root and after drafted nodes.

    ``marginals``: whatever was drafted counts as token 0, so that all nodes of a level share one distribution.
    """

    def __init__(self, tables: Tables, marginals: bool = False):
        self.tables, self.marginals, self.head = tables, marginals, TableModel()

    def root(self, state: DecodeState, drafter_state: Any) -> tuple[Tensor, Codes]:
        cache = state.cache
        assert isinstance(cache, TableCache)
        codes = cache.prefix_codes(state.now.length) * self.tables.vocab + cache.all_rows(state.now.root)
        return self._logits(codes[:, None], state, 0)[:, 0], Codes(codes[:, None])

    def expand(
        self, state: DecodeState, drafter_state: Any, cursor: Codes, tokens: Tensor, parent: Tensor | None,
        visible: Tensor | None, depth: int,
    ) -> tuple[Tensor, Codes]:  # fmt: skip
        tokens = state.cache.all_rows(tokens)
        if depth == 1 or parent is None:
            before = cursor.codes[:, :1].expand_as(tokens)
        elif parent.ndim == 1:
            before = cursor.codes[:, parent]
        else:
            before = cursor.codes.gather(1, state.cache.all_rows(parent))
        codes = before * self.tables.vocab + (0 if self.marginals else tokens)
        return self._logits(codes, state, depth), Codes(codes)

    def _logits(self, codes: Tensor, state: DecodeState, depth: int) -> Tensor:
        length = state.cache.all_rows(state.now.length.device[:, None]) + depth
        return self.head.logits(self.tables.states(self.tables.drafter_logits, codes, length), state.guidance)


class TableCache(DecoderCache):
    """The cache holds tokens, one per slot; an input's state is that of the prefix that it attends to.

    Which slots these are, and in which order they are read, is what an address says of them.
    """

    def __init__(self, tables: Tables, memory: Tensor):
        """memory [R, slots]: the tokens in the cache."""
        self.tables, self.dtype, self.device, self.pads = tables, memory.dtype, memory.device, None
        self.layout = raster(tables.length, 0, 0, 0, memory.shape[1], memory.device)
        self._hold(memory[None, :, None, :, None].clone())

    @property
    def memory(self) -> Tensor:
        return self.store[0, :, 0, :, 0]

    def prefix_codes(self, lengths: Lengths) -> Tensor:
        """[R] the committed tokens but the last as a number, out of the cache, as attention would read them."""
        length = self.all_rows(lengths.device)
        code = torch.zeros_like(length)
        for slot in range(max(lengths.host or (1,)) - 1):
            code = torch.where(slot < length - 1, code * self.tables.vocab + self.memory[:, slot].long(), code)
        return code

    def forward(self, x: Tensor, at: Address, last: bool = False) -> Tensor:
        attended, position = self.write(x, at)
        tokens = self.memory[:, None, : at.span].long()
        code = torch.zeros(attended.shape[:2], dtype=torch.long)
        for place in range(int(position.max()) + 1):
            here = attended & (position == place)[:, None]  # [R, n, span], one slot at most
            code = torch.where(here.any(-1), code * self.tables.vocab + (here * tokens).sum(-1), code)
        return self.tables.states(self.tables.target_logits, code, attended.sum(-1))

    def write(self, x: Tensor, at: Address) -> tuple[Tensor, Tensor]:
        """Which slots each new token attends to, [R, n, span], and the position of every slot's token, [R, span]."""
        rows, n, _ = x.shape
        numbers = torch.arange(self.layout.capacity)
        slots, positions = (
            self.all_rows(numbers[None, i] if isinstance(i, slice) else i) for i in (at.slots, at.positions)
        )
        self.memory.scatter_(1, slots, x[..., 0].to(self.memory.dtype))
        mask = torch.zeros(1, 1, 1, at.span) if at.mask is None else at.mask
        attended = self.all_rows(mask[:, 0] == 0).expand(rows, n, -1)
        return attended, numbers.expand(rows, -1).scatter(1, slots, positions)[:, : at.span]


def table_state(
    tables: Tables, warp: Warp, tokens: Tensor, length: Tensor, memory: Tensor, uniforms: Tensor, nodes: int
) -> DecodeState:
    """The engine's state in the middle of decodes.

    tokens [B, ≥ L] of which ``length`` [B] are committed; memory [B, halves, slots]; uniforms [B, steps, U]; ``nodes``:
    most nodes of a tree.
    """
    batch, device = len(tokens), tokens.device
    prefix: Any = None
    cache = tables.cache(memory.transpose(0, 1).flatten(0, 1))
    state = DecodeState(
        table_target(tables), warp, tables.sampling.guidance, [0] * batch, prefix, cache, uniforms, nodes, nodes,
        Clock(device),
    )  # fmt: skip
    root = tokens.gather(1, (length - 1)[:, None])[:, 0]
    ones = Lengths.of(torch.ones_like(length), PerPrompt((1,) * batch))
    states = torch.zeros(batch * tables.halves, 1, tables.vocab, dtype=torch.float64)
    state.now = Progress(
        Lengths.of(length.clone(), PerPrompt(length.tolist())),
        root,
        tokens.clone(),
        LastCommit(states, root[:, None], ones),
    )
    state.first = first_token(tables, warp).expand(batch, -1)
    return state


def first_token(tables: Tables, warp: Warp) -> Tensor:
    """[1, V] the distribution of token 0, as the engine's prefill makes it of the target's states."""
    nothing = torch.zeros(tables.halves, 1, dtype=torch.long)
    states = tables.states(tables.target_logits, nothing, nothing)
    return warp(TableModel().logits(states, tables.sampling.guidance))[:, 0]


def table_trace(tables: Tables, batch: int, width: int) -> Trace:
    trace = Trace(batch, 2 * tables.length + 64, tables.vocab, max(width, 1), torch.device("cpu"))
    trace.q, trace.p = trace.q.double(), trace.p.double()
    return trace
