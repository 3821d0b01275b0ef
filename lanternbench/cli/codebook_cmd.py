"""``codebook``: are neighbouring codes interchangeable?"""

from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from lanternbench.cli import options
from lanternbench.cli.fields import Takes
from lanternbench.cli.output import print_cells, print_json
from lanternbench.cli.progress import display
from lanternbench.errors import UserError
from lanternbench.utils.device import choose

MAX_SIZE = 10**6


def codebook(
    config: Annotated[Any, Takes("seed dtype")],
    target: Annotated[str, Argument(help="A target of `lanternbench targets`, or a folder.")] = "tiny",
    k: Annotated[str, Option(help="Sizes of neighbourhoods, the token included.")] = "2,10,100",
    proximity: Annotated[Literal["l2", "cosine", "random"], Option(help="What nearest means.")] = "l2",
    num_prompts: Annotated[int, Option("--num-prompts", "-n", min=1, help="Demo captions to draw.")] = 4,
    out: Annotated[Path | None, Option(help="Write the images side by side (PNG).")] = None,
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
    model = load_target(target, choose(device, threads), dtype=config.dtype)
    captions = prompts.captions_for(model.labels, num_prompts)
    with display("drawing and swapping"):
        study = codebooks.study_codebook(model, captions, sizes, proximity, config.seed)
    if out is not None:
        from lanternbench.report.grid import images_figure

        heads = ["as drawn", *(f"k = {x.k}" for x in study.likenesses)]
        with replacing(out, OUT) as file:
            images_figure(heads, study.images, captions).savefig(file, format="png", dpi=200)
    if as_json:
        about = {"codes": study.codes, "width": study.width, "twins": study.twins}
        print_json(about | {"neighbourhoods": study.likenesses})
        return
    cells = (
        (str(x.k), f"{x.distance:.2f}", f"{x.mass:.3f}", "the same" if x.psnr is None else f"{x.psnr:.1f}")
        for x in study.likenesses
    )
    print_cells(("k", "distance", "probability", "images swapped, dB"), cells)
    print(
        f"{study.codes} codes of width {study.width}, {study.twins} like another. Distance: of the k-th nearest, in "
        "those of random pairs.\nProbability: the target's, of a drawn token and its neighbours. dB: PSNR against the "
        "images as drawn."
    )
