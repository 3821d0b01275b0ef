"""What to type for ``lanternbench`` in the shell that started this process."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def program() -> str:
    """``lanternbench`` where the shell finds this installation by name, else its path or ``python -m``."""
    started = Path(sys.argv[0])
    if started.name != "lanternbench" or not os.access(started, os.X_OK):
        return "python -m lanternbench" if started.name == "__main__.py" else "lanternbench"
    found = shutil.which("lanternbench")
    if found and Path(found).resolve() == started.resolve():
        return "lanternbench"
    path = started.absolute()  # not resolved: a virtual environment may be a link
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
