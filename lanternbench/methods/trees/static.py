"""Static trees, chains among them: their shapes, by name or as data."""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Self

from lanternbench.component import Choices, option
from lanternbench.engine.proposal import TreePolicy
from lanternbench.engine.tree import MAX_DEPTH, Paths, StaticTree, chain, from_paths
from lanternbench.errors import UserError
from lanternbench.methods.trees.fixed import FixedTree
from lanternbench.models.target import Target
from lanternbench.registry import component, register
from lanternbench.utils.files import packaged_yaml


@cache
def named() -> dict[str, Paths]:
    """The trees of ``static_trees.yaml``."""
    data = packaged_yaml(__file__, "static_trees.yaml")
    return {name: tuple(map(tuple, paths)) for name, paths in data.items()}


def static_tree(spec: str | list[list[int]]) -> StaticTree:
    """``chain-5``, a name of ``static_trees.yaml``, or a list of child paths -> the tree.  Raises
    UserError.
    """
    if not isinstance(spec, str):
        if not spec:
            raise UserError(
                "a static tree needs at least one path, each a non-empty list of child ranks, "
                "as [0, 1]"
            )
        return from_paths(tuple(map(tuple, spec)))
    length = spec.removeprefix("chain-")
    if length != spec and length.isdigit() and 0 < int(length) <= MAX_DEPTH:
        return chain(int(length))
    if spec not in named():
        known = f"chain-1 to chain-{MAX_DEPTH}, {', '.join(named())}"
        raise UserError(f"no static tree is called '{spec}': use {known} or a list of paths")
    return from_paths(named()[spec])


@register("tree", "none")
class NoTree(TreePolicy):
    """no draft"""

    def refuses(self, choices: Choices) -> str | None:
        if component("proposal", choices.proposal).tree_names == ("none",):
            return None
        return "a proposal needs a tree, and autoregressive decoding (proposal none) has none"


class FixedShape(TreePolicy):
    """Base of trees whose shape follows from the options."""

    @property
    def static(self) -> StaticTree:
        """The tree; of resolved options."""
        raise NotImplementedError

    def build(self, target: Target, samples: bool) -> FixedTree:
        return FixedTree.of(self.static, samples, target.device)


class Shaped(FixedShape):
    """Base of chains and static trees."""

    kind: ClassVar[str]
    fallback: ClassVar[str]

    shape: str | list[list[int]] | None = option(
        None,
        "chain-N, a name of static_trees.yaml, or a list of child paths (default: the target's)",
        small=None,
    )
    depth: int | None = option(
        None, "levels below the root (default: the target's)", small=None, ge=0, le=MAX_DEPTH
    )

    def resolve(self, defaults: Mapping[str, Any]) -> Self:
        """Raises UserError for a shape that is no tree, and if shape and depth contradict each
        other.
        """
        if self.depth == 0:
            return self.model_copy(update={"shape": "chain-0"})
        shape = self.shape
        if shape is None:
            shape = defaults.get(self.kind, self.fallback)
            if self.depth is not None:
                shape = f"chain-{self.depth}"
        levels = static_tree(shape).tree.max_depth
        if self.depth not in (None, levels):
            raise UserError(
                f"the tree '{shape}' is {levels} levels deep and --depth says {self.depth}: "
                "give one of the two"
            )
        return self.model_copy(update={"shape": shape, "depth": levels})

    @property
    def static(self) -> StaticTree:
        if self.depth == 0:
            return chain(0)
        return static_tree(self.shape or self.fallback)


@register("tree", "static")
class Static(Shaped):
    """a fixed shape"""

    search = "shape"
    kind = "static"
    fallback = "mc_sim_7b_63"


@register("tree", "chain")
class Chain(Shaped):
    """a single branch"""

    search = "length"
    kind = "chain"
    fallback = "chain-5"

    def build(self, target: Target, samples: bool) -> FixedTree:
        tree = super().build(target, samples)
        if tree.size.width > 1:
            raise UserError("--tree chain needs a chain: give --depth N or --shape chain-N")
        return tree
