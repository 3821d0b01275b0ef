"""Proposals: imported when one is used."""

MODULES = {
    "dflash": "levels", "eagle": "drafting", "eagle-3": "drafting", "flashar": "drafting", "jacobi": "jacobi", "medusa": "levels",
    "model": "drafting", "none": "jacobi", "scd": "jacobi", "sjd-pac": "sjd_pac", "sjd++": "jacobi",
}  # fmt: skip
