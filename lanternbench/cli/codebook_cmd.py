"""``codebook``: are neighbouring codes interchangeable?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from lanternbench.cli import options
from lanternbench.cli.output import number_table, print_json
from lanternbench.cli.progress import display
from lanternbench.errors import UserError
from lanternbench.utils.device import choose

MAX_SIZE = 10**6


def codebook(
    target: Annotated[str, typer.Argument(help="A target of `lanternbench targets`, or a folder.")] = "tiny",
    k: Annotated[str, typer.Option("--k", help="Sizes of neighbourhoods, the token included.")] = "2,10,100",
    proximity: Annotated[Literal["l2", "cosine", "random"], typer.Option(help="What nearest means.")] = "l2",
    num_prompts: Annotated[int, typer.Option("--num-prompts", "-n", min=1, help="Demo captions to draw.")] = 4,
    seed: options.Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the images side by side (PNG).")] = None,
    dtype: options.Dtype = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    as_json: options.AsRows = False,
) -> None:
    """Swap every token of drawn images for a near code: what LANTERN's neighbourhoods cost, and how likely they are.

    Example: lanternbench codebook tiny --k 2,10,100 --out codebook.png
    """
    from lanternbench import prompts
    from lanternbench.measure import code_swaps as codebooks
    from lanternbench.models.catalogue import load_target
    from lanternbench.utils.files import OUT, check_writable, replacing

    try:
        sizes = sorted({int(x) for x in k.split(",")})
    except ValueError:
        raise UserError(f"--k {k} is no list of numbers: write for example --k 2,10,100") from None
    if sizes[-1] > MAX_SIZE:
        raise UserError(f"--k has a size over {MAX_SIZE}: give at most the size of the target's vocabulary")
    if out is not None:
        check_writable(out, OUT)
    model = load_target(target, choose(device, threads), dtype=dtype)
    captions = prompts.captions_for(model.labels, num_prompts)
    with display("drawing and swapping"):
        found = codebooks.study_codebook(model, captions, sizes, proximity, seed)
    if out is not None:
        from lanternbench.report.grid import images_figure

        heads = ["as drawn", *(f"k = {x.k}" for x in found.likenesses)]
        with replacing(out, OUT) as file:
            images_figure(heads, found.images, captions).savefig(file, format="png", dpi=200)
    if as_json:
        rows = [x._asdict() for x in found.likenesses]
        record = {"codes": found.codes, "width": found.width, "twins": found.twins, "neighbourhoods": rows}
        print_json(record)
        return
    table = number_table(("k", "distance", "probability", "images swapped, dB"))
    for x in found.likenesses:
        table.add_row(str(x.k), f"{x.distance:.2f}", f"{x.mass:.3f}", "the same" if x.psnr is None else f"{x.psnr:.1f}")
    Console().print(table)
    print(
        f"{found.codes} codes of width {found.width}, {found.twins} like another. Distance: of the k-th nearest, in "
        "those of random pairs.\nProbability: the target's, of a drawn token and its neighbours. dB: PSNR against the "
        "images as drawn."
    )
