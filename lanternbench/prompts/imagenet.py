"""``imagenet``: the classes of ILSVRC 2012, for class-conditional targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lanternbench.prompts.prompt_set import Prompt
from lanternbench.prompts.source import Caption, PromptSource
from lanternbench.registry import register


@register("prompts", "imagenet")
class ImageNet(PromptSource):
    """The class numbers 0…999 in their order, with the class names as categories."""

    def read(self, path: Path | None, seed: int, caption: Caption) -> Iterator[Prompt]:
        """The number is the prompt, as class-conditional targets read it."""
        from open_clip import IMAGENET_CLASSNAMES

        for number, name in enumerate(IMAGENET_CLASSNAMES):
            yield Prompt(str(number), str(number), category=name)
