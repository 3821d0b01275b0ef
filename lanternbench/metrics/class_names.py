"""Captions of class-conditional images, for metrics that read captions."""


def class_caption(label: str) -> str:
    """Return the caption of an ImageNet class, "0" … "999", by the names of CLIP's authors."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return f"a photo of a {IMAGENET_CLASSNAMES[int(label)]}."
