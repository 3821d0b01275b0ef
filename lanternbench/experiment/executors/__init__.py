"""Executors by name: ``local`` and ``ray``."""

from __future__ import annotations

from lanternbench.errors import UserError
from lanternbench.experiment.executors.base import Executor, Finished, Unit
from lanternbench.experiment.executors.local import LocalExecutor

__all__ = ["Executor", "Finished", "LocalExecutor", "Unit", "executor"]


def executor(
    name: str = "local", workers: int | None = None, threads: int | None = None, address: str | None = None
) -> Executor:
    """The executor of this name; the rest is for ``ray`` alone.  Raises UserError if it is unknown or not there."""
    if name == "ray":
        from lanternbench.experiment.executors.ray import RayExecutor

        return RayExecutor(workers, threads, address)
    if name != "local":
        raise UserError(f"unknown executor '{name}': use local or ray")
    if workers or address:
        raise UserError(f"{'--workers' if workers else '--ray-address'} goes with --executor ray: give that too")
    return LocalExecutor()
