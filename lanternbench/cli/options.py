"""Options that several commands take."""

from pathlib import Path
from typing import Annotated

from typer import Option

Results = Annotated[Path, Option(help="Folder of the run folders.")]
Out = Annotated[Path, Option(help="Folder of the run folders.")]
Fresh = Annotated[bool, Option("--fresh/--resume", help="Start a new run beside an existing one, or continue it.")]
AsRows = Annotated[bool, Option("--json", help="Print JSON.")]
AsJson = Annotated[bool, Option("--json", help="Print the summary as JSON.")]
DryRun = Annotated[bool, Option("--dry-run", help="Print the plan, and how long it takes here.")]
Device = Annotated[str, Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.")]
Threads = Annotated[int | None, Option(min=1, help="CPU threads (default: 1 if the model is small, else all cores).")]


def listed(text: str | None) -> list[str]:
    """The names in a comma-separated option."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
