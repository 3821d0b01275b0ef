"""``train drafter``: it feeds the drafter as decoding does, goes on where it stopped, and what it
saves is loaded.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import slow_but
from fake_device import THERE, Apart
from families import small_row
from test_anole import ALL_IDS, CAPTIONS, scrambled, small
from test_drafters import random_llamagen
from torch import Tensor

from lanternbench import prompts
from lanternbench.cli.main import main
from lanternbench.engine import decode as engine
from lanternbench.engine.proposal import Expand
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.methods.proposals.drafting import EagleDrafter
from lanternbench.models import catalogue, key_names
from lanternbench.models.drafters.eagle import Eagle, new_eagle
from lanternbench.models.emu3.checkpoint import Emu3Family
from lanternbench.models.family import Family, drafter_at
from lanternbench.models.janus.checkpoint import JanusFamily
from lanternbench.models.key_names import from_published, to_published
from lanternbench.models.llamagen import checkpoint as published_llamagen
from lanternbench.models.loading import read_state
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.settings import GREEDY, Sampling
from lanternbench.training import drafter, loop, losses

DEMO = prompts.load("demo", 4)
PLAN = drafter.Plan("any", DEMO, steps=4, batch=2, lr=3e-3, seed=0)


def classes() -> Target:
    """A class-conditional LlamaGen of 4 × 4 tokens."""
    labels = lambda captions: published_llamagen.class_labels(captions, "cpu")  # noqa: E731
    net = scrambled(new_eagle(random_llamagen(0)), 1)
    return Target(
        "classes",
        random_llamagen(0, n_layer=2),
        small("anole").vq,
        labels,
        Sampling(guidance=4.0),
        drafters={"eagle": net},
    )


@pytest.fixture(scope="module")
def shallow(tmp_path_factory) -> Path:
    """The embedded world with two of the target's layers, in a folder."""
    folder = tmp_path_factory.mktemp("shallow")
    shutil.copytree(tiny.WEIGHTS, folder, dirs_exist_ok=True)
    state, meta = tiny.read(tiny.WEIGHTS / "target.safetensors")
    meta["config"]["n_layer"] = 2
    kept = {
        k: v for k, v in state.items() if not k.startswith("layers.") or int(k.split(".")[1]) < 2
    }
    tiny.write(folder / "target.safetensors", kept, **meta)
    return folder


def decoded(target: Target, name: str, captions: list[str]) -> list[Tensor]:
    return [g.tokens for g in engine.generate(build(target, method(name), GREEDY), captions)]


# ---- what it reads ----


def with_tables(target: Target) -> Target:
    """A Chameleon target whose drafter has tables of its own."""
    cfg = target.model.config
    net = Eagle(
        cfg.decoder, norm_eps=cfg.norm_eps, token_ids=cfg.vocab_size, prompt_ids=cfg.prompt_ids
    )
    return replace(target, drafters={"eagle": scrambled(net, 7)})


def of_family(family: Family, **shape: Any) -> Target:
    """A small target of a family whose prompts are ids, with an EAGLE drafter."""
    width = {
        "dim": 32,
        "n_layer": 2,
        "n_head": 2,
        "hidden": 48,
        "prompt_ids": 8192,
        "grid": 4,
        "vocab_size": 16,
    }
    made = family.random_target(small_row(width | shape, 3.0), "cpu")
    scrambled(made.model, 0), scrambled(made.drafters["eagle"], 1)
    return made


def made_small(kind: str, **shape: Any) -> Target:
    codes = {"ch": 32, "ch_mult": [1, 2], "num_res_blocks": 1, "codebook_size": 16}
    if kind == "janus":
        return of_family(JanusFamily(), vq=codes | {"z_channels": 32, "codebook_dim": 8}, **shape)
    if kind == "emu3":
        return of_family(
            Emu3Family(), n_kv_head=1, first_image_id=100, vq=codes | {"attention": [1]}, **shape
        )
    return classes() if kind == "classes" else small(kind)


KINDS = ["tiny", "tiny, pads as LANTERN's", "anole", "lumina", "classes", "janus", "emu3"]


FED = [
    *((kind, "the target's tables", "eagle-1") for kind in KINDS),
    *((kind, "its own tables", "eagle-1") for kind in ("anole", "lumina")),
    *((kind, "the target's tables", "eagle-3") for kind in ("tiny", "lumina", "classes")),
]


