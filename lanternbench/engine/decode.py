"""The decode loop: propose → verify → commit, for every method and any batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from lanternbench.engine.phases import Recordings, launched, recorded
from lanternbench.engine.sampling import Warp
from lanternbench.engine.simulation import level_rates
from lanternbench.engine.state import Session, Trace, row_seed
from lanternbench.engine.tree import static_tree
from lanternbench.errors import UserError
from lanternbench.methods.acceptance import RESIDUALS, Residual, Rule
from lanternbench.methods.presets import Method
from lanternbench.methods.proposals.base import Alone, Drafted, Growth, Proposal
from lanternbench.methods.proposals.drafters import Drafter, EagleDrafter, MedusaDrafter, ModelDrafter
from lanternbench.methods.proposals.jacobi import Jacobi
from lanternbench.methods.registry import acceptances, residuals
from lanternbench.methods.trees.adaptive import AdaptiveGrowth, Bounds
from lanternbench.methods.trees.growth import DynamicGrowth, StaticGrowth
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.target import Target
from lanternbench.models.transformer import Stack


@dataclass
class Generation:
    """One image's tokens and what it took."""

    tokens: Tensor  # [L]
    accept_lengths: list[int]  # tokens committed per step, the residual or bonus token included; sums to L − 1
    tree_depths: list[int]  # as the method asked for: of a dynamic tree's levels the best nodes may lie in fewer
    tree_nodes: list[int]
    decode_s: float  # of its whole batch: the loop after prefill and first token
    encode_s: float  # of its whole batch: the captions, prefill and first token
    phases: dict[str, float] = field(default_factory=dict)
    syncs: int = 0
    trace: Trace | None = None  # of its whole batch

    @property
    def steps(self) -> int:
        return len(self.accept_lengths)


@dataclass
class Decoder:
    """A method made ready for a target: build once, use for any number of prompts."""

    target: Target
    method: Method
    warp: Warp
    guidance: float
    rule: Rule
    residual: Residual
    rates: Tensor | None = None  # [D + 1], where acceptance is simulated
    recordings: Recordings = field(default_factory=Recordings)

    @property
    def lossless(self) -> bool | None:
        """Does it keep the target's distribution?  As its rule says; None where acceptance is simulated."""
        return self.rule.lossless and self.method.residual in RESIDUALS if self.rates is None else None

    def proposal(self) -> Proposal:
        """A fresh proposal: it holds the state of one batch."""
        return build_proposal(self.method, self.target)[0]


def build(
    target: Target,
    method: Method,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    guidance: float | None = None,
    simulate_acceptance: float | None = None,
) -> Decoder:
    """A decoder for ``method`` on ``target``; sampling options default to the target's.

    ``simulate_acceptance``: the mean tokens per step that drafting methods are made to yield, see ``simulation``.

    Raises UserError for sampling options out of range, and if the target has no drafter of the kind that the method
    needs, or one that does not fit.
    """
    within = {
        "temperature": 0 <= temperature < inf,
        "top_k": top_k is None or top_k >= 0,
        "top_p": 0 < top_p <= 1,
        "guidance": guidance is None or 0 <= guidance < inf,
    }
    if wrong := [name for name, good in within.items() if not good]:
        raise UserError(
            f"{wrong[0]} is out of range: temperature, guidance and top_k (0: all) are 0 or more, top_p above 0 up to 1"
        )
    warp = Warp(temperature, target.top_k if top_k is None else top_k, top_p)
    depth = build_proposal(method, target)[1]
    rule = acceptances()[method.acceptance](method, target, depth)
    name = "lantern-reference" if method.residual == "lantern" and method.variant == "reference" else method.residual
    scale = target.guidance if guidance is None else guidance
    rates = None
    if simulate_acceptance is not None and depth > 0:
        rates = level_rates(simulate_acceptance, depth).to(target.device)
    return Decoder(target, method, warp, scale, rule, residuals()[name], rates)


