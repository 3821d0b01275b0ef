"""Which metrics a run computes, by name, and the columns that they fill."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from lanternbench.errors import UserError, unknown
from lanternbench.metrics.metric import Column, ImageMetric, SetMetric
from lanternbench.metrics.setup import Setup
from lanternbench.registry import components

Evaluators = Literal["tiny", "full", "none"]


def names() -> list[str]:
    """Every registered metric that takes no argument."""
    return [name for name in components("metric") if ":" not in name]


def metric_class(name: str) -> type[ImageMetric] | type[SetMetric]:
    """The component of a name; "clip:ViT-L-14/openai" is the one registered as "clip:MODEL/TAG".

    Raises UserError for a name that no metric has.
    """
    known = components("metric")
    if ":" in name:
        head = name.partition(":")[0]
        found = next((k for k in known if k.startswith(f"{head}:")), None)
    else:
        found = name if name in known else None
    if found is None:
        raise unknown(f"there is no metric called '{name}'", name, known)
    return known[found]


def scorers_for(
    wanted: Iterable[str] | None = None, evaluators: Evaluators = "tiny", setup: Setup | None = None
) -> list[ImageMetric | SetMetric]:
    """The metrics of a run, in the order asked for, each once; without names, all that suit ``evaluators``.

    On "none" there are none, as the target draws no images.
    On "tiny" a metric with a stand-in means that one: "clip" is the embedded CLIP, whose column is "clip-tiny".  With
    random weights there is no stand-in.  Nothing is loaded or downloaded here: ask ``available()``.
    Raises UserError for a name that no metric has, and for trained networks where random ones are asked for.
    """
    setup = setup or Setup()
    if evaluators == "none":
        return []
    tiny = evaluators == "tiny" and not setup.random
    if wanted is None:
        known = {name: metric_class(name) for name in names()}
        chosen = [name for name, kind in known.items() if not kind.extra and kind.embedded == tiny]
    else:
        chosen = [(tiny and metric_class(name).stand_in) or name for name in wanted]
    return [_made(name, setup) for name in dict.fromkeys(chosen)]


def _made(name: str, setup: Setup) -> ImageMetric | SetMetric:
    kind = metric_class(name)
    if setup.random and kind.embedded:
        raise UserError(f"{name} comes with trained weights: leave out --random-weights")
    return kind(name, setup)


def columns() -> dict[str, Column]:
    """The columns of all registered metrics by key; also those that networks with random weights fill."""
    kinds = {name: metric_class(name) for name in names()}
    found = [c for name, kind in kinds.items() for c in kind.columns(name)]
    found += [c for name, kind in kinds.items() if not kind.embedded for c in kind.columns(name, random=True)]
    return {column.key: column for column in found}


def column(key: str) -> Column:
    """The column of a key; that of an unknown metric has its key as title and no direction."""
    if found := columns().get(key):
        return found
    mark = Setup(random=True).mark
    try:
        name = key.removesuffix(mark)
        return metric_class(name).columns(name, random=name != key)[0]
    except UserError:
        return Column(key, key, None)
