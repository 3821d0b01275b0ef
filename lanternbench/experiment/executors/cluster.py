"""A Ray cluster, joined or started for one sweep, and how its devices are shared out to workers."""

import os
import socket
import subprocess
import sys
import time
from math import inf
from typing import Any

import torch

from lanternbench.errors import UserError

PULSE = 2.0  # seconds between two looks at the cluster's processes
RESTART = 20.0  # seconds in which they may be restarted; 60 after the control process is gone Ray ends this process
NEW_NODE = 180.0  # seconds without any node that could hold a worker
PATIENCE = 5.0  # seconds in which a cluster should answer, and its devices become free
CONTINUES = "the same command continues"
STORE = 2**28  # bytes for results on their way, in a cluster that this process starts


class Connection:
    """The processes through which this one reaches the cluster: the control process, and the raylet of its node.

    When the first is gone workers go on, but Ray ends this process after a minute.  When the second is gone so are the
    node's workers and its object store: Ray waits for other workers without end, and ends this process at once when it
    asks for a large object.
    """

    def __init__(self, kind: str = "CPU", count: int = 0) -> None:
        """``kind``, ``count``: what a node must have for a worker; Ray waits for such a node without end."""
        self.kind, self.count, self.no_node_since = kind, count, inf
        context, through_client = ray().get_runtime_context(), ray().util.client.ray.is_connected()  # of ray://
        nodes = [] if through_client else ray().nodes()
        node = next((node for node in nodes if node["NodeID"] == context.get_node_id()), None)
        self.control = str(context.gcs_address)
        self.raylet = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" if node else None

    def check(self) -> None:
        """Wait until both answer, as they should at once.  Raises UserError when one does not."""
        deadline = time.monotonic() + RESTART
        for process, address in (("control process", self.control), ("node process (raylet)", self.raylet)):
            while address and not is_listening(address):
                if time.monotonic() > deadline:
                    text = f"the {process} of the Ray cluster at {address} is gone: what is finished is kept"
                    raise UserError(f"{text}, and {CONTINUES} on a running cluster, or with --executor local")
                time.sleep(0.1)

    def check_nodes(self) -> None:
        """Raises UserError when no node could hold a worker for some minutes: a cluster may get another."""
        if any(node["Resources"].get(self.kind, 0) >= self.count for node in ray().nodes() if node["Alive"]):
            self.no_node_since = inf
            return
        self.no_node_since = min(self.no_node_since, time.monotonic())
        if time.monotonic() > self.no_node_since + NEW_NODE:
            text = f"no node that is left in the Ray cluster has {self.count} {self.kind}(s) for a worker"
            raise UserError(f"{text}: {CONTINUES} when it has such a node again, or with --executor local")

    def has_store(self) -> bool:
        """May objects be asked for?"""
        return self.raylet is None or is_listening(self.raylet)


def is_listening(address: str) -> bool:
    """Does anyone at HOST:PORT?"""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def ray() -> Any:
    """Ray's module.  Raises UserError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: a busy machine starves it
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # its reports of lost nodes would go to stdout
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
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        where = {"address": "local", "num_cpus": max(cpus, cores), "num_gpus": torch.cuda.device_count()}
        where |= {"include_dashboard": False, "object_store_memory": STORE}
    elif not address.startswith("ray://"):
        check_reachable(address)
    try:
        ray().init(**where, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
        raise no_cluster(address, str(error)) from None
    return True


def check_reachable(address: str) -> None:
    """Raises UserError where no cluster answers: asked itself, Ray retries for minutes and prints each failure."""
    ask = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        if address != "auto" and not is_listening(address):
            raise no_cluster(address, "nobody listens there")
        subprocess.run(ask, check=True, capture_output=True, timeout=3 * PATIENCE)
    except ValueError:
        raise no_cluster(address, "it has no port") from None
    except subprocess.SubprocessError:
        reason = "Ray's health check fails; if it wants tokens, set RAY_AUTH_MODE=token"
        raise no_cluster(address, reason) from None


def no_cluster(address: str | None, reason: str) -> UserError:
    """What to say when Ray does not start, or cannot be reached."""
    what = f"no Ray cluster answers at {address}" if address else "Ray does not start here"
    first = reason.strip().partition("\n")[0]
    return UserError(f"{what} ({first}): give HOST:PORT of a running one, or --executor local")


def divide(device: str, workers: int | None, threads: int | None) -> tuple[str, int, int]:
    """(device, workers, threads of each): one per GPU or ``threads`` CPUs, or so many.  Raises UserError if too few."""
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {device}: which GPU is Ray's choice; use auto, cpu or cuda")
    total = ray().cluster_resources()
    cpus, gpus = int(total.get("CPU", 1)), int(total.get("GPU", 0))
    device = ("cuda" if gpus else "cpu") if device == "auto" else device
    kind, have = ("GPU", gpus) if device == "cuda" else ("CPU", cpus)
    threads = threads or max(1, cpus // max(1, workers or have))
    each = 1 if kind == "GPU" else threads
    count, deadline = workers or max(1, have // each), time.monotonic() + PATIENCE
    while (free := int(ray().available_resources().get(kind, 0)) // each) < count <= have // each:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    if not free or (workers and free < workers):
        text = f"{count} worker(s) with {each} {kind}(s) each are more than the cluster has free"
        text += f" ({free * each} of its {have} {kind}s)"
        raise UserError(f"{text}: wait, or give other --workers, --threads or --device")
    return device, min(count, free), threads
