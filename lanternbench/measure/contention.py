"""Detect measurements that other programs on the machine disturbed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lanternbench.measure.figures import Figures
from lanternbench.notes import Note

SLOW_SHARE = 0.02  # of steps that took twice their median or more
IDLE_SHARE = 0.8  # CPU seconds per second of wall time, on a CPU


def contention(figures: Figures, environment: Mapping[str, Any]) -> Note | None:
    """A warning, with advice, if other programs used the machine during the measurement; None without signs of it.

    Signs: a load average above the cores, steps that took twice their median or more, less CPU time than wall time.
    """
    everywhere = figures.column("load")[1] >= 0
    load, slow, busy = (figures.ratio(name, everywhere) for name in ("load", "slow_steps", "cpu_share"))
    cores, on_cpu = environment.get("cores"), str(environment.get("device") or "cpu").startswith("cpu")
    marks = []
    if load is not None and isinstance(cores, int) and load > cores:
        marks.append(f"the load was {load:.1f} on {cores} cores")
    if slow is not None and slow > SLOW_SHARE:
        marks.append(f"{slow:.1%} of the steps took more than twice their median")
    if busy is not None and on_cpu and busy < IDLE_SHARE:
        marks.append(f"decoding had the CPU for {busy:.0%} of its time")
    if not marks:
        return None
    return Note(
        "unfit",
        "latency_s",
        f"The clock was disturbed ({'; '.join(marks)}): stop other programs or give fewer --threads and measure again, "
        "or read the robust speedup.",
    )
