"""Targets by family, the parts that they share, and drafters.  A family's loader is imported when
it is used.
"""

# in the order in which ``targets`` lists them; each folder also has the family's rows,
# ``catalogue.yaml``
MODULES = {
    "tiny": "tiny.checkpoint",
    "llamagen": "llamagen.checkpoint",
    "chameleon": "chameleon.checkpoint",
    "lumina-mgpt-2": "lumina2.checkpoint",
    "janus": "janus.checkpoint",
    "emu3": "emu3.checkpoint",
    "glm-image": "glm_image.checkpoint",
    "transformers": "huggingface.checkpoint",
}
