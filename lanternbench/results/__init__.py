"""What runs leave on disk: written once, read by all."""

from lanternbench.results.folder import RunFolder
from lanternbench.results.plain import config_hash, differences
from lanternbench.results.read import find, latest, read_run, read_samples, runs
from lanternbench.results.sample import Sample, sample_key

__all__ = [
    "RunFolder",
    "Sample",
    "config_hash",
    "differences",
    "find",
    "latest",
    "read_run",
    "read_samples",
    "runs",
    "sample_key",
]
