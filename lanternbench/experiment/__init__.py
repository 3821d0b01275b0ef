"""Sweeps, run folders and executors; the functions that other packages read runs with."""

from lanternbench.experiment.run_folder import (
    RunFolder,
    find,
    iter_samples,
    latest,
    read_run,
    read_samples,
)
from lanternbench.measure.samples import Sample, sample_key

__all__ = [
    "RunFolder",
    "Sample",
    "find",
    "iter_samples",
    "latest",
    "read_run",
    "read_samples",
    "sample_key",
]
