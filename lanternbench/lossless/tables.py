"""A world small enough to be enumerated: target and drafter are random tables, the decoder around
them is the real one.

Every prefix of image tokens has its own logits, of target and drafter, with and without the
prompt.  ``TableModel`` is a network whose attention is a look-up of the prefix that the cache
holds; prefill, guidance, temperature, top-k and top-p, state, caches, trees, verification, commits
and traces are the code that decodes images.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lanternbench.engine.proposal import Drafter, Expand
from lanternbench.engine.state import DecodeState
from lanternbench.lossless.plain import Prefix, World
from lanternbench.methods.proposals.drafting import parent_states
from lanternbench.models.chameleon.checkpoint import ChameleonConfig, ChameleonFamily
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.kinds import KINDS
from lanternbench.models.family import Entry
from lanternbench.models.target import Prefix as Prompt
from lanternbench.models.target import Target
from lanternbench.models.vq import VQConfig
from lanternbench.settings import TARGETS_OWN, Sampling

CODES = 96  # of the model that writes row ends
ROW_END_CONFIG = ChameleonConfig(
    32, 2, 2, 48, vocab_size=CODES, prompt_ids=16384, positions=128, grid=(4, 4)
)
ROW_END_VQ = VQConfig(
    32, (1, 2), 1, z_channels=16, codebook_size=CODES, codebook_dim=8, attention=False
)


def random_rows(count: int, vocab: int, kind: str, generator: torch.Generator) -> Tensor:
    """[count, vocab] distributions: ``dense``; with ``zeros``; ``one-token`` each; ``mixed``: some
    rows of each.
    """
    logits = 1.5 * torch.randn(count, vocab, generator=generator, dtype=torch.float64)
    smallest, second = (
        logits == logits.amin(-1, keepdim=True),
        logits < logits.amax(-1, keepdim=True),
    )
    # mixed: half, 3 in 10, and 2 in 10 of them
    draw = {"dense": 0.0, "zeros": 0.6, "one-token": 0.9}.get(kind)
    draws = (
        torch.rand(count, 1, generator=generator) if draw is None else torch.full((count, 1), draw)
    )
    banned = torch.where(draws > 0.8, second, (draws > 0.5) & smallest)
    return logits.masked_fill(banned, -torch.inf).softmax(-1)


class Tables:
    """Logits of target and drafter after every prefix of up to ``length`` tokens, with and without
    the prompt.

    ``q``, ``p`` [prefixes, V]: their conditional distributions before ``sampling``.  ``deep``:
    trees of three levels.
    """

    def __init__(
        self,
        vocab: int,
        length: int,
        seed: int,
        kind: str = "mixed",
        sampling: Sampling = TARGETS_OWN,
        deep: bool = False,
    ):
        generator = torch.Generator().manual_seed(seed)
        self.vocab, self.length, self.sampling, self.deep = vocab, length, sampling, deep
        self.grid = (-(-length // 2), 2)  # two tokens a row
        count = sum(vocab**n for n in range(length))
        self.q, self.p = (random_rows(count, vocab, kind, generator) for _ in "qp")
        self.codebook = 0.5 * torch.randn(vocab, 2, generator=generator)
        without = [random_rows(count, vocab, "dense", generator) for _ in "qp"]
        self.target_logits, self.drafter_logits = (
            torch.stack(both).log() for both in zip((self.q, self.p), without, strict=True)
        )  # [2, prefixes, V], conditional rows first
        self.halves = 1 if sampling.guidance == 1.0 else 2

    def rows(self, code: Tensor, length: Tensor) -> Tensor:
        """Which row belongs to a prefix of ``length`` tokens read as a number ``code`` in base V."""
        first = (self.vocab**length - 1) // (self.vocab - 1)  # how many prefixes are shorter
        return (first + code) % len(self.q)  # past the image's end any row will do

    def halved(self, logits: Tensor, rows: Tensor) -> Tensor:
        """The rows [R, …] of logits, of which the first half is conditional where there is
        guidance: [R, …, V].
        """
        half = torch.arange(len(rows)) >= len(rows) // self.halves
        return logits[half.long().view(-1, *[1] * (rows.ndim - 1)), rows]

    def states_after(self, tokens: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        """The target's states [R, n, V] after what is seen, see ``read``; position 0 is the
        prompt's.
        """
        code = torch.zeros(seen.shape[:2], dtype=torch.long)
        for place in range(1, int(position.max()) + 1):
            at = seen & (position == place)[:, None]  # [R, n, S], one slot at most
            code = torch.where(
                at.any(-1), code * self.vocab + (at * tokens[:, None]).sum(-1), code
            )
        return self.halved(self.target_logits, self.rows(code, seen.sum(-1) - 1))

    def row_after(self, prefix: Prefix) -> int:
        code = sum(x * self.vocab**i for i, x in enumerate(reversed(prefix)))
        return int(self.rows(torch.tensor(code), torch.tensor(len(prefix))))

    def world(self) -> World:
        """The same world in plain Python, which shares no code with the engine."""

        def after(rows: Tensor) -> Callable[[Prefix], list[float]]:
            logits = rows.tolist()
            return lambda prefix: logits[self.row_after(prefix)]

        target, target_uncond = map(after, self.target_logits)
        drafter, drafter_uncond = map(after, self.drafter_logits)
        guided = self.halves == 2
        return World(
            self.vocab,
            self.length,
            target,
            drafter,
            target_uncond=target_uncond if guided else None,
            drafter_uncond=drafter_uncond if guided else None,
            sampling=self.sampling,
            grid_width=self.grid[1],
            codebook=self.codebook.double().tolist(),
        )

    def numbers(self, images: Tensor) -> Tensor:
        """Images [R, ≥ L] read as numbers in base V: [R]."""
        return (
            images[:, : self.length] * self.vocab ** torch.arange(self.length - 1, -1, -1)
        ).sum(1)

    def on_all_images(self, images: dict[Prefix, float]) -> Tensor:
        """Their probabilities by number, [V ** L]."""
        out = torch.zeros(self.vocab**self.length, dtype=torch.float64)
        for image, probability in images.items():
            out[self.numbers(torch.tensor([image]))] += probability
        return out

    def joint(self) -> Tensor:
        """P(image) under the target, by its plain definition: [V ** L]."""
        return self.on_all_images(self.world().joint())


class RowTables(Tables):
    """For rows of the image that are drawn at once: the target has logits after every view,
    ``grid`` = rows, columns.

    A view is what an input attends to: it is read as a number whose digits are the tokens by
    position, 0 for none.
    """

    def __init__(
        self,
        vocab: int,
        grid: tuple[int, int],
        seed: int,
        kind: str = "dense",
        sampling: Sampling = TARGETS_OWN,
    ):
        super().__init__(vocab, grid[0] * grid[1], seed, kind, sampling)
        self.grid = grid
        generator = torch.Generator().manual_seed(seed)
        count = (vocab + 1) ** (self.length - 1)
        both = [random_rows(count, vocab, style, generator) for style in (kind, "dense")]
        self.target_logits = torch.stack(both).log()  # [2, views, V], conditional first

    def row_after(self, view: Prefix) -> int:
        return sum((x + 1) * (self.vocab + 1) ** i for i, x in enumerate(view))

    def states_after(self, tokens: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        """NaN for an input that attends to an empty slot."""
        place = (position - 1).clamp(0, self.length)
        digits = torch.where(
            (position > 0) & (place < self.length - 1), (tokens + 1) * (self.vocab + 1) ** place, 0
        )
        code = (seen * digits[:, None]).sum(-1).clamp(0, self.target_logits.shape[1] - 1)
        empty = (seen & (position < 0)[:, None]).any(-1, keepdim=True)
        return torch.where(empty, torch.nan, self.halved(self.target_logits, code))


class TableModel:
    """A target whose states are its logits; its head only applies guidance.

    A key is the position of a token plus one, 0 where nothing is written, and its value the token:
    attention is a look-up of the tokens that an input attends to, in the order of their positions.
    """

    dtype, device = torch.float64, torch.device("cpu")
    config = SimpleNamespace(decoder=SimpleNamespace(n_layer=1, kv_heads=1, cache_width=1))

    def __init__(self, tables: Tables):
        self.tables = tables

    def __call__(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Tensor | None,
        put: Callable[[int, Tensor], Tensor],
        last: bool = False,
    ) -> Tensor:
        """Tokens x [R, n, 1] -> the states after them [R, n, V]; see ``transformer.Stack``."""
        return self.tables.states_after(*read(x, rope, mask, put))

    def position_table(self, positions: int) -> Tensor:
        return torch.arange(256, dtype=torch.float64)[:, None]

    def tok_embeddings(self, tokens: Tensor) -> Tensor:
        return tokens[..., None].double()

    def output(self, states: Tensor) -> Tensor:
        return states

    logits: Any = ImageDecoder.logits


def read(
    x: Tensor, rope: Tensor, mask: Tensor | None, put: Callable[[int, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Write tokens x [R, n, 1] -> what is in the slots: tokens and positions, −1 for none, [R, S];
    and which of them each input attends to, bool [R, n, S]."""
    position = rope[..., 0, 0].expand(x.shape[:2])
    # [R, 2, S]
    slots = put(0, torch.stack([position + 1, x[..., 0]], 1)[..., None])[..., 0].long()
    seen = torch.ones(1, dtype=torch.bool) if mask is None else mask[:, 0] == 0
    return slots[:, 1], slots[:, 0] - 1, seen.expand(*x.shape[:2], slots.shape[-1])


