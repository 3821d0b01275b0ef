"""Acceptance rules, imported when one is used."""

MODULES = {
    "annealed": "annealed", "block": "chains", "exact": "exact", "gsd": "gsd", "lantern": "lantern",
    "lantern++": "lantern", "sjd-sv": "chains", "top-k": "likely", "typical": "likely", "unchanged": "exact",
}  # fmt: skip
