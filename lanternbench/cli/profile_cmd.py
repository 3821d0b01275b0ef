"""``profile``: where a method's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lanternbench.cli import options
from lanternbench.cli.output import number_table, print_json, stdout
from lanternbench.cli.progress import display
from lanternbench.utils.device import choose


def profile(
    methods: Annotated[list[str] | None, typer.Argument(metavar="[METHOD]...", help="Presets.")] = None,
    target: options.TargetName = "tiny",
    drafter: options.Drafter = None,
    dtype: options.Dtype = None,
    compile_mode: options.Compile = None,
    random_weights: options.RandomWeights = False,
    simulate_acceptance: options.Simulate = None,
    num_prompts: Annotated[int, typer.Option("--num-prompts", "-n", min=1, help="Demo captions to decode.")] = 4,
    temperature: options.Temperature = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace of a few steps of the last method.")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    as_json: options.AsRows = False,
) -> None:
    """Split a method's step into draft, verification, commit and host.

    Example: lanternbench profile eagle-1 cool-sd
    """
    from lanternbench import prompts
    from lanternbench.costs.bandwidth import bandwidth
    from lanternbench.experiment.config import Decoding, checked
    from lanternbench.methods.build import build
    from lanternbench.methods.method import method
    from lanternbench.models.catalogue import load_with_drafter
    from lanternbench.profile import step_profile
    from lanternbench.utils.files import TRACE, check_writable

    settings = checked(
        Decoding,
        dict(target=target, drafter=drafter, dtype=dtype, compile=compile_mode, random_weights=random_weights,
             simulate_acceptance=simulate_acceptance, temperature=temperature),
    )  # fmt: skip
    if trace is not None:
        check_writable(trace, TRACE)
    names = ["ar", *(n for n in methods or ["eagle-1", "cool-sd"] if n != "ar")]
    chosen = [method(n) for n in names]
    used = {m.choices.proposal for m in chosen}
    model = load_with_drafter(target, drafter, choose(device, threads), random_weights, dtype, used, compile_mode)
    decoders = [build(model, m, temperature, simulate_acceptance=settings.simulate_acceptance) for m in chosen]
    captions = prompts.captions_for(model.labels, num_prompts)
    with display("profiling"):
        limit = bandwidth(model.device)
        found = step_profile.profile(decoders, captions)
        if trace is not None:
            step_profile.chrome_trace(decoders[-1], captions[0], trace)
    if as_json:
        print_json({"bandwidth": limit.best, "bandwidth_median": limit.median, "methods": found})
        return
    titles = ("method", "τ", "step", "draft", "verify", "commit", "other", "out", "speedup", "limit", "GB/s")
    table = number_table(titles, ("method",), "fold", padding=(0, 1, 0, 0), pad_edge=False)
    for p in found:
        times = (f"{t:.2f}" for t in (p.step_ms, p.draft_ms, p.verify_ms, p.commit_ms, p.other_ms))
        rates = (f"{p.overhead_fraction:.1%}", f"{p.speedup:.2f}×", f"{p.roofline:.2f}×", f"{p.achieved:.1f}")
        table.add_row(p.label, f"{p.tau:.2f}", *times, *rates)
    stdout().print(table)
    share = found[0].achieved / limit.best
    print("step and its phases in ms; out: share outside forwards; limit: the speedup that the bandwidth allows")
    print(
        f"memory reads at {limit.best:.1f} GB/s here (best of {limit.passes} passes with {limit.threads} thread(s), "
        f"their median {limit.spread:.0%} below); ar's forward uses {share:.0%} of that"
    )
