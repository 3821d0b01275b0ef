"""The command line: its commands, one entry point, one way to fail."""

import errno
import io
import os
import re
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer import Option
from typer.core import TyperGroup

from lanternbench import __version__
from lanternbench.cli import interrupts
from lanternbench.cli.options import check_names, complete, paragraphs, takes_method_options
from lanternbench.errors import UserError, cause
from lanternbench.utils.files import HOME
from lanternbench.utils.memory import SMALLER, check_address_space, is_out_of_memory, shortage

NAMES = (  # FILE.function
    "run.run study.tune run.sweep listing.runs results.compare results.report results.score"
    " listing.methods listing.metrics listing.targets listing.prompts setup.fetch doctor.doctor"
    " study.profile study.predict study.advise study.codebook study.verify run.import_ run.suite run.submit"
    " run.leaderboard reproduce.reproduce"
)


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Commands(TyperGroup):
    """Commands that get their options when called, because the classes of the options may be slow
    to import.
    """

    options: ClassVar[set[str] | None] = None  # of the command that runs

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, arguments = super().resolve_command(ctx, args)
        command = getattr(getattr(listed, "callback", None), "command", None)
        if command is None:
            return name, listed, arguments
        if "--help" in arguments:
            from typer import rich_utils

            # room for long names
            rich_utils.STYLE_OPTIONS_TABLE_PADDING = (0, 1, 0, 0)  # type: ignore[assignment]
        if takes_method_options(command):
            check_names(arguments, positional=name == "verify")
        chosen = completed(command)
        Commands.options = option_names(chosen)
        return name, chosen, arguments

    def invoke(self, ctx: Any) -> Any:
        """Run the command.  Raises UserError for an option with a wrong value."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if error.param is None or not error.message:  # a missing option: typer names it
                raise
            from pydantic import ValidationError

            reason = error.message
            if isinstance(error.__cause__, ValidationError):  # whose words are not ours
                reason = cause(error.__cause__)
            option = error.param.opts[0]
            raise UserError(f"{option} is wrong: {reason.rstrip('.')}; correct it") from None


def completed(command: Callable[..., None]) -> Any:
    """Return a command with its options."""
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(command.__name__.rstrip("_"))(complete(command))
    return typer.main.get_command(single)


def option_names(command: Any) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


STYLE: Any = {
    "cls": Commands,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
}
app = typer.Typer(name="lanternbench", **STYLE)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"lanternbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Benchmark speculative decoding for autoregressive image generation."""


def _list(within: typer.Typer, place: str) -> Callable[..., None]:
    """List a command by its name and the first sentence of its help: see ``Commands``."""
    file, name = place.split(".")
    command: Callable[..., None] = getattr(import_module(f"lanternbench.cli.{file}_cmd"), name)

    def listed() -> None: ...

    listed.command = command  # type: ignore[attr-defined]
    sentence = re.split(r"(?<=\.) ", paragraphs(command)[0])[0]
    within.command(name.rstrip("_"), help=sentence)(listed)
    return command


COMMANDS = [_list(app, place) for place in NAMES.split()]
train = typer.Typer(**STYLE, help="Train a drafter for any target, or the toy model.")
for place in ("setup.drafter", "setup.tiny"):
    _list(train, place)
app.add_typer(train, name="train")


def prepare_streams() -> None:
    """Make output safe to print.  Exits if stdout is closed; a closed stderr shows nothing."""
    if sys.stderr is None:  # closed by the shell
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        print("lanternbench: the output is closed: give it a file or /dev/null", file=sys.stderr)
        raise SystemExit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without τ shows a question mark


def main() -> None:
    """Run a command.  The exit code of a user's mistake is 2, and that of Ctrl-C 130."""
    prepare_streams()
    warnings.filterwarnings("ignore", category=FutureWarning)
    # torch.cuda warns of drivers that are too old and of GPUs that it cannot use
    of_torch = r"torch(?!\.cuda)|torch(metrics|vision)\b"
    warnings.filterwarnings("ignore", category=UserWarning, module=of_torch)
    try:
        with interrupts.running():
            app(standalone_mode=True)
    except BaseException as error:
        if interrupts.pressed or (isinstance(error, SystemExit) and error.code == interrupts.CODE):
            interrupts.say()
            raise SystemExit(interrupts.CODE) from None
        message = str(error)
        if reason := _lost_output(error):
            message = f"the output is lost ({reason}): free some space or write elsewhere"
        elif isinstance(error, BrokenPipeError):
            raise SystemExit(1) from None
        elif isinstance(error, RuntimeError) and message.startswith("Could not determine home"):
            message = f"this user, or the one after ~, has no home folder: write paths out, {HOME}"
        elif is_out_of_memory(error):
            message = f"{shortage(error)}: {SMALLER}"
        elif not isinstance(error, UserError):
            raise
        print(f"lanternbench: {message}{owners_of_options(message)}", file=sys.stderr)
        raise SystemExit(2) from None


def owners_of_options(message: str) -> str:
    """Return which commands have the options that a message names and the command that runs
    lacks, such as " (--fresh is an option of `run`)".
    """
    prose = re.sub("`[^`]*`", "", message)  # a whole command is right as it is
    named = dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", prose))
    lacking = [name for name in named if name not in (Commands.options or named)]
    owners: dict[str, str] = {}
    for command in COMMANDS if lacking else []:
        for name in option_names(completed(command)).intersection(lacking):
            owners.setdefault(name, command.__name__.rstrip("_"))
    sentences = [f"{name} is an option of `{owners[name]}`" for name in lacking if name in owners]
    return f" ({'; '.join(sentences)})" if sentences else ""


class BeforeTorch:
    """Refuses, before torch is imported, a limit of virtual memory with which it would crash."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            check_address_space()


sys.meta_path.insert(0, BeforeTorch())


def _lost_output(error: BaseException) -> str | None:
    """Return why stdout could not be written: by ``error``, or by the last write of a command."""
    if isinstance(error, SystemExit):
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # its reader has enough
            return None
        except OSError as failed:
            return failed.strerror
    if isinstance(error, OSError) and error.filename is None and error.errno in DISK_ERRORS:
        return error.strerror
    return None
