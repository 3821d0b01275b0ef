"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lanternbench.errors import UserError

MAX_SEED = 2**63 - 1


def in_range(seed: int | None) -> int | None:
    """Raises UserError for a seed that no generator takes."""

    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise UserError("--seed: 'seed' is wrong (it must be 0 or more and below 2^63); correct it")
    return seed


Seed = Annotated[int, typer.Option("--seed", callback=in_range, help="Of all draws.")]
Repeats = Annotated[
    int | None, typer.Option("--repeats", help="Decode every prompt with so many seeds, from --seed on.")
]
Results = Annotated[Path, typer.Option("--results", help="Folder of the run folders.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of the run folders.")]
RunName = Annotated[str | None, typer.Option("--name", help="Of the run folder, before its hash.")]
Fresh = Annotated[
    bool, typer.Option("--fresh/--resume", help="Start a new run beside an existing one, or continue it.")
]
AsRows = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads (default: 1 if the model is small, else all cores).")
]
TargetName = Annotated[str, typer.Option("--target", help="A target of `lanternbench targets`, or a folder.")]
Prompts = Annotated[str, typer.Option("--prompts", help="demo, coco2017[:FILE], parti[:FILE], or a text file.")]
MethodOption = Annotated[list[str] | None, typer.Option("--set", help="Any other option of the method, NAME=VALUE.")]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="Full size without files: speed alone.")]
Simulate = Annotated[
    str | None,
    typer.Option("--simulate-acceptance", help="Mean tokens a step to yield, or rates by position: 0.8,0.7,0.6."),
]
Temperature = Annotated[float | None, typer.Option("--temperature", help="0 is greedy (default: the target's).")]
Drafter = Annotated[
    str | None, typer.Option(help="A smaller target as drafter, or a file or folder with an EAGLE drafter.")
]
Dtype = Annotated[str | None, typer.Option(help="Of the weights: float32, bfloat16 (default: by target and device).")]
Compile = Annotated[
    str | None,
    typer.Option("--compile", help="eager, or graphs: CUDA graphs (default on a GPU)."),
]
Executor = Annotated[
    str, typer.Option(help="local, or ray: prompts shared out to the GPUs of a Ray cluster, or to this machine's CPUs.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="With ray: how many (default: one per GPU; without GPUs, one per --threads CPUs, or CPU)."
    ),
]
RayAddress = Annotated[
    str | None, typer.Option(help="Of a cluster to join (default: RAY_ADDRESS, or a cluster started for this sweep).")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan, and how long it takes here.")]
TimeBudget = Annotated[
    float | None,
    typer.Option(
        "--time-budget",
        metavar="MINUTES",
        min=0,
        help="Leave out the last methods that do not fit in it, and begin no further prompt after it.",
    ),
]
UntilToldApart = Annotated[
    bool, typer.Option("--until-told-apart", help="Add prompts until every method's speed is told apart from ar's.")
]
NumPrompts = Annotated[
    int | None,
    typer.Option("--num-prompts", "-n", help="How many; 0 for all (default: what tells its methods apart from ar)."),
]


def listed(text: str) -> list[str]:
    """The names in a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]
