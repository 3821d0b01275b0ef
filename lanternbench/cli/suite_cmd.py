"""``suite``, ``submit`` and ``leaderboard``: results that can be cited and compared between laboratories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lanternbench.cli import options
from lanternbench.cli.measuring import execute, finish, show_plan
from lanternbench.cli.output import print_rows
from lanternbench.errors import UserError


def suite(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A target of the suite, or NAME=FOLDER; without: list them.")
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="In place of the suite's; may be given repeatedly.")
    ] = None,
    prompts: Annotated[str | None, typer.Option(help="Where the suite's prompts lie: coco2017:FILE.")] = None,
    drafter: options.Drafter = None,
    dtype: options.Dtype = None,
    compile_mode: options.Compile = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    executor: options.Executor = "local",
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    out: options.Out = Path("results"),
    fresh: options.Fresh = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Run the frozen protocol of a target; continues where it stopped.

    Example: lanternbench suite tiny
    """
    from lanternbench.cli.method_options import specs
    from lanternbench.suite import protocol

    if name is None:
        found = map(protocol.protocol, protocol.names())
        rows = [{"suite": p.name, "settings": p.recipe, "hash": p.stamp.partition(" ")[2]} for p in found]
        print_rows(rows, as_json, {key: key for key in rows[0]})
        return
    target = name.partition("=")[0]
    given: dict[str, Any] = dict(
        target=name, prompts=prompts, drafter=drafter, dtype=dtype, compile=compile_mode,
        methods=specs(methods, {}) if methods else None,
    )  # fmt: skip
    config = protocol.protocol(target).sweep({k: v for k, v in given.items() if v is not None})
    if dry_run:
        show_plan([config], device, threads, as_json)
        return
    path, summary = execute(config, device, threads, out, fresh, executor, workers, ray_address)
    finish(path, summary, as_json)


def submit(
    run: Annotated[str, typer.Argument(help="A run of the suite: its id, name or folder.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The file (default: RUN.json).")] = None,
    results: options.Results = Path("results"),
) -> None:
    """Write a run of the suite as one file; refuses what a leaderboard would refuse.

    Example: lanternbench submit suite-v1-tiny
    """
    from lanternbench import experiment as store
    from lanternbench.suite import submission

    folder = store.find(results, [run])[0]
    found = submission.submission(folder)
    if reasons := submission.judged(found)[1]:
        raise UserError(f"{folder.name} cannot be submitted: {'; '.join(reasons)}. Run the suite again with --fresh.")
    path = out or Path(f"{folder.name}.json")
    submission.write(found, path)
    print(path)


def leaderboard(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of submissions.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing: is LEADERBOARD.md what they give?")] = False,
) -> None:
    """Check submissions and write LEADERBOARD.md; a page, leaderboard.html, too.

    Example: lanternbench leaderboard results/leaderboard
    """
    from lanternbench.suite import leaderboard as board
    from lanternbench.utils.files import replacing

    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: give the one that holds the submissions.")
    entries, refused = board.read_folder(folder)
    found = board.boards(entries)
    if check:
        path = folder / board.NAMES[0]
        if not path.is_file() or path.read_text(encoding="utf-8") != board.markdown_page(found):
            raise UserError(f"{path} is not what the submissions give: run `lanternbench leaderboard {folder}`.")
    for name, page in zip(board.NAMES, () if check else (board.markdown_page(found), board.html_page(found))):
        with replacing(folder / name, "choose a folder that can be written") as file:
            file.write(page.encode("utf-8", "replace"))
        print(folder / name)
    if refused:
        each = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in refused.items())
        raise UserError(
            f"{len(refused)} of {len(refused) + len(entries)} submissions are refused ({each}): remove them."
        )
