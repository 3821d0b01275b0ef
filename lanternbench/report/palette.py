"""One colour per family of methods: Okabe-Ito colours, told apart by colour-blind readers."""

from __future__ import annotations

FAMILIES = {
    "ar": ("AR", "#7a7f87"),
    "sd": ("draft model", "#56b4e9"),
    "medusa": ("draft model", "#56b4e9"),
    "eagle-1": ("EAGLE", "#0072b2"),
    "eagle-2": ("EAGLE", "#0072b2"),
    "eagle-3": ("EAGLE", "#0072b2"),
    "lantern": ("LANTERN", "#d55e00"),
    "lantern++": ("LANTERN", "#d55e00"),
    "jacobi": ("Jacobi", "#e69f00"),
    "sjd": ("Jacobi", "#e69f00"),
    "scd": ("Jacobi", "#e69f00"),
    "sjd-pac": ("Jacobi", "#e69f00"),
    "gsd": ("Jacobi", "#e69f00"),
    "adt-tree": ("ADT-Tree", "#009e73"),
    "uniform-rsd": ("relaxed SD", "#cc79a7"),
    "cool-sd": ("relaxed SD", "#cc79a7"),
}
OTHER = ("other", "#8a8a00")
PHASES = {"draft": "#e69f00", "verify": "#0072b2", "commit": "#009e73", "other": "#9aa0a6"}  # of a step


def family(method: str) -> str:
    """The family's name, "other" for a method of the user's own."""
    return FAMILIES.get(method, OTHER)[0]


def colour(method: str) -> str:
    """The family's colour as #rrggbb."""
    return FAMILIES.get(method, OTHER)[1]
