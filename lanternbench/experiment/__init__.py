"""Sweeps, run folders and executors; the functions that other packages read runs with."""

from lanternbench.experiment.run_folder import RunFolder
from lanternbench.experiment.run_reader import find, iter_samples, latest, read_run, read_samples
from lanternbench.measure.samples import Sample, sample_key
from lanternbench.utils.json_values import config_hash

__all__ = [
    "RunFolder",
    "Sample",
    "config_hash",
    "find",
    "iter_samples",
    "latest",
    "read_run",
    "read_samples",
    "sample_key",
]
