"""GSD: grouped acceptance, case by case and in whole decodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from rules import EXACT
from torch import Tensor

from golden_checks.common import Found, Vectors, close, read, same, worst
from golden_checks.engine_window import window_run
from golden_checks.window_model import StandIn, Step, Window, accepted, compare_decode, decode
from lanternbench.engine.proposal import TreePolicy
from lanternbench.engine.sampling import at, draw
from lanternbench.methods.acceptance.gsd import GroupTest, Gsd, group
from lanternbench.methods.proposals.jacobi import Jacobi
from lanternbench.methods.proposals.redraws import maximal

FALLBACK_FROM = 14  # tokens in the vocabulary from which on the public code's low ranks fall back


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "gsd.safetensors")
    by_group: dict[str, list[Found]] = {}
    for name in vectors.meta["unit_cases"]:
        for f in unit(vectors, name):
            by_group.setdefault(f.group, []).append(f)
    found = [worst(group, all_of) for group, all_of in by_group.items()]
    for name, run in vectors.meta["runs"].items():
        sampler = PublicStep(vectors["in.model.emb"])
        given = vectors.under(f"in.run.{name}.")
        found += compare_decode(
            vectors, name, decode(StandIn(vectors, Window.of(run)), run, given, sampler)
        )
        # the engine's window has one size
        if run["window"] == run["window_after_first_window_step"]:
            found += window_run(
                vectors, name, run, lambda u, size: u["sample_u"],
                lambda made, size, _: Jacobi(window=size, variant="reference").build(made, TreePolicy(), EXACT),
                public_rule(vectors["in.model.emb"]),
            )  # fmt: skip
    return found


def public_rule(embeddings: Tensor) -> GroupTest:
    """What ``--variant reference`` builds for a target with these input embeddings, whose codebook
    has equal rows.
    """
    model = SimpleNamespace(tok_embeddings=torch.nn.Embedding.from_pretrained(embeddings))
    codebook = torch.zeros(len(embeddings), 1)
    target: Any = SimpleNamespace(
        model=model, vocab=len(codebook), device=codebook.device, codebook=codebook
    )
    return Gsd(variant="reference").build(target, 1)


class PublicStep:
    """The public sampler: SJD's step with the group's mass in place of the token's."""

    def __init__(self, embeddings: Tensor):
        self.rule = public_rule(embeddings)

    def redraw(self, p: Tensor, u: Tensor) -> Tensor:
        return draw(p, u)

    def accept_prob(self, drafts: Tensor, p_prev: Tensor, p_cur: Tensor) -> Tensor:
        """Of the drafts at input index 1 …: [L − 1]."""
        members = group(p_cur[:-1], drafts[1:], self.rule.alike, self.rule.bounds)
        return (members.mass(p_cur[:-1]) / members.mass(p_prev[1:])).clamp(max=1)

    def window(self, drafts: Tensor, p_prev: Tensor, p_cur: Tensor, u: dict[str, Tensor]) -> Step:
        assert p_cur.shape[-1] >= FALLBACK_FROM
        kept = u["accept_u"][1:] < self.accept_prob(drafts, p_prev, p_cur)
        n, at = accepted(kept) + 1, torch.arange(len(drafts))
        redrawn = draw(p_cur, u["sample_u"])
        rest = maximal(
            drafts[1:], p_prev[1:], p_cur[:-1], u["accept_u"][1:], u["residual_u"][:-1]
        ).residual
        tested = torch.where(kept, drafts[1:], draw(rest, u["residual_u"][:-1]))
        tokens = torch.where(at < n, torch.cat([tested, redrawn[-1:]]), redrawn)
        laws = torch.where((at < n - 1)[:, None], F.pad(p_prev[1:], (0, 0, 0, 1)), p_cur)
        return Step(n, tokens, laws)


def unit(vectors: Vectors, name: str) -> list[Found]:
    given, want = vectors.under(f"in.unit.{name}."), vectors.under(f"out.unit.{name}.")
    drafts, p_prev, p_cur = given["draft"], given["p_prev"], given["p_cur"]
    sampler = PublicStep(given["emb"])
    step = sampler.window(drafts, p_prev, p_cur, given)
    prob, wanted = sampler.accept_prob(drafts, p_prev, p_cur), want["accept_prob"][1:]
    reached = wanted >= 0
    everywhere = sampler.rule.accepted_prob(p_cur[:-1], p_prev[1:], torch.zeros(()))
    together = at(everywhere, drafts[1:]) / at(p_prev[1:], drafts[1:])
    rank = (p_cur[:-1].sort(dim=-1, stable=True).indices == drafts[1:, None]).long().argmax(-1)
    return [
        same("rank of the draft", rank, want["rank"][1:]),
        close("squared distances", torch.cdist(given["emb"], given["emb"]) ** 2, want["sims"]),
        close("acceptance probability", prob[reached], wanted[reached], 1e-5),
        close(
            "acceptance probability, of all tokens at once",
            together[reached],
            wanted[reached],
            1e-5,
        ),
        same("independent redraw", draw(p_cur, given["sample_u"]), want["advanced_sampled"]),
        same("committed", step.n, want["n"]),
        same("tokens", step.tokens, want["tokens"]),
        close("recorded laws", step.laws, want["scores"], 1e-5),
        residual(p_prev, p_cur, want),
    ]


def residual(p_prev: Tensor, p_cur: Tensor, want: dict[str, Any]) -> Found:
    drawn = want["residual_drawn"][:-1].bool()
    rest = (p_cur[:-1] - p_prev[1:]).clamp(min=0)
    return close(
        "residual", (rest / rest.sum(-1, keepdim=True))[drawn], want["residual"][:-1][drawn], 1e-5
    )
