"""FlashAR: the network, the masks, gates, losses and whole decodes, with and without the public
code's gap.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from golden_checks.common import Found, Vectors, close, loaded, read, same
from lanternbench.engine import decode as engine
from lanternbench.engine.diagonals import Diagonals
from lanternbench.engine.sampling import draw
from lanternbench.engine.state import DecodeState
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.drafters.flashar import FlashAR, load
from lanternbench.models.emu3.checkpoint import Emu3, Emu3Checkpoint, Emu3Config
from lanternbench.models.key_names import from_published, image_tables
from lanternbench.models.target import Prefix, Target
from lanternbench.models.token_decoder import padded
from lanternbench.settings import Sampling
from lanternbench.training import diagonals


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "flashar.safetensors")
    found = teacher_forcing(vectors, flashar_target(vectors, all_ids=True))
    target = flashar_target(vectors)
    for run in vectors.meta["runs"]:
        found += decode(vectors, target, run)
    return found


def flashar_target(vectors: Vectors, all_ids: bool = False) -> Target:
    """The checkpoint as a target with its branch; ``all_ids``: not image tokens alone."""
    c = vectors.meta["config"]
    first = 0 if all_ids else vectors.meta["wrapper"]["visual_token_offset"]
    config = Emu3Config(
        dim=c["hidden_size"],
        n_layer=c["num_hidden_layers"],
        n_head=c["num_attention_heads"],
        hidden=c["intermediate_size"],
        n_kv_head=c["num_key_value_heads"],
        head_width=c["head_dim"],
        vocab_size=c["vocab_size"] - first,
        prompt_ids=c["vocab_size"],
        first_image_id=first,
        qk_norm="rms",
        norm_eps=c["rms_norm_eps"],
        rope_base=c["rope_theta"],
        grid=tuple(vectors.meta["grid"]),
    )
    published = vectors.under("sd.")
    state = from_published(published, Emu3Checkpoint.prefixes, config)
    model = Emu3(config)
    state = image_tables(state, model.image_ids)
    model = loaded(model, {key: state[key] for key in model.state_dict()})
    net = branch(vectors, model)
    nothing: Any = None
    return Target("golden", model, None, nothing, drafters={"flashar": net})


def branch(vectors: Vectors, model: Emu3) -> FlashAR:
    """The branch as ``load`` reads it from a folder with the checkpoint and its config.json."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_file(vectors.under("sd."), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(vectors.meta["wrapper"]))
        return load(folder, model, "cpu", torch.float32)


def prompts(target: Target, rows: list[Tensor]) -> Target:
    """``target`` with these prompts, conditional ones first, in place of captions."""

    def condition(target: Target, captions: list[str], guided: bool) -> Prefix:
        ids, valid = padded([row.tolist() for row in rows], side="left")
        return Prefix(target.model.prompt_embeddings(ids), valid, ids, ids[:, 1:], valid[:, :-1])

    return replace(target, condition=condition)


def teacher_forcing(vectors: Vectors, target: Target) -> list[Found]:
    def out(name: str) -> Tensor:
        return vectors[f"out.tf.{name}"]

    text = vectors["in.tf.text_ids"]
    target = prompts(target, [*text])
    target.sampling = Sampling(guidance=1.0)
    net = target.drafters["flashar"]
    prefix = target.prefix([""], 1.0)
    fed, predicting = diagonals.read(target, net, prefix, vectors["in.tf.image_ids"])
    predicted = diagonals.predictions(net, fed)
    wanted = target.model.logits(predicting).softmax(-1)
    no_logits: Any = None
    losses = diagonals.losses(net, fed, np.random.default_rng(0), no_logits, wanted)
    total = out("loss") + 0.05 * out("loss_v") + 0.2 * out("loss_distill")
    height, width = target.grid
    below = net(fed.inner[:, 1:], fed.rope[None], fed.seen[None, None])
    prompt = text.shape[1]
    on_grid = partial(torch.unflatten, dim=1, sizes=(height, width))
    return [
        same("tf: mask", fed.seen, out("attend")[prompt:, prompt:]),
        same("tf: vertical mask", fed.seen, out("attend_vertical")),
        close("tf: h", fed.final[:, 1:], out("h_hidden")),
        close("tf: v", below, out("v_hidden")),
        close("tf: inner states", fed.inner[:, 1:], out("v_input_hidden")),
        close("tf: corner h", fed.final[:, :1], out("corner_h_hidden")),
        close("tf: corner v", fed.inner[:, :1], out("corner_v_hidden")),
        close("tf: horizontal", on_grid(target.model.output(fed.final[:, 1:])), out("logits_h")),
        close("tf: vertical", on_grid(net.vertical_head(below)), out("logits_v")),
        close("tf: gates", on_grid(predicted.gate)[:, 1:, 1:, 0], out("gate_interior")),
        close(
            "tf: corner gate",
            net.hv_gate_corner(fed.final[:, 0]).sigmoid()[0],
            out("gate_corner"),
        ),
        close("tf: mixed", on_grid(predicted.mixed), out("logits_fused")),
        close("tf: loss", losses["mixed"], out("loss")),
        close("tf: vertical loss", losses["vertical"], out("loss_v")),
        close("tf: distillation", losses["distilled"], out("loss_distill")),
        close("tf: all losses", losses["loss"], total),
    ]


