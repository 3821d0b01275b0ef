"""What all scorers of one scoring share: real images to compare with, the device, trained weights or random ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lanternbench.errors import UserError
from lanternbench.metrics.files import Weights, missing

RANDOM = "-random"  # ends the name of a metric that a network without trained weights computed


@dataclass(frozen=True)
class Setup:
    """``random``: networks at full size, without any file; their times are real and their values mean nothing."""

    reference: Path | None = None  # a folder of real images
    device: str = "cpu"
    random: bool = False

    @property
    def mark(self) -> str:
        """The suffix of a metric's name."""
        return RANDOM if self.random else ""

    def missing(self, *needed: Weights) -> str | None:
        """None when all files are present, else a sentence with the command that fetches the missing ones."""
        return None if self.random else missing(*needed)

    def find(self, weights: Weights) -> Path | None:
        """The file to read; None for random weights.  Raises UserError for a missing file."""
        if self.random:
            return None
        path = weights.find()
        if path is None:
            raise UserError(f"{weights.title} cannot score: {missing(weights)}.")
        return path


@contextmanager
def seeded() -> Iterator[None]:
    """Seeds torch's random numbers with a constant; restores the caller's state."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
