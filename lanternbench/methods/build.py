"""From a method and a target to a decoder."""

from lanternbench.component import MAX_GUIDANCE, MAX_TEMPERATURE, MIN_TEMPERATURE
from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.proposal import Proposal, TreePolicy
from lanternbench.engine.sampling import Warp
from lanternbench.engine.simulation import reach
from lanternbench.engine.verify import AcceptanceRule
from lanternbench.errors import UserError
from lanternbench.methods.method import Method
from lanternbench.models.target import Target
from lanternbench.registry import components, plugin_errors


def prepared_proposal(target: Target, method: Method, tree: TreePolicy | None = None) -> Proposal:
    """The method's proposal, ready to decode; ``tree``: a prepared policy in place of the
    method's.
    """
    method = method.resolve(target.options)
    proposal = method.proposal
    if tree is None:
        tree = method.tree if proposal.tree_is_own else method.tree.prepare(target, proposal)
    return proposal.prepare(target, tree, method.acceptance)


def prepared_rule(target: Target, method: Method, proposal: Proposal) -> AcceptanceRule:
    """The rule that verifies the drafts of the prepared ``proposal``, ready to decode."""
    rule = method.resolve(target.options).acceptance
    return proposal.verification(rule.prepare(target, proposal.max_depth))


def build(
    target: Target,
    method: Method,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    guidance: float | None = None,
    simulate_acceptance: float | list[float] | None = None,
) -> SpeculativeDecoder:
    """A decoder for ``method`` on ``target``; sampling options default to the target's.

    ``simulate_acceptance``: mean tokens per step that drafting methods are made to yield, or P(a
    position of a draft is accepted | those before it were); see ``simulation``. Raises UserError
    for sampling options out of range, and if the target has no drafter that the method needs and
    that fits.
    """
    temperature = target.temperature if temperature is None else temperature
    top_p = target.top_p if top_p is None else top_p
    within = {
        "temperature": temperature == 0 or MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE,
        "top_k": top_k is None or top_k >= 0,
        "top_p": 0 < top_p <= 1,
        "guidance": guidance is None or 0 <= guidance <= MAX_GUIDANCE,
    }
    if wrong := [name for name, good in within.items() if not good]:
        raise UserError(
            f"{wrong[0]} is out of range: temperature is 0 or {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}, guidance "
            f"0 to {MAX_GUIDANCE:g}, top_k 0 (all) or more, top_p above 0 up to 1"
        )
    warp = Warp(temperature, target.top_k if top_k is None else top_k, top_p)
    with plugin_errors(*method.parts):
        resolved = method.resolve(target.options)
        proposer = prepared_proposal(target, resolved)
        rule = prepared_rule(target, resolved, proposer)
    known, name = components("residual"), method.choices.residual
    # ``lantern-reference``: the public code's
    residual = known.get(f"{name}-{method.acceptance.variant}", known[name])
    rates = None
    if simulate_acceptance is not None and proposer.max_depth > 0:
        rates = reach(simulate_acceptance, proposer.max_depth).to(target.device)
    scale = target.guidance if guidance is None else guidance
    decoder = SpeculativeDecoder(target, method, warp, scale, proposer, rule, residual, rates)
    return resolved.order.apply(decoder)
