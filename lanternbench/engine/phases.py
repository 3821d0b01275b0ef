"""The phases of a step: draft, verify, settle.  Launched operation by operation, or replayed as one CUDA graph each.

A recording replays kernels and nothing else.  So what a recorded phase reads of the decode at hand comes in as
arguments, and how far the image is, which the host knows, counts in it only as the number of slots to attend to.
Two kinds of drafting are not recorded: adaptive trees, which have too many shapes, and Jacobi's, which is a few
operations.  Nor are targets that write row ends, as those come up at other nodes in every step; their forwards are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lanternbench.engine.cuda_graphs import Replay
from lanternbench.engine.sampling import draw
from lanternbench.engine.simulation import simulate
from lanternbench.engine.state import Fresh, Session, Settled
from lanternbench.engine.tree import Tree
from lanternbench.engine.verify import Draft, Verdict, verify, verify_greedy
from lanternbench.methods.proposals.base import Proposal
from lanternbench.methods.proposals.jacobi import Jacobi

if TYPE_CHECKING:
    from lanternbench.engine.decode import Decoder


class Outcome(NamedTuple):
    """A step before its commit."""

    draft: Draft
    q: Tensor  # [B, N, V]
    verdict: Verdict
    settled: Settled


def launched(session: Session, proposal: Proposal, decoder: Decoder, uv: Tensor, ud: Tensor) -> Outcome:
    """A step up to its commit; uniforms uv [B, N] for verification, ud [B, U] for drafting."""
    draft = proposal.draft(session, ud)
    hidden, q = session.forward(draft, session.visible(draft))
    session.health += health(draft, q)
    verdict = decide(session, proposal, decoder, draft, q, uv, ud)
    return Outcome(draft, q, verdict, session.settle(draft, verdict, hidden))


def health(draft: Draft, q: Tensor) -> Tensor:
    """NaN if any distribution is: a NaN or infinite logit makes its whole distribution NaN."""
    total = q[..., 0].sum()
    return total if draft.p is None else total + draft.p[..., 0].sum()


def decide(
    session: Session, proposal: Proposal, decoder: Decoder, draft: Draft, q: Tensor, uv: Tensor, ud: Tensor
) -> Verdict:
    """Which path to take through the tree and which token to end it with."""
    if draft.tree.nodes == 1:
        token = q[:, 0].argmax(-1) if session.warp.greedy else draw(q[:, 0], uv[:, 0])
        zero = torch.zeros_like(draft.tokens)
        verdict = Verdict(zero, zero[:, 0], token, zero)
    elif isinstance(proposal, Jacobi) and proposal.fixed_point:
        verdict = proposal.unchanged(session, draft, q, ud)
    elif session.warp.greedy:
        verdict = verify_greedy(draft, q, decoder.rule)
    else:
        verdict = verify(draft, q, uv, decoder.rule, decoder.residual)
    return verdict if decoder.rates is None else simulate(draft, verdict, decoder.rates, uv[:, -1])


def recorded(session: Session, proposal: Proposal, decoder: Decoder, uv: Tensor, ud: Tensor) -> Outcome:
    """``launched``, each phase a recording."""
    run, fresh = decoder.recordings.run, session.fresh
    state = {"length": session.length, "offset": session.start}

    def drafted(state: dict, root: Tensor, hidden: Tensor, tokens: Tensor, advance: Tensor, ud: Tensor) -> Draft:
        with session.standing(**state, root=root, fresh=Fresh(hidden, tokens, advance, [])):
            return proposal.draft(session, ud)

    def verified(state: dict, parts: dict) -> tuple[Tensor, Tensor, Tensor]:
        with session.standing(**state):
            whole = restored(draft, parts)
            hidden, q = session.forward(whole, session.visible(whole))
            return hidden, q, health(whole, q)

    def settled(state: dict, parts: dict, hidden: Tensor, q: Tensor, uv: Tensor) -> tuple[Verdict, Settled]:
        with session.standing(**state):
            whole = restored(draft, parts)
            verdict = decide(session, proposal, decoder, whole, q, uv, ud)
            return verdict, session.settle(whole, verdict, hidden)

    if proposal.fixed:
        draft = run(session, "draft", drafted, state, session.root, fresh.hidden, fresh.tokens, fresh.advance, ud)
    else:
        draft = proposal.draft(session, ud)
    parts = varying(draft)
    hidden, q, total = run(session, "verify", verified, state, parts)
    session.health += total
    if isinstance(proposal, Jacobi) and proposal.fixed_point:  # draws by position, from the session's own uniforms
        verdict = decide(session, proposal, decoder, draft, q, uv, ud)
        return Outcome(draft, q, verdict, session.settle(draft, verdict, hidden))
    name = f"commit, {draft.tree.max_depth} deep"
    return Outcome(draft, q, *run(session, name, settled, state, parts, hidden, q, uv))


def varying(draft: Draft) -> dict[str, Tensor]:
    """The tensors of a draft that differ from step to step: not those of a tree whose shape is data."""
    parts = {"tokens": draft.tokens} if draft.p is None else {"tokens": draft.tokens, "p": draft.p}
    if draft.static is None and draft.tree.nodes > 1:
        parts |= {name: getattr(draft.tree, name) for name in ("depth", "children", "ancestors")}
    return parts


def restored(like: Draft, parts: dict[str, Tensor]) -> Draft:
    """The draft of these ``varying`` parts."""
    tree = like.tree
    if "depth" in parts:
        tree = Tree(parts["depth"], parts["children"], parts["ancestors"], tree.max_depth)
    return Draft(parts["tokens"], tree, parts.get("p"), like.static)


class Recordings:
    """The recorded phases of one decoder; they outlive a decode."""

    def __init__(self) -> None:
        self.made: dict[tuple, tuple[Replay, Any]] = {}
        self.static: dict[int, Tensor] = {}  # what recordings return, by id: the next phase reads it where it is

    def run(self, session: Session, name: str, work: Callable[..., Any], *given: Any) -> Any:
        """``work(*given)``, recorded when it is first asked for.  What it returns holds until it is run again."""
        inputs, form = tree_flatten(given)
        shapes = (session.stack.cache.slots, *(x.shape for x in inputs))  # other slots are another cache
        span, *longer = session.spans()
        if (name, span, shapes) not in self.made:  # with all longer ones: a decode that is timed should record nothing
            for slots in (span, *longer):
                if (name, slots, shapes) not in self.made:
                    self.made[name, slots, shapes] = self._record(session, slots, work, inputs, form)
        replay, found = self.made[name, span, shapes]
        replay(inputs)
        session.clock.tick(name.partition(",")[0])
        return found

    def _record(
        self, session: Session, slots: int, work: Callable[..., Any], inputs: list[Tensor], form: Any
    ) -> tuple[Replay, Any]:
        assert session.graphs is not None
        graphs = session.graphs
        leaves: list[Any] = []
        forms: list[Any] = []

        def flat(*inputs: Tensor) -> list[Tensor]:
            with graphs.recording(slots), session.clock.paused():
                found, made_form = tree_flatten(work(*tree_unflatten(list(inputs), form)))
            leaves[:], forms[:] = found, [made_form]
            return [x for x in found if isinstance(x, Tensor)]

        replay = graphs.record(flat, inputs, self.static)
        outputs = iter(replay(inputs))
        found = tree_unflatten([next(outputs) if isinstance(x, Tensor) else x for x in leaves], forms[0])
        self.static |= {id(x): x for x in tree_leaves(found) if isinstance(x, Tensor)}
        return replay, found
