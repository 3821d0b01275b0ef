"""A clock that torch's operations advance, a millisecond each: figures of time are counts,
whatever else runs.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from lanternbench.costs import forward_cost
from lanternbench.engine import decode, timing


class CountedClock(TorchDispatchMode):
    """Stands in for the host's clock and the process's CPU time while it is entered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        super().__init__()
        self.seconds = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.seconds)
        for module in (forward_cost, decode, timing):
            monkeypatch.setattr(module, "perf_counter", lambda: self.seconds)
        monkeypatch.setattr(timing, "process_time", lambda: self.seconds)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seconds += 1e-3
        return func(*args, **(kwargs or {}))
