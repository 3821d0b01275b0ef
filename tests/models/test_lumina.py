"""Lumina-mGPT as a target: row ends are forced, cost no step, and every method sees the image as
the model wrote it.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import slow_but
from fake_cuda_graph import frozen, in_place
from families import random_chameleon
from image_ids import lumina_rule, published
from test_anole import ALL_IDS, CAPTIONS, CODES, GUIDANCE, IMAGES, SMALL_TREES, VQ, scrambled
from torch import Tensor

from lanternbench.engine import decode as engine
from lanternbench.engine.cache import DecoderCache, Lengths, raster
from lanternbench.engine.row_ends import token_in, with_row_ends
from lanternbench.engine.sampling import Warp
from lanternbench.imported.run import log_probs
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.chameleon.checkpoint import (
    ROW_END,
    SPECIAL,
    Chameleon,
    ChameleonFamily,
    lumina_frame,
)
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.entries import entry
from lanternbench.models.key_names import image_tables
from lanternbench.models.target import Target
from lanternbench.models.transformer import guide
from lanternbench.settings import GREEDY, Sampling
from lanternbench.utils.graph_capture import Graphs

SIDE = 4
WHOLE, IMAGE_ONLY = replace(ALL_IDS, grid=SIDE), replace(IMAGES, grid=SIDE)
VOCAB = published(CODES)
DRAFTING = ["eagle-1", "eagle-2", "adt-tree", "sd", "sjd"]


@pytest.fixture(scope="module")
def wholes() -> tuple[Chameleon, Chameleon]:
    """Target and small model as published: one table of all ids."""
    return scrambled(Chameleon(WHOLE), 0), scrambled(Chameleon(replace(WHOLE, n_layer=1)), 2)


@pytest.fixture(scope="module")
def lumina(wholes) -> Target:
    shape = vars(IMAGE_ONLY) | {"dialect": "lumina"}
    made = random_chameleon(shape, GUIDANCE, VQ, "lumina-small")
    nets = []
    for whole in wholes:
        net = Chameleon(replace(IMAGE_ONLY, n_layer=whole.config.n_layer))
        net.load_state_dict(image_tables(whole.state_dict(), VOCAB.to_id))
        nets.append(net.eval().requires_grad_(False))
    eagle = scrambled(Eagle(IMAGE_ONLY.decoder, norm_eps=IMAGE_ONLY.norm_eps), 1)
    return replace(
        made, model=nets[0], drafters={"eagle": eagle, "model": nets[1]}, options=SMALL_TREES
    )


def decoded(
    target: Target,
    name: str,
    captions: list[str] = CAPTIONS,
    temperature: float = 0.0,
    **options: Any,
):
    decoder = build(target, method(name, **options), Sampling(temperature=temperature))
    return engine.generate(decoder, captions, trace=True)


@pytest.fixture(scope="module")
def greedy(lumina) -> Tensor:
    return torch.stack([g.tokens for g in decoded(lumina, "ar")])


def written(target: Target, caption: str, tokens: Tensor) -> list[list[int]]:
    """Every id that the model reads, without cache or padding: conditional and unconditional, to
    the last image id.
    """
    pixels = SIDE * 16
    text = f"Generate an image of {pixels}x{pixels} according to the following prompt:\n{caption}"
    prompt = lumina_frame(SPECIAL, pixels, pixels).prompt(target.text([text])[0][0].tolist())
    ids = lumina_rule(VOCAB, pixels, pixels).lay_out(tokens[None])[0, :-2].tolist()
    return [prompt.cond + ids, prompt.uncond + ids]


def states(whole: Chameleon, ids: list[int]) -> Tensor:
    """[1, n, dim]: one forward over all ids."""
    n = len(ids)
    x = whole.tok_embeddings(torch.tensor([ids]))
    return whole(x, whole.rope[None, :n, None], "causal")


def guided_logits(target: Target, whole: Chameleon, caption: str, tokens: Tensor) -> Tensor:
    """[L, CODES] at the ids before each image token."""
    drawn = lumina_rule(VOCAB, SIDE * 16, SIDE * 16).drawn()
    logits = []
    for ids in written(target, caption, tokens):
        before = drawn + len(ids) - (SIDE * (SIDE + 1) - 1) - 1
        logits.append(whole.output(states(whole, ids)[0, before]))
    return guide(torch.stack(logits), GUIDANCE)[0][:, VOCAB.to_id]


class Raw(Warp):
    """Logits as they are, the largest taken."""

    def __call__(self, logits: Tensor) -> Tensor:
        return logits


def test_ar_draws_what_an_uncached_forward_over_all_ids_draws(lumina, wholes, greedy):
    decoder: Any = replace(build(lumina, method("ar"), GREEDY), warp=Raw(GREEDY))
    made = engine.generate(decoder, CAPTIONS, trace=True)
    for i, caption in enumerate(CAPTIONS):
        want = guided_logits(lumina, wholes[0], caption, greedy[i])
        assert torch.equal(made[i].tokens, greedy[i])
        assert torch.equal(want.argmax(-1), greedy[i])
        assert (made[0].trace.q[i] - want).abs().max() < 1e-4
    assert len(greedy.unique()) > 4
    assert not torch.equal(*greedy)


def test_a_row_end_costs_no_step_and_one_forward_in_a_row_reads_two_tokens(lumina, monkeypatch):
    sizes = []
    forward = DecoderCache.forward

    def counted(self: DecoderCache, x: Tensor, *rest: Any, **options: Any) -> Tensor:
        sizes.append(x.shape[1])
        return forward(self, x, *rest, **options)

    monkeypatch.setattr(DecoderCache, "forward", counted)
    made = decoded(lumina, "ar", CAPTIONS[:1])[0]
    assert made.accept_lengths == [1] * (SIDE * SIDE - 1)
    assert sizes[1:] == ([1] * (SIDE - 1) + [2]) * (SIDE - 1) + [1] * (SIDE - 1)
    sizes.clear()
    decoded(replace(lumina, row_end=None), "ar", CAPTIONS[:1])
    assert sizes[1:] == [1] * (SIDE * SIDE - 1)  # after the prompt


@pytest.mark.parametrize("name", slow_but(["ar", "sjd"], ["ar", *DRAFTING]))
def test_recorded_forwards_give_the_tokens_of_eager_ones_across_row_ends(lumina, name):
    recorded = replace(lumina, graphs=Graphs(frozen))
    for temperature in (0.0, 1.0):
        want, made = (decoded(t, name, CAPTIONS[:1], temperature)[0] for t in (lumina, recorded))
        assert torch.equal(made.tokens, want.tokens)
        assert made.accept_lengths == want.accept_lengths


@pytest.mark.parametrize("name", slow_but(["ar", "sjd"], ["ar", "eagle-1", "sd", "sjd"]))
def test_one_recording_serves_prompts_of_every_length(lumina, name):
    """The slots of image tokens depend on the prompt's length, and a recording must not keep those
    of the first.
    """
    decoder = build(
        replace(lumina, graphs=Graphs(frozen)), method(name), Sampling(temperature=1.0)
    )
    lengths, recordings = set(), []
    for caption in ("red", "a much longer caption", "red"):
        (want,) = decoded(lumina, name, [caption], 1.0)
        (made,) = engine.generate(decoder, [caption])
        assert torch.equal(made.tokens, want.tokens)
        lengths.add(lumina.prefix([caption], GUIDANCE).valid.shape[1])
        recordings.append(len(decoder.recordings.replays))
    assert len(lengths) == 2
    assert recordings[0] == recordings[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ar", *DRAFTING, "cool-sd"])
def test_recorded_batches_give_the_tokens_of_their_prompts_alone_across_row_ends(lumina, name):
    """To the end, when one prompt is finished and its rows are computed all the same."""
    recorded = replace(lumina, graphs=Graphs(lambda work, inputs: in_place(lambda: work(*inputs))))
    together = decoded(recorded, name, temperature=1.0)
    for made, caption in zip(together, CAPTIONS, strict=True):
        (want,) = decoded(lumina, name, [caption], 1.0)
        assert torch.equal(made.tokens, want.tokens)
        assert made.accept_lengths == want.accept_lengths


@pytest.mark.parametrize("name", DRAFTING)
def test_greedy_output_of_lossless_methods_is_that_of_ar(lumina, greedy, name):
    made = decoded(lumina, name)
    assert torch.equal(torch.stack([g.tokens for g in made]), greedy)
    assert all(sum(g.accept_lengths) == SIDE * SIDE - 1 for g in made)


@pytest.mark.parametrize("name", DRAFTING)
def test_every_token_is_verified_by_the_distribution_after_all_ids_before_it(lumina, wholes, name):
    made = decoded(lumina, name, temperature=1.0)
    for i, caption in enumerate(CAPTIONS):
        want = guided_logits(lumina, wholes[0], caption, made[i].tokens).softmax(-1)
        assert (made[0].trace.q[i] - want).abs().max() < 1e-4


@pytest.mark.parametrize("name", [*DRAFTING, "cool-sd"])
def test_prompts_in_different_columns_of_a_row_get_what_they_get_alone(lumina, name):
    together, alone = (
        decoded(lumina, name, temperature=1.0),
        decoded(lumina, name, CAPTIONS[1:], 1.0),
    )
    # or they would stand in the same column
    assert together[0].accept_lengths != together[1].accept_lengths
    assert torch.equal(together[1].tokens, alone[0].tokens)
    assert together[1].accept_lengths == alone[0].accept_lengths


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["ar", *DRAFTING, "lantern", "cool-sd"])
def test_in_bfloat16_the_row_ends_stand_where_they_stand_in_float32(
    lumina, wholes, name, temperature
):
    cast = lambda net: deepcopy(net).bfloat16()  # noqa: E731
    halved = replace(
        lumina, model=cast(lumina.model), drafters={k: cast(v) for k, v in lumina.drafters.items()}
    )
    made = decoded(halved, name, temperature=temperature)
    for i, caption in enumerate(CAPTIONS):
        q, tokens = made[0].trace.q[i], made[i].tokens
        own, other = (
            guided_logits(lumina, wholes[0], c, tokens).softmax(-1)
            for c in (caption, CAPTIONS[1 - i])
        )
        assert 0 < (q - own).abs().sum(-1).mean() / 2 < 0.05
        assert (q - other).abs().sum(-1).mean() / 2 > 0.3


def test_a_small_model_drafts_from_all_ids_before(lumina, wholes):
    made = decoded(lumina, "sd", temperature=1.0, depth=6)
    for i, caption in enumerate(CAPTIONS):
        want, got = (
            guided_logits(lumina, wholes[1], caption, made[i].tokens).softmax(-1),
            made[0].trace.p[i],
        )
        known = made[0].trace.tried[i] > 0  # a leaf has no drafted children
        assert known.sum() > SIDE
        assert (got - want)[known].abs().max() < 1e-4


@pytest.mark.parametrize("shape", ["chain-6", "twig-8"])
def test_eagle_reads_row_ends_as_any_other_token(lumina, wholes, shape):
    """Committed ids come with the target's states; drafted ones, row ends too, with the drafter's
    own.
    """
    made = decoded(lumina, "eagle-1", temperature=1.0, shape=shape)
    for i, caption in enumerate(CAPTIONS):
        begun = 1
        for count in made[i].accept_lengths:
            want = drafted(lumina, wholes[0], caption, made[i].tokens, begun, count)
            got = made[0].trace.p[i, begun : begun + count]
            known = made[0].trace.tried[i, begun : begun + count] > 0
            assert known[: count - 1].all()
            assert (got - want)[known].abs().max() < 1e-4
            begun += count


def drafted(
    target: Target, whole: Chameleon, caption: str, tokens: Tensor, begun: int, count: int
) -> Tensor:
    """Uncached: what EAGLE gives for ``count`` tokens when ``begun`` are committed, each after
    those before it.
    """
    net, logits = target.drafters["eagle"], []
    for ids in written(target, caption, tokens):
        start = len(ids) - (SIDE * (SIDE + 1) - 1)
        root = start + raster(SIDE * SIDE, SIDE, 0, 0, 99, torch.device("cpu")).slots[begun]
        ahead, feature = (
            whole.tok_embeddings(torch.tensor([ids]))[:, 1:],
            states(whole, ids)[:, :root],
        )
        row = []
        for at in range(root, len(ids)):
            x = net.fuse(ahead[:, : feature.shape[1]], feature)
            n = x.shape[1]
            f = net(x, whole.rope[None, 1 : n + 1, None], "causal")[:, -1:]
            if at + 1 == len(ids) or ids[at + 1] != ROW_END:
                row.append(whole.output(f[0, 0]))
            feature = torch.cat([feature, f], 1)
        logits.append(torch.stack(row[:count]))
    return guide(torch.stack(logits), GUIDANCE)[0][:, VOCAB.to_id].softmax(-1)


def test_without_guidance_there_is_one_row_and_it_still_agrees(lumina):
    decoders = (
        build(lumina, method(name), Sampling(temperature=0.0, guidance=1.0))
        for name in ("ar", "eagle-2")
    )
    made = (engine.generate(decoder, CAPTIONS) for decoder in decoders)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(*made, strict=True))


def test_prompts_are_lumina_s_and_the_unconditional_one_has_no_text(lumina):
    prefix = lumina.prefix(CAPTIONS, GUIDANCE)
    for row, caption in enumerate(CAPTIONS):
        cond, uncond = (
            ids[: -(SIDE * (SIDE + 1) - 1)]
            for ids in written(lumina, caption, torch.zeros(16).long())
        )
        assert prefix.features[row][prefix.valid[row]].tolist() == cond
        assert (
            prefix.features[row + 2][prefix.valid[row + 2]].tolist()
            == uncond
            == [8197, 8806, 8806]
        )


def test_the_catalogue_knows_the_three_sizes():
    for side in (512, 768, 1024):
        row = entry(f"lumina-mgpt-7b-{side}")
        checkpoint = ChameleonFamily().at(row, None, "cpu")
        config, dialect = checkpoint.config, checkpoint.dialect
        assert [16 * n for n in config.grid] == [side, side]
        assert (row.guidance, row.top_k, dialect.row_end) == (3.0, 2000, ROW_END)


# ---- arithmetic ----


@pytest.mark.parametrize(("width", "height"), [(6, 4), (2, 2)])
def test_slots_are_the_places_in_the_image_as_written(width, height):
    rule, length = lumina_rule(VOCAB, width * 16, height * 16), width * height
    layout = raster(length, width, 0, 0, 99, torch.device("cpu"))
    assert (
        list(layout.slots[1 : length + 1])
        == rule.drawn().tolist()
        == layout.slot_of[1 : length + 1].tolist()
    )
    assert raster(length, width, 5, 0, 99, torch.device("cpu")).slots == tuple(
        s + 5 for s in layout.slots
    )
    row_ends = [n for n in range(rule.length) if rule.forced(n) == ROW_END]
    after = [layout.slots[n] + 1 for n in range(length + 1) if layout.row_end_after[n]]
    assert after == row_ends[:-1]  # nothing is drawn after the last
    assert layout.row_end_of.tolist() == list(layout.row_end_after)
    token, is_end = token_in(torch.arange(rule.length - 2), width)
    assert torch.equal(token[~is_end], torch.arange(length))
    assert torch.where(is_end)[0].tolist() == row_ends[:-1]


def test_without_row_ends_a_slot_is_the_token_s_number():
    layout = raster(12, 0, 5, 0, 99, torch.device("cpu"))
    assert layout.slots[:16] == tuple(range(4, 20))
    assert not any(layout.row_end_after)
    assert not layout.any_row_end(Lengths(torch.tensor([12, 1]), (12, 1)), 12)


def test_a_row_end_is_seen_by_the_descendants_of_its_node_alone():
    ancestors = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]).bool()  # a root and two children
    seen = with_row_ends(ancestors, torch.tensor([[True, False, False], [False, True, False]]))
    assert seen[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 0, 1, 1, 0, 0],
        [1, 0, 0, 1, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 0, 1, 1, 0, 0],
    ]
    assert seen[1, :3, 3:].sum() == 0
    assert seen[1, 4].int().tolist() == [1, 1, 0, 0, 1, 0]


def test_imported_tokens_have_the_log_probabilities_of_an_uncached_forward_across_row_ends(
    lumina, wholes, greedy
):
    precise = replace(lumina, model=deepcopy(lumina.model).double())
    got = log_probs(build(precise, method("ar"), Sampling(temperature=1.0)), CAPTIONS, greedy)
    for i, caption in enumerate(CAPTIONS):
        want = guided_logits(lumina, deepcopy(wholes[0]).double(), caption, greedy[i]).log_softmax(
            -1
        )
        assert (got[i] - want.gather(-1, greedy[i][:, None])[:, 0]).abs().max() < 1e-5