@pytest.mark.parametrize(
    ("kind", "tables", "name"),
    slow_but([c for c in FED if c[0] in ("lumina", "classes")], FED),
)
def test_the_drafter_is_fed_as_decoding_feeds_it(kind, tables, name, target, monkeypatch):
    """Logits of what is drafted first: after every step of a decode, and all at once from its
    tokens.
    """
    if kind.startswith("tiny"):
        pads = "uniform" if "," in kind else "alone"
        made = replace(target, pad_rows=pads)
        tiny_plain = replace(catalogue.load_unpacked("tiny"), pad_rows=pads)
    else:
        made = made_small(kind)
    if tables == "its own tables":
        made = with_tables(made)
    role = method(name).proposal.drafter_kind
    if role not in made.drafters:
        made = replace(made, drafters={role: scrambled(new_eagle(made.model, fused=True), 1)})
    captions = ["7", "3"] if kind == "classes" else CAPTIONS  # of unlike lengths: one is padded
    seen: list[tuple[list[int], list[int], Tensor]] = []
    honest = EagleDrafter.expander

    def expander(self: EagleDrafter, state: Any, own: Any) -> Expand:
        expand = honest(self, state, own)

        def watched(*of: Any) -> Tensor:
            logits = expand(*of)
            if of[-1] == 0:
                seen.append((list(state.origin), list(state.now.length.host), logits[:, 0]))
            return logits

        return watched

    monkeypatch.setattr(EagleDrafter, "expander", expander)
    decoder = build(made, method(name, shape="chain-3"))
    tokens = torch.stack([g.tokens for g in engine.generate(decoder, captions, max_steps=12)])
    plain = tiny_plain if kind.startswith("tiny") else made
    samples = drafter.Samples(plain, plain.drafters[role], captions, tokens)
    fed, q = samples([0, 1])
    assert q.shape == (2, made.length - 1, made.vocab)
    with torch.no_grad():
        found = samples.logits(
            losses.drafts(plain.drafters[role], fed, torch.empty(0).long(), 1).first
        )
    compared = 0
    for origin, lengths, logits in seen:
        for prompt, length, got in zip(origin, lengths, logits, strict=True):
            if length < made.length:
                want = found[prompt, length - 1]
                assert (got - want).abs().max() < 2e-3 * want.abs().max()
                assert (
                    got - found[prompt, length - 2]
                ).abs().max() > 2e-2 * want.abs().max() or length == 1
                compared += 1
    assert compared > 12


@pytest.mark.parametrize("kind", ["tiny", "anole", "lumina"])
def test_what_it_learns_from_is_the_distribution_that_verifies_it(kind, target):
    made = target if kind == "tiny" else small(kind)
    decoder = build(made, method("ar"))
    found = engine.generate(decoder, CAPTIONS, trace=True, max_steps=15)
    trace = found[0].trace
    assert trace is not None
    plain = catalogue.load_unpacked("tiny") if kind == "tiny" else made
    samples = drafter.Samples(
        plain, plain.drafters["eagle"], CAPTIONS, torch.stack([g.tokens for g in found])
    )
    assert torch.allclose(samples([0, 1])[1][:, :15], trace.q[:, 1:16], atol=1e-3)


@pytest.mark.slow
def test_it_learns_on_another_device_as_on_the_host():
    tokens = torch.randint(0, 16, (2, 16), generator=torch.Generator().manual_seed(0))
    figures = []
    for device in ("cpu", str(THERE)):
        with torch.inference_mode(), Apart():
            made = small("lumina", device)
            samples = drafter.Samples(made, made.drafters["eagle"], CAPTIONS, tokens)
            fed, wanted = samples([0, 1])
            rng = np.random.default_rng(0)
            found = losses.losses(made.drafters["eagle"], fed, rng, samples.logits, wanted)
            figures.append({k: float(v) for k, v in found.items()})
    assert figures[1] == pytest.approx(figures[0])


# ---- what it leaves ----


