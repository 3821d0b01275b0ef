"""EAGLE-3: it reads the target's states at three depths, however they were computed; it is trained
and loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import slow_but
from fake_cuda_graph import frozen
from families import random_chameleon
from safetensors.torch import load_file, save_file
from test_anole import CAPTIONS, GUIDANCE, IMAGES, SMALL_TREES, VQ, scrambled, small
from test_drafters import random_llamagen
from test_train_drafter import DEMO, made_small
from torch import Tensor

from lanternbench import prompts
from lanternbench.engine import decode as engine
from lanternbench.engine.state import DecodeState
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_unpacked, load_with_drafter, with_drafter
from lanternbench.models.drafters.eagle import Eagle, new_eagle, to_file
from lanternbench.models.family import drafter_at
from lanternbench.models.key_names import from_published, to_published
from lanternbench.models.llamagen import checkpoint as published_llamagen
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.settings import GREEDY, ModelSpec, Sampling
from lanternbench.training import drafter, losses
from lanternbench.utils.graph_capture import Graphs

KINDS = ["tiny", "classes", "anole", "lumina", "janus", "emu3"]
SMALL = ["classes", "anole", "lumina", "janus"]


def deep(kind: str) -> Target:
    """A target of four layers, so that low and middle states are two, with an EAGLE-3 drafter."""
    if kind == "tiny":
        made = tiny.load(dtype=torch.float64)
        made.model.layers = made.model.layers[:4]
        made.model.config = replace(made.model.config, n_layer=4)
    elif kind == "classes":
        labels = lambda captions: published_llamagen.class_labels(captions, "cpu")  # noqa: E731
        made = Target(
            "classes",
            random_llamagen(0, n_layer=4),
            small("anole").vq,
            labels,
            Sampling(guidance=4.0),
        )
    elif kind in ("janus", "emu3"):
        made = made_small(kind, n_layer=4)
    else:
        made = random_chameleon(
            vars(IMAGES) | {"grid": 4, "dialect": kind, "n_layer": 4}, GUIDANCE, VQ
        )
        scrambled(made.model, 0)
    net = scrambled(new_eagle(made.model, fused=True), 1).to(made.dtype)
    return replace(made, drafters=made.drafters | {"eagle-3": net}, options=SMALL_TREES)


def captions_of(kind: str) -> list[str]:
    return ["7", "3"] if kind == "classes" else CAPTIONS  # of unlike lengths: one is padded


def by_hooks(target: Target, captions: list[str], tokens: Tensor) -> Tensor:
    """States over prefix and tokens, plainly: no cache, a hook on the layers in question."""
    seen: list[Tensor] = []
    model = target.model
    hooks = [
        model.layers[n - 1].register_forward_hook(lambda *given: seen.append(given[2]))
        for n in (2, 3)
    ]
    with torch.inference_mode():
        last = losses.target_states(target, target.prefix(captions, target.guidance), tokens)
    for hook in hooks:
        hook.remove()
    return torch.cat([last, *seen], -1)


@pytest.mark.parametrize(
    "shape", ["chain-3", [[0], [1], [0, 0], [0, 1], [1, 0]]], ids=["chain", "tree"]
)
@pytest.mark.parametrize("kind", slow_but(["tiny", *SMALL], KINDS))
def test_what_it_reads_in_a_decode_are_the_states_of_a_plain_forward(kind, shape):
    target, captions = deep(kind), captions_of(kind)
    # so that some drafts are taken
    decoder = build(target, method("eagle-3", shape=shape), simulate_acceptance=2.0)
    states: list[tuple[list[int], list[int], list[int], Tensor]] = []
    honest = decoder.proposer.draft

    def draft(state: DecodeState, own: Any, u: Tensor) -> Any:
        last = state.now.last
        states.append(
            (
                list(state.origin),
                list(state.now.length.host or ()),
                list(last.advance.host or ()),
                last.hidden,
            )
        )
        return honest(state, own, u)

    # a frozen dataclass: what it drafts with stays, what it drafts is seen
    object.__setattr__(decoder.proposer, "draft", draft)
    made = engine.generate(decoder, captions, max_steps=8)
    plain = by_hooks(target, captions, torch.stack([g.tokens for g in made]))
    width = target.row_width
    slot = lambda token: token + (token // width if width else 0)  # noqa: E731
    first, several = plain.shape[1] - slot(target.length - 1), 0
    for origin, lengths, counts, hidden in states:
        assert hidden.shape[-1] == plain.shape[-1] == 3 * target.model.config.dim
        for row, (prompt, length, count) in enumerate(zip(origin, lengths, counts, strict=True)):
            for half in (0, len(captions)):
                at = [first + slot(length - count + i) - 1 for i in range(count)]
                want = plain[half + prompt, at]
                got = hidden[(half and len(origin)) + row, :count]
                assert (got - want).abs().max() < 1e-3 * want.abs().max()
                several += count > 1
    assert several
    low, middle = plain[..., target.model.config.dim :].chunk(2, -1)
    assert (low - middle).abs().mean() > 0.01 * low.abs().mean()


@pytest.mark.slow
def test_recorded_batched_and_single_decodes_of_rows_with_ends_have_the_same_tokens():
    target, captions = deep("lumina"), CAPTIONS
    decoders = [
        build(t, method("eagle-3")) for t in (target, replace(target, graphs=Graphs(frozen)))
    ]
    batch, recorded = (engine.generate(d, captions, max_steps=4) for d in decoders)
    alone = [engine.generate(decoders[0], [c], max_steps=6)[0] for c in captions]
    for a, b, c in zip(batch, recorded, alone, strict=True):
        n = 1 + sum(a.accept_lengths)
        assert a.accept_lengths == b.accept_lengths == c.accept_lengths[:4]
        assert torch.equal(a.tokens[:n], b.tokens[:n])
        assert torch.equal(a.tokens[:n], c.tokens[:n])


@pytest.mark.parametrize("kind", slow_but(SMALL, KINDS))
@pytest.mark.parametrize("name", ["eagle-3", "eagle-2"])
def test_at_temperature_0_it_keeps_the_target_s_tokens_on_every_tree(kind, name):
    target, captions = deep(kind), captions_of(kind)
    ar, fast = (
        engine.generate(build(target, m, GREEDY), captions, max_steps=40)
        for m in (method("ar"), method(name, proposal="eagle-3"))
    )
    for a, b in zip(ar, fast, strict=True):
        n = min(1 + sum(a.accept_lengths), 1 + sum(b.accept_lengths))
        assert n > 12
        assert torch.equal(a.tokens[:n], b.tokens[:n])


@pytest.mark.parametrize("name", ["ar", "eagle-1", "medusa", "sd"])
def test_nobody_else_is_handed_more_than_the_last_states(name, target, monkeypatch):
    widths: set[int] = set()
    honest = type(target.model).logits
    monkeypatch.setattr(
        type(target.model),
        "logits",
        lambda self, x, scale: widths.add(x.shape[-1]) or honest(self, x, scale),
    )
    engine.generate(build(target, method(name)), CAPTIONS[:1], max_steps=3)
    assert widths == {target.model.config.dim}


def test_every_method_on_eagle_runs_on_it():
    assert method("cool-sd", proposal="eagle-3", lam=1.5).label == "cool-sd proposal=eagle-3 λ=1.5"
    assert not method("cool-sd", proposal="eagle-3").lossless
    assert method("eagle-2", proposal="eagle-3").lossless
    target = deep("anole")
    for name in ("cool-sd", "lantern", "lantern++", "adt-tree"):
        made = engine.generate(build(target, method(name, proposal="eagle-3")), CAPTIONS)
        assert all(sum(g.accept_lengths) == target.length - 1 for g in made)


# ---- training ----


def test_it_starts_out_as_the_eagle_1_drafter_that_it_starts_from():
    cfg = IMAGES.decoder
    for one in (
        load_unpacked("tiny").drafters["eagle"],
        scrambled(Eagle(cfg, False, 1e-5, 2, 16, 64), 3),
    ):
        three, x = one.fused(), torch.randn(2, 5, one.config.dim)
        wide = torch.cat([x, torch.randn(2, 5, 2 * one.config.dim)], -1)
        assert torch.equal(three.read(wide), one.read(x))
        assert three.kind == "eagle-3"
        own = three.state_dict()
        assert all(torch.equal(own[k], v) for k, v in one.state_dict().items())
        assert own.keys() - one.state_dict().keys() == {"fusion.weight"}


@pytest.mark.parametrize("kind", slow_but(SMALL, KINDS))
def test_every_family_trains_one_and_loads_what_was_saved(kind, tmp_path, monkeypatch):
    made = replace(deep(kind), drafters={})
    if kind == "tiny":
        made.model.float()
    chosen = replace(DEMO, prompts=tuple(prompts.Prompt(c, c) for c in captions_of(kind)))
    plan = drafter.Plan("any", chosen, steps=2, batch=1, lr=3e-3, seed=0, recipe="eagle-3")
    monkeypatch.setattr(drafter, "load_unpacked", lambda *a, **k: made)
    drafter.train(plan, "cpu", tmp_path / "work", tmp_path / "out", log=lambda line: None)
    state = load_file(tmp_path / "out" / "model.safetensors")
    dim = made.model.config.dim
    # all three blocks learn
    assert (state["fusion.weight"] - torch.eye(dim, 3 * dim)).abs().max() > 1e-4
    assert all((block.abs().sum() > 0) for block in state["fusion.weight"].split(dim, 1)[1:])
    drafted, name = with_drafter(made, str(tmp_path / "out"))
    assert name == "eagle-3"
    engine.generate(build(drafted, method("eagle-3")), captions_of(kind), max_steps=3)
    one = replace(plan, start=tmp_path / "out", recipe="eagle-1")
    with pytest.raises(
        UserError, match="holds a drafter of kind eagle-3, of which eagle-1 makes none"
    ):
        drafter.train(one, "cpu", tmp_path / "w", tmp_path / "o")
    with pytest.raises(UserError, match=r"other settings \(start, recipe\)"):
        drafter.train(replace(plan, recipe="eagle-1"), "cpu", tmp_path / "work", tmp_path / "o")


def test_its_recipe_is_five_levels_without_regression(target, monkeypatch):
    """Doubling what the regression compares with changes EAGLE-1's loss and not EAGLE-3's."""
    tokens = torch.randint(0, 64, (1, 16), generator=torch.Generator().manual_seed(0))
    made = deep("classes")
    net, one = made.drafters["eagle-3"], scrambled(new_eagle(made.model), 1)
    prefix = made.prefix(["7"], made.guidance)
    for drafts, levels in ((one, 3), (net, 5)):
        states = losses.target_states(made, prefix, tokens, drafts.aux_layers(made.model))
        fed = losses.feed(made, drafts, prefix.ahead_ids, prefix.seen, tokens, states)
        wanted = torch.full((1, 15, made.vocab), 1 / made.vocab)
        logits: Callable[[Tensor], Tensor] = lambda x: made.model.logits(x, made.guidance)  # noqa: E731
        found = losses.losses(drafts, fed, same_rng(), logits, wanted)
        assert sum(key.startswith("accept-") for key in found) == levels
        without = losses.RECIPES[drafts.kind]._replace(regression=0.0)
        monkeypatch.setitem(losses.RECIPES, drafts.kind, without)
        plain = losses.losses(drafts, fed, same_rng(), logits, wanted)
        assert (found["loss"] == plain["loss"]) == (drafts is net)


def same_rng() -> np.random.Generator:
    return np.random.default_rng(0)


# ---- files ----


def test_every_tensor_of_a_file_is_used_and_every_mistake_is_named(tmp_path):
    target = deep("anole")
    state = to_file(target.drafters["eagle-3"], target.model)

    def loaded(changed: dict[str, Tensor]) -> Eagle:
        save_file(changed, tmp_path / "a.safetensors")
        return with_drafter(replace(target, drafters={}), str(tmp_path))[0].drafters["eagle-3"]

    assert "EAGLE-3, 1 layer" in loaded(state).about
    own = drafter_at(tmp_path, target.model, "cpu").state_dict()
    assert all(torch.equal(v, own[k]) for k, v in target.drafters["eagle-3"].state_dict().items())
    with pytest.raises(UserError, match=r"has a 'd2t' that a Eagle of this kind has no place for"):
        loaded(state | {"d2t": torch.zeros(4)})
    with pytest.raises(
        UserError, match=r"'fusion\.weight' in .* is \[32, 128\] but this target needs \[32, 96\]"
    ):
        loaded(state | {"fusion.weight": torch.zeros(32, 128)})
    with pytest.raises(UserError, match=r"holds no EAGLE drafter: it has no 'fc\.weight'"):
        loaded({"midlayer.mlp.up_proj.weight": torch.zeros(4, 4)})
    with pytest.raises(UserError, match=r"absent.*"):
        with_drafter(target, str(tmp_path / "absent.safetensors"))
    with pytest.raises(UserError, match="has no drafter of kind 'eagle-3'"):
        build(replace(target, drafters={}), method("eagle-3"))
    back = to_published(from_published(state))
    assert back.keys() == state.keys()


def test_a_run_whose_methods_do_not_use_it_says_how_they_would(tmp_path):
    net = tiny.load().drafters["eagle"].fused()
    save_file(to_published(net.state_dict()), tmp_path / "three.safetensors")
    spec = ModelSpec(drafter=str(tmp_path / "three.safetensors"))
    with pytest.raises(UserError, match=r"choose one that does, .* or give --proposal eagle-3"):
        load_with_drafter(spec, used={"eagle"})
    assert load_with_drafter(spec, used={"eagle-3"}).drafters["eagle-3"]


def test_a_folder_made_before_has_no_such_drafter(tmp_path: Path):
    for path in tiny.WEIGHTS.glob("*.safetensors"):
        if path.name != "eagle-3.safetensors":
            (tmp_path / path.name).symlink_to(path)
    assert set(tiny.load(tmp_path).drafters) == {"eagle", "medusa", "model"}
    assert set(tiny.load().drafters) == {"eagle", "eagle-3", "medusa", "model"}
