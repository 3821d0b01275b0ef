"""An executor on a Ray cluster: workers that load the models once, and take units until none is
left.

The cluster is joined, or started for one sweep, and its devices are shared out to the workers.
"""

import os
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import torch

from lanternbench.costs.forward_cost import memory_rate
from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import Device
from lanternbench.experiment.worker import (
    Executor,
    Facts,
    Finished,
    Job,
    OnStep,
    Say,
    Unit,
    Worker,
    add_costs,
)
from lanternbench.measure.summary import Costs
from lanternbench.settings import Sweep
from lanternbench.utils.device import request_threads
from lanternbench.utils.memory import peak_memory

ATTEMPTS = 3  # workers that may be lost over one thing
# samples, what their scores took, and the peak of memory in bytes
Answer = tuple[list[Finished], Costs, int | None]
# Ray's reference -> worker, and the unit it is at; an empty one warms up
Calls = dict[Any, tuple[Any, Unit]]
PULSE = 2.0  # seconds between two looks at the cluster's processes
# seconds in which they may be restarted; 60 after the control process is gone Ray ends this
# process
RESTART = 20.0
NEW_NODE = 180.0  # seconds without any node that could hold a worker
PATIENCE = 5.0  # seconds in which a cluster should answer, and its devices become free
CONTINUES = "the same command continues"
STORE = 2**28  # bytes for results on their way, in a cluster that this process starts


class Connection:
    """The processes through which this one reaches the cluster: the control process, and the
    raylet of its node.

    When the first is gone workers go on, but Ray ends this process after a minute.  When the
    second is gone so are the node's workers and its object store: Ray waits for other workers
    without end, and ends this process at once when it asks for a large object.
    """

    def __init__(self, kind: str = "CPU", count: int = 0) -> None:
        """``kind``, ``count``: what a node must have for a worker; Ray waits for such a node
        without end.
        """
        self.kind, self.count, self.no_node_since = kind, count, inf
        # of ray://
        context, through_client = ray().get_runtime_context(), ray().util.client.ray.is_connected()
        nodes = [] if through_client else ray().nodes()
        node = next((node for node in nodes if node["NodeID"] == context.get_node_id()), None)
        self.control = str(context.gcs_address)
        self.raylet = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" if node else None

    def check(self) -> None:
        """Wait until both answer, as they should at once.  Raises UserError when one does not."""
        deadline = time.monotonic() + RESTART
        for process, address in (
            ("control process", self.control),
            ("node process (raylet)", self.raylet),
        ):
            while address and not is_listening(address):
                if time.monotonic() > deadline:
                    raise UserError(
                        f"the {process} of the Ray cluster at {address} is gone: what is finished is kept,"
                        f" and {CONTINUES} on a running cluster, or with --executor local"
                    )
                time.sleep(0.1)

    def check_nodes(self) -> None:
        """Raises UserError when no node could hold a worker for some minutes: a cluster may get
        another.
        """
        if any(
            node["Resources"].get(self.kind, 0) >= self.count
            for node in ray().nodes()
            if node["Alive"]
        ):
            self.no_node_since = inf
            return
        self.no_node_since = min(self.no_node_since, time.monotonic())
        if time.monotonic() > self.no_node_since + NEW_NODE:
            raise UserError(
                f"no node that is left in the Ray cluster has {self.count} {self.kind}(s) for a worker:"
                f" {CONTINUES} when it has such a node again, or with --executor local"
            )


def is_listening(address: str) -> bool:
    """Return whether a process listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    with suppress(OSError):
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
        return True
    return False


def ray() -> Any:
    """Return Ray's module.  Raises UserError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: a busy machine starves it
    # its reports of lost nodes would go to stdout
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
    try:
        import ray
    except ImportError:
        raise UserError("--executor ray needs Ray: pip install 'lanternbench[ray]'") from None
    return ray


