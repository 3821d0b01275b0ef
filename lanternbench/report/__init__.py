"""Reports of run folders: the answer, tables, plots, one self-contained page, and the papers'
numbers.

Python gives this package the name of the function ``lanternbench.report``, so it is callable too.
"""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lanternbench.report.load import AnyRun
    from lanternbench.report.written import WrittenReport


def make_report(runs: "AnyRun | Sequence[AnyRun]" = (), **options: object) -> "WrittenReport":
    """Write the report of one or more runs: see ``lanternbench.report``."""
    from lanternbench.report.written import write_report
    from lanternbench.settings import ReportSpec, checked

    if isinstance(runs, str) or not isinstance(runs, Sequence):
        runs = [runs]
    return write_report(runs, checked(ReportSpec, options, "report"))


class _Callable(ModuleType):
    __call__ = staticmethod(make_report)


sys.modules[__name__].__class__ = _Callable
