"""The EAGLE drafter at work on recorded hidden states, without a target's forward pass."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from golden_checks.common import Vectors, cached, loaded
from lanternbench.engine.cache import Lengths
from lanternbench.engine.sampling import Warp
from lanternbench.engine.state import LastCommit, Progress
from lanternbench.engine.timing import Clock
from lanternbench.methods.proposals.drafting import EagleDrafter
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.key_names import from_published
from lanternbench.models.llamagen.checkpoint import LlamaGenConfig
from lanternbench.models.target import Prefix
from lanternbench.models.transformer import rope_2d
from lanternbench.settings import Sampling

# the reference derives the drafter's grid from its input type
GRIDS = {"c2i": 24, "t2i": 16, "t2i2": 32}
GREEDY = Warp(Sampling(temperature=0.0))


def eagle(state: dict[str, Tensor], config: dict[str, Any]) -> Eagle:
    """The published layout -> our drafter."""
    width = config["intermediate_size"]
    shape = LlamaGenConfig(
        config["hidden_size"],
        1,
        config["num_attention_heads"],
        config["vocab_size"],
        multiple_of=width,
    )
    words = len(state.get("embed_tokens.weight", ()))
    net = Eagle(replace(shape.decoder, first_norm=False), config["bias"], token_ids=words)
    return loaded(net, from_published(state))


def grid_of(vectors: Vectors) -> int:
    """Image tokens a side that the recorded drafter is made for."""
    return GRIDS[vectors.meta["drafter_config"].get("input_type", "t2i")]


def heads(vectors: Vectors, prefix: int) -> Any:
    """The drafter with its own embedding table, and what it borrows of its target: output head,
    rotary table.
    """
    net = eagle(vectors.under("state."), vectors.meta["drafter_config"])
    vocab, dim = vectors["in.lm_head"].shape
    output = nn.Linear(dim, vocab, bias=False)
    output.weight.data = vectors["in.lm_head"]

    rope = rope_2d(grid_of(vectors), grid_of(vectors), net.config.head_dim, prefix)
    model = SimpleNamespace(
        output=output,
        rotary_table=lambda prompt: rope,
        config=net.config,
        dtype=output.weight.dtype,
    )
    model.logits = partial(ImageDecoder.logits, model)
    return net, model


class Watched(EagleDrafter):
    """``states``: those at the last inputs."""

    states: Tensor

    def __init__(self, net: Eagle, lm: Any):
        super().__init__(net, lm)
        honest = lm.logits

        def logits(states: Tensor, guidance: float) -> Tensor:
            self.states = states
            return honest(states, guidance)

        lm.logits = logits


class Recorded:
    """A drafter fed as in a decode of one prompt: the prefix, then what each step committed.

    ``hidden`` [R, P, dim]: the target's prefix states; the token after them is ``first`` [].
    """

    def __init__(
        self, vectors: Vectors, hidden: Tensor, first: Tensor, max_nodes: int, warp: Warp = GREEDY
    ):
        net, model = heads(vectors, hidden.shape[1])
        rows, positions, _ = hidden.shape
        ahead = torch.zeros(rows, positions - 1, dtype=torch.long)
        valid = torch.ones(rows, positions, dtype=torch.bool)
        prefix = Prefix(hidden, valid, hidden, ahead, valid[:, 1:])
        length = grid_of(vectors) ** 2
        target = SimpleNamespace(
            model=model,
            vocab=len(vectors["in.lm_head"]),
            length=length,
            image_slots=length,
            row_width=0,
            row_end=None,
            graphs=None,
        )
        self.state: Any = SimpleNamespace(
            target=target,
            warp=warp,
            guidance=vectors.meta["cfg_scale"],
            prefix=prefix,
            prefix_states=hidden,
            device=hidden.device,
            clock=Clock(hidden.device),
            span=None,
            now=SimpleNamespace(length=_lengths(0)),
            drawn_after=lambda p, depth: p,
        )
        self.drafter = Watched(net, model)
        self.own = self.drafter.begin(self.state, max_nodes)
        self.commit(hidden[:, -1:], first.view(1, 1))

    def commit(self, hidden: Tensor, tokens: Tensor) -> None:
        """hidden [R, A, dim] of the positions before the new tokens [1, A]."""
        count, now = tokens.shape[1], self.state.now
        length = _lengths(int(now.length.device) + count)
        last = LastCommit(hidden, tokens, _lengths(count))
        self.state.now = Progress(length, tokens[:, -1], tokens, last, length.device)

    def root(self) -> Tensor:
        """Read what was committed -> guided logits [1, V] after it."""
        self.draft_on = self.drafter.expander(self.state, self.own)
        logits = self.expand(self.state.now.root[:, None], None, None, 0)
        self.drafter.states = self.drafter.states[:, 0]
        return logits[:, 0]

    def expand(
        self, tokens: Tensor, parent: Tensor | None, visible: Tensor | None, depth: int
    ) -> Tensor:
        """See ``Expand``."""
        return self.draft_on(tokens, parent, visible, depth)

    def cache(self) -> Tensor:
        """Keys and values of the committed slots: [2, R, heads, slots, head_dim]."""
        end = self.own.layout.slots[int(self.state.now.length.device)] + 1
        return cached(self.own)[..., :end, :]


def _lengths(n: int) -> Lengths:
    return Lengths(torch.tensor([n]), (n,))
