"""Orders in which the tokens of an image are drawn: one file each, imported when one is used."""

MODULES = {"raster": "raster", "rows": "rows"}
