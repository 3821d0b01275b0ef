"""Reported seconds of the autoregressive part of GLM-Image, Emu3 and Emu3.5 beside predicted ones.

    python benchmarks/served.py

Nothing is measured.  Writes benchmarks/results/served.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lanternbench.costs.roofline import device_model
from lanternbench.models.catalogue import load_unpacked
from lanternbench.predict.machines import Roofline
from lanternbench.predict.predict import latency
from lanternbench.predict.replay import baseline, shape_of
from lanternbench.report.tables import markdown

OUT = Path(__file__).parent / "results" / "served.md"
HEAD = """# Reported seconds of autoregressive parts, beside predicted ones

Seconds of a whole image and milliseconds a token, batch 1. Predictions are by the roofline of `lanternbench predict`
([docs/predict.md](../../docs/predict.md)): `ar` of this engine on one GPU, bfloat16, with the target's guidance.
Nothing on this page was measured here. Row ends and the end of the image take no forward here, so there are fewer
tokens. GLM-Image's 14.9 of 31.0 s are of editing an image, for which its pipeline draws the fine grid alone. Emu3.5's
figure is a log of 123.3 tokens a second over two sequences, with guidance and without. What splitting the weights over
two GPUs saves or costs, no prediction here has. Written by `python benchmarks/served.py`.
"""


class Served(NamedTuple):
    """What somebody reported of a whole image, batch 1."""

    target: str
    tokens: int  # that were drawn there, row ends included
    seconds: float
    device: str  # of the prediction beside it
    where: str
    source: str


SERVED = [
    Served("glm-image", 1281, 19.01, "h100", "vLLM-Omni, two H100", "vllm-project/vllm-omni#3042"),
    Served(
        "glm-image",
        1025,
        14.87,
        "h100",
        "vLLM-Omni, editing, GPU not named",
        "vllm-project/vllm-omni#3024",
    ),
    Served("emu3-gen", 8190, 300, "h100", "transformers, H100, the authors", "baaivision/Emu3#18"),
    Served(
        "emu3-gen", 8190, 600, "a100-80g", "transformers, A100, the authors", "baaivision/Emu3#18"
    ),
    Served(
        "emu3.5-image:grid=55x73",
        4070,
        4070 / (123.3 / 2),
        "h100",
        "vLLM, two GPUs not named",
        "flagos-ai/FlagScale#920",
    ),
]


def row(one: Served) -> list[str]:
    target = load_unpacked(one.target, "meta", random_weights=True)
    shape, device = shape_of(target), device_model(one.device)
    base = baseline(shape)
    cells = []
    for graphs in (True, False):
        seconds = latency(Roofline(device, "bfloat16", graphs), base, 1)[0]
        cells.append(f"{seconds:.1f} s, {1e3 * seconds / (shape.length - 1):.2f} ms")
    reported = f"{one.seconds:.1f} s, {1e3 * one.seconds / one.tokens:.1f} ms"
    name, size = one.target.partition(":")[0], "×".join(map(str, target.grid))
    return [
        name,
        size,
        one.where,
        one.source,
        f"{one.tokens:,}",
        reported,
        f"{shape.length:,}",
        device.name,
        *cells,
    ]


def main() -> None:
    titles = [
        "target",
        "image",
        "reported of",
        "source",
        "tokens",
        "reported",
        "tokens here",
        "GPU",
    ]
    right = [False] * 4 + [True] * 3 + [False] + [True] * 2
    table = markdown(
        [*titles, "predicted, graphs", "predicted, eager"], [row(one) for one in SERVED], right
    )
    OUT.write_text(f"{HEAD}\n{table}", encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
