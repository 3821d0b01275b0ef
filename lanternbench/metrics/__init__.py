"""Quality metrics.  Importing this registers the built-in ones; their networks are imported when they are needed."""

from lanternbench.metrics import clip, feature_metric, geneval, preference  # noqa: F401
from lanternbench.metrics.choice import Evaluators, column, columns, names, scorers_for
from lanternbench.metrics.images import read_image
from lanternbench.metrics.metric import Column, Extra, ImageMetric, Metric, SetMetric, SetScore

__all__ = [
    "Column", "Evaluators", "Extra", "ImageMetric", "Metric", "SetMetric", "SetScore", "column", "columns", "names",
    "read_image", "scorers_for",
]  # fmt: skip
