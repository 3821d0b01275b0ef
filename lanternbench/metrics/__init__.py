"""Quality metrics: which of them a run computes, by name, and the columns that they fill.

Importing this registers the built-in ones; their networks are imported when they are needed.
"""

from collections.abc import Container, Iterable
from typing import Literal

from lanternbench.errors import UserError, unknown
from lanternbench.metrics import baseline_distance, clip, feature_metric, geneval  # noqa: F401
from lanternbench.metrics.images import read_image
from lanternbench.metrics.metric import (
    RANDOM,
    Column,
    Extra,
    ImageMetric,
    Metric,
    PairMetric,
    SetMetric,
    SetScore,
    Setup,
)
from lanternbench.registry import components

__all__ = [
    "Column", "Evaluators", "Extra", "ImageMetric", "Metric", "PairMetric", "SetMetric", "SetScore", "Setup", "column", "columns",
    "key_of", "metric_class", "names", "read_image", "scorers_for", "weights_of",
]  # fmt: skip
Evaluators = Literal["tiny", "full", "none"]
ALIASES = {"tau": "accept_len", "τ": "accept_len"}  # of figures


def names() -> list[str]:
    """Every registered metric that takes no argument."""
    return [name for name in components("metric") if ":" not in name]


def metric_class(name: str) -> type[ImageMetric] | type[SetMetric]:
    """The component of a name; "clip:MODEL/TAG" is that of "clip:ViT-L-14/openai".  Raises
    UserError for no metric.
    """
    known = components("metric")
    head, colon, _ = name.partition(":")
    for registered, kind in known.items():
        if registered == name or (colon and registered.startswith(f"{head}:")):
            return kind
    raise unknown(f"there is no metric called '{name}'", name, known)


def scorers_for(
    wanted: Iterable[str] | None = None,
    evaluators: Evaluators = "tiny",
    setup: Setup | None = None,
) -> list[ImageMetric | SetMetric]:
    """The metrics of a run, in the order asked for, each once; without names, all that suit
    ``evaluators``.

    On "tiny" a metric with a stand-in means that one: "clip" is the bundled CLIP, whose column is
    "clip-tiny"; with random weights there is no stand-in, on "none" no metric.  Nothing is loaded
    yet: ask ``available()``. Raises UserError for a name that no metric has, and for trained
    networks if random ones are asked for.
    """
    setup = setup or Setup()
    if evaluators == "none":
        return []
    tiny = evaluators == "tiny" and not setup.random
    scorers: dict[str, ImageMetric | SetMetric] = {}
    for name in names() if wanted is None else wanted:
        kind = metric_class(name)
        if wanted is None and (kind.extra or kind.embedded != tiny):
            continue
        if tiny and kind.stand_in:
            name = kind.stand_in
            kind = metric_class(name)
        if setup.random and kind.embedded:
            raise UserError(f"{name} comes with trained weights: leave out --random-weights")
        if name not in scorers:
            scorers[name] = kind(name, setup)
    return list(scorers.values())


def weights_of(scorers: Iterable[ImageMetric | SetMetric]) -> dict[str, str]:
    """Return the digests of the weights of those metrics that have some, by name."""
    return {s.name: s.weights_digest for s in scorers if s.weights_digest}


def key_of(name: str, known: Container[str]) -> str:
    """Return the key of a figure that users call ``name``: ``tau``, and ``clip`` also means
    ``clip-tiny`` if only that is ``known``.
    """
    key = ALIASES.get(name, name)
    stand_in = f"{key}-tiny"
    return stand_in if key not in known and stand_in in known else key


def columns() -> dict[str, Column]:
    """The columns of all registered metrics by key; also those that networks with random weights
    fill.
    """
    found = []
    for name in names():
        kind = metric_class(name)
        found += kind.columns(name)
        if not kind.embedded:
            found += kind.columns(name, random=True)
    return {column.key: column for column in found}


def column(key: str) -> Column:
    """The column of a key; that of an unknown metric has its key as title and no direction."""
    if known := columns().get(key):
        return known
    name = key.removesuffix(RANDOM)
    try:
        return metric_class(name).columns(name, random=name != key)[0]
    except UserError:
        return Column(key, key, None)
