"""The EAGLE drafter at work on recorded hidden states, without a target's forward pass."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from lanternbench.methods.proposals.drafters import EagleDrafter
from torch import Tensor, nn

from golden_checks.common import Vectors, cached, loaded
from lanternbench.engine.state import Fresh
from lanternbench.models.drafters.eagle import Eagle, from_published
from lanternbench.models.llamagen.model import LlamaGenConfig
from lanternbench.models.rope import rope_2d
from lanternbench.models.slot_layout import SlotLayout

GRIDS = {"c2i": 24, "t2i": 16, "t2i2": 32}  # the reference derives the drafter's grid from its input type


def eagle(state: dict[str, Tensor], config: dict[str, Any]) -> Eagle:
    """The published layout -> our drafter."""
    width = config["intermediate_size"]
    shape = LlamaGenConfig(
        config["hidden_size"], 1, config["num_attention_heads"], config["vocab_size"], multiple_of=width
    )
    words = len(state.get("embed_tokens.weight", ()))
    net = Eagle(replace(shape.decoder, first_norm=False), config["bias"], words=words)
    return loaded(net, from_published(state))


def grid_of(vectors: Vectors) -> int:
    """Image tokens a side that the recorded drafter is made for."""
    return GRIDS[vectors.meta["drafter_config"].get("input_type", "t2i")]


def heads(vectors: Vectors, prefix: int) -> Any:
    """The drafter with its own embedding table, and what it borrows of its target: output head, rotary table."""
    net = eagle(vectors.under("state."), vectors.meta["drafter_config"])
    vocab, dim = vectors["in.lm_head"].shape
    output = nn.Linear(dim, vocab, bias=False)
    output.weight.data = vectors["in.lm_head"]
    rope = rope_2d(grid_of(vectors), grid_of(vectors), net.config.head_dim, prefix)
    return net, SimpleNamespace(output=output, rope=rope, config=net.config)


class Recorded:
    """A drafter fed as in a decode of one prompt: the prefix, then what each step committed.

    ``hidden`` [R, P, dim]: the target's prefix states; the token after them is ``first`` [].
    """

    def __init__(self, vectors: Vectors, hidden: Tensor, first: Tensor, most_nodes: int):
        net, model = heads(vectors, hidden.shape[1])
        clock = SimpleNamespace(tick=lambda phase: None)
        stack = SimpleNamespace(dtype=hidden.dtype)
        ahead = torch.zeros(hidden.shape[0], hidden.shape[1] - 1, dtype=torch.long)
        prefix = SimpleNamespace(ahead_ids=ahead, seen=torch.ones_like(ahead, dtype=torch.bool))
        self.session: Any = SimpleNamespace(
            target=SimpleNamespace(model=model),
            rows=SlotLayout(0, grid_of(vectors) ** 2),
            prefix=prefix,
            guidance=vectors.meta["cfg_scale"],
            offset=hidden.shape[1],
            limit=grid_of(vectors) ** 2,
            batch=1,
            graphs=None,
            unseen=False,
            length=torch.zeros(1, dtype=torch.long),
            lengths=[0],
            device=hidden.device,
            clock=clock,
            stack=stack,
        )
        self.drafter = EagleDrafter(net, most_nodes)
        self.drafter.begin(self.session, hidden)
        self.commit(hidden[:, -1:], first.view(1, 1))

    def commit(self, hidden: Tensor, tokens: Tensor) -> None:
        """hidden [R, A, dim] of the positions before the new tokens [1, A]."""
        s, count = self.session, tokens.shape[1]
        s.length = s.length + count
        s.lengths = [s.lengths[0] + count]
        s.fresh = Fresh(hidden, tokens, torch.tensor([count]), [count])

    def cache(self) -> Tensor:
        """Keys and values of the committed slots: [2, R, heads, slots, head_dim]."""
        return cached(self.drafter.stack)[..., : self.drafter.lead + self.session.lengths[0], :]
