"""The environment of a run: enough to explain a latency, nothing that names a person or a host."""

import os
import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lanternbench import __version__
from lanternbench.utils.memory import total_memory

_NVIDIA_SMI = {  # our name -> nvidia-smi's
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_limit_w": "power.limit",
}


def environment() -> dict[str, Any]:
    """Return versions and hardware in a fixed order: GB, MHz, None for what a machine does not say.
    Never raises.
    """
    memory = total_memory()
    return {
        "lanternbench": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _installed("transformers"),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": None if memory is None else round(memory / 1e9, 1),
        "cuda": torch.version.cuda,
        "tf32": _tf32(),
        "gpus": [_gpu(index) for index in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else [],
    }


def _tf32() -> str:
    """Return which float32 products of a GPU are rounded to TF32's 10 bits of mantissa."""
    rounded = []
    if torch.get_float32_matmul_precision() != "highest":
        rounded.append("matmul")
    if torch.backends.cudnn.allow_tf32:
        rounded.append("convolutions")
    return " and ".join(rounded) or "off"


def _installed(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _output(*command: str) -> str | None:
    """Return what a program prints, None if it is missing, fails or hangs."""
    with suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    return None


def commit() -> str | None:
    """Return the commit of this checkout, with "+changes" when files differ; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    # else git would answer for a project that merely contains our environment
    if not (root / ".git").exists():
        return None
    describe = ("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes")
    return _output("git", "--no-optional-locks", "-C", str(root), *describe)


def _cpu() -> str | None:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or None


def _gpu(index: int) -> dict[str, object]:
    """Return name, memory and capability from torch; driver, clocks and power limit from
    nvidia-smi if it is present.
    """
    facts = torch.cuda.get_device_properties(index)
    about: dict[str, object] = {
        "name": facts.name,
        "memory_gb": round(facts.total_memory / 1e9, 1),
    }
    uuid = str(getattr(facts, "uuid", index))  # torch's numbering may differ from the driver's
    name = uuid if uuid.isdigit() or uuid.startswith("GPU-") else f"GPU-{uuid}"
    query = f"--query-gpu={','.join(_NVIDIA_SMI.values())}"
    line = _output("nvidia-smi", f"--id={name}", query, "--format=csv,noheader,nounits")
    about["capability"] = f"{facts.major}.{facts.minor}"
    values = [value.strip() for value in (line or "").split(",")]
    if len(values) != len(_NVIDIA_SMI):
        return about | dict.fromkeys(_NVIDIA_SMI)
    return about | dict(zip(_NVIDIA_SMI, values, strict=True))
