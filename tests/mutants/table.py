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


PROPOSALS = "lanternbench/methods/proposals"
SIBLINGS = ("tests/test_sjd_pac.py::test_siblings_are_lossless_and_the_plain_definition[dense]",)

MUTANTS = (
    Mutant(
        "old-law-kept",
        "SCD: a kept token keeps its old law p_old",
        ((f"{PROPOSALS}/scd.py", "if self.keeps_old:", "if not self.keeps_old:"),),
        tests=(
            "tests/test_scd.py::test_maximal_coupling_is_lossless_and_the_plain_definition[dense]",
            "tests/test_golden.py::test_what_the_published_code_computes_is_reproduced[scd]",
        ),
    ),
    Mutant(
        "siblings-with-replacement",
        "SJD-PAC: siblings drawn with replacement",
        ((f"{PROPOSALS}/sibling_columns.py", "p[:, :t].scatter(-1, tokens[:, :t, :1], 0.0)", "p[:, :t]"),),
        tests=SIBLINGS,
    ),
)
