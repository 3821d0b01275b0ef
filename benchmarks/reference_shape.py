"""This engine at the shape at which the public LANTERN and LlamaGen code was timed, plain and
packed.

    python -m benchmarks.reference_shape [--threads 2]

A LlamaGen of 100 M parameters (512 wide, 24 layers, vocabulary 16,384) with CFG in float32, random
weights, batch 1, 256 tokens, acceptance drawn to τ = 2.7.  The public code took 72 to 74 ms for an
AR token and about 290 ms for a step of EAGLE-1, EAGLE-2 or LANTERN on two cores of a machine of
this kind; other machines differ, the ratios less so. Writes benchmarks/results/reference-shape.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from lanternbench.costs.forward_cost import bandwidth
from lanternbench.experiment.environment import environment
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.entries import Entry
from lanternbench.models.llamagen.checkpoint import LlamaGenFamily
from lanternbench.models.packing import packed
from lanternbench.profile import step_profile as profile

SHAPE = {"dim": 512, "n_layer": 24, "n_head": 8, "grid": 16}
PUBLIC_MS = {"ar": 73.0, "eagle-1": 290.0, "eagle-2": 290.0, "lantern": 290.0}
CAPTIONS = ["a cat on a red sofa"]


def measured(pack: bool, dtype: torch.dtype) -> list[profile.Profile]:
    target = LlamaGenFamily().random_target(
        Entry(
            name="llamagen-100m",
            family="llamagen",
            about="",
            shape=SHAPE,
            guidance=7.5,
            top_k=1000,
        ),
        "cpu",
        dtype,
    )
    if pack:
        packed(target)
    decoders = [build(target, method(n), simulate_acceptance=2.7) for n in PUBLIC_MS]
    return profile.profile(decoders, CAPTIONS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    limit = bandwidth(torch.device("cpu")).best
    lines = [
        "# Against the public code, at 100 M parameters",
        "",
        "| weights | method | step ms | public code | ratio | draft | verify | outside forwards | of memory limit |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for pack, dtype in ((False, torch.float32), (True, torch.float32), (True, torch.bfloat16)):
        title = f"{'packed' if pack else 'plain'} {str(dtype).removeprefix('torch.')}"
        for public, row in zip(PUBLIC_MS.values(), measured(pack, dtype), strict=True):
            lines.append(
                f"| {title} | {row.label} | {row.step_ms:.1f} | {public:.0f} | {public / row.step_ms:.2f}× | "
                f"{row.draft_ms:.1f} | {row.verify_ms:.1f} | {row.overhead_fraction:.1%} | {row.achieved / limit:.0%} |"
            )
            print(lines[-1], flush=True)
    machine = environment()
    lines += [
        "",
        f"`python -m benchmarks.reference_shape` on {machine['cpu']}, {machine['threads']} threads, ",
    ]
    lines[-1] += f"torch {machine['torch']}; memory reads at {limit:.1f} GB/s."
    (Path(__file__).parent / "results/reference-shape.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
