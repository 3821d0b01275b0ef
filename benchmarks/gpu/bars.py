"""What the pieces promise, in the words of the report.

Equality is promised outright.  Every time is promised against its model (``model.py``): bytes at the
measured bandwidth, products at the measured rate, and counted operators at the measured cost of a
kernel in a CUDA graph.  ``gpu-expected.json`` is the same model with the figures of data sheets,
so bars and expectations cannot disagree.  No model has what a kernel loses to its size or the
scheduler; the slack below is for that.
"""

from __future__ import annotations

TAU = 2.7  # tokens a step that acceptance is drawn to, about what the papers report
SLACK = 1.25  # measured time over the model's
OUTSIDE_SLACK = 1.5  # of the small part outside forward passes, in which sorts are several kernels
MEMORY_SLACK = 1.15  # as in ``costs.roofline``: activations, and the allocator's blocks
CONTROL = "the host's waits are noticed: reading one number counts as one"

BUILT = "every preset that has its drafter is built at every full size"
GRAPHS = "CUDA graphs give the tokens of launched steps, for every preset, at T = 1 and 0"
ROW_ENDS = "the same if rows have ends, alone and in a batch"
GROUPED = "the same with grouped queries, from one span of cache slots to the next"
COMPILED = "fused kernels give the tokens of launched steps"
ROUNDED = "in bfloat16 recording changes distributions no more than rounding to bfloat16 does"
SYNCS = "the host waits once a step, for every preset, recorded or not"
BATCH = "a batch gives the tokens of its prompts alone, for every preset"
BASELINE = f"a token of recorded `ar` takes at most {SLACK} times its model"
COOL_SD = f"`cool-sd` at τ = {TAU} gains at least 1 / {SLACK} of its model's speedup"
OUTSIDE = (
    f"no preset spends more than {OUTSIDE_SLACK} times the model of its verification and commit "
    "outside forward passes"
)
BATCH_64 = f"batch 64 gains at least 1 / {SLACK} of its model's throughput over batch 1, with `ar`"
MEMORY = (
    f"torch reserves at most the weights and {MEMORY_SLACK} times caches and distributions, "
    "as `predict` says"
)
# of time and memory, which no rehearsal can judge
GPU_ONLY = (BASELINE, COOL_SD, OUTSIDE, BATCH_64, MEMORY)
EQUALITY = (BUILT, GRAPHS, ROW_ENDS, GROUPED, COMPILED, ROUNDED, SYNCS, CONTROL, BATCH)
