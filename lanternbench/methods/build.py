"""From a method and a target to a decoder."""

from lanternbench.engine.decode import Speculation, SpeculativeDecoder
from lanternbench.engine.proposal import AnyProposer
from lanternbench.engine.simulation import reach
from lanternbench.engine.verify import RatioTest
from lanternbench.errors import UserError
from lanternbench.methods.method import Method
from lanternbench.models.target import Target
from lanternbench.registry import component, plugin_errors
from lanternbench.settings import TARGETS_OWN, Sampling


def build_proposer(target: Target, method: Method) -> AnyProposer:
    """Return what drafts in a method."""
    method = method.resolve(target.options)
    return method.proposal.build(target, method.tree, method.acceptance)


def build_rule(target: Target, method: Method, proposer: AnyProposer) -> RatioTest:
    """Return the rule that verifies the drafts of ``proposer``."""
    rule = method.resolve(target.options).acceptance
    return proposer.verification(rule.build(target, proposer.size.max_depth))


def check_noise(method: Method) -> None:
    """Raises UserError for a method whose draws cannot share noise."""
    if all(part.keeps_target for part in method.parts if part is not method.order):
        return
    raise UserError(
        f"method '{method.label}' cannot share noise: its tests need uniforms that are independent "
        "of its drafts; leave --noise or the method out"
    )


def build(
    target: Target,
    method: Method,
    sampling: Sampling = TARGETS_OWN,
    simulate_acceptance: float | list[float] | None = None,
) -> SpeculativeDecoder:
    """Return a decoder for ``method`` on ``target``, which samples as the target does unless
    ``sampling`` says otherwise.

    ``simulate_acceptance``: the mean number of tokens per step of drafting methods, or P(a position
    of a draft is accepted | those before it were); see ``simulation``. Raises UserError
    for sampling options out of range, and if the target has no drafter that the method needs and
    that fits.
    """
    sampling = target.sampling.updated(sampling)
    warp = method.proposal.warp(sampling)
    if warp.shares_noise:
        check_noise(method)
    residual = component("residual", method.choices.residual)
    if method.acceptance.variant == "reference" and residual.public is not None:
        residual = component("residual", residual.public)
    residual = method.proposal.residual(residual, sampling)
    with plugin_errors(*method.parts):
        resolved = method.resolve(target.options)
        proposer = build_proposer(target, resolved)
        rule = build_rule(target, resolved, proposer)
        rates = None
        if simulate_acceptance is not None and proposer.size.max_depth > 0:
            rates = reach(simulate_acceptance, proposer.size.max_depth).to(target.device)
        speculation = Speculation(proposer, rule, residual, rates)
        strategy = resolved.order.build(target, speculation)
    return SpeculativeDecoder(target, method, warp, sampling.guidance, strategy)
