"""What the engine costs: the loop beside the forwards; a forward against nodes, cached length,
size; batches; memory.

    python -m benchmarks.engine [--threads 2]

Every row compares what was timed in turns in one run.  Writes benchmarks/results/engine.md and
engine.json, dated.
"""

from __future__ import annotations

import argparse
import json
import resource
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from lanternbench.costs.forward_cost import bandwidth
from lanternbench.engine import decode as engine
from lanternbench.engine.cache import DecoderCache, causal, raster, run_address
from lanternbench.experiment.environment import environment
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_target
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.entries import Entry
from lanternbench.models.llamagen.checkpoint import LlamaGenFamily
from lanternbench.models.packing import packed
from lanternbench.models.target import Target
from lanternbench.profile import step_profile as profile
from lanternbench.prompts import load
from lanternbench.registry import components
from lanternbench.utils.processes import process_count, side_by_side

SHAPES: dict[str, dict[str, Any]] = {  # vocabulary 16,384, random weights
    "35 M, 256 × 24": {"dim": 256, "n_layer": 24, "n_head": 4},
    "101 M, 512 × 24": {"dim": 512, "n_layer": 24, "n_head": 8},
    "343 M, 1024 × 24": {"dim": 1024, "n_layer": 24, "n_head": 16},
}
NODES = (1, 2, 4, 6, 12, 26, 60)
LENGTHS = (256, 512, 1024, 2048, 4095)
BATCHES = (1, 4, 16, 32)
Rows = list[dict[str, Any]]


@torch.inference_mode()
def forwards(model: ImageDecoder, cases: list[tuple[int, int]], repeats: int = 15) -> list[float]:
    """Median milliseconds of a guided forward per (nodes, cached length), timed in turns."""
    rows, width = 2, max(n + base for n, base in cases)
    like = torch.zeros(rows, 1, model.config.decoder.dim)
    cache = DecoderCache(
        model,
        model.config.decoder,
        raster(width, 0, 0, 0, width, like.device),
        rows,
        model.rope,
        like,
    )
    times: list[list[float]] = [[] for _ in cases]
    for _ in range(repeats):
        for spent, (n, base) in zip(times, cases, strict=True):
            x = torch.randn(rows, n, model.config.decoder.dim)
            clock = perf_counter()
            model.output(
                cache.forward(x, run_address(base, n, None if n == 1 else causal(n, x.device)))
            )
            spent.append(1e3 * (perf_counter() - clock))
    return [median(spent) for spent in times]


def published(shape: dict[str, Any], grid: int = 16) -> Target:
    return packed(
        LlamaGenFamily().random_target(
            Entry(
                name="random",
                family="llamagen",
                about="",
                shape={**shape, "grid": grid},
                guidance=7.5,
                top_k=1000,
            ),
            "cpu",
        )
    )


def against_nodes(models: dict[str, ImageDecoder]) -> Rows:
    lines = []
    for name, model in models.items():
        ms = forwards(model, [(n, 128) for n in NODES])
        lines.append(
            {
                "model": name,
                **{f"{n} nodes": f"{t / ms[0]:.2f}×" for n, t in zip(NODES, ms, strict=True)},
            }
        )
    return lines


def against_length(model: ImageDecoder) -> Rows:
    ms = forwards(model, [(1, n) for n in LENGTHS])
    return [
        {"cached tokens": n, "ms": round(t, 1), "ratio": f"{t / ms[0]:.2f}×"}
        for n, t in zip(LENGTHS, ms, strict=True)
    ]


def against_size(models: dict[str, ImageDecoder], limit: float) -> Rows:
    lines = []
    for name, model in models.items():
        ms, weights = forwards(model, [(1, 128)])[0], profile.read_bytes(model)
        share = weights / 1e6 / ms / limit
        lines.append(
            {
                "model": name,
                "weights MB": round(weights / 1e6),
                "AR ms": round(ms, 1),
                "of limit": f"{share:.0%}",
            }
        )
    return lines


def loop(target: Target, names: list[str], captions: list[str]) -> Rows:
    profiles = profile.profile([build(target, method(n)) for n in names], captions)
    return [
        {
            "method": p.label,
            "step ms": round(p.step_ms, 2),
            "τ": round(p.tau, 2),
            "outside forwards": f"{p.overhead_fraction:.1%}",
            "speedup": f"{p.speedup:.2f}×",
            "roofline": f"{p.roofline:.2f}×",
            "syncs a step": round(p.syncs_per_step, 2),
        }
        for p in profiles
    ]


def outside(target: Target, names: list[str], steps: int = 8) -> Rows:
    """The share of a few steps that is no forward, accepted lengths simulated: random weights
    accept nothing.
    """
    lines = []
    for name in names:
        decoder = build(target, method(name), simulate_acceptance=None if name == "ar" else 2.7)
        engine.generate(decoder, ["a cat"], max_steps=2)
        generation = engine.generate(decoder, ["a cat"], max_steps=steps)[0]
        total = sum(generation.phases.values())
        forwards = generation.phases.get("draft", 0.0) + generation.phases["verify"]
        row = {
            "method": name,
            "nodes": max(generation.tree_nodes),
            "step ms": round(1e3 * total / generation.steps),
        }
        lines.append(row | {"outside forwards": f"{1 - forwards / total:.1%}"})
    return lines


