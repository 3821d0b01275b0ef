"""The decode loop, for every method and any batch.  A step is draft → forward → verify → commit."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from lanternbench.engine.carry import select
from lanternbench.engine.draft import Draft
from lanternbench.engine.opening import begin, row_seed
from lanternbench.engine.proposal import Proposal
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
)
from lanternbench.engine.trace import Generation, Log
from lanternbench.engine.verify import AcceptanceRule, Residual, Uniforms, VerifyResult
from lanternbench.errors import UserError
from lanternbench.models.target import Target
from lanternbench.registry import plugin_errors

Step = Callable[..., tuple[Any, Any]]  # see ``step``


@dataclass
class SpeculativeDecoder:
    """A method made ready for a target: build once, use for any number of prompts."""

    target: Target
    method: Any  # methods.method.Method: its key seeds the draws
    warp: Warp
    guidance: float
    proposer: Proposal
    rule: AcceptanceRule
    residual: Residual
    rates: Tensor | None = None  # [D + 1, D] where acceptance is simulated: ``simulation.reach``
    recordings: Recordings = field(default_factory=Recordings)
    step: Step | None = None  # in place of ``step`` below, for an order other than raster

    @property
    def lossless(self) -> bool | None:
        """Does the method claim to keep the target's distribution?  None where acceptance is
        simulated.
        """
        return self.method.lossless if self.rates is None else None

    @property
    def parts(self) -> tuple[Any, ...]:
        """The method's components, and the target's model."""
        return (*self.method.parts, self.residual, self.target.model)

    def verify(
        self, state: DecodeState, draft: Draft, states: TreeStates, q: Tensor, u: Uniforms
    ) -> tuple[VerifyResult, CommitPlan]:
        """Which drafted tokens are accepted, and the changes to the state that follow."""
        result = self.rule.verify(draft, q, u, self.residual, state.warp.greedy)
        if self.rates is not None:
            result = simulate(draft, result, self.rates, u.verify[:, -1])
        return result, plan_commit(state, draft, result, states)


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
    """Decode one image per caption, all in one batch.  An image is a function of (seed, its key,
    method).

    ``keys``: the captions by default.  ``trace``: keep the distributions of target and drafter.
    ``max_steps``: stop early, for warm-ups.  ``on_step``: called after every step with the batch's
    tokens so far and in all. Raises UserError for NaN or infinite logits, and in place of any
    exception that a plug-in raises.
    """
    with plugin_errors(*decoder.parts):
        began = perf_counter()
        seeds = [row_seed(seed, key, decoder.method.key) for key in (keys or captions)]
        state, proposer_state = begin(decoder, captions, seeds, trace)
        state.clock.start()  # waits for the device
        log, tokens = Log(state), state.batch  # the prefill gives each its first token
        encode_s = perf_counter() - began
        advance = decoder.step or step
        while state.active and state.steps != max_steps:
            if prompts := state.unfinished():
                proposer_state = select(proposer_state, prompts, state.batch)
                state.select(prompts)
            sizes = decoder.proposer.sizes(proposer_state)
            proposer_state, result = advance(decoder, state, proposer_state)
            log.note(
                state,
                sizes or ((result.draft.tree.max_depth, result.draft.tree.nodes),) * state.batch,
            )
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


def step(
    decoder: SpeculativeDecoder, state: DecodeState, proposer_state: Any
) -> tuple[Any, StepResult]:
    """One target forward that verifies a draft tree and commits at least one token per unfinished
    prompt.

    Each phase is launched, or replayed as one CUDA graph.  Returns the proposer's next state, and
    what was done.
    """
    run, bucket = launch, None
    if state.target.graphs is not None:
        run, bucket = decoder.recordings.replay, decoder.proposer.bucket(proposer_state)
    u = state.step_uniforms(decoder.rule.by_position)
    draft = run(state, "draft", bucket, decoder.proposer.draft, proposer_state, u.draft)
    states, q, health = run(state, "verify", None, check, draft)
    state.health += health
    result, plan = run(state, "commit", None, decoder.verify, draft, states, q, u)
    done = StepResult(draft, q, result, commit(state, draft, result, q, plan), u)
    return decoder.proposer.update(state, proposer_state, done), done


def launch(state: DecodeState, name: str, bucket: Hashable, work: Work, *arguments: Any) -> Any:
    """Run a phase operation by operation; see ``Recordings.replay``."""
    return work(state, *arguments)


def check(state: DecodeState, draft: Draft) -> tuple[TreeStates, Tensor, Tensor]:
    """The target's forward, and a scalar that turns NaN with any distribution: one NaN or infinite
    logit suffices.
    """
    states, q = forward(state, draft)
    total = q.select(2, 0).sum()
    return states, q, total if draft.p is None else total.add_(draft.p.select(2, 0).sum())
