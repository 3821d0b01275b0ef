"""An executor on a Ray cluster: workers that load the models once, and take units until none is left."""

import os
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from lanternbench.errors import UserError
from lanternbench.experiment.config import Sweep
from lanternbench.experiment.executors import Executor, Finished, Say, Unit, captions, cluster, labels, peak_mb
from lanternbench.experiment.worker import Facts, Job, OnStep, Worker, add_costs
from lanternbench.measure.summary import Costs
from lanternbench.utils.device import request_threads

ATTEMPTS = 3  # workers that may be lost over one thing
Answer = tuple[list[Finished], Costs, float]  # samples, what their scores took, peak memory in MB
Calls = dict[Any, tuple[Any, Unit]]  # Ray's reference -> worker, and the unit it is at; an empty one warms up


class WorkerLost(Exception):
    """A worker died, or cannot be reached."""


class RayWorker:
    """A worker in a process of Ray's; its first call loads the models, so that errors reach the caller."""

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

    def warm_up(self, names: list[str], texts: list[str], caption: str) -> Answer:
        self.worker.prepare(texts)
        for label in names:
            self.worker.warm_up(label, caption)
        return [], {}, peak_mb()

    def work(self, job: Job) -> Answer:
        node = cluster.ray().get_runtime_context().get_node_id()[:8]
        name = torch.cuda.get_device_name() if self.device == "cuda" else "CPU"
        where = {"node": node, "process": os.getpid(), "device": name}
        samples = [Finished(sample, image, where) for sample, image in self.worker.work(job)]
        costs, self.worker.costs = self.worker.costs, {}
        return samples, costs, peak_mb()


class RayExecutor(Executor):
    """The driver's side: hands out units, restarts lost workers, and ends all at the end."""

    def __init__(self, workers: int | None = None, threads: int | None = None, address: str | None = None):
        """See ``cluster.divide`` for the defaults.  Raises UserError where Ray is not installed."""
        self._ray, self.workers, self.threads = cluster.ray(), workers, threads
        self.address = address or os.environ.get("RAY_ADDRESS")
        super().__init__()
        self.pool: list[Any] = []
        self._losses: Counter[str] = Counter()
        self._ours, self._peak = False, 0.0

    def start(self, config: Sweep, device: str, units: int) -> Facts:
        self._ours = cluster.connect(self.address, (self.workers or 1) * (self.threads or 1))
        self.device, workers, threads = cluster.divide(device, self.workers, self.threads)
        count, where = min(workers, units), self.device
        cpus, gpus = (0, 1) if where == "cuda" else (threads, 0)
        self.connection = cluster.Connection("GPU" if gpus else "CPU", gpus or cpus)
        remote = self._ray.remote(num_cpus=cpus, num_gpus=gpus)(RayWorker)
        self._start_worker = lambda: remote.remote(config, where, threads, Path.cwd())
        self.pool = [self._start_worker() for _ in range(count)]
        while True:
            try:
                facts: Facts = self._get(self._first([self.pool[0].facts.remote()]))
                return facts._replace(environment=facts.environment | {"executor": "ray", "workers": count})
            except WorkerLost:
                self._replace(self.pool[0], "the loading of the models")

    def estimate(self, labels: list[str], captions: list[str]) -> dict[str, float]:
        return {}

    def samples(self, units: list[Unit], caption: str, say: Say, on_step: OnStep | None = None) -> Iterator[Finished]:
        calls: Calls = {}
        try:
            yield from self._samples(calls, units, caption, say)
        except (Exception, KeyboardInterrupt):
            yield from self._finished(calls)
            raise
        finally:
            self._dismiss()

    def _samples(self, calls: Calls, units: list[Unit], caption: str, say: Say) -> Iterator[Finished]:
        todo, idle, begun = deque(units), list[Any](), False
        names, texts = labels(units), captions(units)

        def ask(worker: Any, unit: Unit) -> None:
            say(str(unit[0]) if unit else f"warming up {len(self.pool)} workers")
            call = worker.work.remote(unit[0]) if unit else worker.warm_up.remote(names, texts, caption)
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
        """What was finished while something else failed."""
        if not calls or not self.connection.has_store():
            return
        for call in self._ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
            with suppress(self._ray.exceptions.RayError):
                yield from self._counted(self._ray.get(call))

    def _counted(self, answer: Answer) -> list[Finished]:
        """The samples of an answer, its costs and memory counted."""
        samples, costs, peak = answer
        add_costs(self.costs, costs)
        self._peak = max(self._peak, peak)
        return samples

    def _first(self, calls: list[Any]) -> Any:
        """The first of them that ends.  Raises UserError when the cluster is out of reach or has no fitting node."""
        waited = False
        while True:
            self.connection.check()
            if waited:  # and not before the line above: Ray waits a minute for a lost control process, and ends us
                self.connection.check_nodes()
            if ended := self._ray.wait(calls, timeout=cluster.PULSE, fetch_local=False)[0]:
                return ended[0]
            waited = True

    def _get(self, call: Any) -> Any:
        """A worker's result.  Raises its errors, WorkerLost without one, UserError without a cluster."""
        self.connection.check()
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise UserError(str(error.cause)) if isinstance(error.cause, UserError) else error from None
        except self._ray.exceptions.RayError as error:
            raise WorkerLost from error

    def _replace(self, worker: Any, what: str) -> Any:
        """Another worker for one that was lost over ``what``.  Raises UserError if others were before it.

        Ray's ``max_task_retries`` repeats a call before a lost node is known to be lost, and writes to the terminal.
        """
        self.connection.check()
        self._ray.kill(worker)  # it may be out of reach only
        self._losses[what] += 1
        if self._losses[what] >= ATTEMPTS:
            text = f"lost {self._losses[what]} worker(s) in turn over {what}, perhaps for want of memory"
            raise UserError(f"{text}: give fewer --workers; what is finished is kept, and the same command continues")
        self.pool[self.pool.index(worker)] = started = self._start_worker()
        return started

    def notes(self) -> list[str]:
        measured = self.device == "cpu" and self._peak
        return [f"The largest of the workers held {self._peak:,.0f} MB at its peak."] if measured else []

    def _dismiss(self) -> None:
        while self.pool:
            self._ray.kill(self.pool.pop())

    def close(self) -> None:
        if self._ray.is_initialized():
            self._dismiss()
        if self._ours:
            self._ours = False
            self._ray.shutdown()