def against_batch(target: Target, names: list[str], captions: list[str]) -> Rows:
    """Images a second over the first 16 prompts (32 at batch 32); the tokens must not depend on
    the batch.

    As in a run, a batch is shared out to processes where that is faster.
    """
    lines = []
    for name in names:
        decoder, first, row = build(target, method(name)), [], {"method": name}
        engine.generate(decoder, captions[:1], max_steps=8)

        def images(
            part: list[str], decoder: engine.SpeculativeDecoder = decoder
        ) -> list[list[int]]:
            return [made.tokens.tolist() for made in engine.generate(decoder, part)]

        for size in BATCHES:
            count = max(size, 16)
            clock, made = perf_counter(), []
            for start in range(0, count, size):
                batch = captions[start : start + size]
                made += side_by_side(images, batch, process_count(target.model, size))
            rate = count / (perf_counter() - clock)
            first = first or [(made, rate)]
            alone, base = first[0]
            same = alone == made[: len(alone)]
            row[f"batch {size}"] = (
                f"{rate:.2f}/s ({rate / base:.1f}×{'' if same else ', other tokens'})"
            )
        lines.append(row)
    return lines


def memory(target: Target) -> Rows:
    """Peak of the process above what it held before decoding, beside the caches that a decode
    allocates.
    """
    decoder = build(target, method("eagle-1", shape="chain-4"))
    cfg = target.model.config.decoder
    slots = target.model.prompt_positions + target.length + 6
    caches = 2 * 2 * slots * cfg.dim * 4 * (cfg.n_layer + 1)
    weights = sum(p.numel() * p.element_size() for p in target.model.parameters())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    engine.generate(decoder, ["a cat"], max_steps=40)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {"weights": weights, "caches": caches, "above the peak of loading": peak - before}
    return [{f"{k}, MB": round(v / 1e6, 1) for k, v in figures.items()}]


def fresh_memory(target: Target, names: list[str]) -> Rows:
    """What a step takes from the system once warm (page faults), beside one tensor of nodes ×
    vocabulary.
    """
    lines = []
    for name in names:
        decoder = build(target, method(name), simulate_acceptance=2.7)

        def faults(steps: int, decoder: engine.SpeculativeDecoder = decoder) -> int:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            engine.generate(decoder, ["a cat"], max_steps=steps)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        faults(22)
        few, many = faults(2), faults(22)
        nodes = decoder.proposer.size.nodes
        taken = (many - few) / 20 * resource.getpagesize()
        row = {"nodes": nodes, "nodes × vocabulary, kB": nodes * target.vocab * 4 // 1000}
        lines.append({"method": name, **row, "new memory a step, kB": round(max(taken, 0) / 1000)})
    return lines


def markdown(rows: Rows) -> list[str]:
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return lines + ["| " + " | ".join(str(r[k]) for k in head) + " |" for r in rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    limit = bandwidth(torch.device("cpu")).best
    tiny, captions = load_target("tiny"), [p.text for p in load("demo", 32)]
    # before anything large is loaded: a batch's processes are forked from this one
    small_tables = {
        "The loop beside the forwards (tiny, 4 prompts, T = 1)": loop(
            tiny, list(components("preset")), captions[:4]
        ),
        "Images a second against batch (tiny, T = 1)": against_batch(
            tiny, ["ar", "eagle-1", "cool-sd"], captions
        ),
    }
    large = {name: published(shape) for name, shape in SHAPES.items()}
    models = {"tiny": tiny.model, **{name: t.model for name, t in large.items()}}
    long = published({"dim": 256, "n_layer": 24, "n_head": 4}, grid=64).model
    tables = small_tables | {
        "The loop at full size (LlamaGen-XL, 775 M, random weights)": outside(
            load_target("llamagen-xl-stage1", random_weights=True),
            ["ar", "eagle-1", "eagle-2", "lantern", "lantern++", "sjd", "adt-tree", "cool-sd"],
        ),
        "A forward against tree nodes (1 node = 1)": against_nodes(models),
        "A forward against cached length (35 M)": against_length(long),
        f"An AR forward with CFG against size, beside {limit:.1f} GB/s": against_size(
            models, limit
        ),
        "Memory (343 M, eagle-1)": memory(large["343 M, 1024 × 24"]),
        "New memory a step (101 M)": fresh_memory(
            large["101 M, 512 × 24"], ["ar", "eagle-1", "eagle-2", "lantern"]
        ),
    }
    machine, now = environment(), datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        "# What the engine costs",
        "",
        f"{now}; {machine['cpu']}, {machine['threads']} threads, float32, batch 1.",
    ]
    for title, rows in tables.items():
        lines += ["", f"## {title}", "", *markdown(rows)]
    out = Path(__file__).parent / "results"
    (out / "engine.md").write_text("\n".join(lines) + "\n")
    (out / "engine.json").write_text(
        json.dumps({"date": now, "environment": machine, "tables": tables}, indent=2) + "\n"
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
