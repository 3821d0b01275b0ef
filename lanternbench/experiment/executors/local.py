"""This process makes the samples."""

from __future__ import annotations

from collections.abc import Iterator

from lanternbench.experiment.config import Sweep
from lanternbench.experiment.executors.base import Finished, Say, Unit, captions, labels, peak_mb
from lanternbench.experiment.worker import Facts, OnStep, Worker
from lanternbench.measure.summaries import Costs


class LocalExecutor:
    """This process makes all samples, one job after the other."""

    def __init__(self) -> None:
        self.costs: Costs = {}

    def start(self, config: Sweep, device: str, units: int) -> Facts:
        self.worker = Worker(config, device)
        self.costs, facts = self.worker.costs, self.worker.facts()
        return facts._replace(environment=facts.environment | {"executor": "local", "workers": 1})

    def samples(self, units: list[Unit], caption: str, say: Say, on_step: OnStep | None = None) -> Iterator[Finished]:
        self.worker.prepare(captions(units))
        for label in labels(units):
            say(f"warming up {label}")
            self.worker.warm_up(label, caption, on_step)
        for job in (job for unit in units for job in unit):
            say(str(job))
            yield from (Finished(sample, image) for sample, image in self.worker.work(job, on_step))

    def estimate(self, labels: list[str], captions: list[str]) -> dict[str, float]:
        return {label: self.worker.seconds_per_image(label, captions) for label in labels}

    def notes(self) -> list[str]:
        """On a CPU memory is the process's, whichever method runs."""
        if self.worker.device != "cpu":
            return []
        return [f"The process held {peak_mb():,.0f} MB at its peak, evaluators included."]

    def close(self) -> None:
        vars(self).pop("worker", None)
