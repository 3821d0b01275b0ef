"""``coco2017`` and ``coco2014``: captions of the validation images of MS COCO (arXiv 1504.00325)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lanternbench.errors import UserError
from lanternbench.prompts.formats import clean, file_name, parsed, read_text
from lanternbench.prompts.prompt_set import Prompt
from lanternbench.prompts.selection import rank
from lanternbench.prompts.source import Caption, Official, PromptSource
from lanternbench.registry import register

_ANNOTATIONS = "http://images.cocodataset.org/annotations"


@register("prompts", "coco2017")
class Coco2017(PromptSource):
    """One caption for each of the 5,000 images."""

    official = Official(
        "captions_val2017.json",
        f"{_ANNOTATIONS}/annotations_trainval2017.zip",
        "afe3b30e403dd7f228e2373023abbd60042a6e10ec6874d3652df034d289ebb9",
        "annotations/captions_val2017.json",
        gigabytes=0.25,
    )

    def read(self, path: Path | None, seed: int, caption: Caption) -> Iterator[Prompt]:
        """In the file's order of images."""
        assert path is not None
        return coco_prompts(parsed(read_text(path), path), path, seed, caption)


@register("prompts", "coco2014")
class Coco2014(Coco2017):
    """One caption for each of the 40,504 images."""

    official = Official(
        "captions_val2014.json",
        f"{_ANNOTATIONS}/annotations_trainval2014.zip",
        member="annotations/captions_val2014.json",
        gigabytes=0.25,
    )


def coco_prompts(data: Any, path: Path, seed: int, caption: Caption) -> Iterator[Prompt]:
    """One prompt per image of a parsed captions file, in the file's order of images.

    Raises UserError when it is no such file.
    """
    captions: dict[Any, list[str]] = {}
    try:
        images = [(image["id"], str(image.get("file_name") or "")) for image in data["images"]]
        for annotation in data["annotations"]:
            captions.setdefault(annotation["image_id"], []).append(clean(annotation["caption"]))
    except (KeyError, TypeError, AttributeError):
        wanted = "images[].id and annotations[].image_id, caption"
        raise UserError(f"{path} is no COCO captions file ({wanted}): give captions_val2017.json.") from None
    for number, image in images:
        texts = [text for text in captions.get(number, []) if text]
        if texts:
            pick = {
                "first": 0,
                "longest": max(range(len(texts)), key=lambda i: len(texts[i])),
                "random": rank(seed, "caption", str(number)) % len(texts),
            }[caption]
            yield Prompt(str(number), texts[pick], image=file_name(image))
