"""LlamaGen XL at full size from its published layouts, on this CPU: ``python -m
benchmarks.full_size [--write FILE]``.

Writes random weights under the published names (the official ``.pt`` in float32 and bfloat16,
LANTERN's conversion in safetensors), loads each in a process of its own, and draws one image with
``ar`` and one with ``cool-sd``.  Peak memory is VmHWM above what the process held after its
imports: ru_maxrss would start from what the process that wrote the files had held.  Mapped pages
count.  Text features are random: Flan-T5-XL is not loaded.  Weights are random, so drafts are
accepted as noise accepts noise: times of images say that a full size decodes, not how fast a
trained drafter is.

``--images TARGET …`` decodes one image of random tokens by the image tokeniser of each target, with
random weights, and prints a line of seconds of the processor and peak memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.loading import hugging_face
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.entries import entry
from lanternbench.models.key_names import to_published
from lanternbench.models.llamagen.checkpoint import LlamaGen, LlamaGenConfig, to_official
from lanternbench.models.loading import random_net
from lanternbench.models.vq import VQConfig, VQModel

ROW = entry("llamagen-xl-stage1")
STEPS = ("ar", "cool-sd")

_DECODE = """
import json, sys, time
from pathlib import Path

import torch

from lanternbench.models.entries import entry, family
from lanternbench.models.loading import random_net


