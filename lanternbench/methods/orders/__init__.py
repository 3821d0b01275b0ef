"""Orders in which the tokens of an image are drawn, imported when one is used."""

MODULES = {"raster": "rows", "rows": "rows"}
