"""What resuming, summarising and reporting a run of many samples take: seconds and memory, by the
number of samples.

python -m benchmarks.many_samples 20000 40000 [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LABELS = ["ar", "eagle-1", "cool-sd λ=2", "lantern k=100 δ=0.1"]
TOKENS = 256


def write(folder: Path, count: int) -> Path:
    """A run of ``count`` samples of four methods, as the embedded model makes them, with neither
    images nor summary.
    """
    from lanternbench.experiment import RunFolder, Sample, sample_key
    from lanternbench.measure.run_record import (
        MethodRecord,
        PromptsRecord,
        RunConfig,
        RunRecord,
        TargetRecord,
    )

    rng = np.random.default_rng(0)
    record = RunRecord(
        run_id="many",
        config=RunConfig(seed=0),
        target=TargetRecord(name="tiny", grid=(16, 16), vocab=1024, evaluators="tiny"),
        methods=[MethodRecord(label=label, method=label.split()[0]) for label in LABELS],
        prompts=PromptsRecord(count=count // len(LABELS), dataset="demo"),
    )
    with RunFolder.open(folder, record) as run:
        pass
    with open(run.path / "samples.jsonl", "w") as file:
        for i in range(count):
            label, prompt = LABELS[i % len(LABELS)], str(i // len(LABELS))
            lengths, left = [1], TOKENS - 1
            while left:
                lengths.append(min(left, 1 if label == "ar" else int(rng.integers(1, 5))))
                left -= lengths[-1]
            steps = len(lengths)
            seconds = np.round(rng.gamma(50, 1e-4, steps), 7).tolist()
            sample = Sample(
                key=sample_key(prompt, label, 0), prompt_id=prompt, prompt=f"a red circle and {prompt} blue squares",
                category="shapes" if i % 3 else "colours", label=label, method=label.split()[0], seed=0, tokens=TOKENS,
                steps=steps, accept_lengths=lengths, tree_depths=[5] * steps, tree_nodes=[6] * steps,
                first_token_acceptance=0.6, decode_s=sum(seconds), step_s=seconds, cpu_s=sum(seconds), load=0.5,
                phases={"draft_s": 0.1, "verify_s": 0.6, "commit_s": 0.1, "other_s": 0.1}, fidelity_loss=0.01,
                stats={"log_prob": -3.0, "entropy": 3.0, "top1_prob": 0.2}, metrics={"clip-tiny": float(rng.random())},
                token_ids=rng.integers(1024, size=TOKENS).tolist(),
            )  # fmt: skip
            file.write(sample.model_dump_json() + "\n")
    return run.path


def resume(path: Path) -> None:
    """What a run does before its first image and after its last."""
    from lanternbench.experiment import RunFolder
    from lanternbench.measure.run_record import RunConfig, RunRecord
    from lanternbench.measure.summary import summarise

    with RunFolder.open(path.parent, RunRecord(run_id=path.name, config=RunConfig(seed=0))) as run:
        run.finish(summarise(run.figures, run.run))


def report(path: Path) -> None:
    import lanternbench

    lanternbench.report(path)


WORK = {"resume": resume, "report": report}


def measured(name: str, path: Path, profile: bool) -> dict[str, float]:
    """Seconds and peak memory (MB) of one piece of work, in a process of its own."""
    command = [sys.executable, __file__, "--one", name, str(path)] + (
        ["--profile"] if profile else []
    )
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[
            -1
        ]
    )


def one(name: str, path: Path, profile: bool) -> None:
    import lanternbench.report.write  # noqa: F401 (imports are not measured)

    begun, cpu, profiler = time.perf_counter(), time.process_time(), cProfile.Profile()
    if profile:
        profiler.enable()
    WORK[name](path)
    if profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        json.dumps(
            {"s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu, "mb": memory}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=[20_000, 40_000])
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one[0], Path(arguments.one[1]), arguments.profile)
        return
    for count in arguments.counts:
        with tempfile.TemporaryDirectory() as folder:
            path = write(Path(folder), count)
            for name in WORK:
                usage = measured(name, path, arguments.profile)
                rate = 1e6 * usage["cpu_s"] / count
                times = f"{usage['s']:7.1f} s, of the CPU {usage['cpu_s']:6.1f} s"
                print(
                    f"{count:>7} samples  {name:<7} {times} ({rate:4.0f} µs each)  {usage['mb']:5.0f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
