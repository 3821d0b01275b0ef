"""Executors make the samples of a sweep, in this process or with workers elsewhere; the samples are the same."""

import resource
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lanternbench.errors import UserError
from lanternbench.experiment.config import Sweep
from lanternbench.experiment.worker import Facts, Job, OnStep, Worker
from lanternbench.measure.samples import Sample
from lanternbench.measure.summary import Costs

Unit = list[Job]  # prompts with all the methods that they lack, in their order, for one device
Say = Callable[[str], None]  # shows the current activity


class Finished(NamedTuple):
    """A finished sample."""

    sample: Sample
    image: Any  # PIL image
    where: dict[str, Any] | None = None  # the device that decoded it, where there are several


class Executor:
    """Makes all samples in this process (Ray: in others): ``start``, ``samples``, ``notes``, then ``close``."""

    def __init__(self) -> None:
        self.costs: Costs = {}  # of the scores

    def start(self, config: Sweep, device: str, units: int) -> Facts:
        """Load the models, for ``units`` units at most.  Raises UserError if a setting is wrong."""
        self.worker = Worker(config, device)
        self.costs, facts = self.worker.costs, self.worker.facts()
        return facts._replace(environment=facts.environment | {"executor": "local", "workers": 1})

    def samples(self, units: list[Unit], caption: str, say: Say, on_step: OnStep | None = None) -> Iterator[Finished]:
        """The results of ``units``, each when it is there; ``caption``: of warm-ups; ``on_step``: after each step."""
        self.worker.prepare(captions(units))
        for label in labels(units):
            say(f"warming up {label}")
            self.worker.warm_up(label, caption, on_step)
        for job in (job for unit in units for job in unit):
            say(str(job))
            yield from (Finished(sample, image) for sample, image in self.worker.work(job, on_step))

    def estimate(self, labels: list[str], captions: list[str]) -> dict[str, float]:
        """Seconds an image by method, from a few steps of each; nothing where workers elsewhere make the samples."""
        return {label: self.worker.seconds_per_image(label, captions) for label in labels}

    def notes(self) -> list[str]:
        """Notes for the reader of the results; on a CPU memory is the process's, whichever method runs."""
        on_cpu = self.worker.device == "cpu"
        return [f"The process held {peak_mb():,.0f} MB at its peak, evaluators included."] if on_cpu else []

    def close(self) -> None:
        """End what was started; calling it twice is harmless."""
        vars(self).pop("worker", None)


def executor(
    name: str = "local", workers: int | None = None, threads: int | None = None, address: str | None = None
) -> Executor:
    """The executor of this name; the other arguments are for ``ray``.  Raises UserError if unknown or unavailable."""
    if name == "ray":
        from lanternbench.experiment.executors.ray import RayExecutor

        return RayExecutor(workers, threads, address)
    if name != "local":
        raise UserError(f"unknown executor '{name}': use local or ray")
    if workers or address:
        raise UserError(f"{'--workers' if workers else '--ray-address'} goes with --executor ray: give that too")
    return Executor()


def captions(units: list[Unit]) -> list[str]:
    """The captions of the units, each once."""
    return list(dict.fromkeys(p.text for unit in units for job in unit for p in job.prompts))


def labels(units: list[Unit]) -> list[str]:
    """The methods of the units, each once."""
    return list(dict.fromkeys(job.label for unit in units for job in unit))


def peak_mb() -> float:
    """The most memory that this process held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
