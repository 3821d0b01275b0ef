"""What the pieces promise, in the words of the report."""

from __future__ import annotations

TAU = 2.7  # tokens a step that acceptance is drawn to, about what the papers report
GRAPHS = "CUDA graphs give the tokens of launched steps, for every preset, at T = 1 and 0"
ROW_ENDS = "the same where rows have ends, alone and in a batch"
SYNCS = "the host waits once a step, for every preset, recorded or not"
SHARE = "`ar` with CFG runs at 70 % of the bandwidth limit or more"
H200 = "1 ms a token or less on an H200"
COOL_SD = f"`cool-sd` at τ = {TAU} runs 2.2 times as fast as `ar` or more"
OUTSIDE = "no preset spends more than 5 % of a step outside forwards"
BATCH_64 = "batch 64 makes 20 times as many images a second as batch 1, with `ar`"
BATCH = "a batch gives the tokens of its prompts alone, for every preset"
MEMORY = "peak memory is at most weights + caches + 15 %"
# of time and memory, which no rehearsal can judge
GPU_ONLY = (SHARE, H200, COOL_SD, OUTSIDE, BATCH_64, MEMORY)
