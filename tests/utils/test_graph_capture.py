"""Recording: what it holds, copies and says, with stand-ins for CUDA."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from lanternbench.errors import UserError
from lanternbench.utils import graph_capture
from lanternbench.utils.graph_capture import Graphs, Replay, _Reads, cuda_graph


def once(work, inputs):
    """A recorder whose replays return what the work returned when it was recorded."""
    outputs = work(*inputs)
    return lambda: outputs


def test_no_intermediate_outlives_its_use_while_work_is_recorded():
    x, weight = torch.ones(64), torch.ones(64)
    with _Reads() as reads:
        for _ in range(50):
            x = x * weight
        assert len(reads.created) <= 2
    assert len(reads.inputs) == 2  # the first x, and the weight


def test_an_address_that_is_used_again_counts_by_its_new_owner():
    with _Reads() as reads:
        for _ in range(50):
            made = torch.ones(64) * 2
            del made
    assert reads.inputs == {}
    assert reads.created == {}


def test_inputs_that_work_does_not_read_are_not_copied():
    replay = Replay(
        once, lambda read, returned, unread: [read + 1, returned], [*torch.zeros(3, 1)]
    )
    replay.load([*torch.ones(3, 1)])
    assert [float(x) for x in replay.inputs] == [1.0, 1.0, 0.0]


def test_work_without_kernels_needs_no_graph():
    def never(work, inputs):
        raise AssertionError("recorded")

    replay = Replay(never, lambda x: [x[:, None]], [torch.zeros(2)])
    (output,) = replay([torch.tensor([3.0, 4.0])])
    assert output.tolist() == [[3.0], [4.0]]


def test_what_has_a_fixed_address_is_read_where_it_is():
    table = torch.zeros(2)
    replay = Replay(once, lambda table, x: [table + x], [table, torch.zeros(2)], {id(table)})
    assert replay.inputs[0] is table


@pytest.fixture
def cuda(monkeypatch):
    """Stand-ins for torch.cuda: devices and streams in use, in the order in which they are."""
    used = []

    @contextmanager
    def device(chosen):
        used.append(f"device {chosen}")
        yield

    class Capture:
        def __init__(self, graph, pool, stream, capture_error_mode):
            used.append(f"capture on {stream} in {pool}")

        def __enter__(self):
            return None

        def __exit__(self, kind, error, trace):
            if error is not None:
                raise RuntimeError("operation failed due to a previous error during capture")

    class Stream:
        def __init__(self, device):
            used.append(f"new stream of {device}")
            self.device = device

        def wait_stream(self, other):
            return None

        def __repr__(self):
            return f"side stream of {self.device}"

    graph_capture.side_stream.cache_clear()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: MagicMock())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", MagicMock)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    yield used
    graph_capture.side_stream.cache_clear()


def failing(error, at):
    calls = 0

    def work(*inputs):
        nonlocal calls
        calls += 1
        if calls >= at:
            raise error
        return []

    return work


def test_a_failed_capture_says_its_first_error(cuda):
    with pytest.raises(UserError, match=r"graph \(operation not permitted at op X\); give"):
        cuda_graph(failing(RuntimeError("operation not permitted at op X"), 3), [])


@pytest.mark.parametrize("at", [1, 3])
def test_running_out_of_memory_is_not_a_step_that_cannot_be_recorded(cuda, at):
    with pytest.raises(torch.OutOfMemoryError, match="2 GiB"):
        cuda_graph(failing(torch.OutOfMemoryError("tried to allocate 2 GiB"), at), [])


def test_graphs_of_one_device_share_a_stream_and_each_device_has_its_own(cuda):
    for number in (0, 1, 1):
        x = SimpleNamespace(is_cuda=True, device=torch.device("cuda", number))
        cuda_graph(lambda x: [], [x])
    assert cuda == [
        "device cuda:0",
        "new stream of cuda:0",
        "capture on side stream of cuda:0 in None",
        "device cuda:1",
        "new stream of cuda:1",
        "capture on side stream of cuda:1 in None",
        "device cuda:1",
        "capture on side stream of cuda:1 in None",
    ]


def test_graphs_of_a_phase_share_their_memory(cuda):
    pool = []
    for _ in range(2):
        Graphs().recorder(pool)(list, [])
    assert pool == ["pool"]
    assert [line for line in cuda if "in pool" in line] == [
        "capture on side stream of cuda:0 in pool"
    ] * 2
