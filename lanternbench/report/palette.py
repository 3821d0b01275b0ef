"""One colour per family of methods and one marker per method; Okabe-Ito colours, told apart by colour-blind readers."""

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
    "uniform-rsd": ("Cool-SD", "#cc79a7"),
    "cool-sd": ("Cool-SD", "#cc79a7"),
}
OTHER = ("other", "#8a8a00")
# matplotlib's markers; "o" is that of a family's first method, "P" of a method of the user's own
MARKERS = {"ar": "X", "eagle-3": "s", "scd": "s", "sjd-pac": "^", "gsd": "v"}
MARKERS |= dict.fromkeys(("medusa", "eagle-2", "lantern++", "sjd", "cool-sd"), "D")


def family(method: str) -> str:
    """The family's name, "other" for a method of the user's own."""
    return FAMILIES.get(method, OTHER)[0]


def colour(method: str) -> str:
    """The family's colour as #rrggbb."""
    return FAMILIES.get(method, OTHER)[1]


def marker(method: str) -> str:
    """The matplotlib marker."""
    return MARKERS.get(method, "o" if method in FAMILIES else "P")
