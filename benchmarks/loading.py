"""Peak host memory of loading a checkpoint, as a multiple of its size: ``python
benchmarks/loading.py [MEGABYTES]``.

Writes random checkpoints in the published layouts to a temporary folder and loads each in a
process of its own, whose peak resident memory is taken above what it held after its imports.
Mapped pages of the files count.  The checkpoints are float32; one is loaded as bfloat16 too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from lanternbench.models.key_names import to_published
from lanternbench.models.llamagen import checkpoint as llamagen
from lanternbench.models.llamagen.checkpoint import LlamaGen, LlamaGenConfig

LAYOUTS = ("official .pt", "official .bin", "Hugging Face shards")
DIM, LAYER = 512, 12.6  # width, and megabytes a layer

_LOAD = """
import json, sys
from pathlib import Path
import torch
from lanternbench.models.entries import Entry
from lanternbench.models.llamagen.checkpoint import LlamaGenFamily

def peak(field):
    text = Path("/proc/self/status").read_text()
    return int(text.split(field + ":")[1].split()[0]) / 1e3

with torch.no_grad():
    torch.nn.Linear(1, 1, device="meta").weight.normal_()  # what torch imports for a network without memory

before = peak("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
row = Entry(name="x", family="llamagen", about="", shape=json.loads(sys.argv[2]))
net = LlamaGenFamily().decoder(row, Path(sys.argv[1]), "cpu", getattr(torch, sys.argv[3]))
print(json.dumps([peak("VmHWM") - before, sum(p.numel() for p in net.parameters())]))
"""


def shape(megabytes: float) -> dict:
    return {
        "dim": DIM,
        "n_layer": round(megabytes / LAYER),
        "n_head": 8,
        "vocab_size": 1024,
        "model_type": "c2i",
    }


def write(folder: Path, layout: str, megabytes: float) -> float:
    """A checkpoint under ``folder``/model; its size in megabytes."""
    model = folder / "model"
    model.mkdir(parents=True)
    state = LlamaGen(LlamaGenConfig(**shape(megabytes))).state_dict()
    if layout != "Hugging Face shards":
        torch.save({"model": llamagen.to_official(state)}, model / f"weights{layout[-4:].strip()}")
    else:
        shards(model, hugging_face(state), 4)
    return sum(f.stat().st_size for f in model.iterdir()) / 1e6


def hugging_face(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our key names of a LlamaGen decoder -> those of LANTERN's Hugging Face class."""
    top = {"tok_embeddings.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
    layers = to_published({k: v for k, v in state.items() if k not in top})
    return {f"model.{k}": v for k, v in layers.items()} | {
        top[k]: v for k, v in state.items() if k in top
    }


def shards(model: Path, state: dict[str, Tensor], count: int) -> None:
    """Safetensors shards and their index, as the hub's libraries write them."""
    names, where = list(state), {}
    for i in range(count):
        file = f"model-{i + 1:05d}-of-{count:05d}.safetensors"
        part = names[i * len(names) // count : (i + 1) * len(names) // count]
        save_file({k: state[k].contiguous() for k in part}, model / file)
        where |= dict.fromkeys(part, file)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def measure(folder: Path, megabytes: float, dtype: str) -> float:
    """Peak megabytes of loading what ``write`` wrote."""
    command = [sys.executable, "-c", _LOAD, str(folder), json.dumps(shape(megabytes)), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)[0]


def main(megabytes: float) -> None:
    for layout, dtype in [*((layout, "float32") for layout in LAYOUTS), (LAYOUTS[0], "bfloat16")]:
        with tempfile.TemporaryDirectory() as folder:
            size = write(Path(folder), layout, megabytes)
            peak = measure(Path(folder), megabytes, dtype)
            print(
                f"{layout:20}  {dtype:8}  {size:6.0f} MB  peak {peak:6.0f} MB  {peak / size:.2f} ×"
            )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 300)