def connect(address: str | None, cpus: int) -> bool:
    """Join the cluster at ``address``, or start one that has at least ``cpus``; return whether
    the connection is ours to close.

    Raises UserError when no cluster answers.  If the caller is connected already, nothing
    changes.
    """
    if ray().is_initialized():
        return False
    where: dict[str, object] = {"address": address}
    if not address or address == "local":
        cores = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        where = {
            "address": "local",
            "num_cpus": max(cpus, cores),
            "num_gpus": torch.cuda.device_count(),
            "include_dashboard": False,
            "object_store_memory": STORE,
        }
    elif not address.startswith("ray://"):
        check_reachable(address)
    try:
        ray().init(**where, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
        raise no_cluster(address, str(error)) from None
    return True


def check_reachable(address: str) -> None:
    """Raise UserError if no cluster answers: asked itself, Ray retries for minutes and prints
    each failure.
    """
    ask = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        if address != "auto" and not is_listening(address):
            raise no_cluster(address, "nobody listens there")
        subprocess.run(ask, check=True, capture_output=True, timeout=3 * PATIENCE)
    except ValueError:
        raise no_cluster(address, "it has no port") from None
    except subprocess.SubprocessError:
        raise no_cluster(
            address, "Ray's health check fails; if it wants tokens, set RAY_AUTH_MODE=token"
        ) from None


def no_cluster(address: str | None, reason: str) -> UserError:
    """Return the error for a Ray that does not start, or cannot be reached."""
    what = f"no Ray cluster answers at {address}" if address else "Ray does not start here"
    first = reason.strip().partition("\n")[0]
    return UserError(f"{what} ({first}): give HOST:PORT of a running one, or --executor local")


def divide(device: str, workers: int | None, threads: int | None) -> tuple[str, int, int]:
    """Return (device, workers, threads of each): one per GPU or ``threads`` CPUs, or so many.  Raises
    UserError if too few.
    """
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
        raise UserError(
            f"{count} worker(s) with {each} {kind}(s) each are more than the cluster has free"
            f" ({free * each} of its {have} {kind}s): wait, or give other --workers, --threads or"
            " --device"
        )
    return device, min(count, free), threads


class WorkerLost(Exception):
    """A worker died, or cannot be reached."""


class RayWorker:
    """A worker in a process of Ray's; its first call loads the models, so that errors reach the
    caller.
    """

    def __init__(self, config: Sweep, device: str, threads: int, folder: Path):
        self.config, self.device, self.threads, self.folder = config, device, threads, folder

    @cached_property
    def worker(self) -> Worker:
        with suppress(OSError):  # paths in the configuration are relative to the caller's folder
            os.chdir(self.folder)
        request_threads(self.threads)
        return Worker(self.config, self.device)

    def facts(self) -> Facts:
        return self.worker.facts()

    def memory_rate(self) -> float:
        return memory_rate(self.device)

    def warm_up(self, names: list[str], texts: list[str], caption: str) -> Answer:
        self.worker.prepare(texts)
        for label in names:
            self.worker.warm_up(label, caption)
        return [], {}, peak_memory()

    def work(self, job: Job) -> Answer:
        node = ray().get_runtime_context().get_node_id()[:8]
        name = torch.cuda.get_device_name() if self.device == "cuda" else "CPU"
        samples = []
        for one in self.worker.work(job):
            where = Device(key=one.sample.key, node=node, process=os.getpid(), device=name)
            samples.append(one._replace(where=where))
        costs, self.worker.costs = self.worker.costs, {}
        return samples, costs, peak_memory()


class RayExecutor(Executor):
    """The driver's side: hands out units, restarts lost workers, and ends all at the end."""

    def __init__(
        self, workers: int | None = None, threads: int | None = None, address: str | None = None
    ):
        """See ``divide`` for the defaults.  Raises UserError where Ray is not installed."""
        self._ray, self.workers, self.threads = ray(), workers, threads
        self.address = address or os.environ.get("RAY_ADDRESS")
        super().__init__()
        self.pool: list[Any] = []
        self._losses: Counter[str] = Counter()
        self._ours = False
        self._peak = 0

    def start(self, config: Sweep, device: str, units: int) -> Facts:
        self._ours = connect(self.address, (self.workers or 1) * (self.threads or 1))
        self.device, workers, threads = divide(device, self.workers, self.threads)
        count, where = min(workers, units), self.device
        cpus, gpus = (0, 1) if where == "cuda" else (threads, 0)
        self.connection = Connection("GPU" if gpus else "CPU", gpus or cpus)
        remote = self._ray.remote(num_cpus=cpus, num_gpus=gpus)(RayWorker)
        self._start_worker = lambda: remote.remote(config, where, threads, Path.cwd())
        self.pool = [self._start_worker() for _ in range(count)]
        while True:
            try:
                facts: Facts = self._get(self._first([self.pool[0].facts.remote()]))
                return facts.run_by("ray", count)
            except WorkerLost:
                self._replace(self.pool[0], "the loading of the models")

    def memory_rate(self) -> float | None:
        with suppress(WorkerLost):
            rate: float = self._get(self._first([self.pool[0].memory_rate.remote()]))
            return rate
        return None

    def estimate(self, units: list[Unit]) -> dict[str, float]:
        return {}

    def samples(
        self, units: list[Unit], caption: str, say: Say, on_step: OnStep | None = None
    ) -> Iterator[Finished]:
        calls: Calls = {}
        try:
            yield from self._samples(calls, units, caption, say)
        except (Exception, KeyboardInterrupt):
            yield from self._finished(calls)
            raise
        finally:
            self._dismiss()

    def _samples(
        self, calls: Calls, units: list[Unit], caption: str, say: Say
    ) -> Iterator[Finished]:
        todo, idle, begun = deque(units), list[Any](), False
        names, texts = self.named(units)

        def ask(worker: Any, unit: Unit) -> None:
            say(str(unit[0]) if unit else f"warming up {len(self.pool)} workers")
            call = (
                worker.work.remote(unit[0])
                if unit
                else worker.warm_up.remote(names, texts, caption)
            )
            calls[call] = worker, unit

        ask(self.pool[0], [])  # alone: the others find what it keeps of the text encoder's work
        while todo or any(unit for _, unit in calls.values()):
            if not calls and not begun:  # all are warm before any is timed
                cold = [worker for worker in self.pool if worker not in idle]
                begun = not cold
                for worker in cold:
                    ask(worker, [])
            while begun and todo and idle:
                ask(idle.pop(0), todo.popleft())
            call = self._first(list(calls))
            worker, unit = calls.pop(call)
            what = str(unit[0]) if unit else "a warm-up"
            try:
                answer = self._get(call)
            except WorkerLost:
                ask(self._replace(worker, what), [])
                todo.extendleft([unit] if unit else [])
                continue
            self._losses.pop(what, None)
            yield from self._counted(answer)
            if unit[1:]:
                ask(worker, unit[1:])
            else:
                idle.append(worker)

    def _finished(self, calls: Calls) -> Iterator[Finished]:
        """Yield what was finished while something else failed; nothing if the node's object store
        is gone.
        """
        if calls and (self.connection.raylet is None or is_listening(self.connection.raylet)):
            for call in self._ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
                with suppress(self._ray.exceptions.RayError):
                    yield from self._counted(self._ray.get(call))

    def _counted(self, answer: Answer) -> list[Finished]:
        """Return the samples of an answer, and count its costs and memory."""
        samples, costs, peak = answer
        add_costs(self.costs, costs)
        self._peak = max(self._peak, peak or 0)
        return samples

    def _first(self, calls: list[Any]) -> Any:
        """Return the first of them that ends.  Raises UserError when the cluster is out of reach or has
        no fitting node.
        """
        self.connection.check()
        while not (ended := self._ray.wait(calls, timeout=PULSE, fetch_local=False)[0]):
            self.connection.check()
            # not before: Ray waits a minute for a lost control process, and ends us
            self.connection.check_nodes()
        return ended[0]

    def _get(self, call: Any) -> Any:
        """Return a worker's result.  Raises its errors, WorkerLost without one, UserError without a
        cluster.
        """
        self.connection.check()
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise (
                UserError(str(error.cause)) if isinstance(error.cause, UserError) else error
            ) from None
        except self._ray.exceptions.RayError as error:
            raise WorkerLost from error

    def _replace(self, worker: Any, what: str) -> Any:
        """Start another worker for one that was lost over ``what``.  Raises UserError if others were
        before it.

        Ray's ``max_task_retries`` repeats a call before a lost node is known to be lost, and
        writes to the terminal.
        """
        self.connection.check()
        self._ray.kill(worker)  # it may be out of reach only
        self._losses[what] += 1
        if self._losses[what] >= ATTEMPTS:
            raise UserError(
                f"lost {self._losses[what]} worker(s) in turn over {what}, perhaps for want of memory:"
                " give fewer --workers; what is finished is kept, and the same command continues"
            )
        self.pool[self.pool.index(worker)] = started = self._start_worker()
        return started

    def notes(self) -> Iterator[str]:
        if self.device == "cpu" and self._peak:
            yield f"The largest of the workers held {self._peak / 1e6:,.0f} MB at its peak."

    def _dismiss(self) -> None:
        while self.pool:
            self._ray.kill(self.pool.pop())

    def close(self) -> None:
        if self._ray.is_initialized():
            self._dismiss()
        if self._ours:
            self._ours = False
            self._ray.shutdown()
