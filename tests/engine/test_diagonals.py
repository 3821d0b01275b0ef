"""Diagonals: a token is drawn from its neighbours' states under the mask that is named, and what
is said of the law holds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import mistake
from fake_cuda_graph import frozen
from families import small_row
from test_emu3 import VQ

from lanternbench import prompts
from lanternbench.engine import decode as engine
from lanternbench.engine.rows import RowGeometry
from lanternbench.errors import UserError
from lanternbench.lossless import on_tables
from lanternbench.lossless.tables import RowTables, row_end_target
from lanternbench.measure.fidelity import decode_loss, row_losses
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import with_drafter
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.drafters.flashar import load, to_file, untrained
from lanternbench.models.drafters.kinds import Sizes
from lanternbench.models.emu3.checkpoint import Emu3Family
from lanternbench.models.llamagen.random import small_target
from lanternbench.models.transformer import guide
from lanternbench.settings import GREEDY, Sampling
from lanternbench.training import diagonals, drafter
from lanternbench.utils.graph_capture import Graphs

CAPTIONS = ["a large red star on the left", "a small green ring", "two dogs"]
MASKS = ("published", "raster")
EMU3 = {"dim": 32, "n_layer": 2, "n_head": 2, "n_kv_head": 1, "hidden": 48, "prompt_ids": 8192}
EMU3 |= {"vocab_size": 48, "first_image_id": 100, "vq": VQ, "grid": [3, 5]}


def scrambled(target, seed=0):
    """``target`` in double precision with a branch whose every weight matters."""
    generator = torch.Generator().manual_seed(seed)
    net = untrained(target.model, "flashar", Sizes(layers=2)).double()
    target.model.double()
    for name, weight in [*target.model.named_parameters(), *net.named_parameters()]:
        is_norm = "norm" in name and name.endswith("weight")
        noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        weight.data = 0.4 * noise + float(is_norm)
        weight.requires_grad_(False)
    return replace(target, drafters={"flashar": net})


@pytest.fixture(scope="module")
def targets():
    """With row ends, which no diagonal feeds, and without; prompts of different lengths, padded."""
    emu3 = scrambled(Emu3Family().random_target(small_row(EMU3, 3.0), "cpu"))
    lumina = row_end_target()
    branch = untrained(lumina.model, "flashar", Sizes()).eval()
    no_ends = replace(lumina, drafters={"flashar": branch})
    return {"emu3": emu3, "lumina": no_ends, "no ends": replace(no_ends, row_end=None)}


def decode(target, captions=CAPTIONS, temperature=1.0, **options):
    decoder = build(target, method("flashar", **options), Sampling(temperature=temperature))
    return engine.generate(decoder, captions, seed=5, trace=True)


def tokens(made):
    return torch.stack([g.tokens for g in made])


@pytest.mark.parametrize("grid", [[3, 5], [5, 3], [4, 4], [1, 6], [6, 1]])
def test_prefill_and_steps_are_as_many_forward_passes_as_there_are_diagonals(grid):
    shape = EMU3 | {"grid": grid}
    target = Emu3Family().random_target(small_row(shape, 3.0), "cpu")
    height, width = grid
    (made,) = decode(target, CAPTIONS[:1])
    assert 1 + made.steps == height + width - 1
    sizes = [0] * (height + width - 1)
    for i in range(height * width):
        sizes[i // width + i % width] += 1
    assert [1, *made.accept_lengths] == sizes


def plain_laws(target, made, mask):
    """q of every token by one plain forward pass of the target and one of the branch: [L, V]."""
    height, width = target.grid
    net = target.drafters["flashar"]
    model = target.model
    prefix = target.prefix(CAPTIONS[:1], target.guidance)
    prompt = prefix.valid.shape[1]
    length = height * width
    x = model.tok_embeddings(made.tokens).expand(len(prefix.valid), -1, -1)
    x = torch.cat([prefix.embeddings, x], 1)
    seen = prefix_mask(prefix.valid, prompt + length).clone()
    for i in range(length):
        for j in range(length):
            earlier = i // width + i % width >= j // width + j % width
            if mask == "raster":
                earlier = earlier and j // width <= i // width
            seen[..., prompt + i, prompt + j] = earlier
    positions = model.position_table(prompt)[None, : prompt + length, None]
    states = model(x, positions, seen, None, False, (net.start,))
    final, inner = states.split(model.config.dim, -1)
    below = net(inner[:, prompt:], positions[:, prompt:], seen[:, :, prompt:, prompt:])
    laws = []
    for i in range(length):
        h = final[:, prompt + i - 1]
        horizontal = model.output(h)
        if i == 0:
            gate = (h @ net.hv_gate_corner.weight.T + net.hv_gate_corner.bias).sigmoid()
            vertical = net.vertical_head(inner[:, prompt - 1])
        elif i < width:
            gate = 1.0
            vertical = torch.zeros_like(horizontal)
        else:
            vertical = net.vertical_head(below[:, i - width])
            gate = 0.0
            if i % width:
                gate = net.hv_gate_mlp(torch.cat([h, below[:, i - width]], -1)).sigmoid()
        laws.append(guide(gate * horizontal + (1 - gate) * vertical, target.guidance))
    return torch.cat(laws)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("which", ["emu3", "lumina", "no ends"])
def test_a_token_is_drawn_from_its_neighbours_states_under_the_mask(targets, which, mask):
    target = targets[which]
    decoder = build(target, method("flashar", mask=mask))
    with torch.inference_mode():
        (made,) = engine.generate(decoder, CAPTIONS[:1], trace=True)
        want = decoder.warp(plain_laws(target, made, mask))
        other = decoder.warp(plain_laws(target, made, MASKS[mask == "published"]))
    assert (made.trace.seen[0] - want).abs().max() < 1e-4
    assert (want - other).abs().max() > 1e-3  # the masks differ


@pytest.mark.parametrize("options", [{"mask": "raster"}, {"variant": "reference"}])
@pytest.mark.parametrize("which", ["emu3", "no ends"])
def test_a_batch_draws_what_single_prompts_draw(targets, which, options):
    together = decode(targets[which], **options)
    for i, caption in enumerate(CAPTIONS):
        (alone,) = decode(targets[which], [caption], **options)
        assert torch.equal(alone.tokens, together[i].tokens)
        difference = alone.trace.seen[0] - together[i].trace.seen[i]
        assert difference.abs().max() < 1e-5


def test_the_step_recorded_of_each_token_is_its_diagonal(targets):
    made = decode(targets["no ends"])
    height, width = targets["no ends"].grid
    diagonals = [row + column for row in range(height) for column in range(width)]
    assert made[0].trace.committed_in.tolist() == [diagonals] * len(CAPTIONS)


@pytest.mark.parametrize("mask", MASKS)
def test_recorded_steps_draw_the_same(targets, mask):
    for target in (targets["emu3"], small_target()):
        want = tokens(decode(target, mask=mask))
        recorded = replace(target, graphs=Graphs(frozen))
        assert torch.equal(tokens(decode(recorded, mask=mask)), want)


def test_greedy_tokens_are_the_likeliest_of_their_laws(targets):
    (made,) = decode(targets["emu3"], CAPTIONS[:1], temperature=0.0)
    assert torch.equal(made.tokens, made.trace.seen[0].argmax(-1))


def test_shared_noise_moves_a_token_only_where_the_laws_differ(targets):
    """With it the first row's end, all else alike, is one function of noise and law."""
    target = targets["emu3"]
    shared = Sampling(noise="shared")
    images = []
    for mask in MASKS:
        decoder = build(target, method("flashar", mask=mask), shared)
        images.append(engine.generate(decoder, CAPTIONS, seed=5, trace=True))
    published, raster = images
    assert torch.equal(tokens(published)[:, 0], tokens(raster)[:, 0])  # one law
    again = engine.generate(decoder, CAPTIONS[1:2], seed=5)
    assert torch.equal(again[0].tokens, raster[1].tokens)
    state, _ = engine.begin(
        decoder, CAPTIONS[:1], [0], noise=[engine.row_seed(5, CAPTIONS[0], "noise")]
    )
    law = raster[0].trace.seen[0].to(state.first.dtype)
    place = torch.arange(target.length)[None]
    assert torch.equal(state.drawn(law[None], place)[0].argmax(-1), raster[0].tokens)


