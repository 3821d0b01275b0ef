"""Proposals: one file each, imported when one is used."""

MODULES = {
    "dflash": "dflash", "eagle": "drafting", "eagle-3": "drafting", "jacobi": "jacobi", "medusa": "medusa",
    "model": "drafting", "none": "none", "scd": "scd", "sjd-pac": "sjd_pac", "sjd++": "sjd_plus",
}  # fmt: skip
