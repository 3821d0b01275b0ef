"""Components: each is a frozen pydantic model, so that its fields are its options.

Default, bounds, symbol in labels and help of an option are stated once, in its field.  The command line, YAML, the
check of options and the table of ``lanternbench methods`` are derived from the fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:  # what a component is comes without torch; what it builds needs it
    from lanternbench.engine.proposal import Proposer, TreeBuilder
    from lanternbench.engine.verify import AcceptanceRule
    from lanternbench.models.target import Target

Search: TypeAlias = Literal["shape", "length", "growth", "bounds"]


class Choices(NamedTuple):
    """The names of a method's four components."""

    proposal: str
    tree: str
    acceptance: str
    residual: str


def option(
    default: Any,
    description: str,
    *,
    symbol: str | None = None,
    in_label: bool = False,
    small: Any = ...,
    also: Any = None,
    **field: Any,
) -> Any:
    """A field that users set: ``symbol`` names it in labels, ``in_label`` shows it there even at its default.

    ``small``: the value that ``verify`` uses in place of a larger one, so that it can enumerate all outcomes.
    ``also``: a second value that ``verify`` tries, for formulas that the default does not reach.
    """
    extra = {"symbol": symbol, "in_label": in_label, "also": also} | ({} if small is ... else {"small": small})
    return Field(default, description=description, json_schema_extra=extra, **field)


class Component(BaseModel):
    """Base of proposals, trees and acceptance rules."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    lossless: ClassVar[bool] = True  # can a method with this component be lossless?
    reference_lossless: ClassVar[bool] = True  # also with ``variant="reference"``?
    tuned: ClassVar[dict[str, tuple[Any, ...]]] = {}  # sizes that `tune` tries, by option

    variant: Literal["paper", "reference"] = option("paper", "paper, or reference: as the public code does")

    def refuses(self, choices: Choices) -> str | None:
        """Why this component cannot be combined with ``choices``, as a clause; None where it can."""
        return None

    def unread(self) -> set[str]:
        """Options that make no difference, given the others."""
        return set()

    def small(self) -> Self:
        """This component with sizes that can be enumerated (see ``option``); what is no larger stays."""
        fields: dict[str, Any] = {
            name: field.json_schema_extra or {} for name, field in type(self).model_fields.items()
        }
        sizes = {}
        for name, extra in fields.items():
            set_to = getattr(self, name)
            if "small" in extra and set_to is not None:
                fits = extra["small"] is not None and set_to <= extra["small"]
                sizes[name] = set_to if fits else extra["small"]
        return self.model_copy(update=sizes)


class Acceptance(Component):
    """An acceptance rule and its options."""

    usual_residual: ClassVar[str] = "standard"  # the residual to use when the rule replaces a preset's
    by_position: ClassVar[bool] = False  # see ``AcceptanceRule``
    by_depth: ClassVar[bool] = False  # does the rule depend on how deep drafts are?
    # A plug-in's rule in scalar Python, a method (q, p or None, x, depth) -> probability of acceptance, q and p lists
    # of floats: what ``verify`` holds the engine against.
    plain: ClassVar[Callable[..., float] | None] = None

    def build(self, target: Target, max_depth: int) -> AcceptanceRule:
        """The rule for drafts of at most ``max_depth`` levels."""
        raise NotImplementedError


class Tree(Component):
    """A tree policy and its options.

    ``search``: how `tune` finds its sizes: a static ``shape``, a chain's ``length``, a dynamic tree's ``growth``, the
    ``bounds`` of an adaptive one; None: as ``tuned`` says.
    """

    search: ClassVar[Search | None] = None

    def build(self, target: Target, proposal: Proposal) -> TreeBuilder:
        """The policy for the drafts of ``proposal``, ready to decode."""
        raise NotImplementedError


class Proposal(Component):
    """Where drafts come from, and its options."""

    drafter: ClassVar[str | None] = None  # kind of drafter that the target must have
    samples: ClassVar[bool] = True  # are children of static trees sampled, or the drafter's likeliest tokens?
    marginals: ClassVar[bool] = False  # do all nodes of a level share one distribution?
    static_trees: ClassVar[dict[str, str]] = {"chain": "chain", "static": "static"}  # tree -> the target's default
    tree_names: ClassVar[tuple[str, ...] | None] = None  # trees that it drafts; None: any but "none"
    tree_is_own: ClassVar[bool] = False  # is the tree implied by the proposal, its options unused?
    no_joint_sample: ClassVar[str | None] = None  # why a chain's tokens are no sample of the product of their p

    def build(self, target: Target, tree: Tree, rule: Acceptance) -> Proposer:
        """The proposal, ready to decode.  Raises UserError where the target lacks what it needs."""
        raise NotImplementedError

    @property
    def lasting_noise(self) -> bool:
        """Do several steps read the same noise, so that one step's outcomes are not independent of another's?"""
        return False

    def refuses(self, choices: Choices) -> str | None:
        if self.tree_names is None:
            return "a drafter needs a tree" if choices.tree == "none" else None
        if choices.tree in self.tree_names:
            return None
        return (
            f"the proposal '{choices.proposal}' drafts with tree {' or '.join(self.tree_names)}, not '{choices.tree}'"
        )
