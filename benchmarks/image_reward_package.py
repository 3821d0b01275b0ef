"""ImageReward by the authors' package compared with the metric ``image-reward`` on one machine.

    python -m benchmarks.image_reward_package FOLDER [--captions FILE] [--images N]
    python -m benchmarks.image_reward_package FOLDER --random-weights

FOLDER: a run, or a folder of images with --captions as `lanternbench score` takes them; without
captions each image's file name is its caption.  The package `image-reward` needs timm 0.6.13 and a
transformers of 2023, so it gets a virtual environment of its own (2.5 GB of downloads, 6 GB on the
disk) under $LANTERNBENCH_HOME, made once; it needs a Python 3.9 to 3.11.  Both sides read the same
ImageReward.pt and the same vocabulary, in float32 on the CPU; --random-weights writes such files
instead of the published ones.  Prints the rewards and their differences and writes
benchmarks/results/image-reward-package.md; ends with 1 where a difference is over 1e-3.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.result_files import table, write
from lanternbench import prompts
from lanternbench.errors import UserError
from lanternbench.experiment import iter_samples
from lanternbench.metrics import blip_reward, files, read_image
from lanternbench.metrics.images import images_in
from lanternbench.metrics.metric import BATCH
from lanternbench.utils.files import cache_dir

INSIDE = Path(__file__).with_name("image_reward_inside.py")
TOLERANCE = 1e-3
PYTHONS = ("python3.11", "python3.10", "python3.9")
# releases that resolve together; clip-anytorch is OpenAI's `clip`, which is not on PyPI
PACKAGES = (
    "image-reward==1.5",
    "timm==0.6.13",
    "transformers==4.30.2",
    "torch==2.2.2",
    "torchvision==0.17.2",
    "numpy<2",
    "clip-anytorch==2.6.0",
    "diffusers==0.16.1",
    "accelerate==0.20.3",
    "huggingface-hub==0.16.4",
    "datasets==2.14.7",
    "pyarrow==14.0.2",
    "setuptools<70",
)
Picture = tuple[Path, str]  # and its caption


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--captions")
    parser.add_argument("--images", type=int)
    parser.add_argument("--random-weights", action="store_true")
    options = parser.parse_args()
    try:
        found = pictures(options.folder, options.captions)[: options.images]
        largest = compare(found, options.random_weights)
    except UserError as error:
        sys.exit(str(error))
    sys.exit(int(largest > TOLERANCE))


def pictures(folder: Path, captions: str | None) -> list[Picture]:
    """The images of a run or a folder with their captions.  Raises UserError without any."""
    if (folder / "run.json").is_file():
        samples = [sample for sample in iter_samples(folder) if sample.image]
        found = [(folder / str(sample.image), sample.prompt) for sample in samples]
    elif captions:
        texts = {prompt.image: prompt.text for prompt in prompts.load(captions)}
        found = [(p, texts[p.name]) for p in images_in(folder) if p.name in texts]
    else:
        found = [(path, path.stem.replace("_", " ")) for path in images_in(folder)]
    if not found:
        raise UserError(f"{folder} holds no images with captions: give a run or a folder")
    return found


def compare(found: list[Picture], random_weights: bool) -> float:
    """Write the table of both sides' rewards; return the largest difference."""
    python = environment()
    with tempfile.TemporaryDirectory() as folder:
        if random_weights:
            weights = Path(folder) / "ImageReward.pt"
            vocabulary = Path(folder) / "vocab.txt"
            tokens = blip_reward.vocabulary_tokens(None)
            vocabulary.write_text("\n".join(tokens) + "\n", encoding="utf-8")
            inside(python, "make", weights, vocabulary)
        else:
            weights, vocabulary = map(here, files.published("image-reward", "bert-vocabulary"))
        answer = inside(python, "score", weights, vocabulary, found)
        ours = rewards(weights, vocabulary, found)
    theirs = answer["rewards"]
    differences = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    report(found, theirs, ours, answer["versions"], random_weights)
    return max(differences)


def here(weights: files.Weights) -> Path:
    """The file of published weights.  Raises UserError where it is not downloaded."""
    path = weights.find()
    if path is None:
        raise UserError(str(files.missing(weights)))
    return path


def environment() -> Path:
    """The Python of the environment that holds the package, made where it is missing.

    Raises UserError without a Python that the package runs on.
    """
    folder = cache_dir() / "image-reward-package"
    python = folder / "bin" / "python"
    complete = folder / "packages.txt"  # written when all are installed
    wanted = "\n".join(PACKAGES)
    if complete.is_file() and complete.read_text() == wanted:
        return python
    base = next(filter(None, map(working, PYTHONS)), None)
    if base is None:
        raise UserError(f"the package image-reward needs one of {', '.join(PYTHONS)}: install one")
    print(f"installing the package image-reward into {folder}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([base, "-m", "venv", folder], check=True)
    # fairscale is built by the setuptools of the environment
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*install, *PACKAGES])
    if done.returncode:
        raise UserError(f"pip could not install {', '.join(PACKAGES)}: its message is above")
    complete.write_text(wanted)
    return python


def working(name: str) -> str | None:
    """The path of a Python that runs; a version manager's placeholder does not."""
    path = shutil.which(name)
    if path is None or subprocess.run([path, "--version"], capture_output=True).returncode:
        return None
    return path


def inside(
    python: Path, what: str, weights: Path, vocabulary: Path, found: Sequence[Picture] = ()
) -> dict[str, Any]:
    """Run ``image_reward_inside`` in the package's environment.  Raises UserError if it fails."""
    command = [str(python), str(INSIDE), what, str(weights), str(vocabulary)]
    given = json.dumps([(str(path.resolve()), caption) for path, caption in found])
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise UserError(f"the package image-reward failed ({' '.join(last)}): see {python.parent}")
    return json.loads(done.stdout)


def rewards(weights: Path, vocabulary: Path, found: list[Picture]) -> list[float]:
    """The rewards of the metric ``image-reward``."""
    bert = blip_reward.tokenizer(blip_reward.vocabulary_tokens(vocabulary))
    score = blip_reward.score_function(weights, bert, "cpu")
    values: list[float] = []
    with torch.inference_mode():
        for start in range(0, len(found), BATCH):
            batch = found[start : start + BATCH]
            images = [read_image(path) for path, _ in batch]
            values += score(images, [caption for _, caption in batch]).tolist()
    return values


def report(
    found: list[Picture],
    theirs: list[float],
    ours: list[float],
    versions: dict[str, str],
    random_weights: bool,
) -> None:
    differences = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    installed = ", ".join(f"{name} {number}" for name, number in versions.items())
    kind = "random weights at full size" if random_weights else "the published ImageReward.pt"
    rows = [
        (path.name, f"{a:.5f}", f"{b:.5f}", f"{abs(a - b):.1e}")
        for (path, _), a, b in zip(found, theirs, ours, strict=True)
    ]
    summary = (
        f"Largest difference: {max(differences):.1e} (at most {TOLERANCE:g} is expected). "
        f"The package's rewards lie between {min(theirs):.3f} and {max(theirs):.3f}."
    )
    lines = [
        "# ImageReward by the authors' package and by the metric `image-reward`",
        "",
        "`python -m benchmarks.image_reward_package FOLDER"
        f"{' --random-weights' if random_weights else ''}`, on {kind}, in float32 on a CPU.",
        f"The package's environment: {installed}; ours: torch {torch.__version__}.",
        "",
        *table(("image", "package", "metric", "difference"), rows),
        "",
        summary,
    ]
    write("image-reward-package.md", lines)


if __name__ == "__main__":
    main()
