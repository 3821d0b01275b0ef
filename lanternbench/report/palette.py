"""One colour per family of methods: Okabe-Ito colours, distinct for colour-blind readers."""

_FAMILIES = {
    ("AR", "#7a7f87"): "ar",
    ("draft model", "#56b4e9"): "sd medusa dflash",
    ("EAGLE", "#0072b2"): "eagle-1 eagle-2 eagle-3",
    ("LANTERN", "#d55e00"): "lantern lantern++",
    ("Jacobi", "#e69f00"): "jacobi sjd scd sjd-pac sjd++ sjd-sv gsd",
    ("ADT-Tree", "#009e73"): "adt-tree",
    ("several rows", "#8c564b"): "zipar pjd",
    ("relaxed SD", "#cc79a7"): "uniform-rsd cool-sd",
}
FAMILIES = {method: family for family, methods in _FAMILIES.items() for method in methods.split()}
OTHER = ("other", "#8a8a00")
PHASES = {"draft": "#e69f00", "verify": "#0072b2", "commit": "#009e73", "other": "#9aa0a6"}  # of a step


def family(method: str) -> str:
    """The family's name, "other" for a user's method."""
    return FAMILIES.get(method, OTHER)[0]


def colour(method: str) -> str:
    """The family's colour as #rrggbb."""
    return FAMILIES.get(method, OTHER)[1]
