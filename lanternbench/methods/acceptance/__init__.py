"""Acceptance rules, imported when one is used."""

MODULES = {
    "annealed": "exact", "block": "chains", "exact": "exact", "gsd": "gsd", "lantern": "lantern",
    "lantern++": "lantern", "sjd-sv": "chains", "top-k": "likely", "typical": "likely", "unchanged": "chains",
}  # fmt: skip
