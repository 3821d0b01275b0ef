"""Shared noise: an image is a function of the noise and the target, whatever method draws it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import slow_but
from fake_cuda_graph import frozen
from scipy.stats import kstest

from lanternbench.engine import decode as engine
from lanternbench.engine.noise import gumbel_noise, perturbed
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.registry import components
from lanternbench.settings import Sampling
from lanternbench.utils.graph_capture import Graphs

SHARED = Sampling(noise="shared")
CAPTIONS = ["a red star", "two dogs in the snow", "a large blue ring"]
LOSSLESS = [
    name
    for name, preset in components("preset").items()
    if preset.lossless and preset.choices.proposal != "dflash" and name != "ar"
]


def images(target, name, captions=CAPTIONS, sampling=SHARED, seed=0, **options):
    decoder = build(target, method(name, **options), sampling)
    return [one.tokens.tolist() for one in engine.generate(decoder, captions, seed=seed)]


def noise(position, vocab=40_000, dtype=torch.float64, key=5):
    return gumbel_noise(
        torch.tensor([key]), torch.tensor([[position]]), torch.ones(1, 1, vocab, dtype=dtype)
    )[0, 0]


def test_noise_is_gumbel_distributed_and_the_same_in_either_precision():
    """KS over 40,000 numbers: a distance of 0.01 is found 9 times in 10, at α = 1e-3."""
    g = noise(3)
    assert kstest(g.numpy(), "gumbel_r").pvalue > 1e-3
    wins = g > 0  # below, float32 has few digits of a uniform near 1
    single = noise(3, dtype=torch.float32).double()
    torch.testing.assert_close(single[wins], g[wins], atol=1e-5, rtol=1e-5)
    others = torch.stack([g, noise(4), noise(3, key=6), g.roll(1)])
    assert (torch.corrcoef(others) - torch.eye(4)).abs().max() < 0.02


def test_an_argmax_with_noise_has_the_law_that_it_is_drawn_from():
    """χ²-like: 20,000 draws, each frequency within five standard errors, also in float32."""
    p = torch.tensor([0.5, 0.3, 0.0, 0.15, 0.05])
    key = torch.arange(20_000)
    g = gumbel_noise(key, torch.full((20_000, 1), 7), p.expand(20_000, 1, 5))
    drawn = perturbed(p, g).argmax(-1).flatten()
    share = torch.bincount(drawn, minlength=5) / 20_000
    assert share[2] == 0
    assert ((share - p).abs() <= 5 * (p * (1 - p) / 20_000).sqrt()).all()


@pytest.mark.parametrize("name", slow_but(["eagle-2", "sjd"], LOSSLESS))
def test_every_lossless_method_draws_the_tokens_of_ar(shallow_5x5, name):
    assert images(shallow_5x5, name) == images(shallow_5x5, "ar")


@pytest.mark.parametrize(
    ("name", "options"),
    slow_but(
        [("sd", {"tree": "chain", "acceptance": "block"})],
        [
            ("sd", {"tree": "chain", "acceptance": "block"}),
            ("eagle-1", {"tree": "static"}),
            ("adt-tree", {"init": "random"}),
            ("sjd", {"init": "vertical-sample"}),
            ("sjd", {"variant": "reference"}),
            ("sjd", {"variant": "reference", "init": "horizontal-sample"}),
            ("scd", {"coupling": "gumbel"}),
        ],
    ),
)
def test_so_do_their_other_forms_cut_and_guided(shallow_5x5, name, options):
    cut = Sampling(noise="shared", temperature=1.3, top_k=40, top_p=0.95, min_p=0.01, guidance=2.0)
    made = images(shallow_5x5, name, sampling=cut, **options)
    assert made == images(shallow_5x5, "ar", sampling=cut)


@pytest.mark.parametrize("name", ["ar", "sjd"])
def test_an_image_does_not_depend_on_its_batch(shallow_5x5, name):
    alone = [images(shallow_5x5, name, [caption])[0] for caption in CAPTIONS]
    assert alone == images(shallow_5x5, name)
    assert alone != images(shallow_5x5, name, seed=1)


@pytest.mark.parametrize("name", slow_but(["sjd"], ["sjd", "eagle-2", "medusa", "zipar"]))
def test_recorded_steps_read_the_noise_of_their_own_image(shallow_5x5, name):
    recorded = replace(shallow_5x5, graphs=Graphs(frozen))
    decoder = build(recorded, method(name), SHARED)
    made = [engine.generate(decoder, [one])[0].tokens.tolist() for one in CAPTIONS[:2]]
    assert made == images(shallow_5x5, name, CAPTIONS[:2])


@pytest.mark.parametrize(("name", "lead"), [("zipar", "window"), ("pjd", "c")])
def test_rows_draw_with_it_too(shallow_8x8, name, lead):
    whole = images(shallow_8x8, "ar")
    assert images(shallow_8x8, name, **{lead: 256}) == whole
    ahead = images(shallow_8x8, name, **{lead: 2})
    assert [image[:8] for image in ahead] == [image[:8] for image in whole]  # the first row
    assert ahead != whole


def test_greedy_decoding_has_no_noise(shallow_8x8):
    greedy = Sampling(temperature=0.0)
    shared = Sampling(temperature=0.0, noise="shared")
    assert images(shallow_8x8, "lantern", sampling=shared) == images(
        shallow_8x8, "lantern", sampling=greedy
    )


@pytest.mark.parametrize("name", ["lantern", "cool-sd", "sjd++", "sjd-sv"])
def test_a_lossy_test_is_refused_with_the_reason(shallow_8x8, name):
    with pytest.raises(UserError, match="need uniforms that are independent of its drafts"):
        build(shallow_8x8, method(name), SHARED)


def test_what_waits_for_an_equal_draw_reports_no_fidelity_loss(shallow_8x8):
    from lanternbench.measure.fidelity import decode_loss

    losses = {}
    for name, options in (("ar", {}), ("zipar", {}), ("pjd", {"c": 2})):
        decoder = build(shallow_8x8, method(name, **options), SHARED)
        made = engine.generate(decoder, CAPTIONS[:1], trace=True)[0]
        losses[name] = float(decode_loss(decoder, made.trace, made.tokens[None]))
    assert losses["ar"] == 0
    assert losses["zipar"] > 0
    assert losses["pjd"] != losses["pjd"]
