"""What a decode gives: the tokens of every image, and what they took."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from lanternbench.engine.state import DecodeState
from lanternbench.engine.trace import Trace


@dataclass
class Generation:
    """The tokens of one image, and what decoding them took."""

    tokens: Tensor  # [L]
    accept_lengths: list[int]  # tokens committed per step, the residual or bonus token included; sums to L − 1
    tree_depths: list[int]  # depth that each tree was grown to; the nodes that were kept may reach less deep
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
    """Per-step figures of a batch, from values that the step's one host synchronisation transfers anyway."""

    def __init__(self, state: DecodeState):
        self.accepted, self.depths, self.nodes = ([[] for _ in range(state.batch)] for _ in range(3))  # type: ignore[var-annotated]

    def note(self, state: DecodeState, sizes: tuple[tuple[int, int], ...]) -> None:
        """``sizes``: depth and nodes of each prompt's tree."""
        counts = state.now.last.advance.host or ()
        for prompt, count, (depth, nodes) in zip(state.origin, counts, sizes, strict=True):
            if count:
                self.accepted[prompt].append(count)
                self.depths[prompt].append(depth)
                self.nodes[prompt].append(nodes)

    def generations(self, state: DecodeState, encode_s: float, decode_s: float) -> list[Generation]:
        clock = state.clock
        times = decode_s, encode_s, clock.cpu_s, dict(clock.spent), clock.step_s
        return [
            Generation(tokens, self.accepted[i], self.depths[i], self.nodes[i], *times, state.syncs, state.trace)
            for i, tokens in enumerate(state.finish())
        ]
