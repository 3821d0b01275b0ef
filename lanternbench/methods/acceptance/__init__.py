"""Acceptance rules: one file each, imported when one is used."""

MODULES = {
    "annealed": "annealed", "block": "block", "exact": "exact", "gsd": "gsd", "lantern": "lantern",
    "lantern++": "lantern", "sjd-sv": "sjd_sv", "top-k": "top_k", "typical": "typical", "unchanged": "unchanged",
}  # fmt: skip
