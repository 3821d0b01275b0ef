"""The decode loop, for every method and any batch.  A step is draft → forward → verify → commit."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from lanternbench.engine.cache import open_cache
from lanternbench.engine.carry import select
from lanternbench.engine.proposal import Proposer
from lanternbench.engine.recording import Recordings, Work
from lanternbench.engine.sampling import Warp
from lanternbench.engine.simulation import simulate
from lanternbench.engine.state import (
    CommitPlan,
    DecodeState,
    StepResult,
    TreeStates,
    commit,
    forward,
    plan_commit,
    prefill,
    row_seed,
    row_uniforms,
)
from lanternbench.engine.timing import Clock
from lanternbench.engine.trace import Trace
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import AcceptanceRule, Residual, Uniforms, VerifyResult
from lanternbench.errors import UserError
from lanternbench.models.target import Target
from lanternbench.registry import plugin_errors


@dataclass
class SpeculativeDecoder:
    """A method made ready for a target: build once, use for any number of prompts."""

    target: Target
    method: Any  # methods.method.Method: its key seeds the draws
    warp: Warp
    guidance: float
    proposer: Proposer
    rule: AcceptanceRule
    residual: Residual
    rates: Tensor | None = None  # [D + 1], where acceptance is simulated
    recordings: Recordings = field(default_factory=Recordings)

    @property
    def lossless(self) -> bool | None:
        """Does the method claim to keep the target's distribution?  None where acceptance is simulated."""
        return self.method.lossless if self.rates is None else None

    @property
    def parts(self) -> tuple[Any, ...]:
        """The method's components, and the target's model."""
        return (*self.method.parts, self.residual, self.target.model)


@dataclass
class Generation:
    """The tokens of one image, and what decoding them took."""

    tokens: Tensor  # [L]
    accept_lengths: list[int]  # tokens committed per step, the residual or bonus token included; sums to L − 1
    tree_depths: list[int]  # depth that each tree was grown to; the nodes that were kept may reach less deep
    tree_nodes: list[int]
    decode_s: float  # seconds of the whole batch's loop, after prefill and first token
    encode_s: float  # seconds of the whole batch's captions, prefill and first token
    cpu_s: float = 0.0  # CPU time of this process during decode_s, all threads together
    phases: dict[str, float] = field(default_factory=dict)
    step_s: list[float] = field(default_factory=list)  # seconds of every step of the whole batch
    syncs: int = 0
    trace: Trace | None = None  # of its whole batch

    @property
    def steps(self) -> int:
        return len(self.accept_lengths)


@torch.inference_mode()
def generate(
    decoder: SpeculativeDecoder,
    captions: list[str],
    keys: list[str] | None = None,
    seed: int = 0,
    trace: bool = False,
    max_steps: int | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Generation]:
    """Decode one image per caption, all in one batch.

    An image is a function of (seed, its key, method); ``keys`` default to the captions.  ``trace``: keep the target's
    and the drafter's distributions for later analysis.  ``max_steps``: stop early, for warm-ups.  ``on_step`` is called
    after every step with the number of tokens decoded so far and in all, over the batch.
    Raises UserError for NaN or infinite logits, and in place of any exception that a plug-in raises.
    """
    with plugin_errors(*decoder.parts):
        return _generate(decoder, captions, keys, seed, trace, max_steps, on_step)


def _generate(
    decoder: SpeculativeDecoder,
    captions: list[str],
    keys: list[str] | None,
    seed: int,
    trace: bool,
    max_steps: int | None,
    on_step: Callable[[int, int], None] | None,
) -> list[Generation]:
    began = perf_counter()
    seeds = [row_seed(seed, key, decoder.method.key) for key in (keys or captions)]
    state, drafting = begin(decoder, captions, seeds, trace)
    state.clock.start()  # waits for the device
    log, tokens = Log(state), state.batch  # the prefill gives each its first token
    encode_s = perf_counter() - began
    while state.active and state.steps != max_steps:
        if prompts := state.unfinished():
            drafting = select(drafting, prompts, state.batch)
            state.select(prompts)
        sizes = decoder.proposer.sizes(drafting)
        drafting, result = step(decoder, state, drafting)
        log.note(state, sizes or ((result.draft.tree.max_depth, result.draft.tree.nodes),) * state.batch)
        if on_step is not None:
            tokens += sum(state.now.last.advance.host or ())
            on_step(tokens, state.limit * len(captions))
        state.clock.end_step()
    decode_s = state.clock.stop()
    if state.trace is not None:
        state.trace.cut(state.limit)
    if not bool(state.health.isfinite()):
        raise UserError(
            f"the logits of target '{state.target.name}' or its drafter became NaN or infinite while "
            f"'{decoder.method.label}' decoded; check the weights, or give --dtype float32"
        )
    return log.generations(state, encode_s, decode_s)


