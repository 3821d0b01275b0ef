"""The named methods as data: five choices, the options that differ from their defaults, and the paper."""

from __future__ import annotations

from typing import Any, NamedTuple

from lanternbench.component import Choices
from lanternbench.registry import register


class Preset(NamedTuple):
    choices: Choices
    options: dict[str, Any]
    paper: str  # authors, year, arXiv number
    lossless: bool | None = None  # what its components say, so that a list of methods need not import them


def preset(
    name: str,
    *,
    proposal: str,
    tree: str,
    order: str = "raster",
    acceptance: str = "exact",
    residual: str = "standard",
    paper: str = "",
    lossless: bool | None = None,
    **options: Any,
) -> Preset:
    """Register a named method.  Raises UserError if the name is taken."""
    choices = Choices(proposal, tree, acceptance, residual, order)
    return register("preset", name)(Preset(choices, options, paper, lossless))


_COOL_SD = "Cool-SD 2026, arXiv 2601.09212"

preset("ar", proposal="none", tree="none", lossless=True)
preset("sd", proposal="model", tree="chain", lossless=True, paper="Leviathan et al. 2023, arXiv 2211.17192")
preset("medusa", proposal="medusa", tree="static", lossless=True, paper="Cai et al. 2024, arXiv 2401.10774")
preset("eagle-1", proposal="eagle", tree="static", lossless=True, paper="Li et al. 2024, arXiv 2401.15077")
preset("eagle-2", proposal="eagle", tree="dynamic", lossless=True, paper="Li et al. 2024, arXiv 2406.16858")
preset("eagle-3", proposal="eagle-3", tree="static", lossless=True, paper="Li et al. 2025, arXiv 2503.01840")
preset("dflash", proposal="dflash", tree="chain", lossless=True, paper="DFlash 2026, arXiv 2602.06036")
preset(
    "lantern",
    proposal="eagle", tree="dynamic", acceptance="lantern", residual="lantern",
    lossless=False, paper="Jang et al. 2024, arXiv 2410.03355",
)  # fmt: skip
preset(
    "lantern++",
    proposal="eagle", tree="static", acceptance="lantern++", residual="lantern",
    lossless=False, paper="Park et al. 2025, arXiv 2502.06352",
)  # fmt: skip
preset(
    "jacobi",
    proposal="jacobi", tree="chain", acceptance="unchanged",
    lossless=True, paper="Song et al. 2021, arXiv 2002.03629",
)  # fmt: skip
preset("sjd", proposal="jacobi", tree="chain", lossless=True, paper="Teng et al. 2024, arXiv 2410.01699")
preset("scd", proposal="scd", tree="chain", lossless=True, paper="Coupled Jacobi 2025, arXiv 2510.24211")
preset("sjd-pac", proposal="sjd-pac", tree="static", lossless=True, paper="SJD-PAC 2026, arXiv 2603.18599")
preset("sjd++", proposal="sjd++", tree="chain", lossless=False, paper="SJD++ 2025, arXiv 2512.07503")
preset(
    "sjd-sv",
    proposal="jacobi", tree="chain", acceptance="sjd-sv", lossless=False, paper="SJD-SV 2026, arXiv 2609.13245",
)  # fmt: skip
preset("gsd", proposal="jacobi", tree="chain", acceptance="gsd", lossless=False, paper="GSD 2025, arXiv 2508.07747")
preset(
    "zipar",
    proposal="none", tree="none", order="rows",
    lossless=False, paper="ZipAR 2024, arXiv 2412.04062",
)  # fmt: skip
preset(
    "pjd",
    proposal="jacobi", tree="chain", order="rows", window=8,
    lossless=False, paper="PJD 2026, arXiv 2606.05703",
)  # fmt: skip
preset("adt-tree", proposal="eagle", tree="adaptive", lossless=True, paper="ADT-Tree 2025, arXiv 2512.21857")
preset(
    "uniform-rsd",
    proposal="eagle", tree="static", acceptance="annealed", residual="optimal", schedule="uniform",
    lossless=False, paper=_COOL_SD,
)  # fmt: skip
preset(
    "cool-sd",
    proposal="eagle", tree="static", acceptance="annealed", residual="optimal",
    lossless=False, paper=_COOL_SD,
)  # fmt: skip
