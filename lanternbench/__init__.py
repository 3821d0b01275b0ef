"""lanternbench: benchmark speculative decoding for autoregressive image generation."""

import os
import sys
from typing import TYPE_CHECKING

if "torch" not in sys.modules:
    # OpenMP reads this once, as torch is loaded. A thread that spins while it waits takes the CPU
    # from the thread that
    # it waits for, where other processes are busy.
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
    """A target ready to generate: ``load("tiny").generate("a red circle", method="cool-sd",
    lam=2.0, seed=42)``.

    ``drafter``: a smaller target, or a file or folder with an EAGLE drafter, in place of the
    target's own of that kind. ``dtype``: of the weights, ``float32``, ``bfloat16`` or ``float16``
    (default: float32 on a CPU and for ``tiny``, else bfloat16, and float16 on a GPU without it).
    ``compile_mode``: ``eager``, ``graphs`` for CUDA graphs (default: on a GPU), or ``inductor``
    for fused kernels in them. ``device``: ``cpu``, ``cuda``, ``cuda:N``, or ``auto`` for
    a GPU if there is one. ``threads``: of the CPU (default: one for a small model such as
    ``tiny``, else one per physical core). ``random_weights``: the architecture at full size
    without any file: its images are noise, its speed is real. Raises UserError for unknown names,
    a device that is not there, and for weights that are missing or damaged.
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
    """A run as pandas frames: ``load_run("demo").summary``, and ``.samples``.  Raises UserError if
    there is none.

    ``path``: a run folder, or under ``results/`` the id of a run, or the name of which the newest
    counts.
    """
    from lanternbench.report.frames import run_frames

    return run_frames(path)
