"""The command line: every command, one entry point, one way to fail."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lanternbench import __version__
from lanternbench.cli import codebook_cmd as codebook
from lanternbench.cli import compare_cmd as compare
from lanternbench.cli import fetch_cmd as fetch
from lanternbench.cli import inspect_cmd as inspect
from lanternbench.cli import interrupts
from lanternbench.cli import profile_cmd as profile
from lanternbench.cli import report_cmd as report
from lanternbench.cli import run_cmd as run
from lanternbench.cli import score_cmd as score
from lanternbench.cli import sweep_cmd as sweep
from lanternbench.cli import train_cmd as train
from lanternbench.cli import tune_cmd as tune
from lanternbench.cli.method_options import with_method_options
from lanternbench.errors import UserError


class Commands(TyperGroup):
    """``run`` and ``tune`` get all methods' options when called: finding them takes as long as importing torch."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        commands: dict[str, Callable[..., None]] = {"run": run.run, "tune": tune.tune}
        if name not in commands:
            return name, command, rest
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(name)(with_method_options(commands[name]))
        return name, typer.main.get_command(single), rest


app = typer.Typer(
    name="lanternbench",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"lanternbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Benchmark speculative decoding for autoregressive image generation: one engine, one clock, honest tables."""


def _run() -> None:
    """Measure one method, or several, against autoregressive decoding."""


def _tune() -> None:
    """Find the sizes of a method's tree, or window, that suit this machine, and write them as a preset."""


app.command("run")(_run)
app.command("tune")(_tune)
app.command("sweep")(sweep.sweep)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("score")(score.score)
app.command("methods")(inspect.methods)
app.command("targets")(inspect.targets)
app.command("prompts")(inspect.prompts)
app.command("fetch")(fetch.fetch)
app.command("doctor")(inspect.doctor)
app.command("profile")(profile.profile)
app.command("codebook")(codebook.codebook)
app.command("verify")(inspect.verify)
app.add_typer(train.app, name="train")


def main() -> None:
    """Run a command.  A user's mistake is one sentence on stderr and exit code 2; Ctrl-C is 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without τ and × shows question marks
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"torch(metrics|vision)?\b")
    try:
        with interrupts.running():
            app(standalone_mode=True)
    except BaseException as error:
        if interrupts.interrupted() or (isinstance(error, SystemExit) and error.code == interrupts.CODE):
            interrupts.say()
            raise SystemExit(interrupts.CODE) from None
        if isinstance(error, UserError):
            print(f"lanternbench: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        if isinstance(error, BrokenPipeError):
            raise SystemExit(1) from None
        raise


if __name__ == "__main__":
    main()