@pytest.mark.slow
def test_a_training_that_was_stopped_anywhere_gives_the_weights_of_an_undisturbed_one(
    tmp_path, monkeypatch
):
    plan, honest = PLAN, loop.fit
    monkeypatch.setattr(drafter, "load_unpacked", lambda *a, **k: small("lumina"))
    monkeypatch.setattr(
        loop, "fit", lambda *a, **k: honest(*a, **k | {"plan": k["plan"]._replace(save_every=2)})
    )
    monkeypatch.setattr(drafter, "SHARD", 32)  # two images a file
    lines: list[str] = []
    whole = drafter.train(plan, "cpu", tmp_path / "work", tmp_path / "whole", log=lines.append)

    class Stop(Exception):
        pass

    for stop in range(len(lines)):  # after each file of samples and each checkpoint
        said: list[str] = []

        def log(line: str, said: list[str] = said) -> None:
            said.append(line)
            raise Stop

        with pytest.raises(Stop):
            drafter.train(plan, "cpu", tmp_path / "parts", tmp_path / "out", log=log)
        assert said[0].split("  ")[:4] == lines[stop].split("  ")[:4]
    assert (
        drafter.train(plan, "cpu", tmp_path / "parts", tmp_path / "out", log=pytest.fail) == whole
    )
    made, want = read_state(tmp_path / "out"), read_state(tmp_path / "whole")
    assert made.keys() == want.keys()
    assert all(torch.equal(made[k], want[k]) for k in made)
    recipes = [json.loads((tmp_path / x / "recipe.json").read_text()) for x in ("whole", "out")]
    assert recipes[0] == recipes[1]
    assert recipes[0]["losses"]["loss"] > 0
    gone_on = replace(plan, start=tmp_path / "out", steps=1)
    assert (
        drafter.train(
            gone_on, "cpu", tmp_path / "more", tmp_path / "next", log=lines.append
        ).before
        == whole.after
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny", "anole", "lumina", "classes"])
def test_what_is_saved_loads_as_a_drafter_and_keeps_the_target_s_tokens(
    kind, shallow, tmp_path, monkeypatch
):
    made = (
        catalogue.load_unpacked(str(shallow))
        if kind == "tiny"
        else classes()
        if kind == "classes"
        else small(kind)
    )
    captions = ["7", "3"] if kind == "classes" else CAPTIONS
    plan = replace(
        PLAN, prompts=replace(DEMO, prompts=tuple(prompts.Prompt(c, c) for c in captions))
    )
    nets: list[Eagle] = []
    honest = drafter.initial_drafter
    monkeypatch.setattr(drafter, "load_unpacked", lambda *a, **k: replace(made, drafters={}))
    monkeypatch.setattr(drafter, "initial_drafter", lambda *a: nets.append(honest(*a)) or nets[-1])
    drafter.train(plan, "cpu", tmp_path / "work", tmp_path / "out", log=lambda line: None)
    loaded = drafter_at(tmp_path / "out", made.model, "cpu").state_dict()
    assert all(torch.equal(v, loaded[k]) for k, v in nets[0].state_dict().items())
    drafted = catalogue.with_drafter(replace(made, drafters={}), str(tmp_path / "out"))[0]
    want, found = decoded(drafted, "ar", captions), decoded(drafted, "eagle-1", captions)
    assert all(torch.equal(a, b) for a, b in zip(want, found, strict=True))


def test_a_chameleon_s_layout_is_the_published_one_shared_heads_included():
    cfg = replace(ALL_IDS, n_head=4, n_kv_head=2).decoder
    state = scrambled(Eagle(cfg), 0).state_dict()
    published = key_names.rotary_pairs(to_published(state), cfg, back=True)
    assert published["layers.0.self_attn.k_proj.weight"].shape == (16, 32)
    turned = published["layers.0.self_attn.q_proj.weight"]
    own = state["layers.0.attention.wqkv.weight"]
    assert torch.equal(turned[[0, 4, 1, 5]], own[:4])  # pairs of halves become neighbours
    back = from_published(key_names.rotary_pairs(published, cfg))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[k], state[k]) for k in state)
    assert all(torch.equal(v, state[k]) for k, v in from_published(to_published(state)).items())


@pytest.mark.slow
def test_a_few_dozen_steps_raise_first_token_acceptance(tmp_path):
    plan = replace(
        PLAN, target="tiny", prompts=prompts.load("demo", 12), steps=32, batch=1, lr=0.01
    )
    found = drafter.train(plan, "cpu", tmp_path / "work", tmp_path / "out", log=lambda line: None)
    assert found.before < 0.02
    assert found.after > 0.04


def test_where_memory_is_short_fewer_images_are_drawn_at_once_and_they_are_the_same(
    shallow, monkeypatch
):
    decoder = build(tiny.load(shallow), method("ar"))
    honest, sizes = engine.generate, []

    def scarce(
        decoder: engine.SpeculativeDecoder, captions: list[str], *rest: Any, **more: Any
    ) -> list[engine.Generation]:
        sizes.append(len(captions))
        if len(captions) > room:
            raise torch.OutOfMemoryError
        return honest(decoder, captions, *rest, **more)

    monkeypatch.setattr(engine, "generate", scarce)
    shard = [prompts.Prompt(key, p.text) for key, p in zip("abc", DEMO, strict=False)]
    room = 3
    want = drafter.images(decoder, shard, 0)
    room = 1
    assert torch.equal(drafter.images(decoder, shard, 0), want)
    assert sizes == [3, 3, 2, 1, 1, 1]
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        drafter.images(decoder, shard, 0)


