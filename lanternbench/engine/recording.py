"""The phases of a step as CUDA graphs: recorded once per shape, then replayed by one launch
instead of hundreds.

A replay runs kernels and no Python.  Whatever a phase reads of the current decode is therefore an
input tensor, and the length that the host knows enters only as the number of cache slots to attend
to.
"""

from collections.abc import Callable, Hashable
from copy import copy
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lanternbench.engine.address import Lengths
from lanternbench.engine.state import DecodeState, LastCommit, Progress
from lanternbench.utils.graph_capture import Replay

Work = Callable[..., Any]  # (state, *arguments) -> tensors in any nesting
SPAN = 512  # a recorded forward attends to a multiple of this many slots


class Recordings:
    """The recorded phases of one decoder; they outlive a decode."""

    def __init__(self) -> None:
        self.replays: dict[Hashable, tuple[Replay, Any]] = {}
        # outputs of recordings by id; the next phase reads them in place
        self.static: dict[int, Tensor] = {}

    def replay(
        self, state: DecodeState, name: str, bucket: Hashable, work: Work, *arguments: Any
    ) -> Any:
        """``work(state, *arguments)``, recorded on the first call.  The outputs are valid until
        the next replay.

        ``bucket``: tells apart shapes that the arguments' tensors do not show.
        """
        progress: Any = unknown(state.now, None)
        # only drafters read the last commit, whose shape differs after the prefill
        if name != "draft":
            progress = progress._replace(last=None)
        leaves, form = tree_flatten((progress, arguments))
        inputs = [x for x in leaves if isinstance(x, Tensor)]
        sizes = [
            x.shape if isinstance(x, Tensor) else x for x in leaves if isinstance(x, Tensor | int)
        ]
        # another capacity means another cache
        shape = (name, bucket, state.cache.layout.capacity, *sizes)
        span, *longer = spans(state)
        if (span, shape) not in self.replays:
            for other in (span, *longer):
                if (other, shape) not in self.replays:
                    self.replays[other, shape] = self._record(
                        state, other, name, work, leaves, form
                    )
        recorded, result = self.replays[span, shape]
        recorded(inputs)
        state.clock.tick(name)
        return result

    def _record(
        self, state: DecodeState, span: int, name: str, work: Work, leaves: list[Any], form: Any
    ) -> tuple[Replay, Any]:
        assert state.target.graphs is not None
        flat_outputs: list[Any] = []
        forms: list[Any] = []

        def flat(*inputs: Tensor) -> list[Tensor]:
            tensors = iter(inputs)
            progress, arguments = tree_unflatten(
                [next(tensors) if isinstance(x, Tensor) else x for x in leaves], form
            )
            recorded = copy(state)
            recorded.now = unknown(progress, span)
            with state.clock.paused():
                flat_outputs[:], output_form = tree_flatten(work(recorded, *arguments))
            forms[:] = [output_form]
            return [x for x in flat_outputs if isinstance(x, Tensor)]

        flat.__name__ = name  # recorders count, and report failures, by phase
        inputs = [x for x in leaves if isinstance(x, Tensor)]
        with state.clock.aside("other"):
            replay = Replay(state.target.graphs.record, flat, inputs, self.static)
        outputs = iter(replay(inputs))
        result = tree_unflatten(
            [next(outputs) if isinstance(x, Tensor) else x for x in flat_outputs], forms[0]
        )
        self.static |= {id(x): x for x in tree_leaves(result) if isinstance(x, Tensor)}
        return replay, result


def spans(state: DecodeState) -> range:
    """How many slots the next step attends to, and all larger numbers: a timed decode then records
    nothing.
    """
    layout, drafted = state.cache.layout, state.max_step_slots
    slots = (
        layout.slots[max(state.now.length.host or (0,))]
        + 1
        + (2 * drafted + 1 if layout.width else drafted)
    )
    return range(-(-slots // SPAN) * SPAN, layout.capacity + SPAN, SPAN)


def unknown(progress: Progress, span: int | None) -> Progress:
    """``progress`` without the host's copy of its lengths."""
    last: LastCommit | None = progress.last
    if last is not None:
        progress = progress._replace(
            last=last._replace(advance=Lengths(last.advance.device, None, span=span))
        )
    return progress._replace(length=Lengths(progress.length.device, None, span=span))
