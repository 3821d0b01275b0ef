"""SCD: coupled redraws of a Jacobi window, case by case and in whole decodes, maximal and Gumbel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rules import EXACT
from torch import Tensor

from golden_checks.common import Found, Vectors, close, read, same, worst
from golden_checks.engine_window import window_run
from golden_checks.window_model import StandIn, Step, Window, accepted, compare_decode, decode
from lanternbench.engine.proposal import TreePolicy
from lanternbench.engine.sampling import draw
from lanternbench.methods.proposals.jacobi import Scd, SlidingWindow
from lanternbench.methods.proposals.redraws import PUBLIC_EPSILON, Redraw, gumbel, maximal


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "scd.safetensors")
    by_group: dict[str, list[Found]] = {}
    for name in vectors.meta["unit_cases"]:
        for f in unit(vectors, name):
            by_group.setdefault(f.group, []).append(f)
    found = [worst(group, all_of) for group, all_of in by_group.items()]
    for name, run in vectors.meta["runs"].items():
        found += compare(vectors, name, run) + in_engine(vectors, name, run)
    return found


def maximal_step(
    drafts: Tensor, p_prev: Tensor, p_cur: Tensor, u: dict[str, Tensor]
) -> tuple[Step, Any]:
    """Public maximal coupling: every draft is tested, and a kept one keeps its old law."""
    made = maximal(
        drafts[None, 1:],
        p_prev[None, 1:],
        p_cur[None, :-1],
        u["accept_u"][None, 1:],
        u["residual_u"][None, :-1],
    )
    laws = torch.where(made.accepted[0, :, None], p_prev[1:], p_cur[:-1])
    bonus = draw(p_cur[-1], u["sample_u"][-1])
    n = accepted(made.accepted) + 1
    return Step(n, torch.cat([made.tokens[0], bonus[None]]), torch.cat([laws, p_cur[-1:]])), made


def gumbel_step(
    drafts: Tensor, p_prev: Tensor, p_cur: Tensor, u: dict[str, Tensor], redrawn: Tensor
) -> tuple[Step, Any]:
    """Public Gumbel coupling: SJD up to the first rejection, whose residual is an independent
    draw; then redraws.
    """
    made = maximal(
        drafts[None, 1:],
        p_prev[None, 1:],
        p_cur[None, :-1],
        u["accept_u"][None, 1:],
        u["residual_u"][None, :-1],
    )
    n = accepted(made.accepted) + 1
    at = torch.arange(len(drafts))
    tested = torch.cat([made.tokens[0], redrawn[-1:]])
    laws = torch.where((at < n - 1)[:, None], F.pad(p_prev[1:], (0, 0, 0, 1)), p_cur)
    return Step(n, torch.where(at < n, tested, redrawn), laws), made


def unit(vectors: Vectors, name: str) -> list[Found]:
    given, want = vectors.under(f"in.unit.{name}."), vectors.under(f"out.unit.{name}.")
    drafts, p_prev, p_cur = given["draft"], given["p_prev"], given["p_cur"]
    sampled = draw(p_cur, given["sample_u"])
    coupled = gumbel(p_cur, given["gumbel_u"], PUBLIC_EPSILON)
    ours = gumbel(p_cur, given["gumbel_u"])
    found = [
        same("independent redraw", sampled, want["advanced_sampled"]),
        same("Gumbel redraw", coupled, want["advanced_gumbel"]),
        same("Gumbel redraw, without the public code's 1e-9", ours, want["advanced_gumbel"]),
        same(
            "Gumbel redraw: drafts that stay",
            coupled[:-1] == drafts[1:],
            want["redrawn_gumbel_same"][1:],
        ),
    ]
    step, made = maximal_step(drafts, p_prev, p_cur, given)
    for kind in ("mc", "janus_max"):
        found += _compare(f"maximal ({kind})", step, made, want, kind)
    gs, made = gumbel_step(drafts, p_prev, p_cur, given, coupled)
    found += _compare("Gumbel (gs)", gs, made, want, "gs")
    fresh_at_rejection = torch.where(torch.arange(len(drafts)) < step.n - 1, step.tokens, sampled)
    return [
        *found,
        same("maximal (cosmos): committed", step.n, want["cosmos_max.n"]),
        same("maximal (cosmos): tokens", step.tokens, want["cosmos_max.tokens"]),
        same("independent (cosmos): committed", step.n, want["cosmos_plain.n"]),
        same("independent (cosmos): tokens", fresh_at_rejection, want["cosmos_plain.tokens"]),
    ]


def _compare(group: str, step: Step, made: Any, want: dict[str, Tensor], kind: str) -> list[Found]:
    drawn = want[f"{kind}.residual_drawn"].bool()
    rest = (made.residual / made.residual.sum(-1, keepdim=True))[0][drawn[:-1]]
    return [
        same(f"{group}: committed", step.n, want[f"{kind}.n"]),
        same(f"{group}: tokens", step.tokens, want[f"{kind}.tokens"]),
        close(f"{group}: recorded laws", step.laws, want[f"{kind}.scores"], 1e-5),
        close(f"{group}: residual", rest, want[f"{kind}.residual"][:-1][drawn[:-1]], 1e-5),
    ]


def compare(vectors: Vectors, name: str, run: dict[str, Any]) -> list[Found]:
    given = vectors.under(f"in.run.{name}.")
    noise = given.pop("gumbel_u", None)
    return compare_decode(
        vectors, name, decode(StandIn(vectors, Window.of(run)), run, given, PublicStep(noise))
    )


def recorded_noise(rows: Tensor, begun: int) -> Redraw:
    """A redraw with a row of noise per position, counted from the first window step on."""

    def redraw(state: Any, result: Any, u: Tensor) -> tuple[Tensor, Tensor]:
        position = result.start[:, None] + torch.arange(result.q.shape[1])
        noise = rows[(position - begun).clamp(max=len(rows) - 1)]
        return gumbel(result.q, noise, PUBLIC_EPSILON), result.q

    return redraw


def in_engine(vectors: Vectors, name: str, run: dict[str, Any]) -> list[Found]:
    if run["variant"] == "maximal":
        return window_run(
            vectors, name, run,
            lambda u, size: torch.cat([u["accept_u"][1:], u["residual_u"][: size - 1], u["sample_u"][-1:]]),
            lambda target, window, _: Scd(window=window, variant="reference").build(target, TreePolicy(), EXACT),
            EXACT,
        )  # fmt: skip
    noise = vectors[f"in.run.{name}.gumbel_u"]

    def recorded(target: Any, window: int, begun: int) -> SlidingWindow:
        scd = Scd(window=window, coupling="gumbel", variant="reference")
        made = scd.build(target, TreePolicy(), EXACT)
        return replace(made, redraw=recorded_noise(noise, begun))

    return window_run(
        vectors, name, run, lambda u, size: noise[0, :0],
        recorded, EXACT,
    )  # fmt: skip


class PublicStep:
    """The public sampler.  Its Gumbel noise has one row per position, but only window steps move
    along the rows.
    """

    def __init__(self, noise: Tensor | None):
        self.noise, self.shift = noise, 0

    def redraw(self, p: Tensor, u: Tensor) -> Tensor:
        """A token for each p [n, V]."""
        if self.noise is None:
            return draw(p, u)
        return gumbel(p, self.noise[self.shift : self.shift + len(p)], PUBLIC_EPSILON)

    def window(self, drafts: Tensor, p_prev: Tensor, p_cur: Tensor, u: dict[str, Tensor]) -> Step:
        if self.noise is None:
            return maximal_step(drafts, p_prev, p_cur, u)[0]
        step, _ = gumbel_step(drafts, p_prev, p_cur, u, self.redraw(p_cur, u["sample_u"]))
        self.shift += step.n
        return step