def build_proposal(method: Method, target: Target) -> tuple[Proposal, int]:
    """The proposal of a method and its deepest draft position."""
    if method.proposal == "none" or method.depth == 0:
        return Alone(), 0
    if method.proposal == "jacobi":
        fixed_point, one_hot = method.acceptance == "unchanged", method.variant == "reference"
        made = Jacobi(method.window, method.init or "random", fixed_point, one_hot)
        return made, made.window
    drafter_net = target.drafters.get(method.proposal)
    if drafter_net is None:
        have = ", ".join(sorted(target.drafters)) or "none"
        raise UserError(
            f"target '{target.name}' has no drafter of kind '{method.proposal}' (it has: {have}); "
            "choose another method or give one with --drafter"
        )
    if other := misfit(drafter_net, target):
        raise UserError(
            f"the drafter of kind '{method.proposal}' does not fit target '{target.name}': {other}; give a drafter "
            "made for it"
        )
    growth, depth, width = _growth(method, target)
    if method.proposal == "medusa" and depth > drafter_net.heads:
        raise UserError(f"the tree is {depth} levels deep but the drafter has {drafter_net.heads} Medusa heads")
    most = growth.nodes + width * max(depth, 1)  # a dynamic tree expands more nodes than it keeps
    drafter: Drafter
    if method.proposal == "eagle":
        drafter = EagleDrafter(drafter_net, most)
    elif method.proposal == "model":
        drafter = ModelDrafter(drafter_net, most)
    else:
        drafter = MedusaDrafter(drafter_net)
    return Drafted(drafter, growth, width, most), depth


def misfit(net: Any, target: Target) -> str | None:
    """What keeps a drafter from drafting for ``target``, in words; None where it fits."""
    if not isinstance(net, Stack):
        dim = net.cfg.dim if isinstance(net, Eagle) else net.weight.shape[-1]
        width = target.model.cfg.dim
        return None if dim == width else f"it is made for hidden states {dim} wide, the target's are {width} wide"
    for name, what in (
        ("vocab_size", "image tokens to choose from"),
        ("grid", "image tokens a side"),
        ("model_type", "as conditioning"),
        ("caption_dim", "as width of captions"),
        ("cls_token_num", "conditioning positions"),
        ("prompt_ids", "prompt ids"),
    ):
        theirs, own = (getattr(config, name, None) for config in (net.config, target.model.config))
        if theirs != own:
            return f"it has {theirs} {what}, the target {own}"
    return None


def _growth(method: Method, target: Target) -> tuple[Growth, int, int]:
    """Tree policy, its greatest depth and its widest family."""
    defaults = target.options
    if method.tree in ("chain", "static"):
        shape = method.shape or (f"chain-{method.depth}" if method.depth else None)
        key = "medusa" if method.proposal == "medusa" else ("chain" if method.tree == "chain" else "static")
        static = static_tree(shape or defaults.get(key, "chain-5" if key == "chain" else "mc_sim_7b_63"))
        if method.tree == "chain" and not static.is_chain:
            raise UserError("--tree chain needs a chain: give --depth N or --shape chain-N")
        sampled = method.proposal != "medusa"
        growth: Growth = StaticGrowth(static, sampled, target.device)
        return growth, static.tree.max_depth, static.tree.width
    depth = method.depth or defaults.get("depth", 5)
    top_k = method.draft_top_k or defaults.get("draft_top_k", 10)
    total = method.total_nodes or defaults.get("total_nodes", 59)
    if method.tree == "dynamic":
        return DynamicGrowth(depth, top_k, total, target.device), depth, top_k
    widths = method.width_range or defaults.get("width_range", (3, 14))
    step = defaults.get("l_k", 3) if method.l_k is None else method.l_k
    bounds = Bounds(method.beta, method.l_d, step, method.depth_range, tuple(widths))
    adaptive = AdaptiveGrowth(
        bounds, method.init or "horizontal", total, (depth, top_k), method.fixed_depth, method.fixed_width
    )
    return adaptive, max(bounds.d[1], method.fixed_depth or 1), max(bounds.k[1], method.fixed_width or 1)


