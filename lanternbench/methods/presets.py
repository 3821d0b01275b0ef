"""The named methods as data: five choices, the options that differ from their defaults, and the
paper; or as a file.

Wherever a method is named, in ``run``, in a sweep file or from Python, the path of a YAML file
stands for it, as ``tune`` writes it: the keys ``method`` and its options, and the evidence for
them.
"""

from pathlib import Path
from typing import Any, NamedTuple

from lanternbench.component import Choices
from lanternbench.errors import UserError
from lanternbench.registry import register
from lanternbench.utils.files import read_yaml

EVIDENCE = "evidence"  # key of the measurements behind the sizes, which no command reads


class Preset(NamedTuple):
    """One row of the table of named methods."""

    choices: Choices
    options: dict[str, Any]
    paper: str  # authors, year, arXiv number
    # what its components say, so that a list of methods need not import them
    lossless: bool | None
    title: str  # the name that papers write
    family: str  # methods of one family share a colour in pictures


def preset(
    name: str,
    proposal: str,
    tree: str,
    lossless: bool | None = None,
    paper: str = "",
    *,
    title: str = "",
    family: str = "other",
    **options: Any,
) -> Preset:
    """Register a named method; ``options`` may name its acceptance, residual and order too.

    Raises UserError if the name is taken.
    """
    named = {kind: options.pop(kind) for kind in Choices._fields if kind in options}
    choices = Choices(proposal, tree, **named)
    row = Preset(choices, options, paper, lossless, title or name, family)
    return register("preset", name)(row)


preset("ar", "none", "none", True, title="AR", family="AR")
preset(
    "sd",
    "model",
    "chain",
    True,
    "Leviathan et al. 2023, arXiv 2211.17192",
    title="SD",
    family="draft model",
)
preset(
    "medusa",
    "medusa",
    "static",
    True,
    "Cai et al. 2024, arXiv 2401.10774",
    title="Medusa",
    family="draft model",
)
preset(
    "eagle-1",
    "eagle",
    "static",
    True,
    "Li et al. 2024, arXiv 2401.15077",
    title="EAGLE-1",
    family="EAGLE",
)
preset(
    "eagle-2",
    "eagle",
    "dynamic",
    True,
    "Li et al. 2024, arXiv 2406.16858",
    title="EAGLE-2",
    family="EAGLE",
)
preset(
    "eagle-3",
    "eagle-3",
    "static",
    True,
    "Li et al. 2025, arXiv 2503.01840",
    title="EAGLE-3",
    family="EAGLE",
)
preset(
    "dflash",
    "dflash",
    "chain",
    True,
    "DFlash 2026, arXiv 2602.06036",
    title="DFlash",
    family="draft model",
)
preset(
    "lantern",
    "eagle",
    "dynamic",
    False,
    "Jang et al. 2024, arXiv 2410.03355",
    title="LANTERN",
    family="LANTERN",
    acceptance="lantern",
    residual="lantern",
)
preset(
    "lantern++",
    "eagle",
    "static",
    False,
    "Park et al. 2025, arXiv 2502.06352",
    title="LANTERN++",
    family="LANTERN",
    acceptance="lantern++",
    residual="lantern",
)
preset(
    "jacobi",
    "jacobi",
    "chain",
    True,
    "Song et al. 2021, arXiv 2002.03629",
    title="Jacobi",
    family="Jacobi",
    acceptance="unchanged",
)
preset(
    "sjd",
    "jacobi",
    "chain",
    True,
    "Teng et al. 2024, arXiv 2410.01699",
    title="SJD",
    family="Jacobi",
)
preset(
    "scd",
    "scd",
    "chain",
    True,
    "Coupled Jacobi 2025, arXiv 2510.24211",
    title="SJD with coupling",
    family="Jacobi",
)
preset(
    "sjd-pac",
    "sjd-pac",
    "static",
    True,
    "SJD-PAC 2026, arXiv 2603.18599",
    title="SJD-PAC",
    family="Jacobi",
)
preset(
    "sjd++",
    "sjd++",
    "chain",
    False,
    "SJD++ 2025, arXiv 2512.07503",
    title="SJD++",
    family="Jacobi",
)
preset(
    "sjd-sv",
    "jacobi",
    "chain",
    False,
    "SJD-SV 2026, arXiv 2609.13245",
    title="SJD-SV",
    family="Jacobi",
    acceptance="sjd-sv",
)
preset(
    "gsd",
    "jacobi",
    "chain",
    False,
    "GSD 2025, arXiv 2508.07747",
    title="GSD",
    family="Jacobi",
    acceptance="gsd",
)
preset(
    "zipar",
    "none",
    "none",
    False,
    "ZipAR 2024, arXiv 2412.04062",
    title="ZipAR",
    family="several rows",
    order="rows",
)
preset(
    "pjd",
    "jacobi",
    "chain",
    False,
    "PJD 2026, arXiv 2606.05703",
    title="PJD",
    family="several rows",
    order="rows",
    window=8,
)
preset(
    "flashar",
    "flashar",
    "none",
    False,
    "FlashAR 2026, arXiv 2605.09430",
    title="FlashAR",
    family="several rows",
    order="diagonal",
)
preset(
    "adt-tree",
    "eagle",
    "adaptive",
    True,
    "ADT-Tree 2025, arXiv 2512.21857",
    title="ADT-Tree",
    family="ADT-Tree",
)
preset(
    "uniform-rsd",
    "eagle",
    "static",
    False,
    "Cool-SD 2026, arXiv 2601.09212",
    title="Uniform-RSD",
    family="relaxed SD",
    acceptance="annealed",
    residual="optimal",
    schedule="uniform",
)
preset(
    "cool-sd",
    "eagle",
    "static",
    False,
    "Cool-SD 2026, arXiv 2601.09212",
    title="Cool-SD",
    family="relaxed SD",
    acceptance="annealed",
    residual="optimal",
)


def is_file(name: str) -> bool:
    """Return whether a method is named by the path of a file."""
    return name.endswith((".yaml", ".yml"))


def read(name: str, folder: Path = Path()) -> dict[str, Any]:
    """``method`` and its options, without the evidence.  A path is looked up from ``folder``, then
    from here.

    Raises UserError for a missing file, broken YAML, and what is no preset.
    """
    path = next((p for p in (folder / name, Path(name)) if p.is_file()), None)
    if path is None:
        raise UserError(f"there is no preset file {name}: give one that `lanternbench tune` wrote")
    data = read_yaml(path, "a preset file")
    if not _named(data) or is_file(_named(data)):
        raise UserError(
            f"{path} is no preset: it needs the key 'method' with a name of `lanternbench methods`"
        )
    return {str(key): value for key, value in data.items() if key != EVIDENCE}


def _named(entry: Any) -> str:
    """The method that a mapping names; empty where it is no mapping or names none."""
    method = entry.get("method") if isinstance(entry, dict) else None
    return method if isinstance(method, str) else ""


def expanded(specs: Any, folder: Path = Path()) -> Any:
    """Return the method entries of a configuration with files read; options next to a file's name
    replace the file's.
    """
    if not isinstance(specs, list):
        return specs
    methods = []
    for spec in specs:
        entry = {"method": spec} if isinstance(spec, str) else spec
        if is_file(name := _named(entry)):
            spec = read(name, folder) | {
                key: value for key, value in entry.items() if key != "method"
            }
        methods.append(spec)
    return methods
