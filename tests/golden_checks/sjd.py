"""A speculative Jacobi step: how many drafts survive, what replaces the first that does not, what
is drafted next.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from rules import EXACT
from torch import Tensor

from golden_checks.common import Found, close, read, same, worst
from lanternbench.engine import verify as verification
from lanternbench.engine.proposal import TreePolicy
from lanternbench.engine.sampling import Warp
from lanternbench.engine.state import StepResult
from lanternbench.engine.tree import Draft, VerifyResult, chain
from lanternbench.engine.verify import Uniforms
from lanternbench.methods.acceptance import chains
from lanternbench.methods.acceptance.chains import FixedPoint
from lanternbench.methods.proposals.jacobi import Jacobi
from lanternbench.methods.proposals.redraws import Redraw
from lanternbench.methods.residuals import standard
from lanternbench.settings import TARGETS_OWN


def recorded(tokens: Tensor) -> Redraw:
    """The recorded redraw."""
    return lambda state, result, u: (tokens, result.q)


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "sjd.safetensors")
    by_group: dict[str, list[Found]] = {}
    for i, case in enumerate(vectors.meta["cases"]):
        given = vectors.under(f"case{i}.")
        for f in compare(given, case == "jacobi_exact_match"):
            by_group.setdefault(f.group, []).append(f._replace(group=case))
        if case == "fresh_onehot_drafts":
            by_group["fresh drafts: one-hot p"] = [fresh(given)]
    found = []
    for group, all_of in by_group.items():
        failed = [f.group for f in all_of if not f.passed]
        found.append(worst(f"{group}{' FAILED ' + ' '.join(failed) if failed else ''}", all_of))
    return found


def compare(given: dict[str, Tensor], fixed_point: bool) -> list[Found]:
    tokens = given["draft_tokens"]
    window = tokens.shape[1] - 1
    state = stub(given)
    rule = FixedPoint() if fixed_point else EXACT
    jacobi = replace(
        Jacobi(window=window).build(state.target, TreePolicy(), rule),
        redraw=recorded(given["sampled_from_p_cur"]),
    )
    result, final = redraw_compared(given) if fixed_point else verified(given)
    n = int(result.accepted.min()) + 1  # the reference cuts all rows of a batch to the shortest
    draft, start = Draft(tokens, static=jacobi.static), torch.ones(len(tokens), dtype=torch.long)
    step = StepResult(draft, given["p_cur"], result, start, uniforms(given), given["p_cur"])
    own = jacobi.update(state, jacobi.begin(state), step)
    # of rows that were cut further, the reference keeps accepted drafts in the window
    cut = result.accepted == n - 1
    left = window + 1 - n
    found = [
        same("committed", n, given["matched_num"]),
        same("accepted drafts", tokens[:, 1:n], given["matched_next_tokens"][:, : n - 1]),
        same("positions kept", own.draft_count[cut], torch.full((int(cut.sum()),), left)),
        same(
            "window after the shift", own.drafts[cut, :left], given["unmatched_next_tokens"][cut]
        ),
    ]
    if fixed_point:
        return [
            *found,
            same("token that ends the step", result.token, given["matched_next_tokens"][:, n - 1]),
        ]
    want = given["residual_distribution"][cut]
    some = want.sum(-1) > 0  # a row with nothing rejected ends with the recorded bonus token
    token = given["matched_next_tokens"][:, n - 1][cut]
    return [
        *found,
        close("residual", final[cut][some], want[some]),
        close(
            "distribution of the bonus token", final[cut][~some], given["p_cur"][:, -1][cut][~some]
        ),
        same(
            "the reference's last token is possible",
            (final[cut].gather(1, token[:, None]) <= 0).sum(),
            0,
        ),
        close(
            "distributions after the shift", own.p[cut, :left], given["unmatched_next_scores"][cut]
        ),
    ]


def fresh(given: dict[str, Tensor]) -> Found:
    """A window all new, at the tokens that the reference drew: its p is the recorded one."""
    tokens, vocab = given["draft_tokens"][:, 1:], given["p_cur"].shape[-1]
    state = stub(given)
    jacobi = Jacobi(window=tokens.shape[1], variant="reference").build(
        state.target, TreePolicy(), EXACT
    )
    draft = jacobi.draft(state, jacobi.begin(state), (tokens + 0.5) / vocab)
    assert torch.equal(draft.tokens, given["draft_tokens"])
    assert draft.p is not None
    return close("", draft.p, given["p_prev"][:, 1:])


def stub(given: dict[str, Tensor]) -> Any:
    """As much of a decode's state as a window reads."""
    batch, _, vocab = given["p_cur"].shape
    root = given["draft_tokens"][:, 0]
    target = SimpleNamespace(vocab=vocab, grids=((1, 1),), length=1, device=root.device)
    now, first = SimpleNamespace(root=root), given["p_cur"][:, 0]
    return SimpleNamespace(
        batch=batch,
        target=target,
        device=root.device,
        warp=Warp(TARGETS_OWN),
        now=now,
        first=first,
    )


def uniforms(given: dict[str, Tensor]) -> Uniforms:
    """The recorded ones; those of redraws are not recorded, the redraws are."""
    none = torch.zeros(len(given["draft_tokens"]), 0)
    return Uniforms(given.get("uniform", none), none, none)


def redraw_compared(given: dict[str, Tensor]) -> tuple[VerifyResult, Tensor]:
    """Plain Jacobi decoding: drafts stay while the recorded redraw leaves them unchanged."""
    tokens, q = given["draft_tokens"], given["p_cur"]
    draft = Draft(tokens, static=chain(tokens.shape[1] - 1))
    with patch.object(chains, "draw", lambda weights, level: given["sampled_from_p_cur"]):
        return FixedPoint().verify(draft, q, uniforms(given), standard, greedy=False), q


def verified(given: dict[str, Tensor]) -> tuple[VerifyResult, Tensor]:
    """Our chain verification, and the distribution [B, V] that the last token is drawn from."""
    tokens, q = given["draft_tokens"], given["p_cur"]
    static = chain(tokens.shape[1] - 1)
    # A draft that its own p excludes cannot be drawn and is refused; the reference divides by that
    # 0 and accepts.
    px = given["p_prev"][:, 1:].gather(-1, tokens[:, 1:, None])
    p = given["p_prev"][:, 1:].scatter(
        -1, tokens[:, 1:, None], px.clamp(min=torch.finfo(px.dtype).tiny)
    )
    drawn: list[Tensor] = []

    def recording(weights: Tensor, levels: Tensor) -> Tensor:
        drawn.append(weights)
        return weights.argmax(-1, keepdim=True)

    with patch.object(verification, "draw_each", recording):
        result = EXACT.verify(
            Draft(tokens, p, static), q.clone(), uniforms(given), standard, greedy=False
        )
    return result, drawn[-1] / drawn[-1].sum(-1, keepdim=True)