def start(decoder: SpeculativeDecoder, captions: list[str], seeds: list[int], trace: bool) -> DecodeState:
    """The state after prefill and first token."""
    target, proposer, model = decoder.target, decoder.proposer, decoder.target.model
    prefix, aux_layers = target.prefix(captions, decoder.guidance), proposer.aux_layers
    step_slots = max(proposer.nodes, proposer.max_step_slots)
    state = DecodeState(
        target,
        decoder.warp,
        decoder.guidance,
        seeds,
        prefix,
        open_cache(
            target, model, prefix, step_slots, row_end=lambda ids: model.prompt_embeddings(ids), aux_layers=aux_layers
        ),
        row_uniforms(seeds, target.length, proposer.nodes + proposer.uniforms, target.device),
        proposer.nodes,
        step_slots,
        Clock(target.device),
        aux_layers=aux_layers,
    )
    if trace:
        slack = target.length + proposer.nodes + 1
        state.trace = Trace(state.batch, slack, target.vocab, max(proposer.width, 1), target.device)
    prefill(state)
    return state


def begin(
    decoder: SpeculativeDecoder, captions: list[str], seeds: list[int], trace: bool = False
) -> tuple[DecodeState, Any]:
    """The state after prefill and first token, and the proposer's state."""
    state = start(decoder, captions, seeds, trace)
    drafting = decoder.proposer.init(state)
    state.prefix_states = None  # drafters have read them
    return state, drafting


def step(decoder: SpeculativeDecoder, state: DecodeState, drafting: Any) -> tuple[Any, StepResult]:
    """One target forward that verifies a draft tree and commits at least one token per unfinished prompt.

    ``drafting``: the proposer's state.  Each phase is launched, or replayed as one CUDA graph.
    """
    run, bucket = launch, None
    if state.recorded:
        run, bucket = decoder.recordings.replay, decoder.proposer.bucket(drafting)
    u = state.step_uniforms(decoder.rule.by_position)

    def propose(state: DecodeState, drafting: Any, u: Tensor) -> Draft:
        return decoder.proposer.draft(state, drafting, u)

    def verify(
        state: DecodeState, draft: Draft, states: TreeStates, q: Tensor, u: Uniforms
    ) -> tuple[VerifyResult, CommitPlan]:
        result = decoder.rule.verify(draft, q, u, decoder.residual, state.warp.greedy)
        if decoder.rates is not None:
            result = simulate(draft, result, decoder.rates, u.verify[:, -1])
        return result, plan_commit(state, draft, result, states)

    draft = run(state, "draft", bucket, propose, drafting, u.draft)
    states, q, health = run(state, "verify", None, check, draft)
    state.health += health
    result, plan = run(state, "commit", None, verify, draft, states, q, u)
    commit(state, draft, result, q, plan)
    done = StepResult(draft, q, result, plan.length - plan.advance, u)
    return decoder.proposer.update(state, drafting, done), done


def launch(state: DecodeState, name: str, bucket: Hashable, work: Work, *arguments: Any) -> Any:
    """Run a phase operation by operation; see ``Recordings.replay``."""
    return work(state, *arguments)


def check(state: DecodeState, draft: Draft) -> tuple[TreeStates, Tensor, Tensor]:
    """The target's forward, and a scalar that turns NaN with any distribution: one NaN or infinite logit suffices."""
    states, q = forward(state, draft)
    total = q[..., 0].sum()
    return states, q, total if draft.p is None else total + draft.p[..., 0].sum()


class Log:
    """Per-step figures of a batch, from values that the step's one host synchronisation transfers anyway."""

    def __init__(self, state: DecodeState):
        self.accepted, self.depths, self.nodes = ([[] for _ in range(state.batch)] for _ in range(3))  # type: ignore[var-annotated]

    def note(self, state: DecodeState, sizes: tuple[tuple[int, int], ...]) -> None:
        """``sizes``: depth and nodes of each prompt's tree."""
        counts = state.now.last.advance.host or ()
        for prompt, count, (depth, nodes) in zip(state.origin, counts, sizes, strict=True):
            if count:
                self.accepted[prompt].append(count)
                self.depths[prompt].append(depth)
                self.nodes[prompt].append(nodes)

    def generations(self, state: DecodeState, encode_s: float, decode_s: float) -> list[Generation]:
        clock = state.clock
        return [
            Generation(
                tokens,
                self.accepted[i],
                self.depths[i],
                self.nodes[i],
                decode_s,
                encode_s,
                clock.cpu_s,
                dict(clock.spent),
                clock.step_s,
                state.syncs,
                state.trace,
            )
            for i, tokens in enumerate(state.finish())
        ]
