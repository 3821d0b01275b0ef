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
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from lanternbench.engine.proposal import Drafter, Expand
from lanternbench.engine.state import DecodeState
from lanternbench.lossless.plain import Logits, Prefix, World
from lanternbench.methods.proposals.drafting import parent_states
from lanternbench.models.chameleon.checkpoint import ChameleonConfig, ChameleonFamily
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.flashar import FlashAR
from lanternbench.models.drafters.kinds import KINDS
from lanternbench.models.family import Entry
from lanternbench.models.target import Prefix as Prompt
from lanternbench.models.target import Target, TextEncoder
from lanternbench.models.transformer import Depths
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
    """[count, vocab] distributions: ``dense``, with ``zeros``, of ``one-token``; or ``mixed``."""
    logits = 1.5 * torch.randn(count, vocab, generator=generator, dtype=torch.float64)
    least_likely = logits == logits.amin(-1, keepdim=True)
    not_likeliest = logits < logits.amax(-1, keepdim=True)
    if kind == "mixed":  # half, 3 in 10, and 2 in 10 of them
        draws = torch.rand(count, 1, generator=generator)
        banned = torch.where(draws > 0.8, not_likeliest, (draws > 0.5) & least_likely)
    else:
        no_token = torch.zeros_like(least_likely)
        banned = {"dense": no_token, "zeros": least_likely, "one-token": not_likeliest}[kind]
    return logits.masked_fill(banned, -torch.inf).softmax(-1)