SMALL = [[0], [1], [2], [0, 0], [0, 1]]
DEEP = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]]


class TableTarget:
    """The interface of a target over tables; its default trees can be enumerated, or are the
    ``published`` ones.
    """

    name, graphs, row_width, row_end, pad_rows, device = (
        "tables",
        None,
        0,
        None,
        "alone",
        torch.device("cpu"),
    )

    def __init__(self, tables: Tables, published: bool = False):
        self.vocab, self.codebook, self.halves = tables.vocab, tables.codebook, tables.halves
        self.length, self.image_slots, self.grid, self.grids = (
            tables.length,
            tables.length,
            tables.grid,
            (tables.grid,),
        )
        self.sampling = tables.sampling
        self.guidance = tables.sampling.guidance
        self.model = TableModel(tables)
        self.near: dict[Any, Any] = {}
        # never run: the table drafts
        net = SimpleNamespace(
            heads=8, aux_layers=lambda model: (), misfit=lambda target: None, block=10
        )
        net.depths, net.causal = (), False
        self.drafters = dict.fromkeys(KINDS, net)
        paths, levels = (DEEP, 3) if tables.deep else (SMALL, 2)
        small = {
            "chain": f"chain-{levels}",
            "block": f"chain-{levels}",
            "static": paths,
            "medusa": paths,
            "near": 3,
        }
        small |= {
            "depth": levels,
            "draft_top_k": 2,
            "total_nodes": 2 * levels,
            "width_range": (0, 3),
            "l_k": 1,
        }
        self.options: dict[str, Any] = {} if published else small | {"row_window": 1}

    def prefix(self, captions: list[str], guidance: float) -> Prompt:
        """One token, at position 0."""
        one = torch.zeros(len(captions) * self.halves, 1, 1, dtype=torch.float64)
        return Prompt(one, one[..., 0] == 0, one, one[:, 1:, 0].long(), one[:, 1:, 0] == 0)


