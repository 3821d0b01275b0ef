"""Several rows at once: the limits are raster order, a row sees what it should, and nothing else differs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fake_cuda_graph import frozen
from families import random_llamagen

from lanternbench.engine import decode as engine
from lanternbench.lossless.row_ends import row_end_target
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.utils.graph_capture import Graphs

CAPTIONS = ["a large red star on the left on a noisy blue background", "a small green ring", "two dogs in the snow"]
FORMS = [
    ("zipar", {"window": 2}),
    ("zipar", {"window": "adaptive", "s_min": 1}),
    ("zipar", {"window": 1, "auxiliary": "seen"}),
    ("pjd", {"c": 2, "window": 3}),
    ("pjd", {"c": 1, "window": 2, "reuse": 0.5}),
]
BARE = {"dim": 32, "n_layer": 2, "n_head": 2, "hidden": 48, "vocab_size": 96, "grid": 4}


@pytest.fixture(scope="module")
def targets(shallow):
    """Random weights with row ends, and the embedded model, whose images have none."""
    return {"row ends": row_end_target(), "tiny": shallow}


def decode(target, name, captions=CAPTIONS, trace=False, raster=False, temperature=1.0, **options):
    """``raster``: with the draws of this method in raster order."""
    decoder = build(target, method(name, **options), temperature)
    if raster:
        decoder = replace(decoder, method=method(name, order="raster"))
    return engine.generate(decoder, captions, seed=5, trace=trace)


def tokens(made):
    return torch.stack([g.tokens for g in made])


@pytest.mark.parametrize("which", ["row ends", "tiny"])
@pytest.mark.parametrize(("name", "options"), [("zipar", {"window": 99}), ("pjd", {"c": 99})])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_with_one_row_at_a_time_the_tokens_are_those_of_raster_order(targets, which, name, options, temperature):
    captions = CAPTIONS[:1] if which == "tiny" else CAPTIONS
    plain = engine.generate(build(targets[which], method(name, order="raster"), temperature), captions, seed=5)
    made = decode(targets[which], name, captions, raster=True, temperature=temperature, **options)
    assert torch.equal(tokens(made), tokens(plain))
    assert [g.accept_lengths for g in made] == [g.accept_lengths for g in plain]


@pytest.mark.parametrize(("name", "options"), FORMS)
def test_prompts_that_advance_at_their_own_pace_get_what_they_get_alone(targets, name, options):
    target = targets["row ends"]
    together = decode(target, name, trace=True, **options)
    for i, caption in enumerate(CAPTIONS):
        (alone,) = decode(target, name, [caption], trace=True, **options)
        assert torch.equal(alone.tokens, together[i].tokens)
        assert alone.accept_lengths == together[i].accept_lengths
        torch.testing.assert_close(alone.trace.seen[0], together[i].trace.seen[i], atol=1e-5, rtol=0)
    if name == "pjd":
        assert len({g.steps for g in together}) > 1  # or none would have been finished before another


@pytest.mark.parametrize(("name", "options"), FORMS)
def test_recorded_steps_give_the_tokens_of_launched_ones(targets, name, options):
    target = targets["row ends"]
    recorded = replace(target, graphs=Graphs(frozen))
    want, made = (decode(t, name, trace=True, **options) for t in (target, recorded))
    assert torch.equal(tokens(made), tokens(want))
    assert [g.accept_lengths for g in made] == [g.accept_lengths for g in want]
    torch.testing.assert_close(made[0].trace.seen, want[0].trace.seen, atol=1e-5, rtol=0)
    assert made[0].syncs == max(g.steps for g in made)


@pytest.mark.parametrize("s", [2, 4, 8, 16])
def test_zipar_takes_two_rows_and_the_lead_of_every_other_row(s):
    target = random_llamagen(BARE | {"grid": 32}, 1.0, 0)
    (made,) = engine.generate(build(target, method("zipar", window=s)), CAPTIONS[:1])
    assert 1 + made.steps == 2 * 32 + 30 * s
    assert max(made.tree_nodes) == -(-32 // s)
