"""Prompts: our demo captions, published sets from their official files, ImageNet classes, or the
user's own list.
"""

from lanternbench.prompts.sources import (
    Caption,
    Official,
    Prompt,
    PromptSet,
    PromptSource,
    captions_for,
    load,
    selection,
)

__all__ = [
    "Caption",
    "Official",
    "Prompt",
    "PromptSet",
    "PromptSource",
    "captions_for",
    "load",
    "selection",
]