@torch.inference_mode()
def generate(
    decoder: Decoder,
    captions: list[str],
    keys: list[str] | None = None,
    seed: int = 0,
    trace: bool = False,
    most_steps: int | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Generation]:
    """Decode one image per caption, all in one batch.

    An image is a function of (seed, its key, method): ``keys`` default to the captions.  With ``trace`` the target's
    and drafter's distributions are kept for measures taken afterwards.  ``most_steps`` ends early (a warm-up).
    ``on_step`` (tokens done, of: over the batch) is called after every step.
    Raises UserError on NaN or infinite logits.
    """
    target, method = decoder.target, decoder.method
    began = perf_counter()
    seeds = [row_seed(seed, key, method.label) for key in (keys or captions)]
    proposal = decoder.proposal()
    session = Session(
        target,
        target.prefix(captions, decoder.guidance),
        decoder.warp,
        decoder.guidance,
        seeds,
        proposal.nodes,
        proposal.nodes + proposal.uniforms,
        trace,
        max(proposal.width, 1),
        proposal.reach,
    )
    proposal.begin(session, session.begin())
    session.clock.start()  # waits for all that was asked for
    encode_s = perf_counter() - began
    log, tokens = Log(session.batch), session.batch  # the prefill gives each its first token
    while session.active() and session.steps != most_steps:
        if prompts := session.unfinished():
            proposal.keep(session.keep(prompts), prompts)
        step(session, proposal, decoder, log)
        if on_step is not None:
            tokens += sum(session.fresh.advances)
            on_step(tokens, target.length * len(captions))
    session.clock.tick("other")
    decode_s = session.clock.stop()
    if session.trace is not None:
        session.trace.cut(session.limit)
    if not bool(session.health.isfinite()):
        raise UserError(
            f"the logits of target '{target.name}' or its drafter became NaN or infinite while '{method.label}' "
            "decoded; check the weights, or give --dtype float32"
        )
    return log.generations(session, encode_s, decode_s)


def step(session: Session, proposal: Proposal, decoder: Decoder, log: Log) -> None:
    """One target forward that verifies a draft tree and commits at least one token per unfinished prompt."""
    u = session.step_uniforms()
    uv, ud = u[:, : proposal.nodes], u[:, proposal.nodes :]
    phases = recorded if session.recorded else launched
    draft, q, verdict, settled = phases(session, proposal, decoder, uv, ud)
    if isinstance(proposal, Jacobi):
        proposal.learn(session, draft, verdict, q, ud)
    session.commit(draft, verdict, q, settled)
    sizes = None
    if isinstance(proposal, Drafted):
        proposal.learn(session, draft, verdict, q, ud)
        sizes = proposal.sizes()
    log.note(session, sizes or [(draft.tree.max_depth, draft.tree.nodes)] * session.batch)


class Log:
    """Per-step figures of a batch, kept on the host from what the step's one synchronisation brought anyway."""

    def __init__(self, batch: int):
        self.accepted: list[list[int]] = [[] for _ in range(batch)]
        self.depths: list[list[int]] = [[] for _ in range(batch)]
        self.nodes: list[list[int]] = [[] for _ in range(batch)]

    def note(self, session: Session, sizes: list[tuple[int, int]]) -> None:
        """``sizes``: depth and nodes of each prompt's tree."""
        for prompt, count, (depth, nodes) in zip(session.origin, session.fresh.advances, sizes, strict=True):
            if count:
                self.accepted[prompt].append(count)
                self.depths[prompt].append(depth)
                self.nodes[prompt].append(nodes)

    def generations(self, session: Session, encode_s: float, decode_s: float) -> list[Generation]:
        images = session.finish()
        return [
            Generation(
                images[i],
                self.accepted[i],
                self.depths[i],
                self.nodes[i],
                decode_s,
                encode_s,
                dict(session.clock.spent),
                session.syncs,
                session.trace,
            )
            for i in range(len(images))
        ]
