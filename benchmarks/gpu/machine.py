"""The device that the pieces run on: the little that they ask of it beyond tensors."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from lanternbench.costs.forward_cost import bandwidth
from lanternbench.experiment.environment import environment
from lanternbench.utils.device import prepare_gpu
from lanternbench.utils.graph_capture import Graphs, Recorder, cuda_graph

WAITED = "called a synchronizing CUDA operation"  # of torch's sync debug mode


@dataclass(frozen=True)
class Machine:
    """``small``: a rehearsal, in shapes that any CPU can compute in a second; its times mean
    nothing.
    """

    device: str = "cuda"
    small: bool = False
    record: Recorder = cuda_graph

    def start(self) -> None:
        prepare_gpu(self.device)

    def graphs(self) -> Graphs:
        return Graphs(self.record)

    def name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def facts(self) -> dict[str, Any]:
        """Versions and hardware; the first GPU's own facts among them."""
        found = environment()
        gpus = found.pop("gpus")
        return found | {f"gpu {k}": v for k, v in (gpus[0] if gpus else {}).items()}

    def read_rate(self) -> float:
        """GB/s."""
        return bandwidth(torch.device(self.device)).best

    def wait(self) -> None:
        torch.cuda.synchronize()

    def host_waits(self, work: Callable[[], Any]) -> int:
        """How often the host waits for the device during ``work``."""
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum(WAITED in str(w.message) for w in said)

    def peak_bytes(self, work: Callable[[], Any]) -> int:
        """The most memory that tensors hold during ``work``, what they held before included."""
        self.free()
        torch.cuda.reset_peak_memory_stats()
        work()
        self.wait()
        return torch.cuda.max_memory_allocated()

    def free(self) -> None:
        """Give back what no tensor holds any more."""
        gc.collect()
        torch.cuda.empty_cache()

    def seconds(self, work: Callable[[], Any], repeats: int = 10) -> float:
        """The median of timed calls, after two that are not."""
        times = []
        for i in range(repeats + 2):
            self.wait()
            clock = perf_counter()
            work()
            self.wait()
            if i > 1:
                times.append(perf_counter() - clock)
        return median(times)


class Rehearsal(Machine):
    """Any CPU in the GPU's place: every line runs, and no figure means anything."""

    def start(self) -> None:
        torch.set_num_threads(1)

    def name(self) -> str:
        return f"{self.device}, rehearsing"

    def read_rate(self) -> float:
        return bandwidth(torch.device(self.device), seconds=0).best

    def wait(self) -> None:
        pass

    def host_waits(self, work: Callable[[], Any]) -> int:
        work()
        return 0

    def peak_bytes(self, work: Callable[[], Any]) -> int:
        work()
        return 0

    def free(self) -> None:
        gc.collect()

    def seconds(self, work: Callable[[], Any], repeats: int = 1) -> float:
        clock = perf_counter()
        work()
        return perf_counter() - clock


def again(work: Callable[..., Any], inputs: list[Tensor]) -> Callable[[], Any]:
    """In place of a CUDA graph where there is none: the work is done anew, into the same output
    tensors.
    """
    outputs = work(*inputs)

    def replay() -> Any:
        for own, new in zip(outputs, work(*inputs), strict=True):
            own.copy_(new)
        return outputs

    return replay


def rehearsal() -> Machine:
    return Rehearsal("cpu", True, again)
