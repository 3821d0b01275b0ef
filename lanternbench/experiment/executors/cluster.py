"""A Ray cluster, joined or started for one sweep, and how its devices are shared out to workers."""

from __future__ import annotations

import os
import socket
import time
from typing import Any, NamedTuple

import torch

from lanternbench.errors import UserError

PATIENCE = 5.0  # seconds in which a cluster should answer, and its devices become free
STORE = 2**28  # bytes for results on their way, in a cluster of our own


class Crew(NamedTuple):
    """How many workers of which kind."""

    device: str
    workers: int
    threads: int  # of each

    @property
    def needs(self) -> dict[str, int]:
        """What Ray sets aside for each: a GPU, or CPUs."""
        return {"num_gpus": 1, "num_cpus": 0} if self.device == "cuda" else {"num_cpus": self.threads}


def ray() -> Any:
    """Ray's module.  Raises UserError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # what it says of lost nodes would go to stdout
    try:
        import ray
    except ImportError:
        raise UserError("--executor ray needs Ray: pip install 'lanternbench[ray]'") from None
    return ray


def connect(address: str | None, cpus: int) -> bool:
    """Join the cluster at ``address``, or start one that has at least ``cpus``; is the connection ours to close?

    Raises UserError when no cluster answers.  Where the caller is connected already, nothing changes.
    """
    if ray().is_initialized():
        return False
    where: dict[str, Any] = {"address": address}
    if not address or address == "local":
        here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        where = {"address": "local", "num_cpus": max(cpus, here), "num_gpus": torch.cuda.device_count()}
        where |= {"include_dashboard": False, "object_store_memory": STORE}
    try:
        if address and address not in ("local", "auto"):  # at one that does not answer Ray knocks for ever
            host, _, port = address.rpartition("//")[2].rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
        ray().init(**where, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
        what = f"no Ray cluster answers at {address}" if address else "Ray does not start here"
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{what} ({reason}): give HOST:PORT of a running one, or --executor local") from None
    return True


def divide(device: str, workers: int | None, threads: int | None) -> Crew:
    """The cluster's free devices as workers: as many as asked for, or one per GPU, or per ``threads`` CPUs (one).

    Raises UserError when there are not enough.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {device}: which GPU is Ray's choice; use auto, cpu or cuda")
    total = ray().cluster_resources()
    cpus, gpus = int(total.get("CPU", 1)), int(total.get("GPU", 0))
    device = ("cuda" if gpus else "cpu") if device == "auto" else device
    kind, have = ("GPU", gpus) if device == "cuda" else ("CPU", cpus)
    threads = threads or max(1, cpus // max(1, workers or have))
    each = 1 if kind == "GPU" else threads
    wanted, deadline = workers or max(1, have // each), time.monotonic() + PATIENCE
    while (free := int(ray().available_resources().get(kind, 0)) // each) < wanted <= have // each:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    if not free or (workers and free < workers):
        raise UserError(
            f"{wanted} worker(s) with {each} {kind}(s) each are more than the cluster has free ({free * each} of its "
            f"{have} {kind}s): wait, or give other --workers, --threads or --device"
        )
    return Crew(device, min(wanted, free), threads)
