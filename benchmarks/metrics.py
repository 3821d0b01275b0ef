"""What every metric takes per 1,000 images, measured on real photographs with full-size networks
of random weights.

    python -m benchmarks.metrics PHOTOGRAPHS CAPTIONS --threads 1 --images 32 --slow 4

The first --images photographs with captions are scored (the first --slow by the large networks);
their mirror images are the real set of FID, precision and recall.  Loading and the real set are
not in the times; what a set takes once its features are there stands apart.  CPU seconds are those
of this process: on a busy machine they say what an idle one would take.  Writes
benchmarks/results/metrics.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import torch
from PIL import ImageOps

from lanternbench import prompts
from lanternbench.experiment.environment import environment
from lanternbench.metrics import ImageMetric, Setup, read_image, scorers_for
from lanternbench.metrics.images import ImageFiles, images_in
from lanternbench.utils.device import choose
from lanternbench.utils.files import cache_dir

SLOW = ("image-reward", "hpsv2", "aesthetic")
NAMES = ("clip", "fid", "inception-score", "precision-recall", *SLOW)
NETS = {
    "clip": "ViT-B/32",
    "fid": "Inception-V3, 2048 features",
    "inception-score": "Inception-V3, logits",
    "precision-recall": "Inception-V3, 2048 features",
    "image-reward": "BLIP: ViT-L/16 + BERT-base",
    "hpsv2": "ViT-H/14",
    "aesthetic": "ViT-L/14 + head",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photographs", type=Path)
    parser.add_argument("captions")
    parser.add_argument("--images", type=int)
    parser.add_argument("--slow", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    texts = {p.image: p.text for p in prompts.load(arguments.captions)}
    paths = [path for path in images_in(arguments.photographs) if path.name in texts][
        : arguments.images
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LANTERNBENCH_HOME"] = folder  # no cached feature
        mirrored = Path(folder) / "mirrored"
        mirrored.mkdir()
        for path in paths:
            ImageOps.mirror(read_image(path)).save(mirrored / f"{path.stem}.png")
        setup = Setup(mirrored, choose(arguments.device, arguments.threads), random=True)
        lines = [
            measured(name, paths[: arguments.slow] if name in SLOW else paths, texts, setup)
            for name in NAMES
        ]
    place = environment()
    where = (
        torch.cuda.get_device_name(setup.device)
        if setup.device.startswith("cuda")
        else place.get("cpu")
    )
    options = f"--images {len(paths)} --slow {arguments.slow} --threads {torch.get_num_threads()}"
    head = [
        "# What the metrics take",
        "",
        f"Networks at full size with random weights: the times are real, the values are noise. {where}, "
        f"{torch.get_num_threads()} thread(s), torch {torch.__version__}. Extrapolated from the number of photographs "
        "in the table to 1,000, reading included. CPU seconds are this process' own: on a busy machine they are what "
        f"an idle one would take. `python -m benchmarks.metrics PHOTOGRAPHS CAPTIONS {options}`",
        "",
        "| metric | network | photographs | value | s per 1,000 images | CPU s per 1,000 images | and once, CPU s |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    out = Path(__file__).resolve().parent / "results" / "metrics.md"
    out.write_text("\n".join([*head, *lines, ""]), encoding="utf-8")
    print(out.read_text(encoding="utf-8"))


def measured(name: str, paths: list[Path], texts: dict[str | None, str], setup: Setup) -> str:
    """A row: the metric over the images."""
    (scorer,) = scorers_for([name], "full", setup)
    scorer.prepare()
    start = clocks()
    if isinstance(scorer, ImageMetric):
        scores = scorer.score(
            [read_image(path) for path in paths], [texts[path.name] for path in paths]
        )
        values = {scorer.name: sum(v for v in scores if v is not None) / len(paths)}
        wall, cpu, once = *(b - a for a, b in zip(start, clocks(), strict=True)), None
    else:
        # the features of FID's images are those of precision and recall: read again, not taken
        # from the cache
        shutil.rmtree(cache_dir() / "features", ignore_errors=True)
        start = clocks()
        scorer.score_set(ImageFiles(paths))
        middle = clocks()
        score = scorer.score_set(ImageFiles(paths))  # the features are cached now
        whole, again = (
            [b - a for a, b in zip(*pair, strict=True)]
            for pair in ((start, middle), (middle, clocks()))
        )
        wall, cpu, once = whole[0] - again[0], whole[1] - again[1], again[1]
        values = {scorer.name: score.value, **score.more}
    value, scale = ", ".join(f"{k} {v:.4g}" for k, v in values.items()), 1000 / len(paths)
    last = "" if once is None else f"{once:.1f}"
    row = f"| {name} | {NETS[name]} | {len(paths)} | {value} | {wall * scale:,.0f} | {cpu * scale:,.0f} | {last} |"
    print(row, flush=True)
    return row


def clocks() -> tuple[float, float]:
    """Seconds on the wall, and of this process."""
    return time.perf_counter(), time.process_time()


if __name__ == "__main__":
    main()