# ---- mistakes ----


@pytest.fixture
def command(shallow, tmp_path, monkeypatch, capsys):
    """Exit code, what is said of a mistake, and what else is printed."""
    monkeypatch.chdir(tmp_path)

    def run(*given: str) -> tuple[int, str, str]:
        options = [
            "--target",
            str(shallow),
            "-n",
            "3",
            "--steps",
            "1",
            "--batch",
            "1",
            "--device",
            "cpu",
        ]
        monkeypatch.setattr("sys.argv", ["lanternbench", "train", "drafter", *options, *given])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return code, printed.err, printed.out

    return run


@pytest.mark.slow
def test_a_training_ends_with_what_it_gained_and_the_next_command(command, shallow, tmp_path):
    code, err, out = command("--out", "made", "--work", "kept")
    assert code == 0
    assert "before" in out
    assert "after training" in out
    assert f"lanternbench run --method eagle-1 --target {shallow} --drafter made" in err
    assert command("--out", "made", "--work", "kept")[0] == 0  # nothing is left to do
    for other, name in (
        ("--steps=2", "steps"),
        ("--seed=1", "prompts, start, seed"),
        ("-n2", "prompts"),
    ):
        code, err, _ = command("--out", "fresh", "--work", "kept", other)
        assert code == 2
        assert err == (
            f"lanternbench: kept belongs to a training with other settings ({name}): give those again, or choose "
            "another folder with --work\n"
        )
    assert (
        "choose another folder with --out"
        in command("--out", "made", "--work", "new", "--lr", "0.1")[1]
    )


@pytest.mark.slow
def test_an_eagle_3_drafter_goes_on_from_an_eagle_1_drafter(command, shallow):
    assert command("--out", "one", "--work", "a")[0] == 0
    code, err, _ = command(
        "--recipe", "eagle-3", "--start", "one", "--out", "three", "--work", "b"
    )
    assert code == 0
    assert f"lanternbench run --method eagle-3 --target {shallow} --drafter three" in err
    assert (
        "other settings (start, recipe)"
        in command("--start", "one", "--out", "three", "--work", "b")[1]
    )
    assert command("--recipe", "eagle-4")[0] == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--target", "nope"], "unknown target 'nope'"),
        (["--prompts", "absent.txt"], "there is no file absent.txt"),
        (
            ["-n", "1"],
            "one prompt is too few, because some are kept out of training: give --num-prompts of 2 or more",
        ),
        (["--start", "absent"], "absent does not exist"),
        (["--start", "theirs"], "theirs holds no checkpoint"),
        (
            ["--out", "theirs"],
            "theirs holds other files, such as thesis.txt: choose another folder with --out",
        ),
        (
            ["--work", "theirs"],
            "theirs holds other files, such as thesis.txt: choose another folder with --work",
        ),
        (
            ["--out", "theirs/thesis.txt/x"],
            "cannot write theirs/thesis.txt/x (Not a directory): free some space or",
        ),
        (
            ["--work", "theirs/thesis.txt/x"],
            "cannot write theirs/thesis.txt/x (Not a directory): free some space or",
        ),
        (
            ["--work", "odd"],
            "odd/recipe.json is not what a training wrote: choose another folder with --work",
        ),
        (
            ["--dtype", "int3"],
            "the command line: 'dtype' is wrong (must be 'float32', 'bfloat16' or 'float16')",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(command, tmp_path, given, said):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("mine")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "recipe.json").write_text("[]")
    code, err, _ = command(*given)
    assert code == 2
    assert err.startswith(f"lanternbench: {said}")
    assert err.count("\n") == 1
    assert (tmp_path / "theirs" / "thesis.txt").read_text() == "mine"


def test_weights_that_diverged_are_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(drafter, "load_unpacked", lambda *a, **k: small("lumina"))
    with pytest.raises(
        UserError,
        match="became NaN or infinite: lower --lr, and choose another folder with --work",
    ):
        drafter.train(
            replace(PLAN, lr=1e30),
            "cpu",
            tmp_path / "work",
            tmp_path / "out",
            log=lambda line: None,
        )
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_random_weights_are_not_offered(command):
    code, err, _ = command("--random-weights")
    assert code == 2
    assert "No such option" in err