class TableDrafter(Drafter[None]):
    """The drafter's table: logits after the root and after drafted nodes.

    ``marginals``: whatever was drafted counts as token 0, so that all nodes of a level share one
    distribution.
    """

    def __init__(self, tables: Tables, marginals: bool = False):
        self.tables, self.marginals, self.head = tables, marginals, TableModel(tables)

    def begin(self, state: DecodeState, max_nodes: int) -> None:
        return None

    def root(self, state: DecodeState, drafter_state: None) -> tuple[Tensor, Expand]:
        """Reads the committed tokens but the last out of the target's cache, as attention would."""
        cache, vocab = state.cache, self.tables.vocab
        length, memory = (
            cache.all_rows(state.now.length.device),
            cache.store[0, :, 1, 1:, 0].long(),
        )
        code = torch.zeros_like(length)
        for slot in range(max(state.now.length.host or (1,)) - 1):
            code = torch.where(slot < length - 1, code * vocab + memory[:, slot], code)
        # [R, m] prefixes as numbers in base V
        codes = (code * vocab + cache.all_rows(state.now.root))[:, None]

        def expand(
            tokens: Tensor, parent: Tensor | None, visible: Tensor | None, depth: int
        ) -> Tensor:
            nonlocal codes
            before = parent_states(cache, codes[..., None], parent, tokens.shape[1], depth)[..., 0]
            codes = before * vocab + (0 if self.marginals else cache.all_rows(tokens))
            return self._logits(codes, state, depth)

        return self._logits(codes, state, 0)[:, 0], expand

    def _logits(self, codes: Tensor, state: DecodeState, depth: int) -> Tensor:
        length = state.cache.all_rows(state.now.length.device[:, None]) + depth
        tables = self.tables
        return self.head.logits(
            tables.halved(tables.drafter_logits, tables.rows(codes, length)), state.guidance
        )


@cache
def row_end_target() -> Target:
    """A small random model that writes row ends, so that methods are checked on their slots,
    positions and caches: Lumina-mGPT's layout in 4 × 4 tokens; weights so large that every token
    depends on all before it."""
    family = ChameleonFamily()
    shape = asdict(ROW_END_CONFIG) | {"dialect": "lumina", "vq": asdict(ROW_END_VQ)}
    row = Entry(name="row ends", family="chameleon", about="", shape=shape, guidance=2.0)
    target = family.random_target(row, "cpu", torch.float32)
    target.drafters["model"] = family.decoder(row, None, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for net in (target.model, *target.drafters.values()):
            for name, p in net.named_parameters():
                p.normal_(std=0.3, generator=generator)
                p += float("norm" in name and name.endswith("weight"))
    target.options = {
        "static": "twig-8",
        "chain": "chain-3",
        "depth": 3,
        "draft_top_k": 3,
        "total_nodes": 8,
    }
    target.options |= {"width_range": (1, 9), "l_k": 1, "near": 8}
    return target
