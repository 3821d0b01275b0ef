"""Proposals: one file each, imported when one is used."""

MODULES = {
    "dflash": "dflash", "eagle": "drafters", "eagle-3": "drafters", "jacobi": "jacobi", "medusa": "medusa",
    "model": "drafters", "none": "none", "scd": "scd", "sjd-pac": "sjd_pac",
}  # fmt: skip