def test_the_public_gap_moves_the_shorter_prompt_away_from_its_image(targets):
    target = targets["emu3"]
    plain, gap = (decode(target, CAPTIONS[:1], variant=name) for name in ("paper", "reference"))
    assert not torch.equal(plain[0].trace.seen, gap[0].trace.seen)
    unguided = Sampling(guidance=1.0)
    of_both = []
    for name in ("paper", "reference"):  # without a second prompt there is no gap
        decoder = build(target, method("flashar", variant=name), unguided)
        state, _ = engine.begin(decoder, CAPTIONS[:1], [0])
        of_both.append(state.first)
    assert torch.equal(*of_both)


def test_without_a_branch_the_raster_mask_is_zipar_with_a_lead_of_one_token(targets):
    """The target's own prediction, in every column but the first; no row waits for a whole one."""
    target = targets["no ends"]
    net = target.drafters["flashar"]
    decoder = build(target, method("zipar", window=1))
    rows = RowGeometry.of(target, 1, 0)
    decoder.strategy = replace(decoder.strategy, rows=rows)
    with torch.inference_mode():
        (made,) = engine.generate(decoder, CAPTIONS[:1], trace=True)
        prefix = target.prefix(CAPTIONS[:1], target.guidance)
        fed, _ = diagonals.read(target, net, prefix, made.tokens[None], causal=True)
        horizontal = decoder.warp(diagonals.predictions(net, fed).horizontal[0])
    height, width = target.grid
    assert 1 + made.steps == height + width - 1
    inside = torch.arange(target.length) % width > 0
    assert (made.trace.seen[0] - horizontal)[inside].abs().max() < 1e-5
    fed, _ = diagonals.read(target, net, prefix, made.tokens[None], causal=False)
    published = decoder.warp(diagonals.predictions(net, fed).horizontal[0])
    assert (made.trace.seen[0] - published)[inside].abs().max() > 1e-3


