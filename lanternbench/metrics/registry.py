"""Which metrics there are: names -> scorers.  A metric that cannot run says what it lacks; it never counts as 0."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Literal, Protocol, runtime_checkable

from PIL import Image

from lanternbench.errors import UserError
from lanternbench.metrics import files
from lanternbench.metrics.setup import Setup

Evaluators = Literal["tiny", "full"]


@runtime_checkable
class Scorer(Protocol):
    """A metric with a value per image."""

    name: str  # the column in the results
    needs: tuple[str, ...]  # files

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""

    def score(self, images: list[Image.Image], captions: list[str]) -> list[float | None]:
        """A value per image; None where there is none."""


@runtime_checkable
class SetScorer(Protocol):
    """A metric with one value for a whole set of images.

    One whose value depends on the setup's real images says so by an attribute ``compares``.
    """

    name: str
    needs: tuple[str, ...]

    def available(self) -> str | None:
        """None, or one sentence: what is missing and the command that gets it."""

    def score_set(self, images: Iterable[Image.Image]) -> Any:
        """-> metrics.fid.SetScore(value | None, count, note | None, more columns)."""


AnyScorer = Scorer | SetScorer
Factory = Callable[[Setup], AnyScorer]
_REGISTRY: dict[str, Factory] = {}
_EXTRA: set[str] = set()
# what stands in for a paper's backbone on the tiny target
STANDS_IN = {name: f"{name}-tiny" for name in ("clip", "fid", "fid-inf", "precision-recall")}


def register(name: str, factory: Factory, extra: bool = False) -> None:
    """Make a metric known under ``name``; an ``extra`` one is computed only when it is asked for by name.

    Raises ValueError when the name is taken.
    """
    if name in _REGISTRY:
        raise ValueError(f"a metric named {name} is registered already")
    _REGISTRY[name] = factory
    if extra:
        _EXTRA.add(name)


def compares(scorer: AnyScorer) -> bool:
    """Does a scorer's value depend on the setup's real images?"""
    return getattr(scorer, "compares", False)


def names() -> list[str]:
    """Every registered metric."""
    return list(_REGISTRY)


def scorers_for(
    wanted: Iterable[str] | None = None, evaluators: Evaluators = "tiny", setup: Setup | None = None
) -> list[AnyScorer]:
    """The scorers of a run, in the order asked for, each once; without names, all that suit ``evaluators``.

    On "tiny", "clip" and "fid" mean the embedded CLIP and FID, whose columns are named "clip-tiny" and "fid-tiny";
    with random weights they mean the papers'.  "clip:MODEL/TAG" is any model of open_clip.  Nothing is loaded or
    downloaded here: ask ``available()``.
    Raises UserError for a name that no metric has, and for trained evaluators where random ones are asked for.
    """
    setup = setup or Setup()
    tiny = evaluators == "tiny" and not setup.random
    if wanted is None:
        chosen = [n for n in _REGISTRY if n not in _EXTRA and n.endswith("-tiny") == tiny]
    else:
        chosen = [STANDS_IN.get(n, n) if tiny else n for n in wanted]
    return [_scorer(name, setup) for name in dict.fromkeys(chosen)]


def _scorer(name: str, setup: Setup) -> AnyScorer:
    if name.startswith("clip:"):
        from lanternbench.metrics.clip import open_clip_score

        return open_clip_score(name, setup)
    if name not in _REGISTRY:
        close = difflib.get_close_matches(name, _REGISTRY, 1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(_REGISTRY)}, clip:MODEL/TAG."
        raise UserError(f"There is no metric named {name}; {hint}")
    if setup.random and name.endswith("-tiny"):
        raise UserError(f"{name} comes with trained weights: leave out --random-weights")
    return _REGISTRY[name](setup)


def _lazy(name: str, **options: Any) -> Factory:
    """``module:function`` of this package, imported when the metric is asked for."""
    module, _, function = name.partition(":")

    def make(setup: Setup) -> AnyScorer:
        return getattr(import_module(f"lanternbench.metrics.{module}"), function)(setup, **options)

    return make


register("clip-tiny", _lazy("clip:clip_tiny_score"))
register("fid-tiny", _lazy("fid:fid_tiny_score"))
register("clip", _lazy("clip:clip_score"))
register("fid", _lazy("fid:fid_score"))
register("image-reward", _lazy("image_reward:image_reward_score"))
register("hpsv2", _lazy("hpsv2:hpsv2_score"))
register("inception-score", _lazy("inception_score:inception_score"))
register("aesthetic", _lazy("aesthetic:aesthetic_score"))
register("precision-recall", _lazy("precision_recall:precision_recall_score"))
register("hpsv2.1", _lazy("hpsv2:hpsv2_score", weights=files.HPS_V21), extra=True)
register("fid-clean", _lazy("fid:fid_score", resize="-clean"), extra=True)
register("fid-legacy", _lazy("fid:fid_score", resize="-legacy"), extra=True)
register("fid-inf", _lazy("fid_infinity:fid_inf_score"), extra=True)
register("fid-inf-tiny", _lazy("fid_infinity:fid_inf_tiny_score"), extra=True)
register("precision-recall-tiny", _lazy("precision_recall:precision_recall_tiny_score"), extra=True)
