"""The mutants: a plausible mistake each, where it is made, and who should notice."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """``edits``: (file, old text, new text), the old one found once; ``method`` to verify; ``tests`` by node id."""

    name: str
    breaks: str
    edits: tuple[tuple[str, str, str], ...]
    method: str | None = None
    tests: tuple[str, ...] = ()


FAMILY = "lanternbench/methods/jacobi_family"
SIBLINGS = ("tests/test_jacobi_family.py::test_siblings_redrawn_by_coupling_keep_the_targets_distribution",)

MUTANTS = (
    Mutant(
        "old-law-kept",
        "SCD: a kept token keeps its old law p_old",
        ((f"{FAMILY}/coupling.py", "if keeps_old else p_new", "if not keeps_old else p_new"),),
        tests=(
            "tests/test_jacobi_family.py::test_a_kept_token_is_recorded_with_the_new_law",
            "tests/test_golden.py::test_what_the_published_code_computes_is_reproduced[scd]",
        ),
    ),
    Mutant(
        "siblings-with-replacement",
        "SJD-PAC: siblings drawn with replacement",
        ((f"{FAMILY}/sibling_tree.py", "q.scatter(-1, coupled.tokens[..., None], 0.0)", "q"),),
        tests=SIBLINGS,
    ),
)