class Recorder:
    """A branch that keeps the logits that it gives, [R, m, V] each."""

    def __init__(self, net: FlashAR):
        self.net = net
        self.config = net.config
        self.logits: list[Tensor] = []

    def __call__(self, *arguments: Any) -> Tensor:
        return self.net(*arguments)

    def aux_layers(self, model: Any) -> Any:
        return self.net.aux_layers(model)

    def mixed(self, *arguments: Any) -> Tensor:
        self.logits.append(self.net.mixed(*arguments))
        return self.logits[-1]

    def corner(self, *arguments: Any) -> Tensor:
        self.logits.append(self.net.corner(*arguments))
        return self.logits[-1]


def decoded(
    vectors: Vectors, target: Target, run: str, gap: bool, given: Tensor | None = None
) -> tuple[Tensor, Tensor, int]:
    """Tokens [H, W] of a whole decode by the engine, raw logits [R, HW, V] and steps.

    ``given`` [HW]: the tokens that it is to read in place of its own.
    """
    meta = vectors.meta["runs"][run]
    rows = [*vectors[f"in.{run}.text_ids"]]
    guidance = float(meta["guidance"])
    if guidance > 1:
        rows += [*vectors[f"in.{run}.uncond_ids"]]
    target = prompts(target, rows)
    settings = meta["sample"] or {"temperature": 0.0}
    flashar = method("flashar", variant="reference" if gap else "paper")
    decoder = build(target, flashar, Sampling(guidance=guidance, **settings))
    recorder = Recorder(decoder.strategy.net)
    decoder.strategy = replace(decoder.strategy, net=recorder)
    state, carried = engine.begin(decoder, [""], [0])
    grid = decoder.strategy.grid
    order = torch.tensor(
        sorted(range(target.length), key=lambda i: (i // grid.width + i % grid.width, i))
    )
    if meta["sample"]:
        set_uniforms(state, grid, vectors[f"in.{run}.uniforms"])
    while state.active:
        if given is not None:
            state.now.tokens[0, : target.length] = given
        carried, _ = engine.step(decoder, state, carried)
    logits = torch.cat(recorder.logits, 1)
    return state.finish().view(grid.height, -1), logits[:, order.argsort()], state.steps


def set_uniforms(state: DecodeState, grid: Diagonals, uniforms: Tensor) -> None:
    """Decode with recorded uniforms, in the order of drawing."""
    state.now.tokens[0, 0] = draw(state.first, uniforms[:1])
    used = 1
    for step in range(grid.height + grid.width - 2):
        count = grid.count(step + 1)
        state.uniforms[0, step, :count] = uniforms[used : used + count]
        used += count


def decode(vectors: Vectors, target: Target, run: str) -> list[Found]:
    grid = tuple(vectors.meta["runs"][run]["grid"])
    model = target.model
    model.config = replace(model.config, grid=grid)
    first = model.config.first_image_id
    want = vectors[f"out.{run}.tokens"] - first
    tokens, logits, steps = decoded(vectors, target, run, gap=True)
    published = vectors[f"out.{run}.branch_logits"].flip(0)[..., model.image_ids]
    found = [
        same(f"{run}: tokens", tokens, want),
        same(f"{run}: steps", steps, sum(grid) - 2),
        close(f"{run}: logits", logits, published),
    ]
    if f"out.{run}.uncond_logits_without_gap" in vectors.tensors:
        published = vectors[f"out.{run}.uncond_logits_without_gap"][..., model.image_ids]
        _, logits, _ = decoded(vectors, target, run, gap=False, given=want.flatten())
        found.append(close(f"{run}: unconditional without the gap", logits[1], published))
    if f"out.{run}.tokens_uncached" in vectors.tensors:
        want = vectors[f"out.{run}.tokens_uncached"] - first
        tokens, _, _ = decoded(vectors, target, run, gap=False)
        found.append(same(f"{run}: tokens without the gap", tokens, want))
    return found
