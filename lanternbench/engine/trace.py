"""The results of a decode: the tokens of every image, their cost, and their distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.tree import Draft, numbers

if TYPE_CHECKING:
    from lanternbench.engine.state import DecodeState, StepResult


@dataclass
class Generation:
    """The tokens of one image, and the steps and seconds that they took."""

    tokens: Tensor  # [L]
    # tokens committed per step, the residual or bonus token included; sums to L − 1
    accept_lengths: list[int]
    # depth that each tree was grown to; the nodes that were kept may reach less deep
    tree_depths: list[int]
    tree_nodes: list[int]
    decode_s: float  # seconds of the whole batch's loop, after prefill and first token
    encode_s: float  # seconds of the whole batch's captions, prefill and first token
    cpu_s: float = 0.0  # CPU time of this process during decode_s, all threads together
    phases: dict[str, float] = field(default_factory=dict)
    step_s: list[float] = field(default_factory=list)  # seconds of every step of the whole batch
    syncs: int = 0
    trace: Trace | None = None  # of its whole batch

    @property
    def steps(self) -> int:
        return len(self.accept_lengths)


class Log:
    """Per-step figures of a batch, from values that a step's synchronisation brings anyway."""

    def __init__(self, state: DecodeState):
        # tokens, depth and nodes of each prompt's steps
        self.steps: list[list[tuple[int, int, int]]] = [[] for _ in range(state.batch)]

    def note(self, state: DecodeState, sizes: Sequence[tuple[int, int]]) -> None:
        """``sizes``: depth and nodes of each prompt's tree."""
        counts = state.now.last.advance.host or ()
        for prompt, count, (depth, nodes) in zip(state.origin, counts, sizes, strict=True):
            if count:
                self.steps[prompt].append((count, depth, nodes))

    def generations(
        self,
        state: DecodeState,
        encode_s: float,
        decode_s: float,
    ) -> list[Generation]:
        clock = state.clock
        generations: list[Generation] = []
        for image, steps in zip(state.finish(), self.steps, strict=True):
            generation = Generation(
                tokens=image,
                accept_lengths=[tokens for tokens, _, _ in steps],
                tree_depths=[depth for _, depth, _ in steps],
                tree_nodes=[nodes for _, _, nodes in steps],
                decode_s=decode_s,
                encode_s=encode_s,
                cpu_s=clock.cpu_s,
                phases=dict(clock.spent),
                step_s=clock.step_s,
                syncs=state.syncs,
                trace=state.trace,
            )
            generations.append(generation)
        return generations


def trace_bytes(image: Generation) -> int:
    """Return the bytes of the distributions that the batch of an image has kept."""
    if image.trace is None:
        return 0
    stores = vars(image.trace).values()
    return sum(store.nbytes for store in stores if isinstance(store, Tensor))


class Trace:
    """The target's and drafter's distributions at every committed position.

    Figures are computed from them afterwards.  B prompts, L positions, V vocabulary, W widest
    family.
    """

    # as ``law`` [B, L, V] for orders other than raster, see ``rows.RowTrace``
    seen: Tensor | None = None
    law: Tensor
    final: Tensor
    committed_in: Tensor  # [B, L] the step that committed each token; the prefill is step 0

    def __init__(self, batch: int, length: int, vocab: int, width: int, device: torch.device):
        self.q = torch.zeros(batch, length, vocab, device=device)
        self.p = torch.zeros_like(self.q)
        # tokens, in draft order
        self.children = torch.full((batch, length, width), -1, device=device)
        self.tried = torch.zeros(batch, length, dtype=torch.long, device=device)
        self.depth = torch.zeros_like(self.tried)  # of the node's children
        # whether they were drawn from p, or chosen (a draft without p)
        self.sampled = torch.zeros_like(self.tried, dtype=torch.bool)

    def cut(self, length: int) -> None:
        """Drop entries past the image."""
        for name, store in vars(self).items():
            setattr(self, name, store[:, :length])

    def record(self, prompts: Tensor, result: StepResult) -> None:
        """Store q, p and the examined children of each node on the path.

        They stand at the image position that the node decided; prompts [B, 1]: rows of the stores.
        The next step overwrites what is past the commit.
        """
        draft = result.draft
        verified = result.verified
        path = verified.path
        columns = numbers(path.shape[1], path.device)
        batch = numbers(len(path), path.device)[:, None]
        start = result.start[:, None]

        def write(store: Tensor, rows: Tensor) -> None:
            positions = start + columns[: rows.shape[1]]
            store[prompts, positions] = rows.to(store.dtype)

        def on_path(of_node: Tensor) -> Tensor:
            return of_node if draft.is_chain else of_node[batch, path]

        write(self.q, on_path(result.q))
        write(self.sampled, torch.full_like(path, draft.p is not None))
        if draft.p is not None and draft.static is not None:
            inner = draft.static.inner_index[path].clamp(min=0)
            write(self.p, draft.p if draft.is_chain else draft.p[batch, inner])
        if draft.tree.width:
            children = children_of(draft, self.children.shape[-1])
            write(self.children, on_path(children))
        reached = columns <= verified.accepted[:, None]
        tried = on_path(verified.tried)
        depth = draft.tree.depth.expand(len(path), -1)
        write(self.tried, torch.where(reached, tried, 0))
        write(self.depth, on_path(depth) + 1)


def children_of(draft: Draft, width: int) -> Tensor:
    """Return the tokens of each node's children, −1 for none: [B, N, width]."""
    ids = draft.tree.children.expand(len(draft.tokens), -1, -1)
    known = ids.clamp(min=0).flatten(1)
    tokens = draft.tokens.gather(1, known).view_as(ids)
    tokens = torch.where(ids >= 0, tokens, -1)
    # an adaptive tree may be narrower than the widest
    spare = width - ids.shape[-1]
    return F.pad(tokens, (0, spare), value=-1)
