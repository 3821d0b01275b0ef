"""lanternbench: benchmark speculative decoding for autoregressive image generation."""

import os
import sys
from typing import TYPE_CHECKING

if "torch" not in sys.modules:
    # OpenMP reads this once, when torch is loaded.  On a busy machine a thread that spins while it
    # waits takes the CPU from the thread that it waits for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.3.0"
__all__ = ["compare", "load", "load_run", "report", "run"]

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanternbench.api import Model
    from lanternbench.report.comparison import Comparison
    from lanternbench.report.frames import RunFrames
    from lanternbench.report.load import AnyRun
    from lanternbench.report.written import WrittenReport
    from lanternbench.settings import MethodSpec


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
    from lanternbench.settings import Machine, ModelSpec, checked

    settings = {
        "target": target,
        "drafter": drafter,
        "dtype": dtype,
        "compile": compile_mode,
        "random_weights": random_weights,
    }
    spec = checked(ModelSpec, settings, "load")
    machine = checked(Machine, {"device": device, "threads": threads}, "load")
    return Model(load_with_drafter(spec, machine.choose()))


def run(
    methods: "str | MethodSpec | Sequence[str | MethodSpec]",
    *,
    progress: "Callable[[int, int, str], None] | None" = None,
    **settings: object,
) -> "RunFrames":
    """Measure methods next to ``ar``, as ``lanternbench run`` does, into the same run folder.

    ``methods``: presets, files that ``tune`` wrote, or mappings such as ``{"method": "cool-sd",
    "lam": [1.1, 2]}``, in which a list is a grid.
    ``progress``: called with images done, images in all, and what was just done.
    ``settings``: the options of the command, with underscores (``num_prompts=4``,
    ``metrics=["clip"]``, ``out="results"``, ``tracker="tensorboard"``), and those of the methods
    (``lam=2.0``).

    An interrupted run continues when it is called again.  Raises UserError.
    """
    from lanternbench.runs import run

    return run(methods, progress, settings)


def compare(old: "AnyRun", new: "AnyRun", **options: object) -> "Comparison":
    """Compare the methods that two runs share, prompt by prompt, as ``lanternbench compare`` does.

    ``options``: ``fail_if=["speedup<-5%"]``, ``mapped=["sjd=sjd window=16"]``,
    ``not_worse={"clip": 0.01}``, ``results="results"``.  Raises UserError.
    """
    from lanternbench.report.comparison import compare
    from lanternbench.settings import Comparing, checked

    return compare(old, new, checked(Comparing, options, "compare"))


def report(runs: "AnyRun | Sequence[AnyRun]" = (), **options: object) -> "WrittenReport":
    """Write tables, plots and one HTML page, as ``lanternbench report`` does; by default of the
    latest run.

    ``options``: those of the command, such as ``out="report"``, ``formats=["md"]``,
    ``published=True``, ``methods=["ar", "sjd"]``, ``names={"sjd": "SJD"}``.  Raises UserError.
    """
    from lanternbench.report import make_report

    return make_report(runs, **options)


def load_run(path: "AnyRun") -> "RunFrames":
    """Return a run as pandas frames: ``load_run("demo").summary`` and ``.samples``.

    ``path``: a run folder, or the id or name of a run under ``results/``; of several runs of one
    name, the newest is taken.  Raises UserError if there is none.
    """
    from lanternbench.report.frames import run_frames

    return run_frames(path)