def megabytes(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6


torch.set_num_threads(1)
row = entry(sys.argv[1])
checkpoint = family(row.family).at(row, None, "cpu")
before = megabytes("VmRSS")
vq = random_net(checkpoint.new_vq, "cpu", torch.float32)
weights = sum(parameter.numel() for parameter in vq.parameters())
rows, columns = checkpoint.config.grid
tokens = torch.randint(checkpoint.config.vocab_size, (1, rows, columns))
held = megabytes("VmRSS") - before
began = time.process_time()
with torch.inference_mode():
    image = vq.decode(tokens)
seconds = time.process_time() - began
assert image.isfinite().all()
print(json.dumps([weights, rows, columns, *image.shape[-2:], seconds, megabytes("VmHWM") - before, held]))
"""

_LOAD = """
import json, sys, time
from dataclasses import replace
from pathlib import Path

import torch

from lanternbench.engine.decode import generate
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_target
from lanternbench.models.llamagen.checkpoint import LlamaGenFamily


def megabytes(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6


with torch.no_grad():
    torch.nn.Linear(1, 1, device="meta").weight.normal_()  # what torch imports for it
folder, dtype, limit, methods = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
before = megabytes("VmRSS")
began = time.perf_counter()
target = load_target(f"llamagen-xl-stage1={folder}", "cpu", False, dtype)
seconds = time.perf_counter() - began
peak = megabytes("VmHWM") - before
held = megabytes("VmRSS") - before
rows = {"seconds": seconds, "peak": peak, "held": held, "images": {}}


def features(captions):
    torch.manual_seed(0)
    states = torch.randn(len(captions), 120, 2048).to(target.dtype)
    mask = torch.zeros(len(captions), 120, dtype=torch.long)
    mask[:, :12] = 1
    return states * mask[..., None], mask


target = replace(target, text=features)
for name in methods:
    began = time.perf_counter()
    decoder = build(target, method(name))
    (made,) = generate(decoder, ["a red circle"], max_steps=limit or None)
    decoded = time.perf_counter() - began
    image = target.images(made.tokens[None])[0]
    rows["images"][name] = [decoded, made.steps, sum(made.accept_lengths), image.size[0]]
print(json.dumps(rows))
"""


class Layout(NamedTuple):
    """A published layout: how it is called, the dtype of its weights, the dtype that is loaded."""

    title: str
    stored: torch.dtype
    loaded: str
    methods: tuple[str, ...] = ()


LAYOUTS = (
    Layout("official .pt", torch.float32, "float32", STEPS),
    Layout("official .pt", torch.float32, "bfloat16"),
    Layout("official .pt", torch.bfloat16, "float32"),
    Layout("LANTERN's conversion", torch.float32, "float32"),
    Layout("LANTERN's conversion", torch.bfloat16, "bfloat16"),
)


def decoder(dtype: torch.dtype) -> dict[str, Tensor]:
    config = LlamaGenConfig(**ROW.shape)
    return random_net(lambda: LlamaGen(config), "cpu", dtype).state_dict()


def write(folder: Path, layout: Layout) -> float:
    """Write a target's files, without the text encoder's; return the megabytes of all weights."""
    for role in ("model", "vq", "text", "eagle"):
        (folder / role).mkdir()
    state = decoder(layout.stored)
    if layout.title == "official .pt":
        name = ROW.files["model"].files[0]
        torch.save({"model": to_official(state), "steps": 1}, folder / "model" / name)
    else:
        named = {key: value.contiguous() for key, value in hugging_face(state).items()}
        save_file(named, folder / "model" / "model.safetensors")
    del state
    vq = random_net(lambda: VQModel(VQConfig()), "cpu", torch.float32)
    torch.save({"model": vq.state_dict()}, folder / "vq" / ROW.files["vq"].files[0])
    config = replace(LlamaGenConfig(**ROW.shape).decoder, first_norm=False)
    drafter = random_net(lambda: Eagle(config), "cpu", layout.stored)
    torch.save(to_published(drafter.state_dict()), folder / "eagle" / "pytorch_model.bin")
    weights = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in weights) / 1e6
    save_file({"not": torch.zeros(1)}, folder / "text" / "model.safetensors")
    return size


def measure(layout: Layout, steps: int) -> tuple[float, dict]:
    """Write a layout and load it in a child; return its megabytes and the child's figures.

    ``steps``: after how many an image is left unfinished; 0: it is drawn whole; below: no image.
    """
    with tempfile.TemporaryDirectory() as name:
        size = write(Path(name), layout)
        methods = layout.methods if steps >= 0 else ()
        command = [sys.executable, "-c", _LOAD, name, layout.loaded, str(steps), *methods]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return size, json.loads(done.stdout)


def decoded(target: str) -> str:
    """Decode an image in a child; return the line of a table about it."""
    command = [sys.executable, "-c", _DECODE, target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    weights, rows, columns, height, width, seconds, peak, held = json.loads(done.stdout)
    return (
        f"| `{target}` | {weights / 1e6:.0f} M | {rows} × {columns} | {height} × {width} "
        f"| {seconds:.0f} | {peak:,.0f} MB | {held:,.0f} MB |"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    options.add_argument("--write", type=Path)
    options.add_argument("--steps", type=int, default=0, help="0: whole images; -1: none")
    options.add_argument("--images", nargs="+", default=(), metavar="TARGET")
    chosen = options.parse_args()
    if chosen.images:
        print("| image tokeniser of | weights | tokens | pixels | CPU seconds | peak | held |")
        print("|---|---|---|---|---|---|---|")
        for target in chosen.images:
            print(decoded(target), flush=True)
        return
    lines = ["| layout | stored | loaded | files | seconds | peak | peak / files | held |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    images = []
    for layout in LAYOUTS:
        size, row = measure(layout, chosen.steps)
        stored = str(layout.stored).removeprefix("torch.")
        ratio = row["peak"] / size
        lines.append(
            f"| {layout.title} | {stored} | {layout.loaded} | {size:,.0f} MB | {row['seconds']:.1f} "
            f"| {row['peak']:,.0f} MB | {ratio:.2f} | {row['held']:,.0f} MB |"
        )
        print(lines[-1], flush=True)
        for method, (seconds, steps, tokens, side) in row["images"].items():
            images.append(
                f"- `{method}`: {tokens} tokens in {steps} steps and {seconds:.0f} s with encoding and "
                f"preparation, an image of {side} × {side} pixels."
            )
            print(images[-1], flush=True)
    text = "\n".join([*lines, "", *images])
    if chosen.write:
        title = f"# LlamaGen XL from its published layouts\n\n{__doc__}\n"
        chosen.write.write_text(f"{title}{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
