"""The quality of the baseline: the share of the memory's bandwidth that autoregressive decoding uses.

A forward pass of one token reads all weights once, so on most machines the memory bounds it.  A
baseline far from that bound is slow for another reason, and every speedup over it is flattered.
"""

from typing import NamedTuple

from lanternbench.measure.figures import BASELINE, Figures
from lanternbench.measure.run_record import RunRecord
from lanternbench.notes import Note

FLATTERED = 0.3  # a share of the bandwidth below which speedups are flattered
CACHED = (
    0.1  # GB of weights that caches may hold, so that the memory does not bound a forward pass
)


class Utilisation(NamedTuple):
    """The time of a token by ``ar``, and the bandwidth that its forward passes use."""

    ms_per_token: float
    weights_gb: float
    bandwidth: float  # of the machine, GB/s
    images: int

    @property
    def share(self) -> float:
        return 1000 * self.weights_gb / self.ms_per_token / self.bandwidth

    @property
    def note(self) -> Note:
        """The use of the bandwidth in a sentence, as a warning if the baseline is slow."""
        text = (
            f"ar takes {self.ms_per_token:.3g} ms a token and reads its weights"
            f" ({1000 * self.weights_gb:,.0f} MB) at {self.share:.0%} of the memory bandwidth that"
            f" was measured when the run began ({self.bandwidth:,.0f} GB/s)"
        )
        if self.weights_gb < CACHED or self.share >= FLATTERED:
            return Note("info", "speedup", f"{text}.")
        text = f"The baseline is slow, which flatters every speedup: {text}."
        return Note("warning", "speedup", text, "slow baseline")


def utilisation(figures: Figures, run: RunRecord) -> Utilisation | None:
    """Return what ``ar`` makes of the memory's bandwidth; None if one of its figures is unknown.

    The time is the robust latency, which other programs disturb least.
    """
    weights = run.target.read_bytes
    bandwidth = run.environment.memory_gb_per_s
    if not weights or not bandwidth:
        return None
    seconds, images = figures.column("robust_latency_s")
    tokens, _ = figures.column("tokens_per_s")
    timed = figures.of(BASELINE) & (images > 0)
    drawn = tokens[timed].sum()
    if not drawn:
        return None
    ms_per_token = 1000 * float(seconds[timed].sum() / drawn)
    return Utilisation(ms_per_token, weights / 1e9, bandwidth, int(timed.sum()))
