"""Checks of a GPU: its memory's bandwidth, and that recorded steps and batches give the same tokens.

Decodes are compared in float64, in which no draw depends on how a sum was rounded.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from lanternbench.costs.forward_cost import bandwidth
from lanternbench.doctor.check import Check
from lanternbench.engine.decode import Generation, generate
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.utils.device import prepare_gpu
from lanternbench.utils.graph_capture import Graphs

PRESETS = ("ar", "eagle-1", "eagle-2", "sjd", "cool-sd")  # a proposal or tree of every kind
CAPTIONS = ["a red circle", "two small green squares", "a large blue ring above a yellow star"]
STEPS = 24  # of a decode on the GPU


def first_difference(expected: Sequence[Generation], decoded: Sequence[Generation]) -> str | None:
    """Return the first difference between two decodes of the same prompts, in words, if any."""
    for prompt, (a, b) in enumerate(zip(expected, decoded, strict=True)):
        committed = 1 + min(sum(a.accept_lengths), sum(b.accept_lengths))
        wrong = (a.tokens[:committed].cpu() != b.tokens[:committed].cpu()).nonzero()
        if len(wrong):
            return f"prompt {prompt}: token {int(wrong[0])} differs"
        if a.accept_lengths != b.accept_lengths:
            return f"prompt {prompt}: {a.steps} and {b.steps} steps, of other lengths"
    return None


def recorded_differs(target: Target, name: str) -> str | None:
    """Return the first difference between recorded and launched steps of the preset ``name``."""
    launched = build(replace(target, graphs=None), method(name))
    recorded = build(replace(target, graphs=Graphs()), method(name))
    return first_difference(
        generate(launched, CAPTIONS[:1], max_steps=STEPS),
        generate(recorded, CAPTIONS[:1], max_steps=STEPS),
    )


def batch_differs(target: Target, name: str) -> str | None:
    """Return the first difference between a recorded batch and its prompts decoded alone."""
    decoder = build(replace(target, graphs=Graphs()), method(name))
    alone: list[Generation] = []
    for caption in CAPTIONS:
        alone += generate(decoder, [caption], max_steps=STEPS)
    return first_difference(alone, generate(decoder, CAPTIONS, max_steps=STEPS))


def check_gpu(device: str, facts: Sequence[dict[str, object]]) -> list[Check]:
    """Return the findings of the first minute on a GPU; ``facts``: of each GPU, see
    ``experiment.environment``.  Raises UserError without a GPU.
    """
    if not device.startswith("cuda"):
        raise UserError(
            "torch sees no GPU here, so neither its memory's bandwidth nor CUDA graphs could be "
            "checked: run `lanternbench doctor --gpu` on a machine with one"
        )
    prepare_gpu(device)
    gpu = torch.device(device)
    rows: list[Check] = []
    if facts:
        for key, value in facts[gpu.index or 0].items():
            rows.append(Check(key.replace("_", " "), value))
    rows.append(Check("memory reads at", f"{bandwidth(gpu).best:.0f} GB/s"))
    target = tiny.load(device=device, dtype=torch.float64)
    for name in PRESETS:
        wrong = recorded_differs(target, name)
        value = wrong or f"the tokens of launched steps, {STEPS} steps"
        rows.append(Check(f"graphs, {name}", value, wrong is None))
    wrong = batch_differs(target, "eagle-1")
    value = wrong or "the tokens of its prompts alone"
    rows.append(Check("batch of 3, eagle-1", value, wrong is None))
    return rows
