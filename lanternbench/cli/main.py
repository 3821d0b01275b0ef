"""The command line: every command, one entry point, one way to fail."""

from __future__ import annotations

import errno
import inspect
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
from lanternbench.cli import doctor_cmd as doctor
from lanternbench.cli import fetch_cmd as fetch
from lanternbench.cli import import_cmd, interrupts
from lanternbench.cli import methods_cmd as methods
from lanternbench.cli import metrics_cmd as metrics
from lanternbench.cli import predict_cmd as predict
from lanternbench.cli import profile_cmd as profile
from lanternbench.cli import prompts_cmd as prompts
from lanternbench.cli import report_cmd as report
from lanternbench.cli import run_cmd as run
from lanternbench.cli import runs_cmd as runs
from lanternbench.cli import score_cmd as score
from lanternbench.cli import suite_cmd as suite
from lanternbench.cli import sweep_cmd as sweep
from lanternbench.cli import targets_cmd as targets
from lanternbench.cli import train_cmd as train
from lanternbench.cli import tune_cmd as tune
from lanternbench.cli import verify_cmd as verify
from lanternbench.cli.method_options import check_names, with_method_options
from lanternbench.errors import UserError


class Commands(TyperGroup):
    """``run``, ``tune`` and ``verify`` get all methods' options when called: finding them takes torch's import."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name not in TAKE_METHOD_OPTIONS:
            return name, command, rest
        check_names(rest, positional=name == "verify")
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(name)(with_method_options(TAKE_METHOD_OPTIONS[name]))
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


TAKE_METHOD_OPTIONS: dict[str, Callable[..., None]] = {"run": run.run, "tune": tune.tune, "verify": verify.verify}
COMMANDS: list[Callable[..., None]] = [
    *(run.run, tune.tune, sweep.sweep, runs.runs, compare.compare, report.report, score.score, methods.methods),
    *(
        metrics.metrics,
        targets.targets,
        prompts.prompts,
        fetch.fetch,
        doctor.doctor,
        profile.profile,
        predict.predict,
        codebook.codebook,
        verify.verify,
    ),
    *(import_cmd.import_, suite.suite, suite.submit, suite.leaderboard),
]
for command in COMMANDS:
    if command.__name__ in TAKE_METHOD_OPTIONS:  # listed alone: see ``Commands``
        app.command(command.__name__, help=(inspect.getdoc(command) or "").partition("\n")[0])(lambda: None)
    else:
        app.command(command.__name__.rstrip("_"))(command)
for name, command in (("drafter", train.drafter), ("tiny", train.tiny)):
    train.app.command(name)(command)
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
        if lost := _lost_output(error):
            print(f"lanternbench: the output is lost ({lost}): free some space or write elsewhere", file=sys.stderr)
            raise SystemExit(2) from None
        raise


def _lost_output(error: BaseException) -> str | None:
    """Why stdout did not take what was printed: the reason of ``error``, or of a last write as the command ends."""
    if isinstance(error, SystemExit):
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # its reader has enough
            return None
        except OSError as failed:
            return failed.strerror
    disk = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return error.strerror if isinstance(error, OSError) and error.filename is None and error.errno in disk else None


if __name__ == "__main__":
    main()
