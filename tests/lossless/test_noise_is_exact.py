"""Shared noise is verified exactly on tables, and token by token on a target."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import of_side, slow_but

from lanternbench import lossless
from lanternbench.engine.decode import Generation
from lanternbench.engine.noise import gumbel_noise, perturbed
from lanternbench.engine.state import DecodeState
from lanternbench.engine.verify import OrderedTest
from lanternbench.lossless import SAME_NOISE, WORLDS, shared_noise, verify_method
from lanternbench.lossless.shared_noise import missed, noise_tables, tokens_of_ar
from lanternbench.lossless.tables import Tables, random_rows
from lanternbench.methods.method import method
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.registry import components
from lanternbench.settings import Sampling

FORMS = {
    "chain": ("eagle-1", {"tree": "chain", "depth": 2}),
    "static": ("eagle-1", {"tree": "static"}),
    "dynamic": ("eagle-2", {}),
    "adaptive": ("adt-tree", {}),
    "window": ("sjd", {}),
    "siblings": ("sjd-pac", {}),
    "chosen": ("medusa", {}),
}
CUT = Sampling(guidance=1.5, temperature=1.3, top_k=3, top_p=0.9, min_p=0.05)


@pytest.mark.parametrize("world", range(len(WORLDS)))
@pytest.mark.parametrize("form", slow_but(["chain", "dynamic", "window"], FORMS))
def test_every_image_comes_of_the_noise_of_which_ar_draws_it(form, world):
    name, options = FORMS[form]
    assert missed(WORLDS[world](world), method(name, **options), 1).probability < SAME_NOISE


@pytest.mark.parametrize("form", FORMS)
def test_so_does_it_guided_with_temperature_top_k_top_p_and_min_p_at_once(form):
    name, options = FORMS[form]
    tables = Tables(4, 4, 3, "dense", CUT)
    assert missed(tables, method(name, **options), 2).probability < SAME_NOISE


def test_the_noise_of_all_images_is_independent_and_gumbel_distributed():
    """Weighted means over 2,592 tables; a wrong race moves them by tenths."""
    tables = Tables(3, 4, 5, "dense")
    family = noise_tables(tables, 0)
    assert float(family.weight.sum()) == pytest.approx(1)
    q = tables.world().q
    for image, noise in zip(family.images.tolist(), family.noise.tolist(), strict=True):
        for n, x in enumerate(image):
            scores = []
            for share, g in zip(q(tuple(image[:n])), noise[n], strict=True):
                scores.append(math.log(share) + g)
            assert scores.index(max(scores)) == x
    exponentials = (-family.noise).exp().flatten(1)
    mean = family.weight @ exponentials
    assert (mean - 1).abs().max() < 0.15
    centred = exponentials - mean
    covariance = centred.mT @ (family.weight[:, None] * centred)
    assert (covariance - torch.eye(12)).abs().max() < 0.35


def test_noise_that_two_positions_share_is_noticed(monkeypatch):
    drawn = DecodeState.drawn
    monkeypatch.setattr(DecodeState, "drawn", lambda self, p, n: drawn(self, p, n.clamp(max=2)))
    assert missed(WORLDS[0](0), method("sjd"), 1).probability > 0.1


def test_noise_that_depends_on_the_step_is_noticed(monkeypatch):
    drawn = DecodeState.drawn
    monkeypatch.setattr(DecodeState, "drawn", lambda self, p, n: drawn(self, p, n + self.steps))
    chain = method("eagle-1", tree="chain", depth=1)
    assert missed(Tables(3, 5, 0, "dense"), chain, 1).probability > 0.1


def test_an_accepted_child_that_the_target_did_not_draw_is_noticed(monkeypatch):
    def generous(self, q, best, parent, draft):
        rows = q.gather(1, parent[..., None].expand(-1, -1, q.shape[-1]))
        return rows.gather(2, draft.tokens[..., None])[..., 0] > 0.3

    monkeypatch.setattr(OrderedTest, "accept_greedily", generous)
    assert missed(WORLDS[0](0), method("eagle-1"), 1).probability > 0.01


def test_a_single_draft_is_accepted_at_least_as_often_as_the_coupling_promises():
    """P(both argmax agree) = Σ_x 1 / Σ_y max(p(y)/p(x), q(y)/q(x)) ≥ (1 − TV)/(1 + TV).

    20,000 draws: within five standard errors.
    """
    generator = torch.Generator().manual_seed(0)
    count = 20_000
    for i in range(5):
        q, p = random_rows(2, 6, "dense", generator)
        larger = torch.maximum(p / p[:, None], q / q[:, None])
        promised = float((1 / larger.sum(1)).sum())
        tv = 0.5 * float((p - q).abs().sum())
        assert promised >= (1 - tv) / (1 + tv) - 1e-12
        g = gumbel_noise(torch.arange(count), torch.full((count, 1), i), p.expand(count, 1, 6))
        agree = perturbed(p, g).argmax(-1) == perturbed(q, g).argmax(-1)
        error = 5 * math.sqrt(promised * (1 - promised) / count)
        assert float(agree.double().mean()) == pytest.approx(promised, abs=error)


def test_a_targets_images_are_compared_with_those_of_ar_and_near_ties_counted(
    shallow_8x8, monkeypatch
):
    assert tokens_of_ar(shallow_8x8, method("sjd"), 2, 0) == (0, 0)
    drawn = DecodeState.drawn

    def late(self, p, position):
        wrong = self.max_nodes > 1 and self.steps in (3, 6)
        return drawn(self, p, position + wrong)

    monkeypatch.setattr(DecodeState, "drawn", late)
    assert tokens_of_ar(shallow_8x8, method("sjd"), 2, 0) == (2, 0)
    monkeypatch.setattr(shared_noise, "rounding_error", lambda _: 1e9)
    assert tokens_of_ar(shallow_8x8, method("sjd"), 2, 0) == (0, 2)


@pytest.mark.slow
def test_verify_speaks_of_images_and_near_ties(shallow_8x8, monkeypatch):
    monkeypatch.setattr(lossless, "_on_tables", lambda *_: iter(()))  # says nothing of noise
    rows = list(verify_method(method("sjd"), shallow_8x8, 0, 4))
    details = {row.check: row.detail for row in rows if "shared noise" in row.check}
    assert details == {
        "tables: shared noise": "P(noise whose image is not ar's), 5,536 tables of noise",
        "tiny: shared noise": "images that are not ar's token for token, of 4",
    }


SUPPORTED = [
    name
    for name, preset in components("preset").items()
    if preset.lossless and name not in ("ar", "dflash")
]


@pytest.fixture(scope="module")
def ar_once() -> Iterator[None]:
    """The images of ``ar``, which every method is compared with, are drawn once."""
    generate = shared_noise.generate
    drawn: list[Generation] = []

    def generated(*args: Any, **options: Any) -> list[Generation]:
        if "trace" not in options:
            return generate(*args, **options)
        if not drawn:
            drawn.extend(generate(*args, **options))
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_noise, "generate", generated)
        yield


@pytest.fixture(scope="module")
def small_images_of_all_layers() -> Target:
    """The bundled target with images of 5 × 5 tokens."""
    return of_side(tiny.load(), 5)


@pytest.mark.slow
@pytest.mark.usefixtures("ar_once")
@pytest.mark.parametrize("name", SUPPORTED)
def test_64_images_of_the_bundled_model_are_those_of_ar(small_images_of_all_layers, name):
    assert tokens_of_ar(small_images_of_all_layers, method(name), 64, 0).images == 0
