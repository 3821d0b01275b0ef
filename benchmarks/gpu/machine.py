"""The device that the pieces run on: what they ask of it in addition to tensors."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from lanternbench.costs.forward_cost import bandwidth
from lanternbench.costs.roofline import DeviceModel
from lanternbench.experiment.environment import environment
from lanternbench.models.compiled import Inductor
from lanternbench.utils.device import prepare_gpu
from lanternbench.utils.graph_capture import Graphs, Recorder, Work, cuda_graph

WAITED = "called a synchronizing CUDA operation"  # of torch's sync debug mode
LAUNCHES = 1000
SIDE = 8192  # of the matrices whose product is timed
DTYPE = "bfloat16"


@dataclass(frozen=True)
class Machine:
    """A GPU; ``small``: a rehearsal, in shapes that any CPU computes in a second."""

    device: str = "cuda"
    small: bool = False
    record: Recorder = cuda_graph

    def start(self) -> None:
        prepare_gpu(self.device)

    def graphs(self) -> Graphs:
        return Graphs(self.record)

    def compiled(self) -> Graphs:
        """Return graphs with fused kernels."""
        return Inductor(self.device)

    def name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def facts(self) -> dict[str, object]:
        """Return versions and hardware, the facts of the first GPU among them."""
        found = environment()
        gpus = found.pop("gpus")
        first = gpus[0] if gpus else {}
        return found | {f"gpu {key}": value for key, value in first.items()}

    def rates(self, seconds: float = 1.0) -> DeviceModel:
        """Measure the four rates that explain a step: of memory, products and launches."""
        return DeviceModel(
            name=self.name(),
            about="measured here",
            bandwidth=bandwidth(torch.device(self.device), seconds).best,
            memory=self.memory_gb(),
            tflops={DTYPE: self._tflops()},
            gap=1e6 * self._recorded_kernel_s(),
            issue=1e6 * self._launched_kernel_s(),
            source="measured here",
        )

    def memory_gb(self) -> float:
        return torch.cuda.get_device_properties(self.device).total_memory / 1e9

    def _tflops(self) -> float:
        side = 64 if self.small else SIDE
        a = torch.randn(side, side, device=self.device, dtype=getattr(torch, DTYPE))
        return 2 * side**3 / self.seconds(lambda: a @ a) / 1e12

    def _launched_kernel_s(self) -> float:
        x = torch.zeros(8, device=self.device)

        def launch() -> None:
            for _ in range(LAUNCHES):
                x.add_(1.0)

        return self.seconds(launch, 3) / LAUNCHES

    def _recorded_kernel_s(self) -> float:
        x = torch.zeros(8, device=self.device)
        replay = self.record(lambda: [x + 1.0 for _ in range(LAUNCHES)], [])
        return self.seconds(replay, 3) / LAUNCHES

    def wait(self) -> None:
        torch.cuda.synchronize()

    def host_waits(self, work: Callable[[], object]) -> int | None:
        """Return how often the host waits for the device during ``work``; None if this machine
        cannot tell.
        """
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum(WAITED in str(warning.message) for warning in caught)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Return the most memory that torch reserves during ``work``, in graphs' pools too, with
        what is held before.
        """
        self.free()
        torch.cuda.reset_peak_memory_stats()
        work()
        self.wait()
        return torch.cuda.max_memory_reserved()

    def free(self) -> None:
        """Give back what no tensor holds any more."""
        gc.collect()
        torch.cuda.empty_cache()

    def seconds(self, work: Callable[[], object], repeats: int = 10) -> float:
        """Return the median of timed calls, after two that are not timed."""
        times = []
        for i in range(repeats + 2):
            self.wait()
            began = perf_counter()
            work()
            self.wait()
            if i > 1:
                times.append(perf_counter() - began)
        return median(times)


class Rehearsal(Machine):
    """A CPU in place of the GPU: every line runs, and no figure means anything."""

    def start(self) -> None:
        torch.set_num_threads(1)

    def compiled(self) -> Graphs:
        return self.graphs()

    def name(self) -> str:
        return f"{self.device}, rehearsing"

    def rates(self, seconds: float = 0.0) -> DeviceModel:
        return super().rates(seconds)

    def memory_gb(self) -> float:
        return 1.0

    def wait(self) -> None:
        pass

    def host_waits(self, work: Callable[[], object]) -> int | None:
        work()
        return None

    def peak_bytes(self, work: Callable[[], object]) -> int:
        work()
        return 0

    def free(self) -> None:
        gc.collect()

    def seconds(self, work: Callable[[], object], repeats: int = 1) -> float:
        began = perf_counter()
        work()
        return perf_counter() - began


def again(work: Work, inputs: list[Tensor]) -> Callable[[], list[Tensor]]:
    """Stand in for a CUDA graph: a replay does the work again, into the same output tensors."""
    outputs = work(*inputs)

    def replay() -> list[Tensor]:
        for output, result in zip(outputs, work(*inputs), strict=True):
            output.copy_(result)
        return outputs

    return replay


def rehearsal() -> Machine:
    return Rehearsal("cpu", True, again)