def test_the_loss_of_the_raster_mask_is_that_of_each_law_and_the_published_has_none(targets):
    target = targets["lumina"]
    for mask in MASKS:
        decoder = build(target, method("flashar", mask=mask))
        made = engine.generate(decoder, CAPTIONS, seed=1, trace=True)
        trace = made[0].trace
        loss = decode_loss(decoder, trace, tokens(made))
        by_hand = 0.5 * (trace.seen - trace.q).abs().sum(-1)
        torch.testing.assert_close(row_losses(trace, decoder.rule, decoder.residual), by_hand)
        if mask == "raster":
            torch.testing.assert_close(loss, by_hand.mean(1))
        else:
            assert loss.isnan().all()
            greedy = build(target, method("flashar", mask=mask), GREEDY)
            assert decode_loss(greedy, trace, tokens(made)).isnan().all()


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["ar", "--order", "diagonal"], "give --proposal flashar"),
        (["zipar", "--order", "diagonal"], "give --proposal flashar"),
        (["flashar", "--order", "raster"], "it needs the order 'diagonal'"),
        (["flashar", "--acceptance", "lantern"], "there is nothing to accept"),
        (["flashar", "--mask", "causal"], "is wrong"),
    ],
)
def test_what_does_not_combine_is_refused_with_the_reason(monkeypatch, capfd, args, reason):
    assert reason in mistake(monkeypatch, capfd, "run", "--method", *args)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("grid", [(2, 3), (3, 3), (3, 2)])
def test_on_tables_the_engine_draws_what_the_plain_definition_says(mask, grid):
    sampling = Sampling(guidance=1.5, temperature=0.9)
    one = on_tables(method("flashar", mask=mask), RowTables(2, grid, 1, sampling=sampling))
    assert one.off < 1e-9
    assert one.tv > 0.05
    if mask == "raster":
        assert abs(one.enumerated.loss - one.loss) < 1e-9
        assert one.tv < one.enumerated.loss


def test_files_have_the_published_names_and_say_which_layer_is_read(targets, tmp_path):
    from safetensors.torch import save_file

    model = targets["emu3"].model
    net = targets["emu3"].drafters["flashar"]
    state = {key: value.contiguous() for key, value in to_file(net, model).items()}
    assert "vertical_block.1.self_attn.q_proj.weight" in state
    assert {"vertical_norm.weight", "vertical_head.weight", "hv_gate_mlp.0.weight"} <= set(state)
    save_file(state, tmp_path / "model.safetensors")
    again = load(tmp_path, model, "cpu", torch.float64)
    assert again.start == net.start
    for name, value in net.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_training_by_the_published_losses_continues_and_is_loaded(tmp_path, monkeypatch):
    fresh = Emu3Family().random_target(small_row(EMU3, 3.0), "cpu")
    four = prompts.load("demo", 4)
    plan = drafter.Plan(
        "any", four, 4, 1, 3e-3, 0, recipe="flashar", sizes=Sizes(layers=1), mask="both"
    )
    monkeypatch.setattr(drafter, "load_unpacked", lambda *a, **k: fresh)
    before = {name: value.clone() for name, value in fresh.model.state_dict().items()}
    trained = drafter.train(plan, "cpu", tmp_path / "work", tmp_path / "out", log=lambda _: None)
    assert 0 < trained.after < 1
    for name, value in fresh.model.state_dict().items():
        assert torch.equal(value, before[name]), name  # the target stays as it is
    again = drafter.train(plan, "cpu", tmp_path / "work", tmp_path / "out", log=lambda _: None)
    assert again == trained
    other = replace(plan, mask="raster")
    with pytest.raises(UserError, match=r"other settings \(mask\)"):
        drafter.train(other, "cpu", tmp_path / "work", tmp_path / "out", log=lambda _: None)
    target, kind = with_drafter(fresh, str(tmp_path / "out"))
    net = target.drafters["flashar"]
    assert (kind, len(net.layers), net.start) == ("flashar", 1, 1)
    assert any(parameter.abs().max() > 0 for parameter in net.hv_gate_mlp[2].parameters())
