"""Proposals: imported when one is used."""

MODULES = {
    "dflash": "levels", "eagle": "drafting", "eagle-3": "drafting", "jacobi": "jacobi", "medusa": "levels",
    "model": "drafting", "none": "jacobi", "scd": "scd", "sjd-pac": "sjd_pac", "sjd++": "scd",
}  # fmt: skip
