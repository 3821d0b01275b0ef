"""``profile``: where a method's time goes."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.fields import Takes
from lanternbench.cli.output import print_cells, print_json
from lanternbench.cli.progress import display
from lanternbench.utils.device import choose


def profile(
    c: Annotated[Any, Takes("target drafter dtype compile random_weights simulate_acceptance temperature")],
    methods: Annotated[list[str] | None, Argument(metavar="[METHOD]...", help="Presets.")] = None,
    num_prompts: Annotated[int, Option("--num-prompts", "-n", min=1, help="Demo captions to decode.")] = 4,
    trace: Annotated[Path | None, Option(help="Write a Chrome trace of a few steps of the last method.")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    as_json: options.AsRows = False,
) -> None:
    """Split a method's step into draft, verification, commit and host.

    Example: lanternbench profile eagle-1 cool-sd
    """
    from lanternbench import prompts
    from lanternbench.costs.bandwidth import bandwidth
    from lanternbench.methods.build import build
    from lanternbench.methods.method import method
    from lanternbench.models.catalogue import load_with_drafter
    from lanternbench.profile import step_profile
    from lanternbench.utils.files import TRACE, check_writable

    if trace is not None:
        check_writable(trace, TRACE)
    chosen = [method(name) for name in ("ar", *(n for n in methods or ["eagle-1", "cool-sd"] if n != "ar"))]
    used = {m.choices.proposal for m in chosen}
    model = load_with_drafter(c.target, c.drafter, choose(device, threads), c.random_weights, c.dtype, used, c.compile)
    decoders = [build(model, m, c.temperature, simulate_acceptance=c.simulate_acceptance) for m in chosen]
    captions = prompts.captions_for(model.labels, num_prompts)
    with display("profiling"):
        limit = bandwidth(model.device)
        profiles = step_profile.profile(decoders, captions)
        if trace is not None:
            step_profile.chrome_trace(decoders[-1], captions[0], trace)
    if as_json:
        print_json({"bandwidth": limit.best, "bandwidth_median": limit.median, "methods": profiles})
        return
    rows = []
    for p in profiles:
        times = (f"{t:.2f}" for t in (p.tau, p.step_ms, p.draft_ms, p.verify_ms, p.commit_ms, p.other_ms))
        rates = (f"{p.overhead_fraction:.1%}", f"{p.speedup:.2f}×", f"{p.roofline:.2f}×", f"{p.achieved:.1f}")
        rows.append((p.label, *times, *rates))
    titles = ("method", "τ", "step", "draft", "verify", "commit", "other", "out", "speedup", "limit", "GB/s")
    print_cells(titles, rows, padding=(0, 1, 0, 0), pad_edge=False)
    share = profiles[0].achieved / limit.best
    print("step and its phases in ms; out: share outside forwards; limit: the speedup that the bandwidth allows")
    print(
        f"memory reads at {limit.best:.1f} GB/s here (best of {limit.passes} passes with {limit.threads} thread(s), "
        f"their median {limit.spread:.0%} below); ar's forward uses {share:.0%} of that"
    )
