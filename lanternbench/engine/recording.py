"""The phases of a step as CUDA graphs, recorded once per shape, then each replayed by one launch.

A replay runs kernels and no Python.  Everything that a phase reads of the current decode is
therefore an input tensor; the length that the host knows enters only as the number of cache slots
to attend to, and only into the phases that ask for it.

Later phases of the same step read in place what a phase returns.  What outlives a step (the
strategy's state, lengths, the last commit) is copied into the inputs of the next one, so no replay
overwrites what is still to be read.  Graphs of one phase share their memory: one of them runs in a
step.
"""

from collections.abc import Callable, Hashable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from lanternbench.engine.cache import Lengths, Span
from lanternbench.engine.carry import leaves, mapped
from lanternbench.engine.state import DecodeState, LastCommit, Progress
from lanternbench.engine.timing import Moment
from lanternbench.utils.graph_capture import Graphs, Pool, Replay, storage_of

Work = Callable[..., Any]  # (state, *arguments) -> tensors in any nesting
T = TypeVar("T")
SPAN = 512  # a recorded forward pass attends to a multiple of this many slots
READ_LAST_COMMIT = ("draft", "update")  # phases; its shape differs after the prefill


class Call:
    """One call of a phase: what it reads of the decode, and its arguments."""

    def __init__(self, name: str, work: Work, progress: Progress, arguments: tuple[Any, ...]):
        self.name = name
        self.work = work
        self.reads = (progress, arguments)
        parts = leaves(self.reads)
        self.inputs = [x for x in parts if isinstance(x, Tensor)]
        # shapes of its tensors, and its numbers
        self.sizes: list[object] = [x.shape for x in self.inputs]
        self.sizes += [x for x in parts if isinstance(x, int)]


def with_tensors(state: T, tensors: Iterable[Tensor]) -> T:
    """Return a nesting of values with other tensors."""
    others = iter(tensors)
    return mapped(lambda x: next(others) if isinstance(x, Tensor) else x, state)


@dataclass(frozen=True)
class Recording:
    """A recorded phase."""

    replay: Replay
    result: Any  # of every replay
    shares: dict[str, float]  # of forward passes and other work in its time, see ``Clock``


class Recordings:
    """The recorded phases of one decoder; they outlive a decode."""

    def __init__(self) -> None:
        # by span and shape; span None: the phase reads no cache
        self.replays: dict[tuple[int | None, Hashable], Recording] = {}
        # what the phases of this step have returned
        self.results: list[Any] = []
        self.pools: dict[str, list[Pool]] = {}  # by phase

    def replay(
        self,
        state: DecodeState,
        bucket: Hashable,
        reach: int,
        name: str,
        work: Work,
        *arguments: Any,
    ) -> Any:
        """Return ``work(state, *arguments)``, recorded on the first call.

        The outputs are valid until the next replay.  ``bucket``: a key for shapes of drafts that
        the arguments' tensors do not show; ``reach``: how many cache slots are read at most.
        """
        if name == "draft":
            self.results.clear()
        progress = unknown(state.now, with_last=name in READ_LAST_COMMIT)
        call = Call(name, work, progress, arguments)
        # another capacity means another cache
        shape = (name, bucket, state.cache.layout.capacity, *call.sizes)
        recording = self._recorded(state, call, shape, reach)
        recording.replay.load(call.inputs)
        state.clock.tick("other")
        recording.replay.run()
        state.clock.tick(name, recording.shares)
        self.results.append(recording.result)
        return recording.result

    def _recorded(self, state: DecodeState, call: Call, shape: Hashable, reach: int) -> Recording:
        """Return the recording of a call, made now if there is none.

        Those for all larger numbers of slots are made too, so that a timed decode records nothing.
        """
        slots = -(-reach // SPAN) * SPAN
        for key in ((None, shape), (slots, shape)):
            if key in self.replays:
                return self.replays[key]
        for larger in range(slots, state.cache.layout.capacity + SPAN, SPAN):
            if (larger, shape) not in self.replays:
                span = Span(min(larger, state.cache.layout.capacity))
                recorded = self._record(state, call, span)
                if not span.asked:
                    self.replays[None, shape] = recorded
                    return recorded
                self.replays[larger, shape] = recorded
        return self.replays[slots, shape]

    def _record(self, state: DecodeState, call: Call, span: Span) -> Recording:
        assert state.target.graphs is not None
        graphs: Graphs = state.target.graphs
        returned: list[Any] = []
        marks: list[Moment] = []

        def flat(*inputs: Tensor) -> list[Tensor]:
            progress, arguments = with_tensors(call.reads, inputs)
            recorded = copy(state)
            recorded.now = progress
            recorded.span = span
            with state.clock.recording(marks):
                result = call.work(recorded, *arguments)
            if call.name == "update":
                shared = [x for x in inputs if id(x) not in tables]
                result = unshared(result, shared)
            returned[:] = [result]
            return [x for x in leaves(result) if isinstance(x, Tensor)]

        flat.__name__ = call.name  # recorders count, and report failures, by phase
        tables = {id(x) for x in state.tables}
        of_this_step = {id(x) for x in leaves(self.results) if isinstance(x, Tensor)}
        recorder = graphs.recorder(self.pools.setdefault(call.name, []))
        with state.clock.aside("other"):
            replay = Replay(recorder, flat, call.inputs, of_this_step | tables)
            outputs = replay(call.inputs)
            shares = state.clock.shares(marks)
        return Recording(replay, with_tensors(returned[0], outputs), shares)


def unshared(state: T, inputs: list[Tensor]) -> T:
    """Copy the tensors that are inputs, or views of them: the next step overwrites these."""
    storages = {storage_of(x) for x in inputs}

    def own(x: Any) -> Any:
        if isinstance(x, Tensor) and storage_of(x) in storages:
            return x.clone()
        return x

    return mapped(own, state)


def unknown(progress: Progress, with_last: bool) -> Progress:
    """Return ``progress`` without the host's copy of its lengths."""
    last: LastCommit | None = None
    if with_last:
        last = progress.last._replace(advance=Lengths(progress.last.advance.device, None))
    length = Lengths(progress.length.device, None)
    return progress._replace(length=length, last=last)  # type: ignore[arg-type]
