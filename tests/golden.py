"""Does this code compute what the published code computes?  ``python tests/golden.py DIR [NAME
  …]``

DIR holds golden vectors: safetensors files with inputs, weights and the outputs of the reference
implementations.  For every file and every group of tensors the largest error is printed.  Exit
codes: 0 all within tolerance, 1 something is beyond it, 2 there is nothing to check in DIR.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from golden_checks import CHECKS, Found


def run(name: str, folder: Path) -> list[Found]:
    """All comparisons of one file; a file that cannot even be used is an infinite error."""
    try:
        with torch.inference_mode():
            return CHECKS[name](folder)
    # whatever is wrong with the vectors or the code, the other files are still checked
    except Exception as error:
        return [Found(f"{type(error).__name__}: {error}", math.inf, 0)]


def show(name: str, found: list[Found]) -> bool:
    """Print a file's groups; True if all passed."""
    passed = all(f.passed for f in found)
    print(f"{name}: {'ok' if passed else 'FAILED'}")
    for f in found:
        kind = f"{f.error:9.2e} (at most {f.limit:.0e})" if f.limit else f"{f.error:9g} differ"
        print(f"  {'ok  ' if f.passed else 'FAIL'} {kind:28s} {f.group}", flush=True)
    return passed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check this code against golden vectors.")
    parser.add_argument("folder", type=Path, help="folder with the .safetensors files")
    parser.add_argument(
        "names", nargs="*", help="check only these files (default: all that are there)"
    )
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        print(
            f"{options.folder} is not a folder: give the one that holds the golden vectors",
            file=sys.stderr,
        )
        return 2
    here = {p.stem for p in options.folder.glob("*.safetensors")}
    wanted = set(options.names) or here
    torch.set_num_threads(1)  # matrices 64 wide: a second thread only waits
    names = [n for n in CHECKS if n in wanted & here]
    for lost in sorted(set(options.names) - set(names)):
        why = "there is no check for it" if lost in here else "it is not in the folder"
        print(f"{lost}: cannot be checked, {why}", file=sys.stderr)
    if not names or set(options.names) - set(names):
        print(
            f"{options.folder} holds no vectors that can be checked" if not names else "",
            file=sys.stderr,
        )
        return 2
    passed = [show(n, run(n, options.folder)) for n in names]
    if not options.names:
        for absent in sorted(set(CHECKS) - here):
            print(f"{absent}: NOT CHECKED, the file is not in the folder")
        for other in sorted(here - set(CHECKS)):
            print(f"{other}: NOT CHECKED, no check is written for it yet")
    print(f"{sum(passed)} of {len(passed)} files agree")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
