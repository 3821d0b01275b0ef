"""The environment of a run: enough to explain a latency, nothing that names a person or a host."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Versions and hardware in a fixed order: memory in GB, clocks in MHz; what cannot be found out is None.

    Never raises: a machine without git, GPU or /proc is described by what it has.
    """
    return {
        "lanternbench": _version("lanternbench"),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": _memory_gb(),
        "cuda": torch.version.cuda,
        "gpus": _gpus(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """What a program prints, or None when it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


def commit() -> str | None:
    """Commit of this checkout, with "+changes" when files differ; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # else git would answer for a project that merely contains our environment
        return None
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    changes = _output("git", "--no-optional-locks", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if commit and changes else commit


def _cpu() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or None


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _gpus() -> list[dict[str, Any]]:
    """Name, memory and capability from torch; driver, clocks and power limit from nvidia-smi where it is present."""
    if not torch.cuda.is_available():
        return []
    gpus = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": facts.name,
                "memory_gb": round(facts.total_memory / 1e9, 1),
                "capability": f"{facts.major}.{facts.minor}",
                **_nvidia_smi(str(getattr(facts, "uuid", index))),
            }
        )
    return gpus


def _nvidia_smi(gpu: str) -> dict[str, str | None]:
    """Driver, clocks (MHz) and power limit (W) of one GPU, by UUID: torch's numbering may differ from the driver's."""
    fields = {
        "driver": "driver_version",
        "sm_clock_mhz": "clocks.sm",
        "sm_clock_max_mhz": "clocks.max.sm",
        "memory_clock_mhz": "clocks.mem",
        "power_limit_w": "power.limit",
    }
    name = gpu if gpu.isdigit() or gpu.startswith("GPU-") else f"GPU-{gpu}"
    query = f"--query-gpu={','.join(fields.values())}"
    line = _output("nvidia-smi", f"--id={name}", query, "--format=csv,noheader,nounits")
    values = [value.strip() for value in line.split(",")] if line else []
    if len(values) != len(fields):
        return dict.fromkeys(fields)
    return dict(zip(fields, values, strict=True))
