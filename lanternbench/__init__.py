"""lanternbench: benchmark speculative decoding for autoregressive image generation."""

import os
import sys
from typing import TYPE_CHECKING

if "torch" not in sys.modules:
    # OpenMP reads this once, when torch is loaded.  On a busy machine a thread that spins while it
    # waits takes the CPU from the thread that it waits for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.2.0"
__all__ = ["load", "load_run"]

if TYPE_CHECKING:
    from pathlib import Path

    from lanternbench.api import Model
    from lanternbench.report.frames import RunFrames


def load(
    target: str = "tiny",
    device: str = "auto",
    *,
    drafter: str | None = None,
    dtype: str | None = None,
    compile_mode: str | None = None,
    threads: int | None = None,
    random_weights: bool = False,
) -> "Model":
    """Load a target: ``load("tiny").generate("a red circle", method="cool-sd", lam=2.0)``.

    ``device``: ``cpu``, ``cuda``, ``cuda:N``, or ``auto`` for a GPU if there is one.
    ``drafter``: a smaller target, or a file or folder with a drafter, which replaces the target's
    own drafter of that kind.
    ``dtype``: ``float32``, ``bfloat16`` or ``float16`` (default: float32 on a CPU and for
    ``tiny``, else bfloat16, and float16 on a GPU without it).
    ``compile_mode``: ``eager``, ``graphs`` for CUDA graphs (default on a GPU), or ``inductor`` for
    CUDA graphs with fused kernels.
    ``threads``: CPU threads (default: one for a small model such as ``tiny``, else one per
    physical core).
    ``random_weights``: build the target at full size without its files; images are noise, but the
    speed is real.

    Raises UserError for unknown names, a missing device, and missing or damaged weights.
    """
    from lanternbench.api import Model
    from lanternbench.models.catalogue import load_with_drafter
    from lanternbench.settings import ModelSpec, checked
    from lanternbench.utils.device import choose

    settings = {
        "target": target,
        "drafter": drafter,
        "dtype": dtype,
        "compile": compile_mode,
        "random_weights": random_weights,
    }
    spec = checked(ModelSpec, settings, "load")
    return Model(load_with_drafter(spec, choose(device, threads)))


def load_run(path: "str | Path") -> "RunFrames":
    """Return a run as pandas frames: ``load_run("demo").summary`` and ``.samples``.

    ``path``: a run folder, or the id or name of a run under ``results/``; of several runs of one
    name, the newest is taken.  Raises UserError if there is none.
    """
    from lanternbench.report.frames import run_frames

    return run_frames(path)
