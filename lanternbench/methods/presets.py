"""The named methods as data: four choices, the options that differ from their defaults, and the paper."""

from __future__ import annotations

from typing import Any, NamedTuple

from lanternbench.methods.component import Choices
from lanternbench.registry import register


class Preset(NamedTuple):
    choices: Choices
    options: dict[str, Any]
    paper: str  # authors, year, arXiv number


def preset(
    name: str,
    *,
    proposal: str,
    tree: str,
    acceptance: str = "exact",
    residual: str = "standard",
    paper: str = "",
    **options: Any,
) -> Preset:
    """Register a named method.  Raises UserError if the name is taken."""
    return register("preset", name)(Preset(Choices(proposal, tree, acceptance, residual), options, paper))


_COOL_SD = "Cool-SD 2026, arXiv 2601.09212"

preset("ar", proposal="none", tree="none")
preset("sd", proposal="model", tree="chain", paper="Leviathan et al. 2023, arXiv 2211.17192")
preset("medusa", proposal="medusa", tree="static", paper="Cai et al. 2024, arXiv 2401.10774")
preset("eagle-1", proposal="eagle", tree="static", paper="Li et al. 2024, arXiv 2401.15077")
preset("eagle-2", proposal="eagle", tree="dynamic", paper="Li et al. 2024, arXiv 2406.16858")
preset("eagle-3", proposal="eagle-3", tree="static", paper="Li et al. 2025, arXiv 2503.01840")
preset(
    "lantern",
    proposal="eagle", tree="dynamic", acceptance="lantern", residual="lantern",
    paper="Jang et al. 2024, arXiv 2410.03355",
)  # fmt: skip
preset(
    "lantern++",
    proposal="eagle", tree="static", acceptance="lantern++", residual="lantern",
    paper="Park et al. 2025, arXiv 2502.06352",
)  # fmt: skip
preset("jacobi", proposal="jacobi", tree="chain", acceptance="unchanged", paper="Song et al. 2021, arXiv 2002.03629")
preset("sjd", proposal="jacobi", tree="chain", paper="Teng et al. 2024, arXiv 2410.01699")
preset("scd", proposal="scd", tree="chain", paper="Coupled Jacobi 2025, arXiv 2510.24211")
preset("sjd-pac", proposal="sjd-pac", tree="static", paper="SJD-PAC 2026, arXiv 2603.18599")
preset("gsd", proposal="jacobi", tree="chain", acceptance="gsd", paper="GSD 2025, arXiv 2508.07747")
preset("adt-tree", proposal="eagle", tree="adaptive", paper="ADT-Tree 2025, arXiv 2512.21857")
preset(
    "uniform-rsd",
    proposal="eagle", tree="static", acceptance="annealed", residual="optimal", schedule="uniform", paper=_COOL_SD,
)  # fmt: skip
preset("cool-sd", proposal="eagle", tree="static", acceptance="annealed", residual="optimal", paper=_COOL_SD)
