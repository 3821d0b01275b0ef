"""From a method and a target to a decoder."""

from lanternbench.engine.decode import Speculation, SpeculativeDecoder
from lanternbench.engine.proposal import Proposal, TreePolicy
from lanternbench.engine.sampling import Warp
from lanternbench.engine.simulation import reach
from lanternbench.engine.verify import RatioTest
from lanternbench.methods.method import Method
from lanternbench.models.target import Target
from lanternbench.registry import component, plugin_errors
from lanternbench.settings import TARGETS_OWN, Sampling


def prepared_proposal(target: Target, method: Method, tree: TreePolicy | None = None) -> Proposal:
    """The method's proposal, ready to decode; ``tree``: a prepared policy in place of the
    method's.
    """
    method = method.resolve(target.options)
    proposal = method.proposal
    if tree is None:
        tree = method.tree if proposal.tree_is_own else method.tree.prepare(target, proposal)
    return proposal.prepare(target, tree, method.acceptance)


def prepared_rule(target: Target, method: Method, proposal: Proposal) -> RatioTest:
    """The rule that verifies the drafts of the prepared ``proposal``, ready to decode."""
    rule = method.resolve(target.options).acceptance
    return proposal.verification(rule.build(target, proposal.max_depth))


def build(
    target: Target,
    method: Method,
    sampling: Sampling = TARGETS_OWN,
    simulate_acceptance: float | list[float] | None = None,
) -> SpeculativeDecoder:
    """A decoder for ``method`` on ``target``, which samples as the target does where ``sampling``
    sets nothing.

    ``simulate_acceptance``: mean tokens per step that drafting methods are made to yield, or P(a
    position of a draft is accepted | those before it were); see ``simulation``. Raises UserError
    for sampling options out of range, and if the target has no drafter that the method needs and
    that fits.
    """
    sampling = target.sampling.updated(sampling)
    with plugin_errors(*method.parts):
        resolved = method.resolve(target.options)
        proposer = prepared_proposal(target, resolved)
        rule = prepared_rule(target, resolved, proposer)
    residual = component("residual", method.choices.residual)
    if method.acceptance.variant == "reference" and residual.public is not None:
        residual = component("residual", residual.public)
    rates = None
    if simulate_acceptance is not None and proposer.max_depth > 0:
        rates = reach(simulate_acceptance, proposer.max_depth).to(target.device)
    speculation = Speculation(proposer, rule, residual, rates)
    decoder = SpeculativeDecoder(target, method, Warp(sampling), sampling.guidance, speculation)
    return resolved.order.apply(decoder)