class Tables:
    """Logits of target and drafter after every prefix of up to ``length`` tokens, with and without
    the prompt.

    ``q``, ``p`` [prefixes, V]: their conditional distributions before ``sampling``.  ``deep``:
    trees of three levels.  ``width``: tokens of a row.
    """

    def __init__(
        self,
        vocab: int,
        length: int,
        seed: int,
        kind: str = "mixed",
        sampling: Sampling = TARGETS_OWN,
        deep: bool = False,
        width: int = 2,
    ):
        generator = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.length = length
        self.kind = kind
        self.sampling = sampling
        self.deep = deep
        self.grid = (-(-length // width), width)
        self.halves = 1 if sampling.guidance == 1.0 else 2
        count = sum(vocab**n for n in range(length))
        self.q = random_rows(count, vocab, kind, generator)
        self.p = random_rows(count, vocab, kind, generator)
        self.codebook = 0.5 * torch.randn(vocab, 2, generator=generator)
        q_uncond = random_rows(count, vocab, "dense", generator)
        p_uncond = random_rows(count, vocab, "dense", generator)
        # [2, prefixes, V], conditional rows first
        self.target_logits = torch.stack([self.q, q_uncond]).log()
        self.drafter_logits = torch.stack([self.p, p_uncond]).log()

    def rows(self, code: Tensor, length: Tensor) -> Tensor:
        """The row of a prefix of ``length`` tokens, read as a number ``code`` in base V."""
        first = (self.vocab**length - 1) // (self.vocab - 1)  # how many prefixes are shorter
        return (first + code) % len(self.q)  # past the image's end any row will do

    def halved(self, logits: Tensor, rows: Tensor) -> Tensor:
        """The rows [R, …] of logits, of which the first half is conditional with guidance:
        [R, …, V].
        """
        half = torch.arange(len(rows)) // (len(rows) // self.halves)
        inner_dims = [1] * (rows.ndim - 1)
        return logits[half.view(-1, *inner_dims), rows]

    def states_after(self, tokens: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        """The target's states [R, n, V] after what is seen, see ``read``; position 0 is the
        prompt's.
        """
        code = torch.zeros(seen.shape[:2], dtype=torch.long)
        for place in range(1, int(position.max()) + 1):
            at = seen & (position == place)[:, None]  # [R, n, S], one slot at most
            token = (at * tokens[:, None]).sum(-1)
            code = torch.where(at.any(-1), code * self.vocab + token, code)
        return self.halved(self.target_logits, self.rows(code, seen.sum(-1) - 1))

    def row_after(self, prefix: Prefix) -> int:
        code = 0
        for x in prefix:
            code = code * self.vocab + x
        return int(self.rows(torch.tensor(code), torch.tensor(len(prefix))))

    def world(self) -> World:
        """The same world in plain Python, which shares no code with the engine."""

        def after(rows: Tensor) -> Logits:
            logits = rows.tolist()
            return lambda prefix: logits[self.row_after(prefix)]

        return World(
            self.vocab,
            self.length,
            target=after(self.target_logits[0]),
            drafter=after(self.drafter_logits[0]),
            target_uncond=after(self.target_logits[1]),
            drafter_uncond=after(self.drafter_logits[1]),
            sampling=self.sampling,
            grid_width=self.grid[1],
            codebook=self.codebook.double().tolist(),
        )

    def numbers(self, images: Tensor) -> Tensor:
        """Images [R, ≥ L] read as numbers in base V: [R]."""
        places = self.vocab ** torch.arange(self.length - 1, -1, -1)
        return (images[:, : self.length] * places).sum(1)

    def on_all_images(self, images: dict[Prefix, float]) -> Tensor:
        """Their probabilities by number, [V ** L]."""
        every_image = product(range(self.vocab), repeat=self.length)
        return torch.tensor([images.get(image, 0.0) for image in every_image], dtype=torch.float64)

    def joint(self) -> Tensor:
        """P(image) under the target, by its plain definition: [V ** L]."""
        return self.on_all_images(self.world().joint())


class RowTables(Tables):
    """Tables for rows of the image that are drawn at once: the target has logits after every view.

    ``grid``: rows, columns.  A view is what an input attends to: it is read as a number whose
    digits are the tokens by position, 0 for none.
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
        cond = random_rows(count, vocab, kind, generator)
        uncond = random_rows(count, vocab, "dense", generator)
        below = random_rows(count, vocab, kind, generator)
        below_uncond = random_rows(count, vocab, "dense", generator)
        self.target_logits = torch.stack([cond, uncond]).log()  # [2, views, V]
        # of a vertical branch
        self.drafter_logits = torch.stack([below, below_uncond]).log()

    def row_after(self, view: Prefix) -> int:
        code = 0
        for x in reversed(view):
            code = code * (self.vocab + 1) + x + 1
        return code

    def states_after(self, tokens: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        return self.of_views(self.target_logits, tokens, position, seen)

    def of_views(self, logits: Tensor, tokens: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        """NaN for an input that attends to an empty slot."""
        place = (position - 1).clamp(0, self.length)
        counts = (position > 0) & (place < self.length - 1)
        digits = (tokens + 1) * (self.vocab + 1) ** place
        digits = torch.where(counts, digits, 0)
        code = (seen * digits[:, None]).sum(-1)
        code = code.clamp(0, logits.shape[1] - 1)
        sees_empty = seen & (position < 0)[:, None]
        is_void = sees_empty.any(-1, keepdim=True)
        return torch.where(is_void, torch.nan, self.halved(logits, code))


class TableModel:
    """A target whose states are its logits; its head only applies guidance.

    A key is the position of a token plus one, 0 if nothing is written, and its value the token:
    attention is a look-up of the tokens that an input attends to, in the order of their positions.
    """

    dtype = torch.float64
    device = torch.device("cpu")

    def __init__(self, tables: Tables):
        self.tables = tables
        self.grids = (tables.grid,)
        self.config = SimpleNamespace(
            decoder=SimpleNamespace(n_layer=1, kv_heads=1, cache_width=1),
            dim=tables.vocab,
            vocab_size=tables.vocab,
            grid=tables.grid,
        )

    def __call__(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Tensor | None,
        put: Callable[[int, Tensor], Tensor],
        last: bool = False,
        aux_layers: Depths = (),
    ) -> Tensor:
        """Tokens x [R, n, 1] -> the states after them [R, n, V]; see ``transformer.Stack``.

        Inner states are the tokens.
        """
        states = self.states(*read(x, rope, mask, put))
        return torch.cat([states, x], -1) if aux_layers else states

    def states(self, tokens: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        """Return the states [R, n, V] of what ``read`` says the inputs attend to."""
        return self.tables.states_after(tokens, position, seen)

    def position_table(self, positions: int) -> Tensor:
        return torch.arange(256, dtype=torch.float64)[:, None]

    rotary_table = position_table

    def tok_embeddings(self, tokens: Tensor) -> Tensor:
        return tokens[..., None].double()

    def output(self, states: Tensor) -> Tensor:
        return states

    logits: Any = ImageDecoder.logits


def read(
    x: Tensor, rope: Tensor, mask: Tensor | None, put: Callable[[int, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Write tokens x [R, n, 1].

    Return what is in the slots, tokens and positions [R, S] (−1 for none), and which of them each
    input attends to, bool [R, n, S].
    """
    position = rope[..., 0, 0].expand(x.shape[:2])
    entries = torch.stack([position + 1, x[..., 0]], 1)
    slots = put(0, entries[..., None])[..., 0].long()  # [R, 2, S]
    keys, tokens = slots.unbind(1)
    seen = torch.ones(1, dtype=torch.bool)
    if mask is not None:
        seen = mask[:, 0] == 0
    return tokens, keys - 1, seen.expand(*x.shape[:2], slots.shape[-1])


SMALL = [[0], [1], [2], [0, 0], [0, 1]]
DEEP = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]]
# a drafter that is never run, because the table drafts
NET = SimpleNamespace(
    heads=8, block=10, depths=(), causal=False,
    aux_layers=lambda model: (), misfit=lambda target: None,
)  # fmt: skip


def small_options(deep: bool) -> dict[str, object]:
    """Default trees that can be enumerated."""
    levels = 3 if deep else 2
    chain = f"chain-{levels}"
    paths = DEEP if deep else SMALL
    return {
        "chain": chain, "block": chain, "static": paths, "medusa": paths, "near": 3,
        "depth": levels, "draft_top_k": 2, "total_nodes": 2 * levels, "width_range": (0, 3),
        "l_k": 1, "row_window": 1,
    }  # fmt: skip


class TableTarget(Target):
    """A target over tables, whose image may end within a row."""

    tables: Tables

    @property
    def length(self) -> int:
        return self.tables.length

    @property
    def codebook(self) -> Tensor:
        return self.tables.codebook


def one_token(target: Target, captions: list[str], is_guided: bool) -> Prompt:
    """Return a prefix of one token, at position 0."""
    rows = len(captions) * (2 if is_guided else 1)
    one = torch.zeros(rows, 1, 1, dtype=torch.float64)
    return Prompt(one, one[..., 0] == 0, one, one[:, 1:, 0].long(), one[:, 1:, 0] == 0)


def table_target(tables: Tables, published: bool = False) -> Target:
    """Return a target whose default trees can be enumerated, unless they are to be the
    ``published`` ones.
    """
    target = TableTarget(
        name="tables",
        model=cast(ImageDecoder, TableModel(tables)),
        vq=None,
        text=cast(TextEncoder, None),  # see ``condition``
        sampling=tables.sampling,
        options={} if published else small_options(tables.deep),
        drafters=dict.fromkeys(KINDS, NET),
        condition=one_token,
    )
    target.tables = tables
    return target


class TableDrafter(Drafter[None]):
    """The drafter's table: logits after the root and after drafted nodes.

    ``marginals``: whatever was drafted counts as token 0, so that all nodes of a level share one
    distribution.
    """

    def __init__(self, tables: Tables, marginals: bool = False):
        self.tables = tables
        self.marginals = marginals
        self.head = TableModel(tables)

    def expander(self, state: DecodeState, drafter_state: None) -> Expand:
        """Read the committed tokens but the last out of the target's cache, as attention would."""
        cache = state.cache
        vocab = self.tables.vocab
        length = cache.all_rows(state.now.length.device)
        memory = cache.store[0, :, 1, 1:, 0].long()
        code = torch.zeros_like(length)
        for slot in range(max(state.now.length.host or (1,)) - 1):
            code = torch.where(slot < length - 1, code * vocab + memory[:, slot], code)
        # [R, m] prefixes as numbers in base V
        codes = (code * vocab + cache.all_rows(state.now.root))[:, None]

        def expand(
            tokens: Tensor, parent: Tensor | None, visible: Tensor | None, depth: int
        ) -> Tensor:
            nonlocal codes
            if depth > 0:
                before = parent_states(cache, codes[..., None], parent, tokens.shape[1])
                last = torch.zeros_like(tokens) if self.marginals else tokens
                codes = before[..., 0] * vocab + cache.all_rows(last)
            return self._logits(codes, state, depth)

        return expand

    def _logits(self, codes: Tensor, state: DecodeState, depth: int) -> Tensor:
        length = state.cache.all_rows(state.now.length.device[:, None]) + depth
        rows = self.tables.rows(codes, length)
        logits = self.tables.halved(self.tables.drafter_logits, rows)
        return self.head.logits(logits, state.guidance)


class TableBranch(TableModel):
    """A vertical branch: a table of logits by view, and gates that the states' first logits set."""

    tables: RowTables

    def states(self, tokens: Tensor, position: Tensor, seen: Tensor) -> Tensor:
        return self.tables.of_views(self.tables.drafter_logits, tokens, position, seen)

    def aux_layers(self, model: ImageDecoder) -> Depths:
        return (1,)

    def gate(self, h: Tensor, v: Tensor) -> Tensor:
        return (h[..., :1] - v[..., :1]).sigmoid()

    def hv_gate_corner(self, h: Tensor) -> Tensor:
        return h[..., :1]

    def vertical_head(self, states: Tensor) -> Tensor:
        """States, or a prompt's inner ones, which are tokens: those after an empty view."""
        if states.shape[-1] > 1:
            return states
        return self.tables.halved(self.tables.drafter_logits, states[..., 0].long())

    mixed: Any = FlashAR.mixed
    corner: Any = FlashAR.corner


@cache
def row_end_target() -> Target:
    """A small random model that writes row ends, on whose slots, positions and caches methods are
    checked.

    It has Lumina-mGPT's layout in 4 × 4 tokens, and weights so large that every token depends on
    all before it.
    """
    family = ChameleonFamily()
    shape = asdict(ROW_END_CONFIG) | {"dialect": "lumina", "vq": asdict(ROW_END_VQ)}
    row = Entry(name="row ends", family="chameleon", about="", shape=shape, guidance=2.0)
    target = family.random_target(row, "cpu", torch.float32)
    target.drafters["model"] = family.decoder(row, None, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for net in (target.model, *target.drafters.values()):
            for name, p in net.named_parameters():
                is_norm = "norm" in name and name.endswith("weight")
                p.normal_(mean=float(is_norm), std=0.3, generator=generator)
    target.options = {
        "static": "twig-8", "chain": "chain-3", "depth": 3, "draft_top_k": 3, "total_nodes": 8,
        "width_range": (1, 9), "l_k": 1, "near": 8,
    }  # fmt: skip
    return target
