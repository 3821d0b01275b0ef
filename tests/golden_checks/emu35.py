"""Emu3.5: its decoder, and what its sampling rules make of logits, step by step and in whole
decodes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor

from golden_checks.chameleon_lm import by_layer, caches, incremental
from golden_checks.common import Found, Vectors, close, loaded, read, same, worst
from lanternbench.engine import opening
from lanternbench.engine.decode import generate
from lanternbench.engine.sampling import Warp, draw
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.emu3.checkpoint import Emu3, Emu3Checkpoint, Emu3Config, Emu3Family
from lanternbench.models.entries import entry
from lanternbench.models.key_names import from_published, image_tables
from lanternbench.models.target import Target
from lanternbench.models.token_decoder import PromptFrame, padded
from lanternbench.models.transformer import additive, guide
from lanternbench.settings import Sampling

SCORES = 1e-4  # of probabilities
TIMES = 9  # the id of *


def published_config(vectors: Vectors) -> Emu3Config:
    checkpoint = Emu3Family().at(entry("emu3.5-image"), None, "cpu")
    described = cast(Emu3Checkpoint, checkpoint).described(
        {"model_type": "Emu3", **vectors.meta["config"]}
    )
    return replace(described, qk_norm="rms")


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "emu35_lm.safetensors")
    config = published_config(vectors)
    config = replace(config, prompt_ids=0, vocab_size=config.prompt_ids)
    state = from_published(vectors.under("sd."), ("model.",), config)
    model = loaded(Emu3(config), state)
    ids = vectors["input_ids"]
    hidden = by_layer(model, ids)
    states = [
        close("", found, vectors[f"hidden_states.{number}"]) for number, found in enumerate(hidden)
    ]
    stepwise, cache = incremental(model, ids, vectors.meta["incremental_chunks"])
    return [
        worst("hidden states", states),
        close("logits", model.output(hidden[-1]), vectors["logits"]),
        close("logits with the cache", stepwise, vectors["incremental_logits"]),
        *caches(cache, vectors.tensors),
        *pair(model, vectors),
    ]


def pair(model: Emu3, vectors: Vectors) -> list[Found]:
    """Two prompts of different lengths in one padded batch give what each gives alone."""
    rows = [vectors[f"pair.{kind}_ids"][0].tolist() for kind in ("cond", "uncond")]
    ids, seen = padded(rows, 0, "left")
    length = ids.shape[1]
    rope = model.rope[None, :length, None]
    hidden = model(model.tok_embeddings(ids), rope, additive(prefix_mask(seen, length)))
    logits = model.output(hidden)
    return [
        close(
            f"padded batch: {kind}", logits[row, seen[row]][None], vectors[f"pair.{kind}_logits"]
        )
        for row, kind in enumerate(("cond", "uncond"))
    ]


def check_rules(folder: Path) -> list[Found]:
    vectors = read(folder / "emu35_rules.safetensors")
    found = []
    for name, run in vectors.meta["runs"].items():
        found += [f._replace(group=f"{name}: {f.group}") for f in step_by_step(vectors, name, run)]
    decoder = read(folder / "emu35_lm.safetensors")
    for name, run in vectors.meta["decodes"].items():
        found += [
            f._replace(group=f"{name}: {f.group}") for f in whole(vectors, decoder, name, run)
        ]
    return found


def sampling(run: dict[str, Any]) -> Sampling:
    return Sampling(
        guidance=run["g"], temperature=run["it"], top_k=run["itk"], top_p=run["itp"], min_p=0.0
    )


def laws(scores: Tensor, first: int) -> Tensor:
    """Published scores [..., ids] -> probabilities of image tokens [..., V]."""
    return scores.softmax(-1)[..., first:]


def step_by_step(vectors: Vectors, name: str, run: dict[str, Any]) -> list[Found]:
    """Recorded logits -> distributions of image tokens, and which ids stand at which step."""
    given = vectors.under(f"in.{name}.")
    want = vectors.under(f"out.{name}.")
    ids = vectors.meta["ids"]
    first = ids["BOV"]
    visual = want["kind"] == vectors.meta["kinds"]["visual"]
    logits = torch.stack([given["cond_logits"][visual], given["unc_logits"][visual]])[..., first:]
    guided = guide(logits, run["g"])[0]
    recorded = want["guided"][visual][:, first:]
    # log-probabilities differ from guided logits by a number of each step
    offset = (recorded - guided).mean(-1, keepdim=True)
    q = Warp(sampling(run))(guided)
    image_ids = torch.arange(vectors.meta["vocab_size"]) >= first
    return [
        close("guided scores", guided + offset, recorded),
        same("ids that may be drawn", want["allowed"][visual], image_ids.expand(len(q), -1)),
        same("how many are kept", (q > 0).sum(-1), want["kept"][visual]),
        tied("distributions", q, laws(want["scores"][visual], first), recorded),
        *framing(vectors, name, run),
    ]


def tied(group: str, q: Tensor, want: Tensor, scores: Tensor) -> Found:
    """Compare the mass of each score [T, V]: sorting leaves open which of two equal ones top-p
    drops.
    """
    masses = []
    for values, ours, theirs in zip(scores, q, want, strict=True):
        distinct, index = values.unique(return_inverse=True)
        nothing = torch.zeros(2, len(distinct))
        masses.append(nothing.index_add(1, index, torch.stack([ours, theirs])))
    ours, theirs = torch.cat(masses, 1)
    return close(group, ours, theirs, SCORES)


def framing(vectors: Vectors, name: str, run: dict[str, Any]) -> list[Found]:
    """The ids around image tokens: those of the prompt, and a row end after all rows but the
    last, whose end nothing reads.
    """
    given = vectors.under(f"in.{name}.")
    ids = vectors.meta["ids"]
    tokens = given["tokens"].tolist()
    rows, columns = run["grid"]
    start = [ids["BOI"], *digits(rows), TIMES, *digits(columns), ids["IMG"]]
    sequence = given["prompt_ids"].tolist() + tokens
    found = []
    fed = [token for call in run["unc_fed"] for token in call["fed"]]
    unconditional = given["unc_prompt_ids"].tolist()
    for _ in range(run["images"]):
        at = sequence.index(ids["BOI"])
        image = sequence[at : at + len(start) + rows * (columns + 1)]
        sequence = sequence[at + len(image) :]
        codes = [token for token in image if token >= ids["BOV"]]
        laid_out = with_row_ends(codes, columns, ids)
        found.append(same("ids of an image", image, start + laid_out))
        unconditional += image
    return [
        *found,
        same("ids of the unconditional prompt", fed[: len(unconditional)], unconditional),
    ]


def digits(number: int) -> list[int]:
    """The ids of a number, whose digits are 15 to 24."""
    return [15 + int(digit) for digit in str(number)]


def with_row_ends(codes: list[int], columns: int, ids: dict[str, int]) -> list[int]:
    laid_out: list[int] = []
    for start in range(0, len(codes), columns):
        laid_out += [*codes[start : start + columns], ids["EOL"]]
    return [*laid_out[:-1], ids["EOI"]]


def small_target(vectors: Vectors, decoder: Vectors, name: str, run: dict[str, Any]) -> Target:
    """The recorded weights as a target whose prompt is the recorded one."""
    ids = vectors.meta["ids"]
    config = published_config(decoder)
    image_ids = torch.arange(ids["BOV"], vectors.meta["vocab_size"])
    config = replace(config, grid=tuple(run["grid"]), vocab_size=len(image_ids))
    state = from_published(decoder.under("sd."), ("model.",), config)
    model = loaded(Emu3(config, image_ids), image_tables(state, image_ids))
    rows, columns = run["grid"]
    size = [*digits(rows), TIMES, *digits(columns), ids["IMG"]]
    prompt = vectors[f"in.{name}.prompt_ids"].tolist()
    unconditional = [*vectors[f"in.{name}.unc_prompt_ids"].tolist(), ids["BOI"], *size]
    frame = PromptFrame(prompt, size, unconditional, ids["PAD"])
    target = Target(name, model, None, no_text, sampling(run), condition=frame)
    target.row_end = ids["EOL"]
    return target


def no_text(captions: list[str]) -> tuple[Tensor, Tensor]:
    nothing = torch.zeros(len(captions), 0, dtype=torch.long)
    return nothing, nothing.bool()


def recorded_uniforms(values: Tensor, *arguments: Any) -> Tensor:
    """A row of equal numbers a step; the last row is that of the first token."""
    _, length, count, _ = arguments
    rows = torch.zeros(length + 1)
    rows[: length - 1] = values[1:]
    rows[length] = values[0]
    return rows[None, :, None].expand(1, -1, count)


def whole(vectors: Vectors, decoder: Vectors, name: str, run: dict[str, Any]) -> list[Found]:
    """A decode through the engine, with the recorded uniforms if it samples."""
    want = vectors.under(f"out.{name}.")
    first = vectors.meta["ids"]["BOV"]
    visual = want["tokens"] >= first
    target = small_target(vectors, decoder, name, run)
    settings = sampling(run)
    values = torch.zeros(int(visual.sum()))
    if run["do_sample"]:
        values = vectors[f"in.{name}.uniforms"][visual]
    else:
        settings = settings.model_copy(update={"temperature": 0.0})
    with mock.patch.object(opening, "row_uniforms", partial(recorded_uniforms, values)):
        (made,) = generate(build(target, method("ar"), settings), ["a caption"], trace=True)
    logits = torch.stack([want["cond"][visual], want["unc"][visual]])[..., first:]
    q = Warp(sampling(run))(guide(logits, run["g"])[0])
    codes = want["tokens"][visual] - first
    drawn = draw(q, values) if run["do_sample"] else q.argmax(-1)
    return [
        same("tokens of the engine", made.tokens, codes),
        same("tokens drawn from the recorded logits", drawn, codes),
        close("distributions", q, laws(want["scores"][visual], first), SCORES),
    ]
