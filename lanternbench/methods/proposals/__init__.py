"""Proposals: one file each, imported when one is used."""

MODULES = {
    "eagle": "eagle", "eagle-3": "eagle", "jacobi": "jacobi", "medusa": "medusa", "model": "model", "none": "none",
    "scd": "scd", "sjd-pac": "sjd_pac",
}  # fmt: skip
