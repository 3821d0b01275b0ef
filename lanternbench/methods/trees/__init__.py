"""Tree policies: one file each, imported when one is used."""

MODULES = {
    "adaptive": "adaptive",
    "dynamic": "dynamic",
    "none": "static",
    "static": "static",
    "chain": "static",
}
