"""Drafting as a share of the step: five forwards of an EAGLE drafter beside one of a block
drafter.

    python -m benchmarks.drafting [--threads 1]

Measured on this CPU, one image at a time, in turns, with acceptance simulated alike for all; and
by the roofline of `lanternbench predict` on an H100.  A drafter's time does not depend on its
weights: block drafters have random ones. Writes benchmarks/results/drafting.md.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lanternbench.costs import roofline
from lanternbench.costs.operators import count_operators
from lanternbench.costs.roofline import Load, device_model
from lanternbench.experiment.environment import environment
from lanternbench.methods.build import build, build_proposer
from lanternbench.methods.method import Method, method
from lanternbench.models.catalogue import load_target, load_unpacked
from lanternbench.models.drafters.dflash import untrained
from lanternbench.models.drafters.eagle import new_eagle
from lanternbench.models.drafters.kinds import Sizes
from lanternbench.models.packing import pack
from lanternbench.models.target import Target
from lanternbench.predict.replay import shape_of
from lanternbench.profile.step_profile import Profile, profile
from lanternbench.prompts import load
from lanternbench.report.tables import markdown

OUT = Path(__file__).parent / "results" / "drafting.md"
TAU, DRAFTS = 2.5, 5
PROMPTS = 6
CHAIN: dict[str, Any] = {"tree": "chain", "shape": f"chain-{DRAFTS}"}
EAGLE = [method("eagle-1", **CHAIN), method("eagle-3", **CHAIN)]
BLOCK = method("dflash", shape=f"chain-{DRAFTS}")
ON_GPU = ("llamagen-xl-stage1", "janus-pro-7b", "anole-7b", "glm-image")


class Share(NamedTuple):
    drafter: str
    forwards: int
    draft_ms: float
    step_ms: float


def with_block(target: Target, layers: int) -> Target:
    """With a block drafter of random weights, and an EAGLE-3 drafter where there is none."""
    with target.device:
        net = untrained(target.model, "dflash", Sizes(DRAFTS + 1, layers))
    net.eval().requires_grad_(False)
    net = net.half().to(target.dtype)  # float16 holds the embedded networks' weights too
    drafters = target.drafters | {"dflash": net}
    for kind, fused in (("eagle", False), ("eagle-3", True)):
        if kind not in drafters:
            drafters[kind] = new_eagle(target.model, fused=fused)
    return replace(target, drafters=drafters)


def cases(target: Target) -> list[tuple[str, Target, Method]]:
    every = [(m.preset, with_block(target, 1), m) for m in EAGLE]
    return every + [
        (f"dflash, {n} layer{'s' * (n > 1)}", with_block(target, n), BLOCK) for n in (1, 2, 5)
    ]


def measured(threads: int) -> list[Share]:
    torch.set_num_threads(threads)
    target = load_target("tiny")
    found = cases(target)
    for _, one, _ in found:
        pack(one.drafters["dflash"])
    decoders = [
        build(target, method("ar")),
        *(build(t, m, simulate_acceptance=TAU) for _, t, m in found),
    ]
    made: list[Profile] = profile(decoders, [prompt.text for prompt in load("demo", PROMPTS)])
    return [
        Share(name, DRAFTS if m is not BLOCK else 1, row.draft_ms, row.step_ms)
        for (name, _, m), row in zip(found, made[1:], strict=True)
    ]


def predicted(name: str) -> list[Share]:
    """A step in the middle of an image on an H100, bfloat16, batch 1, in CUDA graphs."""
    execution = roofline.Execution(device_model("h100"), "bfloat16")
    found = []
    target = load_unpacked(name, "meta", random_weights=True)
    for drafter, one, made in cases(target):
        shape, proposer = shape_of(one), build_proposer(one, made)
        load_ = Load(1.0, shape.rows, DRAFTS + 1, shape.length / 2)
        levels = proposer.levels(DRAFTS, DRAFTS + 1)
        net = proposer.network()
        operators = count_operators(made, target.options)
        drafted = (TAU, *levels)
        whole = roofline.step(
            roofline.Decoder(shape.network, net, operators), load_, drafted, execution
        )
        alone = roofline.step(
            roofline.Decoder(shape.network, None, operators), load_, drafted, execution
        )
        draft = 1e3 * float(sum(whole) - sum(alone))
        found.append(Share(drafter, 1 + len(levels), draft, 1e3 * float(sum(whole))))
    return found


def table(rows: list[tuple[str, Share]]) -> str:
    cells = [
        [
            where,
            x.drafter,
            str(x.forwards),
            f"{x.draft_ms:.2f}",
            f"{x.step_ms:.2f}",
            f"{100 * x.draft_ms / x.step_ms:.1f}%",
        ]
        for where, x in rows
    ]
    titles = ["target", "drafter", "its forwards", "drafting, ms", "step, ms", "share"]
    return markdown(titles, cells, [False, False, True, True, True, True])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    facts: dict[str, Any] = environment()
    cpu = table([("tiny", share) for share in measured(threads)])
    gpu = table([(name, share) for name in ON_GPU for share in predicted(name)])
    text = f"""# Drafting as a share of the step

Five drafts a step, in a chain: five forwards of an EAGLE drafter, one of a block drafter (DFlash, blocks of six). The
time of a drafter does not depend on its weights; block drafters have random ones, and {TAU} tokens a step are simulated
for all.

Measured: `tiny`, {PROMPTS} prompts one at a time, in turns; {facts["cpu"]}, {threads} thread(s),
torch {facts["torch"]}.

{cpu}
Predicted, not measured: H100, bfloat16, batch 1, CUDA graphs, in the middle of an image ([how](../../docs/predict.md)).

{gpu}
`python -m benchmarks.drafting`
"""
    OUT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
