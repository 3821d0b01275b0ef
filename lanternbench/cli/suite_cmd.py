"""``suite``, ``submit`` and ``leaderboard``: results that can be cited and compared between laboratories."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.fields import Takes, specs
from lanternbench.cli.output import print_rows
from lanternbench.cli.run_cmd import Execution, execute, finish, show_plan
from lanternbench.errors import UserError


def suite(
    settings: Annotated[dict[str, Any], Takes("drafter dtype compile")],
    where: Annotated[Execution, Takes("device threads executor workers ray_address out fresh")],
    name: Annotated[
        str | None, Argument(metavar="[NAME]", help="A target of the suite, or NAME=FOLDER; without: list them.")
    ] = None,
    methods: Annotated[
        list[str] | None, Option("--method", "-m", help="In place of the suite's; may be given repeatedly.")
    ] = None,
    prompts: Annotated[str | None, Option(help="Where the suite's prompts lie: coco2017:FILE.")] = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Run the frozen protocol of a target; continues where it stopped.

    Example: lanternbench suite tiny
    """
    from lanternbench.suite import protocol

    if name is None:
        protocols = map(protocol.protocol, protocol.names())
        rows = [{"suite": p.name, "settings": p.recipe, "hash": p.stamp.partition(" ")[2]} for p in protocols]
        print_rows(rows, as_json, "suite settings hash")
        return
    target = name.partition("=")[0]
    settings |= {"target": name} | ({"prompts": prompts} if prompts is not None else {})
    settings |= {"methods": specs(methods, {})} if methods else {}
    config = protocol.protocol(target).sweep(settings)
    if dry_run:
        show_plan([config], where, as_json)
        return
    finish(*execute(config, where), as_json)


def submit(
    run: Annotated[str, Argument(help="A run of the suite: its id, name or folder.")],
    out: Annotated[Path | None, Option("-o", "--out", help="The file (default: RUN.json).")] = None,
    results: options.Results = Path("results"),
) -> None:
    """Write a run of the suite as one file; refuses what a leaderboard would refuse.

    Example: lanternbench submit suite-v1-tiny
    """
    from lanternbench import experiment as store
    from lanternbench.suite import protocol

    folder = store.find(results, [run])[0]
    record = protocol.submission(folder)
    if reasons := protocol.judged(record)[1]:
        raise UserError(f"{folder.name} cannot be submitted: {'; '.join(reasons)}. Run the suite again with --fresh.")
    path = out or Path(f"{folder.name}.json")
    protocol.write(record, path)
    print(path)


def leaderboard(
    folder: Annotated[Path, Argument(metavar="DIR", help="Folder of submissions.")],
    check: Annotated[bool, Option("--check", help="Write nothing: is LEADERBOARD.md what they give?")] = False,
) -> None:
    """Check submissions and write LEADERBOARD.md; a page, leaderboard.html, too.

    Example: lanternbench leaderboard results/leaderboard
    """
    from lanternbench.suite import leaderboard as board
    from lanternbench.utils.files import replacing

    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: give the one that holds the submissions.")
    entries, refused = board.read_folder(folder)
    boards = board.boards(entries)
    if check:
        path = folder / board.NAMES[0]
        if not path.is_file() or path.read_text(encoding="utf-8") != board.markdown_page(boards):
            raise UserError(f"{path} is not what the submissions give: run `lanternbench leaderboard {folder}`.")
    for name, page in zip(board.NAMES, () if check else (board.markdown_page(boards), board.html_page(boards))):
        with replacing(folder / name, "choose a folder that can be written") as file:
            file.write(page.encode("utf-8", "replace"))
        print(folder / name)
    if refused:
        each = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in refused.items())
        of = len(refused) + len(entries)
        raise UserError(f"{len(refused)} of {of} submissions are refused ({each}): remove them.")
